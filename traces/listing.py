"""The list of traces: filters, and pages by cursor.

Source: docs/api.md, "Addresses".
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from cyberagent.core.errors import InvalidInput
from traces.models import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Empty fields do not filter. ``parent``: sub-agents of that trace; empty: roots only.
    ``status`` may name several, separated by commas."""

    status: str = ""
    preset: str = ""
    model: str = ""
    owner: str = ""
    origin: str = ""
    search: str = ""
    parent: str = ""


def page(
    traces: QuerySet[Trace], wanted: Filter, *, cursor: str = "", limit: int = 100
) -> tuple[list[Trace], str | None]:
    """At most ``limit`` of ``traces``, newest first, after ``cursor``; and the next cursor.
    Raises InvalidInput for a status that does not exist or a cursor that is not one of ours."""
    found = narrowed(traces, wanted)
    if cursor:
        at, last = _read_cursor(cursor)
        found = found.filter(Q(created_at__lt=at) | Q(created_at=at, pk__lt=last))
    rows = list(found.select_related("owner").order_by("-created_at", "-pk")[: limit + 1])
    more = len(rows) > limit
    return rows[:limit], _cursor(rows[limit - 1]) if more else None


def narrowed(traces: QuerySet[Trace], wanted: Filter) -> QuerySet[Trace]:
    exact = {
        "preset": wanted.preset,
        "model": wanted.model,
        "origin": wanted.origin,
        "owner__username": wanted.owner,
    }
    for text in (*exact.values(), wanted.search, wanted.parent):
        if "\0" in text:
            raise InvalidInput("a filter must not hold NUL")
    found = traces.filter(parent_trace=wanted.parent or None)
    found = found.filter(**{field: text for field, text in exact.items() if text})
    if wanted.status:
        found = found.filter(status__in=_statuses(wanted.status))
    for word in wanted.search.split():
        found = found.filter(mission__icontains=word)
    return found


def _statuses(text: str) -> list[str]:
    wanted = [part.strip() for part in text.split(",")]
    for status in wanted:
        if status not in Trace.Status.values:
            raise InvalidInput(
                f"status must be of {', '.join(Trace.Status.values)}, not {status!r}"
            )
    return wanted


def _cursor(trace: Trace) -> str:
    text = f"{trace.created_at.isoformat()} {trace.pk}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        at, last = base64.urlsafe_b64decode(padded).decode().split(" ")
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None or "\0" in last:
            raise ValueError
    except (ValueError, binascii.Error, UnicodeError):
        raise InvalidInput("the cursor is not one that this list gave") from None
    return moment, last
