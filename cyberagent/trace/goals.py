"""The plan as an immutable value: goals, and the operations that make a new plan of an old one.

    tree, changes = GoalTree(mission="Add a login").apply(GoalOperation(add="Analyse, Build"))

An operation either works whole or raises InvalidGoalOperation; the old value stays as it was in
both cases. Source: docs/goals.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, cast

from cyberagent.core.errors import InvalidGoalOperation, InvalidInput
from cyberagent.core.types import Json, Message, ToolCall
from cyberagent.trace.goal_draft import Draft
from cyberagent.trace.goal_values import (
    ID,
    LONGEST_ID,
    Change,
    Goal,
    GoalOperation,
    Status,
    UnknownGoal,
    given,
)
from cyberagent.trace.plan_text import plan_text
from cyberagent.trace.todos import Todo, read_todos, write_todos
from cyberagent.trace.tree import pair

__all__ = [
    "Change",
    "Goal",
    "GoalOperation",
    "GoalTree",
    "Status",
    "UnknownGoal",
    "replay",
]

Changes: TypeAlias = tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalTree:
    """The whole plan. ``roots``: ids of the top-level goals, in the order shown; ``by_id``:
    every goal there ever was; ``current``: id of the one goal in focus, which is open."""

    mission: str = ""
    roots: tuple[str, ...] = ()
    by_id: Mapping[str, Goal] = field(default_factory=dict[str, Goal])
    current: str | None = None

    def apply(self, operation: GoalOperation) -> tuple[GoalTree, Changes]:
        """The plan after ``operation``, and what changed, in order. Raises
        InvalidGoalOperation, whose text names the problem."""
        draft = Draft(self.by_id, self.roots, self.current)
        draft.run(operation)
        return self._after(draft, focus_told=given(operation.focus))

    def apply_todos(self, todos: Sequence[Todo]) -> tuple[GoalTree, Changes]:
        """The plan whose top level says what ``todos`` say. Raises InvalidGoalOperation."""
        draft = Draft(self.by_id, self.roots, self.current)
        write_todos(draft, todos)
        return self._after(draft)

    def _after(self, draft: Draft, *, focus_told: bool = False) -> tuple[GoalTree, Changes]:
        """``draft`` as a value. Where the focus ended up is told once, at the end."""
        told = draft.changes
        if focus_told or draft.current != self.current:
            told = [*told, Change("focused", draft.current or "")]
        tree = GoalTree(
            mission=self.mission,
            roots=tuple(draft.roots),
            by_id=draft.by_id,
            current=draft.current,
        )
        return tree, tuple(told)

    def __contains__(self, goal_id: object) -> bool:
        return goal_id in self.by_id

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, goal_id: str) -> Goal:
        """Raises UnknownGoal."""
        if goal_id not in self.by_id:
            raise UnknownGoal(goal_id)
        return self.by_id[goal_id]

    @property
    def focused(self) -> Goal | None:
        return self.by_id[self.current] if self.current else None

    def walk(self) -> Iterator[Goal]:
        """Every goal in the order shown, parents before their children."""
        waiting = list(reversed(self.roots))
        while waiting:
            goal = self.by_id[waiting.pop()]
            yield goal
            waiting.extend(reversed(goal.children))

    def open_goals(self) -> tuple[Goal, ...]:
        return tuple(g for g in self.walk() if g.is_open)

    def progress(self) -> tuple[int, int]:
        """Top-level goals completed, and all top-level goals that are not abandoned."""
        statuses = [self.by_id[g].status for g in self.roots]
        return statuses.count("completed"), len(statuses) - statuses.count("abandoned")

    def to_prompt(
        self, include_summary: bool = False, language: str = "en", *, limit: int = 0
    ) -> str:
        """The plan as models read it; with ``include_summary`` what came of each goal too.
        ``limit``: characters; a longer plan shows what stands around the focus (0: no limit)."""
        return plan_text(self, include_summary, language, limit)

    def to_json(self) -> dict[str, Json]:
        """``{"mission", "current_id", "goals": [{"id", "description", "status", …,
        "children": [goal, …]}]}``; empty fields of a goal are left out."""
        return {
            "mission": self.mission,
            "current_id": self.current,
            "goals": [self._goal_json(self.by_id[g]) for g in self.roots],
        }

    def _goal_json(self, goal: Goal) -> dict[str, Json]:
        out: dict[str, Json] = {f.name: getattr(goal, f.name) for f in fields(Goal)[:-1]}
        out = {k: v for k, v in out.items() if v != ""}
        if goal.children:
            out["children"] = [self._goal_json(self.by_id[c]) for c in goal.children]
        return out

    @classmethod
    def from_json(cls, value: Json) -> GoalTree:
        """The plan that :meth:`to_json` wrote. Raises InvalidInput on anything else."""
        plan = _object(value, "the plan")
        by_id: dict[str, Goal] = {}
        roots = _read_goals(plan.get("goals", []), "", by_id)
        current = plan.get("current_id")
        if current is not None and not (current in by_id and by_id[current].is_open):
            raise InvalidInput(f"malformed plan: the focus {current!r} is not an open goal")
        mission = _text(plan.get("mission", ""), "mission")
        return cls(mission=mission, roots=roots, by_id=by_id, current=current)


# Reading -----------------------------------------------------------------------------------

_STATUSES = ("pending", "in_progress", "completed", "abandoned")
_PRIORITIES = ("", "high", "medium", "low")


def _object(value: Json, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"malformed plan: {what} must be an object")
    return cast("dict[str, Any]", value)


def _text(value: Json, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"malformed plan: {what} must be a text")
    return value


def _read_goals(value: Json, parent: str, by_id: dict[str, Goal]) -> tuple[str, ...]:
    """Put goals and all below them into ``by_id``; the ids of the upper ones. As each id holds
    its parent's and is bounded, so is the depth of this recursion."""
    if not isinstance(value, list):
        raise InvalidInput("malformed plan: goals must be a list")
    ids: list[str] = []
    for item in cast("list[Any]", value):
        data = _object(item, "a goal")
        goal_id = _text(data.get("id"), "an id")
        if not ID.fullmatch(goal_id) or goal_id.rpartition(".")[0] != parent:
            raise InvalidInput(f"malformed plan: {goal_id!r:.120} cannot stand under {parent!r}")
        if goal_id in by_id or len(goal_id) > LONGEST_ID:
            raise InvalidInput(f"malformed plan: the id {goal_id[:120]} is there twice or too long")
        if data.get("status") not in _STATUSES or data.get("priority", "") not in _PRIORITIES:
            raise InvalidInput(f"malformed plan: unknown status or priority of goal {goal_id}")
        by_id[goal_id] = Goal(id=goal_id, description="")
        by_id[goal_id] = Goal(
            id=goal_id,
            description=_text(data.get("description"), "a description"),
            status=data["status"],
            summary=_text(data.get("summary", ""), "a summary"),
            reason=_text(data.get("reason", ""), "a reason"),
            priority=data.get("priority", ""),
            children=_read_goals(data.get("children", []), goal_id, by_id),
        )
        ids.append(goal_id)
    return tuple(ids)


