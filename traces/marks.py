"""What happened between a run's calls, as marks above the timeline: compactions, injections,
rewinds, verdicts, sub-agents. Source: docs/pages.md, "Timeline".
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

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


class _Read:
    """What happened in a trace, read on from where the last reading ended: events never
    change. ``begun``: of each call of the main path, its event's number and its own."""

    def __init__(self) -> None:
        self.upto = 0
        self.calls = 0
        self.begun: list[tuple[int, int]] = []
        self.happened: list[Happened] = []

    def read(self, trace: Trace) -> Sequence[Happened]:
        if self.upto < trace.last_event:
            events = Event.objects.filter(
                trace=trace, number__gt=self.upto, number__lte=trace.last_event,
                kind__in=("CallStarted", "Compacted", "Injected", "Rewound", "Verdict",
                          "ChildStarted"),
            )  # fmt: skip
            for number, kind, data in events.order_by("number").values_list(
                "number", "kind", "data"
            ):
                self._take(number, kind, json.loads(data))
            self.upto = trace.last_event
        return self.happened

    def _take(self, number: int, kind: str, told: Mapping[str, Any]) -> None:
        if kind == "CallStarted":
            self.calls = told.get("call", self.calls)
            if not told.get("branch_id"):
                self.begun.append((number, self.calls))
        elif kind == "Compacted" and told.get("success", True):
            level: MarkKind = "level2" if told.get("level", 1) >= 2 else "level1"
            sizes = told.get("tokens_before", 0), told.get("tokens_after", 0)
            self.happened.append(Happened(level, self.calls, number, 0, *sizes))
        elif kind == "Injected" and told.get("fired", True):
            what = str(told.get("what", ""))
            self.happened.append(Happened("injected", self.calls, number, what=what))
        elif kind == "Rewound":
            to = told.get("to_sequence", 0)
            self.happened.append(Happened("rewound", self.calls, number, to))
        elif kind == "Verdict":
            what = str(told.get("verdict", ""))
            self.happened.append(Happened("verdict", self.calls, number, what=what))
        elif kind == "ChildStarted" and told.get("agent") != "validator":
            what = str(told.get("mission", ""))
            self.happened.append(Happened("child", self.calls, number, what=what))


def of(trace: Trace) -> list[Mark]:
    """At most SLOTS marks of each kind, in the order in which they stand on the line."""
    return placed(_read(trace.pk).read(trace), trace.last_call)


def calls_around(trace: Trace, number: int) -> tuple[int, int]:
    """The main path's calls before and after event ``number``; 0 where there is none."""
    read = _read(trace.pk)
    read.read(trace)
    place = bisect.bisect_left(read.begun, (number, 0))
    after = read.begun[place][1] if place < len(read.begun) else 0
    return (read.begun[place - 1][1] if place else 0), after


@lru_cache(maxsize=256)
def _read(trace_id: str) -> _Read:
    return _Read()


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
