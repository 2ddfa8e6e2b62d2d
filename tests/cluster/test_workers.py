"""Real workers and a real web process on PostgreSQL and a Redis-protocol server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).resolve().parent.parent.parent

START = """
import sys, django
django.setup()
from cyberagent.core.config import RunConfig
from traces import commands
script = {"turns": [{"calls": [{"goal": {"add": "Wait"}}]}] * 30 + [{"say": "End."}]}
options = {"script": script, "speed": float(sys.argv[1])}
config = RunConfig(provider="scripted", provider_options=options)
print(commands.start(None, "Go on.", config).pk)
"""


class Cluster:
    """The processes of one installation; ``row`` asks its database."""

    def __init__(self, database: str, redis: str, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.environment = os.environ | {
            "DATABASE_URL": database,
            "REDIS_URL": redis,
            "CYBERAGENT_DATA_DIR": str(folder),
            "DJANGO_SETTINGS_MODULE": "cyberagent.settings",
        }
        self.processes: list[subprocess.Popen[str]] = []
        self.run("manage.py", "migrate", "--verbosity=0")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def spawn(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", *arguments],
                    env=self.environment,
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    text=True,
                )
            )

    def worker(self, name: str) -> None:
        self.spawn(
            name, "celery", "-A", "cyberagent", "worker", "--pool=solo", "-n", f"{name}@here",
            "--without-gossip", "--without-mingle",
        )  # fmt: skip

    def row(self, query: str, *params: Any) -> Any:
        with psycopg.connect(self.database) as connection:
            return connection.execute(query, params).fetchone()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def cluster(database: str, redis: str, folder: Path) -> Iterator[Cluster]:
    made = Cluster(database, redis, folder)
    try:
        yield made
    finally:
        made.stop()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain: {what}"
        time.sleep(0.1)


STATE = "SELECT status, lease_owner, steps FROM traces_trace WHERE id = %s"


def test_a_run_outlives_the_worker_that_drove_it(
    postgres_database: str, redis_url: str, tmp_path: Path, unused_tcp_port: int
):
    with cluster(postgres_database, redis_url, tmp_path) as made:
        made.worker("first")
        trace_id = made.run("-c", START, "200")
        wait_for(lambda: made.row(STATE, trace_id)[2] >= 3, "three steps")
        driver = int(made.row(STATE, trace_id)[1].split(":")[1])
        assert driver == made.processes[0].pid
        os.kill(driver, signal.SIGKILL)
        made.processes[0].wait()
        left = made.row(STATE, trace_id)
        assert left[0] == "running"

        made.worker("second")
        made.spawn("web", "daphne", "-p", str(unused_tcp_port), "cyberagent.asgi:application")
        wait_for(lambda: made.row(STATE, trace_id)[0] != "running", "the end of the run")
        assert made.row(STATE, trace_id) == ("completed", "", 31)
        sessions = made.row(
            "SELECT count(*) FROM traces_event WHERE trace_id = %s AND kind = 'Session'", trace_id
        )
        assert sessions == (2,)
        last = made.row(
            "SELECT count(*), max(sequence), count(DISTINCT sequence) FROM traces_message"
            " WHERE trace_id = %s",
            trace_id,
        )
        assert last[0] == last[1] == last[2]
        events = made.row(
            "SELECT count(*), max(number) FROM traces_event WHERE trace_id = %s", trace_id
        )
        assert events[0] == events[1]
        ends = made.row(
            "SELECT count(*) FROM traces_event WHERE trace_id = %s AND kind = 'Done'", trace_id
        )
        assert ends == (1,)