# Replay --------------------------------------------------------------------------------------

TODO_TOOLS = frozenset({"todo_write", "TodoWrite", "todowrite"})
"""``todo_write`` and its twins in transcripts of other agents."""


def replay(
    messages: Sequence[Message], mission: str = "", *, start: GoalTree | None = None
) -> GoalTree:
    """The plan at the end of a path, from what the path holds; the engine's ``Replay`` port.

    From the newest snapshot on (``metadata["snapshot"]["goals"]``; without one, from ``start``
    or an empty plan) the calls of ``goal`` and ``todo_write`` are applied whose results are
    stored and no errors, in the order of their results. What cannot be applied (another agent's
    tool of that name, a snapshot that is none) is passed over: a path that was stored can always
    be shown.
    """
    tree, first = start or GoalTree(mission=mission), 0
    for place in range(len(messages) - 1, -1, -1):
        if (found := _snapshot(messages[place])) is not None:
            tree, first = found, place + 1
            break
    for one in pair(messages).answered:
        result = messages[one.result]
        if one.result >= first and not result.is_error and not result.is_placeholder:
            tree = _applied(tree, messages[one.caller].tool_calls[one.call])
    return tree


def _snapshot(message: Message) -> GoalTree | None:
    snapshot = message.metadata.get("snapshot")
    if not isinstance(snapshot, dict) or "goals" not in snapshot:
        return None
    with contextlib.suppress(InvalidInput):
        return GoalTree.from_json(cast("dict[str, Any]", snapshot)["goals"])
    return None


def _applied(tree: GoalTree, call: ToolCall) -> GoalTree:
    is_goal = call.name == "goal"
    if not is_goal and call.name not in TODO_TOOLS:
        return tree
    arguments = call.parsed()
    with contextlib.suppress(InvalidGoalOperation):
        if is_goal:
            return tree.apply(GoalOperation.from_arguments(arguments))[0]
        if isinstance(arguments, dict):
            listed = cast("dict[str, Any]", arguments).get("todos")
            todos = read_todos(listed, lenient=call.name != "todo_write")
            return tree.apply_todos(todos)[0]
    return tree
