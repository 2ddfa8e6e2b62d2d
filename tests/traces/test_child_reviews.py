"""An operator's review of a child that is stored at once, as the run would have stored it."""

from __future__ import annotations

from typing import Any

import pytest

from cyberagent.core.errors import Conflict, ProtocolRefused
from tests.traces import grown, judged
from tests.traces.people import person
from traces import child_reviews, write
from traces.models import Command, Message, Trace

pytestmark = pytest.mark.django_db

PLAN: dict[str, Any] = {
    "mission": "Refunds",
    "current_id": "2",
    "goals": [
        {"id": "1", "description": "Read", "status": "completed"},
        {"id": "2", "description": "Pay it out", "status": "in_progress"},
    ],
}


def accept(row: Any, **more: Any) -> Command:
    parent = Trace.objects.get(pk=row.trace.parent_trace_id)
    given = {"child": row.trace_id, "decision": "ACCEPT", "reason": "Seen.", **more}
    return child_reviews.review_child(parent, given, by=person("olga", "operator"))


def test_a_review_at_rest_stands_in_the_goal_that_the_run_is_at() -> None:
    row = judged.judged_child("failed")
    parent = row.trace.parent_trace_id or ""
    write.append(parent, [], goals=PLAN)
    assert accept(row).status == "applied"
    newest = Message.objects.filter(trace=parent).latest("sequence")
    assert (newest.goal_id, newest.source, newest.role) == ("2", "framework", "user")
    assert newest.tokens > 0


def test_a_review_of_a_run_without_a_plan_stands_in_no_goal() -> None:
    row = judged.judged_child("failed")
    accept(row)
    assert Message.objects.filter(trace=row.trace.parent_trace_id).latest("sequence").goal_id == ""


def test_a_review_in_the_middle_of_a_call_or_of_nobody_stores_nothing() -> None:
    row = judged.judged_child("failed")
    parent = row.trace.parent_trace_id or ""
    with pytest.raises(ProtocolRefused):
        child_reviews.review_child(
            Trace.objects.get(pk=parent),
            {"child": "nobody", "decision": "ACCEPT"},
            by=person("ann", "operator"),
        )
    grown.asks(parent, "c2")
    with pytest.raises(Conflict, match="in the middle of a tool call"):
        accept(row)
    assert not Command.objects.exists()
