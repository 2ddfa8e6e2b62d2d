"""What happened between a run's calls, as marks above the timeline: compactions, injections,
rewinds, verdicts, sub-agents. Source: docs/pages.md, "Timeline".
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from traces.kept import Kept
from traces.models import Event, Trace

SLOTS = 40
"""Places for marks along the line; what falls into the same one is one mark with its count."""

MarkKind = Literal["level1", "level2", "rewound", "verdict", "injected", "child"]
KINDS: tuple[MarkKind, ...] = ("level1", "level2", "rewound", "verdict", "injected", "child")


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing. ``after``: the newest call before it, 0 where there was none; ``number``: of its
    event; ``message``: where a rewind led to; tokens of a compaction; ``what``: was injected, the
    verdict's word, the sub-agent's mission."""

    kind: MarkKind
    after: int
    number: int
    message: int = 0
    before_tokens: int = 0
    after_tokens: int = 0
    what: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """``x``: percent of the line's width; ``count`` things from ``first`` on, the last of them
    after call ``upto``."""

    kind: MarkKind
    x: float
    count: int
    first: Happened
    upto: int

    @property
    def lane(self) -> int:
        """Injections and sub-agents are many and stand below the others."""
        return int(self.kind in ("injected", "child"))


@dataclass(frozen=True, slots=True)
class _Read:
    """What happened in a trace, as far as event ``upto``. Events never change: it is only read
    on. ``calls``: the newest; ``begun``: of each call of the main path, its event's number and
    its own."""

    upto: int = 0
    calls: int = 0
    begun: tuple[tuple[int, int], ...] = ()
    happened: tuple[Happened, ...] = ()


_KINDS = ("CallStarted", "Compacted", "Injected", "Rewound", "Verdict", "ChildStarted")

_kept = Kept(_Read(), most=256)


def _read(trace: Trace) -> _Read:
    """What happened up to the trace's newest event, or further."""
    before = _kept.of(trace.pk)
    if before.upto >= trace.last_event:
        return before
    events = Event.objects.filter(
        trace=trace, number__gt=before.upto, number__lte=trace.last_event, kind__in=_KINDS
    )
    calls, begun, happened = before.calls, list(before.begun), list(before.happened)
    for number, kind, data in events.order_by("number").values_list("number", "kind", "data"):
        told = json.loads(data)
        if kind == "CallStarted":
            calls = told.get("call", calls)
            if not told.get("branch_id"):
                begun.append((number, calls))
        elif (one := _happened(number, kind, told, calls)) is not None:
            happened.append(one)
    after = _Read(trace.last_event, calls, tuple(begun), tuple(happened))
    _kept.keep(trace.pk, after)
    return after


def _happened(number: int, kind: str, told: Mapping[str, Any], calls: int) -> Happened | None:
    """The thing that an event tells of, after call ``calls``."""
    if kind == "Compacted" and told.get("success", True):
        level: MarkKind = "level2" if told.get("level", 1) >= 2 else "level1"
        sizes = told.get("tokens_before", 0), told.get("tokens_after", 0)
        return Happened(level, calls, number, 0, *sizes)
    if kind == "Injected" and told.get("fired", True):
        return Happened("injected", calls, number, what=str(told.get("what", "")))
    if kind == "Rewound":
        return Happened("rewound", calls, number, told.get("to_sequence", 0))
    if kind == "Verdict":
        return Happened("verdict", calls, number, what=str(told.get("verdict", "")))
    if kind == "ChildStarted" and told.get("agent") != "validator":
        return Happened("child", calls, number, what=str(told.get("mission", "")))
    return None


def of(trace: Trace) -> list[Mark]:
    """At most SLOTS marks of each kind, in the order in which they stand on the line."""
    return placed(_read(trace).happened, trace.last_call)


def calls_around(trace: Trace, number: int) -> tuple[int, int]:
    """The main path's calls before and after event ``number``; 0 where there is none."""
    begun = _read(trace).begun
    place = bisect.bisect_left(begun, (number, 0))
    after = begun[place][1] if place < len(begun) else 0
    return (begun[place - 1][1] if place else 0), after


def placed(happened: Sequence[Happened], calls: int) -> list[Mark]:
    """What happened, on a line of ``calls`` calls: between the call before and the one after."""
    slots: dict[tuple[MarkKind, int], list[Happened]] = {}
    for one in happened:
        slot = int(_x(one.after, calls) * SLOTS / 100.001)
        slots.setdefault((one.kind, slot), []).append(one)
    marks = [
        Mark(kind, _x(found[0].after, calls), len(found), found[0], found[-1].after)
        for (kind, _), found in slots.items()
    ]
    return sorted(marks, key=lambda m: (m.x, KINDS.index(m.kind)))


def _x(after: int, calls: int) -> float:
    if calls <= 1:
        return 0.0 if after == 0 else 100.0
    return round(100 * min(1.0, max(0.0, (after - 0.5) / (calls - 1))), 2)
