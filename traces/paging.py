"""Lists that are read page by page, newest first: cursors and days. Source: docs/api.md."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Field, Q, QuerySet

from cyberagent.core.errors import InvalidInput


def older(found: QuerySet[Any], cursor: str) -> QuerySet[Any]:
    """What comes after ``cursor`` ("": all) in the order of creation, newest first. Raises
    InvalidInput for a cursor that is not one of ours."""
    if not cursor:
        return found
    try:
        return after(found, *_read(cursor, found.model._meta.pk))
    except (ValueError, OverflowError, binascii.Error, ValidationError):
        raise InvalidInput("the cursor is not one that this list gave") from None


def after(found: QuerySet[Any], at: datetime, key: Any) -> QuerySet[Any]:
    """What comes after the row that was made ``at`` and is called ``key``, newest first."""
    return found.filter(Q(created_at__lt=at) | Q(created_at=at, pk__lt=key))


def cursor_of(row: Any) -> str:
    """The place of a row in the list, for the page after it."""
    text = f"{row.created_at.isoformat()} {row.pk}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read(cursor: str, key: Field[Any, Any]) -> tuple[datetime, Any]:
    padded = cursor.encode() + b"=" * (-len(cursor) % 4)
    at, last = base64.urlsafe_b64decode(padded).decode().split(" ")
    moment = datetime.fromisoformat(at)
    if moment.tzinfo is None or "\0" in last:
        raise ValueError(cursor)
    return moment, key.clean(last, None)


def since(found: QuerySet[Any], name: str, day: str) -> QuerySet[Any]:
    """What was made on ``day`` or later; "": all. Days are UTC's. Raises InvalidInput, naming
    the filter."""
    return found.filter(created_at__gte=_midnight(name, day)) if day else found


def until(found: QuerySet[Any], name: str, day: str) -> QuerySet[Any]:
    """What was made on ``day`` or before; "": all. Raises InvalidInput."""
    if not day:
        return found
    return found.filter(created_at__lt=_midnight(name, day) + timedelta(days=1))


def _midnight(name: str, day: str) -> datetime:
    try:
        # The last day that there is has none after it.
        found = min(date.fromisoformat(day), date.max - timedelta(days=1))
    except ValueError:
        raise InvalidInput(f"{name} must be a day such as 2026-11-30, not {day!r:.60}") from None
    return datetime.combine(found, time(), UTC)
