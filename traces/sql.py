"""Statements of the write path, made once from the models and handed to the driver as they are.

An append is two SELECTs by key, two INSERTs and an UPDATE. Django's query compiler and cursor
wrappers cost more than all five; they are left out here and in no other place. Transactions are
Django's. Source: docs/rows.md, "Appending".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, models


def fetch(statement: str, params: Sequence[Any], names: Sequence[str]) -> dict[str, Any] | None:
    """The first row of a query, its columns under ``names``; None where there is none. To be
    called in a transaction, as all here: that is what opens the connection."""
    row = _run(statement, params).fetchone()
    return None if row is None else dict(zip(names, row, strict=True))


def insert(model: type[models.Model], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each given by all columns of ``model`` but its automatic key."""
    names, statement = _insert_statement(model)
    if len(rows) == 1:
        _run(statement, [rows[0][name] for name in names])
    elif rows:
        _run(statement, [[row[name] for name in names] for row in rows], many=True)


def update(model: type[models.Model], key: Any, changes: Mapping[str, Any]) -> None:
    """Set columns of the one row with that primary key."""
    _run(_update_statement(model, tuple(changes)), [*changes.values(), key])


def columns(names: Sequence[str], table: str = "") -> str:
    """``names`` as a piece of a SELECT."""
    prefix = f"{table}." if table else ""
    return ", ".join(f'{prefix}"{name}"' for name in names)


def locking() -> str:
    """What makes a SELECT lock its row; empty where a transaction locks everything (SQLite,
    whose transactions begin IMMEDIATE)."""
    has_locks = connections[DEFAULT_DB_ALIAS].features.has_select_for_update
    return " FOR NO KEY UPDATE" if has_locks else ""


def _run(statement: str, params: Sequence[Any], *, many: bool = False) -> Any:
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "sqlite":
        statement = _with_question_marks(statement)
        params = [_plain(row) for row in params] if many else _plain(params)
    with connection.wrap_database_errors:
        if not many:
            return connection.connection.execute(statement, params)
        return connection.connection.cursor().executemany(statement, params)


def _plain(values: Sequence[Any]) -> list[Any]:
    """Times as Django keeps them in SQLite: in UTC, without saying so."""
    return [
        str(v.astimezone(UTC).replace(tzinfo=None)) if type(v) is datetime else v for v in values
    ]


@lru_cache(maxsize=200)
def _with_question_marks(statement: str) -> str:
    return statement.replace("%s", "?")


@cache
def _insert_statement(model: type[models.Model]) -> tuple[tuple[str, ...], str]:
    meta = model._meta
    names = tuple(f.column for f in meta.concrete_fields if not isinstance(f, models.BigAutoField))
    marks = ", ".join(["%s"] * len(names))
    return names, f'INSERT INTO "{meta.db_table}" ({columns(names)}) VALUES ({marks})'


@lru_cache(maxsize=200)
def _update_statement(model: type[models.Model], names: tuple[str, ...]) -> str:
    meta = model._meta
    pairs = ", ".join(f'"{name}" = %s' for name in names)
    return f'UPDATE "{meta.db_table}" SET {pairs} WHERE "{meta.pk.column}" = %s'
