"""What was done to a run's windows, for pages and API: compactions, injections, knowledge.

Lists by number, oldest first; ``after`` is the number of the last row that the caller has.
Commands are rows of their own (``traces.models.Command``). Source: docs/compaction.md, docs/api.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import QuerySet

from cyberagent.core import events
from cyberagent.core.errors import InvalidInput
from cyberagent.core.injection import CONTEXT_TOOL
from cyberagent.core.types import Json, Message, ToolCall
from traces.models import Event, Knowledge, Trace
from traces.rows import EVENT_COLUMNS, event_from
from traces.store import read_messages
from traces.treerows import Marks, newest_window

InWindow = Literal["whole", "changed", "gone", "later", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Something that the framework put into the window, or held back (``fired`` False). ``call``:
    the message that made the framework's call; ``message``: its result, None while there is none;
    ``tokens``: of the result. ``window``: what the newest window has of it, ``later`` where it is
    newer than that; "" where nothing came or no call was made."""

    number: int
    at: str
    what: str
    why: str
    fired: bool
    call: int | None = None
    message: int | None = None
    tokens: int = 0
    window: InWindow = ""

    def to_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def compactions(trace: Trace, *, after: int = 0, limit: int = 100) -> list[events.Compacted]:
    """The passes of a run, failed ones too."""
    found = _events(trace, events.Compacted.kind, after, limit)
    return [e for e in found if isinstance(e, events.Compacted)]


def injections(trace: Trace, *, after: int = 0, limit: int = 100) -> list[Injection]:
    found = _events(trace, events.Injected.kind, after, limit)
    return described(trace, [e for e in found if isinstance(e, events.Injected)])


def knowledge(
    trace: Trace, *, status: str = "", after: int = 0, limit: int = 100
) -> QuerySet[Knowledge]:
    """Entries by their rows' ids. Raises InvalidInput for a status that there is not."""
    found = Knowledge.objects.filter(trace=trace, pk__gt=after).select_related("judged_by")
    if status:
        if status not in Knowledge.Status.values:
            raise InvalidInput(f"status must be one of {', '.join(Knowledge.Status.values)}")
        found = found.filter(status=status)
    return found.order_by("pk")[:limit]


def _events(trace: Trace, kind: str, after: int, limit: int) -> list[events.Event]:
    rows = Event.objects.filter(trace=trace, kind=kind, number__gt=after).order_by("number")
    return [event_from(row) for row in rows.values(*EVENT_COLUMNS)[:limit]]


# Injections ----------------------------------------------------------------------------------


def described(trace: Trace, told: Sequence[events.Injected]) -> list[Injection]:
    """The events with what became of each, in their order."""
    callers = read_messages(trace.pk, sorted({e.message for e in told if e.message}))
    # The results of a batch are stored right after it.
    near = {n + k for n, m in callers.items() for k in range(1, len(m.tool_calls) + 1)}
    results = read_messages(trace.pk, sorted(near))
    marks = newest_window(trace)
    return [_described(e, callers, results, marks) for e in told]


def _described(
    event: events.Injected,
    callers: Mapping[int, Message],
    results: Mapping[int, Message],
    marks: Marks,
) -> Injection:
    caller = callers.get(event.message or 0) if event.fired else None
    result = _result(event.what, caller, results) if caller else None
    return Injection(
        number=event.number,
        at=event.at,
        what=event.what,
        why=event.why,
        fired=event.fired,
        call=caller.sequence if caller else None,
        message=result.sequence if result else None,
        tokens=result.tokens if result else event.tokens,
        window=in_window(result.sequence, marks) if result else "",
    )


def _result(what: str, caller: Message, results: Mapping[int, Message]) -> Message | None:
    made = {c.id for c in caller.tool_calls if c.made_by == "framework" and _what(c) == what}
    near = range(caller.sequence + 1, caller.sequence + len(caller.tool_calls) + 1)
    found = (results[n] for n in near if n in results)
    return next((m for m in found if m.role == "tool" and m.tool_call_id in made), None)


def _what(call: ToolCall) -> str:
    """What the event of a framework's call names."""
    if call.name == CONTEXT_TOOL:
        return CONTEXT_TOOL
    arguments: Any = call.parsed()
    return f"{call.name} {arguments.get('name')}" if isinstance(arguments, dict) else call.name


def in_window(sequence: int, marks: Marks) -> InWindow:
    """What the newest window has of a message."""
    if not marks.call:
        return ""
    if sequence > marks.upto:
        return "later"
    if sequence not in marks.holds:
        return "gone"
    return "changed" if sequence in marks.changed else "whole"
