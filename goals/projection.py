"""Goal rows, written anew from the plan whenever it changes. Source: docs/goals.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cyberagent.core.types import Json
from goals.models import Goal
from traces.rows import hold

TEXTS = ("description", "reason", "status", "summary", "priority")
COLUMNS = (*TEXTS, "parent_goal_id", "position", "level", "is_current")


def refresh(trace_id: str, goals: Mapping[str, Json]) -> None:
    """Make the trace's goal rows say what ``goals``, a GoalTree as JSON, says. Only rows that
    differ are written; to be called in the transaction that stores the change."""
    wanted = {row["goal_id"]: row for row in _rows(goals)}
    stored = {row.goal_id: row for row in Goal.objects.filter(trace_id=trace_id)}
    if gone := stored.keys() - wanted.keys():
        Goal.objects.filter(trace_id=trace_id, goal_id__in=gone).delete()
    changed: list[Goal] = []
    for goal_id in wanted.keys() & stored.keys():
        row, new = stored[goal_id], wanted[goal_id]
        if any(getattr(row, name) != new[name] for name in COLUMNS):
            for name in COLUMNS:
                setattr(row, name, new[name])
            changed.append(row)
    Goal.objects.bulk_update(changed, COLUMNS, batch_size=50)
    fresh = [row for goal_id, row in wanted.items() if goal_id not in stored]
    Goal.objects.bulk_create([Goal(trace_id=trace_id, **row) for row in fresh])


def _rows(goals: Mapping[str, Json]) -> Iterator[dict[str, Any]]:
    """Columns of each goal, in the order in which the plan shows them."""
    waiting = [(goal, "", 0) for goal in reversed(goals.get("goals", ()))]
    position = 0
    while waiting:
        goal, parent, level = waiting.pop()
        goal_id = hold(goal["id"])
        yield {name: hold(goal.get(name, "")) for name in TEXTS} | {
            "goal_id": goal_id,
            "parent_goal_id": parent,
            "position": position,
            "level": level,
            "is_current": goal["id"] == goals.get("current_id"),
        }
        position += 1
        waiting += [(child, goal_id, level + 1) for child in reversed(goal.get("children", ()))]
