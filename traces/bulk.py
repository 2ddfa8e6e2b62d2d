"""Places for a whole tree of messages at once, in memory: what ``traces.place`` does for one
append, for an import of a hundred thousand. Both give the same branches, ranges and totals.

Source: docs/rows.md, "Importing".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from cyberagent.core.types import Message
from traces.place import Range, Totals, clipped
from traces.rows import hold


@dataclass(slots=True)
class PlannedBranch:
    """A branch to be: ``ranges`` name branches by their place in the plan. ``tip`` is the depth
    of its last message so far."""

    kind: str
    start_depth: int
    fork_sequence: int | None
    first_sequence: int
    ranges: list[Range]
    tip: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """Where one message stands; ``branch`` is a place in the plan's list."""

    branch: int
    depth: int
    goal: str
    totals: Totals


@dataclass(slots=True)
class TreePlan:
    """``placed[i]`` is the place of the message with sequence ``i`` + 1."""

    branches: list[PlannedBranch] = field(default_factory=list[PlannedBranch])
    placed: list[Planned] = field(default_factory=list[Planned])
    _goals: dict[tuple[int, str], tuple[list[int], list[Totals]]] = field(
        default_factory=dict[tuple[int, str], tuple[list[int], list[Totals]]]
    )

    def add(self, message: Message, *, orphan: bool = False) -> None:
        """Place the next message by sequence; its parent was placed before."""
        above = self.placed[message.parent_sequence - 1] if message.parent_sequence else None
        depth = above.depth + 1 if above else 1
        goal = hold(message.goal_id)
        before = self._totals_of(above, goal)
        branch = self._branch_for(message, above, depth)
        totals = before.with_(message, above.totals.rows if above else 0, orphan=orphan)
        self.branches[branch].tip = depth
        depths, found = self._goals.setdefault((branch, goal), ([], []))
        depths.append(depth)
        found.append(totals)
        self.placed.append(Planned(branch, depth, goal, totals))

    def _branch_for(self, message: Message, above: Planned | None, depth: int) -> int:
        if above is not None:
            branch = self.branches[above.branch]
            if branch.tip == above.depth and branch.kind == message.branch_type:
                return above.branch
        number = len(self.branches)
        ranges: list[Range] = []
        if above is not None:
            ranges += clipped(self.branches[above.branch].ranges, above.depth)
        ranges.append((number, depth, None))
        self.branches.append(
            PlannedBranch(
                message.branch_type, depth, message.parent_sequence, message.sequence, ranges
            )
        )
        return number

    def _totals_of(self, above: Planned | None, goal: str) -> Totals:
        """The goal's totals on the path to ``above``: its newest range that has some."""
        if above is None or above.goal == goal:
            return above.totals if above else Totals()
        for branch, _, end in reversed(self.branches[above.branch].ranges):
            if (branch, goal) in self._goals:
                depths, found = self._goals[branch, goal]
                top = above.depth if end is None else min(end, above.depth)
                if place := bisect_right(depths, top):
                    return found[place - 1]
        return Totals()


def plan_tree(messages: Sequence[Message], orphans: Collection[int] = ()) -> TreePlan:
    """The plan of a whole tree, its messages by sequence. ``orphans``: sequences of tool
    results that answer no call."""
    plan = TreePlan()
    for message in messages:
        plan.add(message, orphan=message.sequence in orphans)
    return plan


def in_parts(items: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    return (items[i : i + size] for i in range(0, len(items), size))
