"""The rows of the run page's tree, as values: by pages, with what hangs on them and what the newest
window made of them.

The cost of a page does not depend on how long the run is. Source: docs/pages.md, "The tree".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cyberagent.core.errors import NotFound
from cyberagent.core.types import Message
from cyberagent.core.window import BrokenManifest, chain, expand
from cyberagent.trace.merged import rows_of
from cyberagent.trace.rows import CallRow, StoredRow
from cyberagent.trace.tree import stands_for
from traces import paths
from traces.below import Below, below
from traces.models import Branch, Event, ModelCall, Trace
from traces.models import Message as MessageRow
from traces.rows import MESSAGE_COLUMNS, held, message_from

# Rows --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hanging:
    """Something that left the path at a message. ``kind``: ghost, branch or child. ``name``: of a
    ghost who left it, ``title`` why; of a branch its own. ``child``: the trace of one."""

    kind: str
    count: int = 0
    first: int = 0
    name: str = ""
    title: str = ""
    child: Below | None = None


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row with what a page says about it. ``gone``: the newest window no longer has it;
    ``strategy``: what took or changed it."""

    row: StoredRow
    hanging: tuple[Hanging, ...] = ()
    gone: bool = False
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """Of the newest window of the main path: what it holds. ``upto``: the newest message it
    could have held; ``changed``: sequence → strategy."""

    call: int = 0
    upto: int = 0
    holds: frozenset[int] = frozenset()
    changed: Mapping[int, str] = field(default_factory=dict[int, str])

    def gone(self, sequence: int) -> bool:
        return bool(self.call) and sequence <= self.upto and sequence not in self.holds


def goal_page(trace: Trace, goal_id: str, start: int, count: int) -> list[ShownRow]:
    """Rows ``start`` … of a goal ("": of none), at most ``count``."""
    found = paths.goal_rows(trace, goal_id, start, count)
    rows = shown_rows(trace, found.messages, found.results)
    skip = max(0, start - found.first_row)
    return rows[skip : skip + count]


def changed_rows(trace: Trace, sequences: Sequence[int]) -> list[tuple[str, int, ShownRow]]:
    """What new messages made or changed: goal, place among its rows from 0, row. A tool result
    changes the row of its call. A few queries for each goal, however many messages."""
    stored = MessageRow.objects.filter(trace=trace, sequence__in=sequences, side_branch="")
    places = stored.values_list("goal_id", "goal_rows", "shown")
    spans: dict[str, tuple[int, int]] = {}
    for goal, upto, shown in places:
        # A result shows nothing itself: the row before its total is the last of its caller's.
        first = upto - (shown or 1)
        low, high = spans.get(goal, (first, upto))
        spans[goal] = (min(low, first), max(high, upto))
    found: list[tuple[str, int, ShownRow]] = []
    for goal, (first, upto) in spans.items():
        start = max(0, first)
        page = paths.goal_rows(trace, held(goal), start, upto - start)
        rows = shown_rows(trace, page.messages, page.results)
        found += [(held(goal), page.first_row + n, row) for n, row in enumerate(rows)]
    return found


def shown_rows(
    trace: Trace, messages: Sequence[Message], results: Sequence[Message], *, beside: bool = False
) -> list[ShownRow]:
    """The rows of these messages. ``beside``: they are not on the main path, so that nothing
    is said about the window."""
    marks = Marks() if beside else newest_window(trace)
    hanging = hanging_of(trace)
    taken = None if beside else compacted(trace)
    by_call: dict[str, list[Message]] = {}
    for result in results:
        by_call.setdefault(result.tool_call_id, []).append(result)
    shown: list[ShownRow] = []
    for message in messages:
        own = [r for c in message.tool_calls for r in by_call.get(c.id, ()) if _answers(message, r)]
        rows = rows_of(message, sorted(own, key=lambda m: m.sequence))
        placed = _placed(_hung(hanging, message, own), rows)
        for row, things in zip(rows, placed, strict=True):
            at = getattr(row, "result", 0) or row.sequence
            gone = marks.gone(at)
            strategy = taken.get_at(at) if gone and taken else marks.changed.get(at, "")
            shown.append(ShownRow(row, things, gone, strategy))
    return shown


def _answers(message: Message, result: Message) -> bool:
    """Ids may be used again: a result belongs to the newest message before it with its call."""
    return message.depth < result.depth <= message.depth + 2 * len(message.tool_calls) + 1


def _hung(
    hanging: Mapping[int, Sequence[Hanging]], message: Message, results: Sequence[Message]
) -> tuple[Hanging, ...]:
    at = {message.sequence, *(r.sequence for r in results)}
    return tuple(h for sequence in sorted(at) for h in hanging.get(sequence, ()))


