"""``todo_write``: a flat list of todos as another way to write the same plan. Source:
docs/goals.md, "todo_write"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from cyberagent.core.errors import InvalidGoalOperation
from cyberagent.core.types import Json
from cyberagent.trace.goal_draft import Draft
from cyberagent.trace.goal_values import Change, Goal, Priority, one_line

TodoStatus = Literal["pending", "in_progress", "completed", "cancelled"]
_STATUSES = ("pending", "in_progress", "completed", "cancelled")
_PRIORITIES = ("", "high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Todo:
    content: str
    status: TodoStatus = "pending"
    priority: Priority = ""


def read_todos(value: Json, *, lenient: bool = False) -> list[Todo]:
    """The todos of a call's argument. Raises InvalidGoalOperation, naming the one that is
    malformed; keys that are not known are passed over. ``lenient``: as another agent wrote them,
    a status or priority of its own counts as none, and what has no text is left out."""
    if not isinstance(value, list):
        raise InvalidGoalOperation("todos must be a list")
    items = cast("list[Any]", value)
    if lenient:
        items = [_tamed(item) for item in items if _has_text(item)]
    return [_read(n, item) for n, item in enumerate(items, start=1)]


def _has_text(value: Json) -> bool:
    content = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else None
    return isinstance(content, str) and bool(one_line(content))


def _tamed(todo: dict[str, Any]) -> dict[str, Any]:
    """The todo without a status or priority that we do not know."""
    known = {"status": _STATUSES, "priority": _PRIORITIES}
    return {k: v for k, v in todo.items() if k not in known or v in known[k]}


def _read(number: int, value: Json) -> Todo:
    if not isinstance(value, dict):
        raise InvalidGoalOperation(f"todo {number} must be an object")
    todo = cast("dict[str, Any]", value)
    content = todo.get("content")
    if not isinstance(content, str) or not one_line(content):
        raise InvalidGoalOperation(f"todo {number} has no content")
    status, priority = todo.get("status", "pending"), todo.get("priority") or ""
    if status not in _STATUSES:
        raise InvalidGoalOperation(
            f"todo {number}: status must be one of {', '.join(_STATUSES)}, not {status!r:.40}"
        )
    if priority not in _PRIORITIES:
        raise InvalidGoalOperation(
            f"todo {number}: priority must be high, medium or low, not {priority!r:.40}"
        )
    return Todo(one_line(content), status, priority)


def write_todos(draft: Draft, todos: Sequence[Todo]) -> None:
    """Make the draft's top level say what ``todos`` say.

    A todo is the open top-level goal with its text, if there is one. A todo that is not listed
    any more is abandoned unless it is closed. Raises InvalidGoalOperation for one that would
    open a completed goal again.
    """
    goals = _Matching(draft)
    matched = [goals.take(todo) for todo in todos]
    for goal_id in goals.left_open():
        draft.abandon(draft.by_id[goal_id], "")
    ids = _place(draft, todos, matched)
    for todo, goal_id in zip(todos, ids, strict=True):
        goal = draft.by_id[goal_id]
        if todo.priority and todo.priority != goal.priority:
            goal = draft.set(goal, priority=todo.priority)
            draft.changes.append(Change("prioritised", goal_id, todo.priority))
        if todo.status == "completed" and goal.status != "completed":
            draft.complete(goal, "")
        if todo.status == "cancelled" and goal.status != "abandoned":
            draft.abandon(goal, "")
    _focus(draft, [i for t, i in zip(todos, ids, strict=True) if t.status == "in_progress"])


class _Matching:
    """Finds the top-level goal of each todo; each goal is found once."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._by_text: dict[str, list[Goal]] = {}
        for goal_id in draft.roots:
            goal = draft.by_id[goal_id]
            self._by_text.setdefault(goal.description, []).append(goal)
        self._used: set[str] = set()

    def take(self, todo: Todo) -> Goal | None:
        """An open goal before one that is closed the way the todo is, before an abandoned one
        (to be replaced); None for a new todo."""
        same = [g for g in self._by_text.get(todo.content, ()) if g.id not in self._used]
        closed_as = "abandoned" if todo.status == "cancelled" else todo.status
        order = sorted(same, key=lambda g: (not g.is_open, g.status != closed_as, _age(g)))
        if not order:
            return None
        goal = order[0]
        if goal.status == "completed" and todo.status != "completed":
            raise InvalidGoalOperation(
                f"goal {goal.id} is completed: it cannot be {todo.status} again; "
                "describe what is left to do in a todo with another text"
            )
        self._used.add(goal.id)
        return goal

    def left_open(self) -> list[str]:
        roots = self._draft.roots
        return [g for g in roots if g not in self._used and self._draft.by_id[g].is_open]


def _age(goal: Goal) -> int:
    """Completed ones first: reopening must be refused, not hidden behind an abandoned one."""
    return 0 if goal.status == "completed" else 1


def _place(draft: Draft, todos: Sequence[Todo], matched: Sequence[Goal | None]) -> list[str]:
    """Ids of the todos' goals, new ones made and put after the todo that stands before them."""
    naming = draft.names("")
    after: dict[str, list[str]] = {}
    ids: list[str] = []
    for todo, goal in zip(todos, matched, strict=True):
        stays = goal and (goal.is_open or goal.status != "abandoned" or todo.status == "cancelled")
        if goal and stays:
            ids.append(goal.id)
            continue
        name = draft.names("", goal)() if goal else naming()
        previous = goal.id if goal else (ids[-1] if ids else "")
        draft.create(name, todo.content, priority=todo.priority)
        after.setdefault(previous, []).append(name)
        ids.append(name)
    order: list[str] = []
    waiting = list(reversed([*after.get("", ()), *draft.roots]))
    while waiting:
        goal_id = waiting.pop()
        order.append(goal_id)
        waiting.extend(reversed(after.get(goal_id, ())))
    draft.arrange("", order)
    return ids


def _focus(draft: Draft, in_progress: Sequence[str]) -> None:
    """Focus the first todo in progress, unless the focus is below it already."""
    if not in_progress:
        draft.current = None
        return
    if draft.current is None or draft.current.partition(".")[0] != in_progress[0]:
        draft.focus(draft.by_id[in_progress[0]])
    for goal_id in in_progress[1:]:
        if draft.by_id[goal_id].status == "pending":
            draft.set(draft.by_id[goal_id], status="in_progress")
