"""The database sets itself up: whoever comes first brings the tables up to date.

Source: docs/terminal.md, "First use".
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from cyberagent.core.errors import CyberAgentError

_ADVISORY_LOCK = 7_265_943_301
"""Any number that nothing else in the database locks: PostgreSQL's locks are plain integers."""


class DatabaseUnusable(CyberAgentError):
    """The database cannot be reached, or its file cannot be written."""


def ensure_database() -> None:
    """Create or migrate the tables where that is due; quiet, and safe when two start at once.
    Raises DatabaseUnusable with the reason."""
    try:
        _make_folder()
        _try_to_reach()
        if _is_due():
            with _one_at_a_time():
                if _is_due():
                    call_command("migrate", verbosity=0, interactive=False)
    except (DatabaseError, OSError) as error:
        raise DatabaseUnusable(f"the database cannot be used: {_first_line(error)}") from None


def _is_due() -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _file() -> Path | None:
    """The database's file; None for PostgreSQL and for a database in memory."""
    if connection.vendor != "sqlite" or connection.is_in_memory_db():
        return None
    return Path(connection.settings_dict["NAME"]).absolute()


def _make_folder() -> None:
    if (file := _file()) is not None:
        file.parent.mkdir(parents=True, exist_ok=True)


def _try_to_reach() -> None:
    """Raises at once where PostgreSQL is not there: its pool would try for 20 seconds."""
    if connection.vendor == "postgresql" and connection.connection is None:
        params = {k: v for k, v in connection.get_connection_params().items() if k in _REACH}
        with connection.wrap_database_errors:
            connection.Database.connect(**params, connect_timeout=5).close()


_REACH = ("dbname", "user", "password", "host", "port", "sslmode")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Held by one process while it migrates; the others wait and then find nothing to do."""
    file = _file()
    if file is not None:
        with file.with_name(f".{file.name}.migrate").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    elif connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_ADVISORY_LOCK])
            try:
                yield
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_ADVISORY_LOCK])
    else:
        yield


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