def _placed(hung: Sequence[Hanging], rows: Sequence[StoredRow]) -> list[tuple[Hanging, ...]]:
    """What hangs on each row of a message: a sub-agent on the call that asked for it, all else
    on the last one."""
    by_call = {r.call_id: n for n, r in reversed(list(enumerate(rows))) if isinstance(r, CallRow)}
    found: list[list[Hanging]] = [[] for _ in rows]
    for thing in hung:
        asked = by_call.get(thing.child.call) if thing.child and thing.child.call else None
        found[-1 if asked is None else asked].append(thing)
    return [tuple(things) for things in found]


def beside_page(trace: Trace, messages: Sequence[Message]) -> list[ShownRow]:
    """Rows of messages that stand beside the path, results told by where they stand."""
    results = [m for m in messages if m.role == "tool" and m.tool_call_id]
    asked = {c.id for m in messages for c in m.tool_calls}
    own = [m for m in messages if m.role != "tool" or m.tool_call_id not in asked]
    return shown_rows(trace, own, results, beside=True)


def read_message(trace: Trace, sequence: int) -> Message:
    """Raises NotFound."""
    row = MessageRow.objects.filter(trace=trace, sequence=sequence).values(*MESSAGE_COLUMNS).first()
    if row is None:
        raise NotFound("message", sequence)
    return message_from(row)


# What hangs on the path --------------------------------------------------------------------


def hanging_of(trace: Trace) -> Mapping[int, Sequence[Hanging]]:
    """Sub-agents, ghosts and side branches by the message that they hang on."""
    found: dict[int, list[Hanging]] = {}
    for one in below(trace.pk):
        if one.level == 0:
            found.setdefault(one.message or 1, []).append(Hanging("child", child=one))
    off = _off_path(trace.pk, trace.last_event, trace.head_sequence != trace.last_sequence)
    for sequence, things in off.items():
        found.setdefault(sequence, []).extend(things)
    return found


@lru_cache(maxsize=256)
def _off_path(trace_id: str, last_event: int, beside: bool) -> Mapping[int, Sequence[Hanging]]:
    # The number of the last event is part of the key: what was found stays true for it. (Of
    # sub-agents it does not: they have events of their own.)
    # ``beside``: the newest message is not the head, so that something stands beside the path.
    found: dict[int, list[Hanging]] = {}
    if beside or Branch.objects.filter(trace_id=trace_id).count() > 1:
        stood_for = _stood_for(trace_id)
        for side in paths.side_branches(trace_id):
            hung = Hanging("branch", side.count, side.first_sequence, side.branch_id, side.kind)
            found.setdefault(side.fork_sequence or 1, []).append(hung)
        rewinds = _rewinds(trace_id)
        for ghost in paths.ghosts(trace_id):
            if any(first <= ghost.first_sequence <= last for first, last in stood_for):
                continue
            by, why = rewinds.get(ghost.fork_sequence or 0, ("", ""))
            hung = Hanging("ghost", ghost.count, ghost.first_sequence, by, why)
            found.setdefault(ghost.fork_sequence or 1, []).append(hung)
    return found


def _rewinds(trace_id: str) -> dict[int, tuple[str, str]]:
    """Who went back to a message, and why, by that message: the newest of each."""
    events = Event.objects.filter(trace=trace_id, kind="Rewound").order_by("number")
    told = [json.loads(data) for data in events.values_list("data", flat=True)]
    return {t["to_sequence"]: (t.get("by", ""), t.get("why", "")) for t in told}


def _stood_for(trace_id: str) -> list[tuple[int, int]]:
    """First and last sequence of what the trace's summaries stand for: each begins a branch."""
    begun = Branch.objects.filter(trace_id=trace_id, kind="").values("first_sequence")
    rows = MessageRow.objects.filter(trace_id=trace_id, sequence__in=begun, source="summary")
    told = [stands_for(message_from(row)) for row in rows.values(*MESSAGE_COLUMNS)]
    return [(t["first"], t["last"]) for t in told if "first" in t and "last" in t]


# What the newest window holds --------------------------------------------------------------


LOOKED_BACK = 200
"""Calls that are looked at, from the newest back, for one that was made on the main path."""


def newest_call(trace: Trace) -> int | None:
    """The number of the newest call of what is the main path now; None where there is none. A
    rewind leaves the calls after its point to the path that it leaves."""
    calls = ModelCall.objects.filter(
        trace=trace, branch_id="", after_sequence__lte=trace.head_sequence
    ).order_by("-number")
    spans = paths.ranges(trace)
    for count in (1, LOOKED_BACK):
        found = list(calls.values_list("number", "after_sequence")[:count])
        on_path = _on(trace, spans, {after for _, after in found})
        if on_path or len(found) < count:
            return next((number for number, after in found if after in on_path), None)
    return None


