"""The plan of a trace over the REST API. Source: docs/api.md, "Addresses"."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from goals.models import Goal
from traces import access
from traces.api import PROBLEMS, answer
from traces.rows import held

router = Router()


class GoalOut(Schema):
    goal_id: str
    parent_goal_id: str
    position: int
    level: int
    description: str
    reason: str
    status: str
    summary: str
    priority: str
    is_current: bool


class GoalList(Schema):
    items: list[GoalOut]


@router.get("/traces/{trace_id}/goals", response={200: GoalList, **PROBLEMS}, tags=["goals"])
def list_goals(request: HttpRequest, trace_id: str) -> Any:
    """The plan at the head of the main path, in the order shown."""
    trace = access.find_trace(request.user, trace_id)
    return answer({"items": [goal_json(g) for g in Goal.objects.filter(trace=trace)]})


def goal_json(goal: Goal) -> dict[str, Any]:
    values = {name: getattr(goal, name) for name in GoalOut.model_fields}
    return {name: held(v) if isinstance(v, str) else v for name, v in values.items()}
