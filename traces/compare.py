"""Two traces side by side, such as an original and its fork: where they part, the same goals,
what each has cost. Source: docs/pages.md, "Compare".
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cyberagent.core.types import Message
from traces import paths
from traces.models import Trace, ValidationResult
from traces.rows import held

STEP = 200
"""Messages of both paths that are compared at a time."""

MOST_GOALS = 500


@dataclass(frozen=True, slots=True)
class GoalSide:
    """One trace's side of a goal. ``ms``: milliseconds of models and tools."""

    status: str
    steps: int
    tokens: int
    ms: int


@dataclass(frozen=True, slots=True)
class GoalPair:
    """A goal of either trace, by its id; None on a side where it does not exist."""

    goal_id: str
    description: str
    one: GoalSide | None
    other: GoalSide | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """``shared``: messages that both paths begin with; ``last``: the sequence of the last of them
    in the one trace, 0 where nothing is shared. ``one_next`` and ``other_next``: the first in
    which they differ, None where a path ends there."""

    shared: int
    last: int
    one_next: Message | None
    other_next: Message | None
    goals: list[GoalPair]


def compared(one: Trace, other: Trace) -> Comparison:
    """Costs what the shared part is long, except for a fork and what it was forked from: theirs
    is known."""
    depth = _known_depth(one, other)
    while True:
        ours = paths.page(one, depth + 1, depth + STEP)
        theirs = paths.page(other, depth + 1, depth + STEP)
        same = 0
        for a, b in zip(ours, theirs, strict=False):
            if not _is_same(a, b):
                break
            same += 1
        depth += same
        if same < STEP:
            break
    last = paths.page(one, depth, depth)[-1].sequence if depth else 0
    one_next = ours[same] if same < len(ours) else None
    other_next = theirs[same] if same < len(theirs) else None
    return Comparison(depth, last, one_next, other_next, _goals(one, other))


def forked_from(trace: Trace) -> tuple[str, int] | None:
    """The trace that this one was forked from, and at which message; None for no fork."""
    told = json.loads(trace.context).get("forked_from")
    return (str(told["trace"]), int(told["message"])) if told else None


def own_verdict(trace: Trace) -> ValidationResult | None:
    """The newest verdict on what the trace itself handed in."""
    return ValidationResult.objects.filter(trace=trace).order_by("-sequence").first()


def _known_depth(one: Trace, other: Trace) -> int:
    """A fork shares all up to its point, unless one of both was rewound to before it since."""
    for fork, original in ((one, other), (other, one)):
        told = forked_from(fork)
        if told and told[0] == original.pk:
            at = paths.page(fork, head=told[1])[-1:]
            on_both = at and all(
                [m.sequence for m in paths.page(t, at[0].depth, at[0].depth)] == [told[1]]
                for t in (fork, original)
            )
            return at[0].depth if on_both else 0
    return 0


def _is_same(a: Message, b: Message) -> bool:
    return (a.role, a.parts, a.tool_call_id) == (b.role, b.parts, b.tool_call_id)


def _goals(one: Trace, other: Trace) -> list[GoalPair]:
    """The same goal is one of the same id and words: unrelated runs have a goal 1 each."""
    ours, theirs = _sides(one), _sides(other)
    both = list(dict.fromkeys([*ours, *theirs]))[:MOST_GOALS]
    return [GoalPair(*key, ours.get(key), theirs.get(key)) for key in both]


def _sides(trace: Trace) -> dict[tuple[str, str], GoalSide]:
    rows = {held(row.goal_id): row for row in trace.goals.all()[:MOST_GOALS]}
    totals = paths.goal_totals(trace, list(rows))
    found: dict[tuple[str, str], GoalSide] = {}
    for goal_id, row in rows.items():
        own = totals.get(goal_id)
        sums = (own.goal_steps, own.goal_tokens, own.goal_ms) if own else (0, 0, 0)
        found[goal_id, held(row.description)] = GoalSide(row.status, *sums)
    return found
