"""The goals of the run page's tree, as values with their totals. Their rows: ``traces.treerows``.

Source: docs/pages.md, "The tree".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import connection

from cyberagent.core.errors import NotFound
from traces import paths
from traces.models import Trace
from traces.place import Totals, last_totals
from traces.rows import held

SHOWN_GOALS = 100
"""Goals of one page; earlier completed ones stand behind one line that opens them."""

OVER = ("completed", "abandoned")

COUNTED_GOALS = 300
"""Up to so many goals, a folded goal's totals are those of all below it too."""


# Goals -------------------------------------------------------------------------------------


@dataclass(slots=True)
class GoalView:
    """``own``: totals of its own messages; ``steps``, ``tokens``, ``ms``: with all below it.
    ``hidden``: children that are fetched when it is opened; ``behind``: the summary that stands for
    its messages, 0 where they are on the path."""

    goal_id: str
    parent: str
    description: str
    reason: str
    status: str
    summary: str
    is_current: bool
    children: list[GoalView] = field(default_factory=list["GoalView"])
    own: Totals = field(default_factory=Totals)
    steps: int = 0
    tokens: int = 0
    ms: int = 0
    hidden: bool = False
    behind: int = 0

    @property
    def dom_id(self) -> str:
        return dom_id(self.goal_id)

    @property
    def is_open(self) -> bool:
        return self.status == "in_progress"

    def walk(self) -> Iterable[GoalView]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Tree:
    """``goals``: top-level ones that are shown; ``earlier``: how many stand before them.
    ``before`` and ``after``: rows of no goal above and below the goals."""

    goals: list[GoalView]
    earlier: int
    before: int
    after: int
    counted: bool

    def walk(self) -> Iterable[GoalView]:
        for goal in self.goals:
            yield from goal.walk()

    @property
    def current(self) -> GoalView | None:
        return next((g for g in self.walk() if g.is_current), None)


def dom_id(goal_id: str) -> str:
    """An id that any selector can name: what is no letter or digit becomes _ and its code."""
    return "g-" + re.sub(r"[^A-Za-z0-9]", lambda m: f"_{ord(m.group()):x}_", goal_id)


def tree_of(trace: Trace, *, everything: bool = False) -> Tree:
    """The plan as the page shows it; ``everything``: the earlier goals too."""
    top, all_goals = _plan(trace)
    counted = len(all_goals) <= COUNTED_GOALS
    earlier = 0 if everything else _earlier(top)
    shown = top[earlier:]
    wanted = [g for t in shown for g in t.walk()] if not counted else all_goals
    totals = paths.goal_totals(trace, ["", *(g.goal_id for g in wanted[:COUNTED_GOALS])])
    for goal in top:
        _sum(goal, totals)
    for goal in shown:
        _hide(goal)
    _tell_where(trace, shown)
    mission = totals.get("", Totals()).goal_rows
    before = _rows_before_goals_end(trace, mission) if all_goals else mission
    return Tree(shown, earlier, before, mission - before, counted)


def children_of(trace: Trace, goal_id: str) -> list[GoalView]:
    """The goals right below one, with their totals. Raises NotFound."""
    goal = next((g for g in _plan(trace)[1] if g.goal_id == goal_id), None)
    if goal is None:
        raise NotFound("goal", goal_id)
    below = [g for child in goal.children for g in child.walk()][:COUNTED_GOALS]
    totals = paths.goal_totals(trace, [g.goal_id for g in below])
    for child in goal.children:
        _sum(child, totals)
        _hide(child)
    _tell_where(trace, goal.children)
    return goal.children


def _tell_where(trace: Trace, goals: Sequence[GoalView]) -> None:
    """Of goals that are over and have no row on the path: the summary that stands for it."""
    empty = [g for top in goals for g in top.walk() if g.status in OVER and not g.own.goal_rows]
    summaries = trace.messages.filter(source="summary", side_branch="").order_by("-sequence")
    newest = empty and summaries.values_list("sequence", "branch_id", "depth")[:20]
    spans = paths.ranges(trace) if newest else []
    for sequence, branch, depth in newest or ():
        if any(b == branch and start <= depth <= end for b, start, end in spans):
            for goal in empty:
                goal.behind = sequence
            return


def _plan(trace: Trace) -> tuple[list[GoalView], list[GoalView]]:
    """Top-level goals and all goals, in the order of the plan."""
    everything: list[GoalView] = []
    by_id: dict[str, GoalView] = {}
    top: list[GoalView] = []
    for row in trace.goals.all():
        view = GoalView(
            held(row.goal_id), held(row.parent_goal_id), held(row.description), held(row.reason),
            row.status, held(row.summary), row.is_current,
        )  # fmt: skip
        everything.append(view)
        by_id[view.goal_id] = view
        parent = by_id.get(view.parent)
        (parent.children if parent else top).append(view)
    return top, everything


def _earlier(top: Sequence[GoalView]) -> int:
    """How many leading goals that are over stand behind one line."""
    count = sum(1 + sum(len(list(c.walk())) for c in g.children if g.is_open) for g in top)
    earlier = 0
    for goal in top:
        if count <= SHOWN_GOALS or goal.status not in OVER:
            break
        earlier += 1
        count -= 1
    return earlier


def _sum(goal: GoalView, totals: Mapping[str, Totals]) -> None:
    goal.own = totals.get(goal.goal_id, Totals())
    goal.steps, goal.tokens, goal.ms = (
        goal.own.goal_steps, goal.own.goal_tokens, goal.own.goal_ms,
    )  # fmt: skip
    for child in goal.children:
        _sum(child, totals)
        goal.steps += child.steps
        goal.tokens += child.tokens
        goal.ms += child.ms


def _hide(goal: GoalView) -> None:
    """What is over is folded: what is below it comes when it is opened."""
    if goal.status in OVER and goal.children:
        goal.hidden, goal.children = True, []
    for child in goal.children:
        _hide(child)


_LAST_IN_A_GOAL = """
SELECT m."depth" FROM "traces_pathrange" r JOIN "traces_message" m
  ON m."branch_id" = r."branch_id" AND m."depth" <= %s
     AND (r."end_depth" IS NULL OR m."depth" <= r."end_depth")
WHERE r."path_id" = %s AND m."goal_id" <> ''
ORDER BY r."start_depth" DESC, m."depth" DESC LIMIT 1"""


def _rows_before_goals_end(trace: Trace, mission: int) -> int:
    """Rows of no goal up to the newest message that has one; the others stand below."""
    end = paths.end_of(trace)
    if end is None or not mission:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(_LAST_IN_A_GOAL, [end.depth, end.branch])
        found = cursor.fetchone()
    return last_totals(end.branch, found[0], "").goal_rows if found else mission
