"""What the REST API gives to read: traces, messages, calls, events, goals."""

import json

import pytest

from goals.models import Goal
from tests.traces.people import Api, assistant, conversation, person, stored_trace, user
from traces import write
from traces.api_schemas import (
    CallPage,
    CommandPage,
    EventPage,
    MessagePage,
    TraceDetail,
    TracePage,
)
from traces.models import Trace

pytestmark = pytest.mark.django_db


@pytest.fixture
def ann():
    return person("ann", "operator")


@pytest.fixture
def api(ann):
    return Api(ann)


@pytest.fixture
def trace(ann):
    trace_id = stored_trace(ann)
    conversation(trace_id)
    return trace_id


# Traces ------------------------------------------------------------------------------------


def test_traces_come_newest_first_a_page_at_a_time(api, ann):
    made = [stored_trace(ann, f"mission {n}") for n in range(5)]
    seen, cursor = [], ""
    for _ in range(3):
        page = api.get("/traces", limit=2, cursor=cursor).json()
        TracePage.model_validate(page)
        seen += [t["id"] for t in page["items"]]
        cursor = page["next"] or ""
    newest_first = Trace.objects.order_by("-created_at", "-pk").values_list("pk", flat=True)
    assert seen == list(newest_first)
    assert set(seen) == set(made)
    assert page["next"] is None


def test_a_run_started_between_two_pages_moves_nothing(api, ann):
    for n in range(4):
        stored_trace(ann, f"mission {n}")
    first = api.get("/traces", limit=2).json()
    stored_trace(ann, "newer")
    second = api.get("/traces", limit=2, cursor=first["next"]).json()
    missions = {t["mission"] for t in first["items"] + second["items"]}
    assert missions == {"mission 0", "mission 1", "mission 2", "mission 3"}


def test_filters_narrow_the_list(api, ann):
    stored_trace(ann, "Fix the login page", preset="cyber", status="failed")
    stored_trace(ann, "修复登录页面", preset="explore")
    found = lambda **query: [t["mission"] for t in api.get("/traces", **query).json()["items"]]  # noqa: E731
    assert found(status="failed") == ["Fix the login page"]
    assert len(found(status="failed,completed")) == 2
    assert found(preset="explore") == ["修复登录页面"]
    assert found(search="登录") == ["修复登录页面"]
    assert found(search="page LOGIN") == ["Fix the login page"]
    assert len(found(owner="ann")) == 2
    assert found(owner="bob") == []


def test_sub_agents_are_listed_under_their_parent_only(api, trace, ann):
    child = stored_trace(ann, "look closer")
    Trace.objects.filter(pk=child).update(parent_trace=trace, parent_message=2)
    assert [t["id"] for t in api.get("/traces").json()["items"]] == [trace]
    assert [t["id"] for t in api.get("/traces", parent=trace).json()["items"]] == [child]
    assert api.get(f"/traces/{trace}").json()["children"] == [child]


def test_a_trace_has_all_that_the_schema_promises(api, trace):
    detail = api.get(f"/traces/{trace}").json()
    TraceDetail.model_validate(detail)
    assert detail["mission"] == "Count the files"
    assert detail["owner"] == "ann"
    assert (detail["head_sequence"], detail["last_sequence"]) == (5, 5)


# Messages ----------------------------------------------------------------------------------


def sequences(api, trace, **query):
    page = api.get(f"/traces/{trace}/messages", **query).json()
    MessagePage.model_validate(page)
    return [m["sequence"] for m in page["items"]], page["next"]


def test_the_main_path_leaves_side_branches_out(api, trace):
    assert sequences(api, trace) == ([1, 2, 3, 5], None)


def test_all_messages_are_all_that_are_stored(api, trace):
    assert sequences(api, trace, path="all") == ([1, 2, 3, 4, 5], None)


def test_one_branch_alone_is_given_by_its_id(api, trace):
    assert sequences(api, trace, path="branch", branch="b1") == ([4], None)
    assert api.get(f"/traces/{trace}/messages", path="branch", branch="b9").status_code == 404
    assert api.get(f"/traces/{trace}/messages", path="branch").status_code == 422


@pytest.mark.parametrize(("path", "expected"), [("main", [1, 2, 3, 5]), ("all", [1, 2, 3, 4, 5])])
def test_pages_of_messages_join_without_gap_or_double(api, trace, path, expected):
    seen, after = [], 0
    while after is not None:
        found, after = sequences(api, trace, path=path, after=after, limit=2)
        seen += found
    assert seen == expected


def test_a_cursor_may_be_a_message_that_is_not_on_the_path(api, trace):
    assert sequences(api, trace, after=4) == ([5], None)


def test_the_main_path_after_a_rewind_runs_through_the_new_branch(api, trace):
    write.move_head(trace, 3, expected_head=5)
    write.append(trace, [assistant(), user("Again")])
    assert sequences(api, trace) == ([1, 2, 3, 6, 7], None)
    assert sequences(api, trace, after=3, limit=1) == ([6], 6)


def test_a_message_has_its_parts_in_order(api, trace):
    message = api.get(f"/traces/{trace}/messages/2").json()
    assert [p["type"] for p in message["parts"]] == ["text", "tool_call"]
    assert message["parts"][1]["arguments"] == '{"pattern": "*"}'
    assert message["parent_sequence"] == 1
    assert api.get(f"/traces/{trace}/messages/99").status_code == 404


ODD_TEXTS = [
    "NUL \0 inside",
    "lone \ud800 surrogate",
    "line\r\nends",
    "\ufeffBOM",
    "<script>alert(1)</script>",
    "中文 🎈",
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_comes_out_as_it_went_in(api, ann, text):
    trace = stored_trace(ann, text)
    write.append(trace, [user(text)])
    assert json.loads(api.get(f"/traces/{trace}").content)["mission"] == text
    response = api.get(f"/traces/{trace}/messages")
    assert response["Content-Type"] == "application/json"
    assert json.loads(response.content)["items"][0]["parts"][0]["text"] == text


# Events, calls, goals, commands --------------------------------------------------------------


def test_events_are_numbered_and_come_in_pages(api, trace):
    whole = api.get(f"/traces/{trace}/events").json()
    EventPage.model_validate(whole)
    assert [e["number"] for e in whole["items"]] == [1, 2, 3, 4, 5, 6]
    kinds = [e["event"] for e in whole["items"]]
    assert kinds.count("MessageStored") == 5
    assert kinds.count("Session") == 1
    later = api.get(f"/traces/{trace}/events", after=4, limit=1).json()
    assert ([e["number"] for e in later["items"]], later["next"]) == ([5], 5)


def test_goals_are_the_plan_in_the_order_shown(api, trace):
    row = Trace.objects.get(pk=trace)
    Goal.objects.create(trace=row, goal_id="2", position=1, description="b", status="pending")
    Goal.objects.create(trace=row, goal_id="1", position=0, description="a", status="completed")
    items = api.get(f"/traces/{trace}/goals").json()["items"]
    assert [(g["goal_id"], g["status"]) for g in items] == [("1", "completed"), ("2", "pending")]


def test_a_trace_without_calls_and_commands_gives_empty_pages(api, trace):
    CallPage.model_validate(calls := api.get(f"/traces/{trace}/calls").json())
    CommandPage.model_validate(commands := api.get(f"/traces/{trace}/commands").json())
    assert calls == commands == {"items": [], "next": None}
    for path in ("/calls/1", "/calls/0"):
        response = api.get(f"/traces/{trace}{path}")
        assert (response.status_code, "call" in response.json()["detail"]) == (404, True)
