"""Where a message stands in the tree: its branch, its depth, its running totals.

A branch is a piece of path; a path is a list of ranges of branches. A message goes on its
parent's branch where it can; else a new branch begins, and the ranges of the path it left are
copied up to the fork. Source: docs/rows.md, "Paths".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cyberagent.core.errors import NotFound
from cyberagent.core.types import Message
from cyberagent.trace.rows import row_count
from traces import sql
from traces.models import Branch, PathRange
from traces.rows import Row, hold

TOTALS = ("shown", "rows", "goal_rows", "goal_steps", "goal_tokens", "goal_ms")


@dataclass(frozen=True, slots=True)
class Totals:
    """Running totals along a path; see :class:`traces.models.Message`."""

    shown: int = 0
    rows: int = 0
    goal_rows: int = 0
    goal_steps: int = 0
    goal_tokens: int = 0
    goal_ms: int = 0

    def with_(self, message: Message, rows: int, *, orphan: bool = False) -> Totals:
        """The totals at ``message``; self are those of the last message of its goal, ``rows``
        the path's rows before it. ``orphan``: a tool result that answers no call."""
        shown = row_count(message, orphan=orphan)
        return Totals(
            shown,
            rows + shown,
            self.goal_rows + shown,
            self.goal_steps + is_answer(message),
            self.goal_tokens + message.tokens,
            self.goal_ms + (message.duration_ms or 0),
        )

    def columns(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in TOTALS}


def is_answer(message: Message) -> bool:
    """Whether a model made this message: one step of its goal."""
    return message.role == "assistant" and message.source in ("model", "import")


@dataclass(frozen=True, slots=True)
class Place:
    """A stored message as a parent: ``branch`` is a key, ``is_tip`` whether nothing follows it
    on its branch, ``kind`` its branch's kind."""

    sequence: int
    branch: int
    depth: int
    kind: str
    goal_id: str
    totals: Totals
    is_tip: bool


PLACE_NAMES = ("sequence", "branch", "depth", "goal_id", "kind", *TOTALS, "followed")
PLACE_COLUMNS = f"""
m."sequence", m."branch_id", m."depth", m."goal_id", b."kind", {sql.columns(TOTALS, "m")},
EXISTS (SELECT 1 FROM "traces_message" n
        WHERE n."branch_id" = m."branch_id" AND n."depth" = m."depth" + 1)"""
"""Of a message ``m`` and its branch ``b``, under the names of ``PLACE_NAMES``."""

_PLACE = f"""
SELECT {PLACE_COLUMNS}
FROM "traces_message" m JOIN "traces_branch" b ON b."id" = m."branch_id"
WHERE m."trace_id" = %s AND m."sequence" = %s"""


def place_of(trace_id: str, sequence: int) -> Place:
    """Raises NotFound."""
    row = sql.fetch(_PLACE, [trace_id, sequence], PLACE_NAMES)
    if row is None:
        raise NotFound("message", sequence)
    return place_from(row)


def place_from(row: Row) -> Place:
    return Place(
        sequence=row["sequence"],
        branch=row["branch"],
        depth=row["depth"],
        kind=row["kind"],
        goal_id=row["goal_id"],
        totals=Totals(*(row[name] for name in TOTALS)),
        is_tip=not row["followed"],
    )


class Chain:
    """Places messages one after the other, beginning under ``parent`` (None: a new root)."""

    def __init__(self, trace_id: str, parent: Place | None) -> None:
        self.trace_id = trace_id
        self.tip = parent
        self._goals: dict[str, Totals] = {}
        if parent is not None:
            self._goals[parent.goal_id] = parent.totals

    def add(self, message: Message) -> dict[str, Any]:
        """The columns that say where ``message``, the next of the chain, stands."""
        tip, goal = self.tip, hold(message.goal_id)
        before = self._totals_of(goal)
        if tip is None or not tip.is_tip or tip.kind != message.branch_type:
            branch = new_branch(self.trace_id, tip, message)
        else:
            branch = tip.branch
        totals = before.with_(message, tip.totals.rows if tip else 0)
        depth = tip.depth + 1 if tip else 1
        self._goals[goal] = totals
        self.tip = Place(message.sequence, branch, depth, message.branch_type, goal, totals, True)
        return {"trace_id": self.trace_id, "branch_id": branch} | totals.columns()

    def _totals_of(self, goal: str) -> Totals:
        """The goal's totals on the path so far; only a goal's first message of a chain is
        looked up."""
        if goal in self._goals or self.tip is None:
            return self._goals.get(goal, Totals())
        return last_totals(self.tip.branch, self.tip.depth, goal)


_LAST_OF_GOAL = f"""
SELECT {sql.columns(TOTALS, "m")}
FROM "traces_pathrange" r JOIN "traces_message" m
  ON m."branch_id" = r."branch_id" AND m."goal_id" = %s AND m."depth" <= %s
     AND (r."end_depth" IS NULL OR m."depth" <= r."end_depth")
WHERE r."path_id" = %s
ORDER BY r."start_depth" DESC, m."depth" DESC LIMIT 1"""


def last_totals(branch: int, depth: int, goal: str) -> Totals:
    """Totals at the last message of ``goal`` (a column's value) on the path that ends at
    ``depth`` of ``branch``: one look-up in an index for each range, the newest first."""
    row = sql.fetch(_LAST_OF_GOAL, [goal, depth, branch], TOTALS)
    return Totals(**row) if row else Totals()


def new_branch(trace_id: str, parent: Place | None, first: Message) -> int:
    """The key of a new branch that begins with ``first`` under ``parent``."""
    depth = parent.depth + 1 if parent else 1
    branch = Branch.objects.create(
        trace_id=trace_id,
        kind=first.branch_type,
        start_depth=depth,
        fork_sequence=parent.sequence if parent else None,
        first_sequence=first.sequence,
    )
    ranges = [PathRange(path=branch, branch=branch, start_depth=depth, end_depth=None)]
    if parent is not None:
        ranges += [
            PathRange(path=branch, branch_id=b, start_depth=start, end_depth=end)
            for b, start, end in clipped(ranges_of(parent.branch), parent.depth)
        ]
    PathRange.objects.bulk_create(ranges)
    return branch.pk


Range = tuple[int, int, int | None]
"""Branch, first depth, last depth (None: to the branch's tip)."""


def ranges_of(path: int) -> list[Range]:
    """The ranges of a path, from its root on."""
    found = PathRange.objects.filter(path_id=path).order_by("start_depth")
    return list(found.values_list("branch_id", "start_depth", "end_depth"))


def clipped(ranges: list[Range], depth: int) -> list[tuple[int, int, int]]:
    """``ranges`` up to ``depth``."""
    return [
        (branch, start, depth if end is None else min(end, depth))
        for branch, start, end in ranges
        if start <= depth
    ]
