"""``manage.py`` as a person runs it: real processes on a data folder of their own."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """One JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal:
    """Runs commands in ``folder``, whose database and data are there too. Its first command is
    the first use of all, unless ``used``: then the tables are there already."""

    def __init__(self, folder: Path, *, used: bool = False, **environment: str) -> None:
        self.folder = folder
        if used:
            shutil.copy(_empty_database(), folder / "rows.sqlite3")
        self.environment = {n: os.environ[n] for n in PASSED_ON if n in os.environ} | {
            "CYBERAGENT_DATA_DIR": str(folder / "data"),
            "DATABASE_URL": f"sqlite:///{folder / 'rows.sqlite3'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            cwd=self.folder,
            env=self.environment,
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **options,
            },
        )

    def __call__(self, *arguments: str, given: bytes | None = None) -> Result:
        """Runs to the end. ``given``: standard input."""
        with self.start(*arguments, stdin=subprocess.PIPE) as process:
            out, err = process.communicate(given or b"", timeout=120)
        return Result(process.returncode, out.decode(), err.decode())


@functools.cache
def _empty_database() -> Path:
    """A file with all tables, made once by a first use."""
    folder = Path(tempfile.mkdtemp(prefix="cyberagent-empty-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    assert Terminal(folder)("token", "--list").code == 0
    return folder / "rows.sqlite3"
