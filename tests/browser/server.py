"""A dashboard process as a person starts it: ``manage.py up`` on a data folder of its own."""

import os
import queue
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent.parent
SIGN_IN = re.compile(r"(http://\S+/sign-in/\S+)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """``start`` and ``stop`` or ``kill`` as often as wanted: port and rows stay the same.

    ``sign_in`` is the one-time link of the latest start. ``environment`` is laid over this
    process's own, of which no DATABASE_URL and no REDIS_URL is passed on.
    """

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.sign_in = ""
        self.lines: list[str] = []
        inherited = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        self.environment = inherited | {
            "CYBERAGENT_DATA_DIR": str(data_dir),
            "DJANGO_SETTINGS_MODULE": "cyberagent.settings",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self, timeout: float = 60) -> Self:
        """Returns once the sign-in link was printed. Seconds; RuntimeError with the output."""
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(self.port)],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        links: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=self._read, args=(self.process, links), daemon=True)
        reader.start()
        try:
            self.sign_in = links.get(timeout=timeout)
        except queue.Empty:
            self.sign_in = ""
        if not self.sign_in:
            self.stop()
            raise RuntimeError("manage.py up printed no sign-in link:\n" + "".join(self.lines))
        return self

    def _read(self, process: "subprocess.Popen[str]", links: "queue.Queue[str]") -> None:
        # To the end, link or not: a full pipe would stop the server at its next line.
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self.lines.append(line)
                if found := SIGN_IN.search(line):
                    links.put(found[1])
        links.put("")

    def stop(self) -> None:
        """As a person stops it (SIGTERM); killed if that takes more than ten seconds."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def kill(self) -> None:
        """As a power cut does it (SIGKILL)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
