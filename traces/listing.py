"""The list of traces: filters, and pages by cursor.

Source: docs/api.md, "Addresses".
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import OuterRef, QuerySet, Subquery

from cyberagent.core.errors import InvalidInput
from traces import paging
from traces.models import Trace, ValidationResult, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Empty fields do not filter. ``parent``: sub-agents of that trace; empty: roots only.
    ``status`` may name several, separated by commas; ``verdict``: what the newest one on the
    run's own answer says; ``since`` and ``until``: days, both inclusive, in UTC."""

    status: str = ""
    preset: str = ""
    model: str = ""
    owner: str = ""
    origin: str = ""
    search: str = ""
    parent: str = ""
    verdict: str = ""
    since: str = ""
    until: str = ""


def page(
    traces: QuerySet[Trace], wanted: Filter, *, cursor: str = "", limit: int = 100
) -> tuple[list[Trace], str | None]:
    """At most ``limit`` of ``traces``, newest first, after ``cursor``; and the next cursor.
    Raises InvalidInput for a status, verdict or day that does not exist, or a cursor that is not
    one of ours."""
    found = paging.older(narrowed(traces, wanted), cursor)
    rows = list(found.select_related("owner").order_by("-created_at", "-pk")[: limit + 1])
    more = len(rows) > limit
    return rows[:limit], paging.cursor_of(rows[limit - 1]) if more else None


def narrowed(traces: QuerySet[Trace], wanted: Filter) -> QuerySet[Trace]:
    exact = {
        "preset": wanted.preset,
        "model": wanted.model,
        "origin": wanted.origin,
        "owner__username": wanted.owner,
    }
    for text in (*exact.values(), wanted.search, wanted.parent, wanted.since, wanted.until):
        if "\0" in text:
            raise InvalidInput("a filter must not hold NUL")
    found = traces.filter(parent_trace=wanted.parent or None)
    found = found.filter(**{field: text for field, text in exact.items() if text})
    if wanted.status:
        found = found.filter(status__in=_statuses(wanted.status))
    for word in wanted.search.split():
        found = found.filter(mission__icontains=word)
    if wanted.verdict:
        if wanted.verdict not in Word.values:
            raise InvalidInput(f"verdict must be one of {', '.join(Word.values)}")
        own = ValidationResult.objects.filter(trace=OuterRef("pk")).order_by("-sequence")
        found = found.annotate(newest_verdict=Subquery(own.values("verdict")[:1]))
        found = found.filter(newest_verdict=wanted.verdict)
    return paging.until(paging.since(found, "since", wanted.since), "until", wanted.until)


def _statuses(text: str) -> list[str]:
    wanted = [part.strip() for part in text.split(",")]
    for status in wanted:
        if status not in Trace.Status.values:
            raise InvalidInput(
                f"status must be of {', '.join(Trace.Status.values)}, not {status!r}"
            )
    return wanted