def _on(trace: Trace, spans: Sequence[paths.Span], sequences: set[int]) -> set[int]:
    """Which of the messages the path of ``spans`` runs through."""
    rows = MessageRow.objects.filter(trace=trace, sequence__in=sequences)
    return {
        sequence
        for sequence, branch, depth in rows.values_list("sequence", "branch_id", "depth")
        if any(b == branch and start <= depth <= end for b, start, end in spans)
    }


def newest_window(trace: Trace) -> Marks:
    newest = newest_call(trace)
    return _marks(trace.pk, newest) if newest else Marks()


@lru_cache(maxsize=64)
def _marks(trace_id: str, number: int) -> Marks:
    calls = ModelCall.objects.filter(trace_id=trace_id, number__lte=number).order_by("-number")
    read = {c.number: c for c in calls.only("number", "manifest", "after_sequence")[:60]}

    def manifest(wanted: int) -> Mapping[str, Any]:
        call = read.get(wanted) or ModelCall.objects.get(trace_id=trace_id, number=wanted)
        return json.loads(call.manifest)

    try:
        entries = expand(chain(number, manifest)).entries
    except (BrokenManifest, ModelCall.DoesNotExist, KeyError, ValueError):
        return Marks()
    changed = {e[1]: e[3] for e in entries if e[0] == "r"}
    holds = frozenset(e[1] for e in entries if e[0] in ("w", "r"))
    return Marks(number, read[number].after_sequence, holds, changed)


# What compaction took ----------------------------------------------------------------------


class Taken:
    """Stretches of sequences that compaction took out of the window or changed there; the newest
    that fits names the strategy. Read on from where the last reading ended: events never change."""

    def __init__(self) -> None:
        self.upto = 0
        self.edits: list[tuple[int, int, str]] = []

    def get_at(self, sequence: int) -> str:
        for first, last, strategy in reversed(self.edits):
            if first <= sequence <= last:
                return strategy
        return ""

    def read(self, trace: Trace) -> Taken:
        if self.upto < trace.last_event:
            events = Event.objects.filter(trace=trace, number__gt=self.upto, kind="Compacted")
            for data in events.order_by("number").values_list("data", flat=True):
                self._take(json.loads(data))
            self.upto = trace.last_event
        return self

    def _take(self, told: Mapping[str, Any]) -> None:
        if not told.get("success", True):
            return
        strategy = str(told.get("strategy", ""))
        self.edits.append((told.get("first", 0), told.get("last", 0), strategy.split(", ")[-1]))
        for edit in told.get("edits", ()):
            own = str(edit.get("strategy", ""))
            self.edits += [(first, last, own) for first, last in edit.get("messages", ())]


def compacted(trace: Trace) -> Taken:
    return _taken(trace.pk).read(trace)


@lru_cache(maxsize=256)
def _taken(trace_id: str) -> Taken:
    return Taken()


# Where a message stands --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    """``row``: its place in its goal's rows from 0, None where it is not on the main path.
    ``sequence`` and ``part`` name the row that shows it."""

    sequence: int
    part: int
    goal_id: str
    row: int | None


def where(trace: Trace, sequence: int, part: int = 0) -> Where:
    """The row that shows a message; a tool result is shown by its call's. Raises NotFound."""
    message = read_message(trace, sequence)
    branch, rows, shown = _totals_at(trace, sequence)
    if message.role == "tool" and not shown and (caller := _caller(trace, message)):
        message, part = caller
        branch, rows, shown = _totals_at(trace, message.sequence)
    on_path = any(b == branch and s <= message.depth <= e for b, s, e in paths.ranges(trace))
    part = min(part, max(0, shown - 1))
    row = rows - shown + part if on_path and shown else None
    return Where(message.sequence, part, message.goal_id, row)


def _totals_at(trace: Trace, sequence: int) -> tuple[int, int, int]:
    """Branch, rows of its goal up to the message, rows of its own."""
    found = MessageRow.objects.filter(trace=trace, sequence=sequence)
    return found.values_list("branch_id", "goal_rows", "shown")[0]


def _caller(trace: Trace, result: Message) -> tuple[Message, int] | None:
    """The message whose call a result answers, and which of its rows shows it."""
    above = paths.page(
        trace, first=max(1, result.depth - 64), last=result.depth - 1, head=result.sequence
    )
    for message in reversed(above):
        for place, row in enumerate(rows_of(message)):
            if getattr(row, "call_id", None) == result.tool_call_id and message.tool_calls:
                return message, place
    return None
