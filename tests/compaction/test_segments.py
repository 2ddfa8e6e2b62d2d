"""Whole traces, and goals where there are none."""

from __future__ import annotations

import json
from dataclasses import replace

from cyberagent.compaction.segments import SUMMARY_CHARS, segmented, whole_path
from cyberagent.core.types import Message
from tests.compaction.histories import call, operator, result, says, user, work


def numbered(*messages: Message) -> list[Message]:
    return [replace(m, sequence=n) for n, m in enumerate(messages, 1)]


def tree(*pairs: tuple[Message, int | None]) -> dict[int, Message]:
    return {
        n: replace(m, sequence=n, parent_sequence=parent) for n, (m, parent) in enumerate(pairs, 1)
    }


def summary(last: int, text: str = "so far") -> Message:
    stands = {"first": 2, "last": last, "messages": last - 1}
    return replace(user(text), source="summary", metadata={"stands_for": stands})


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


# Whole paths -----------------------------------------------------------------------------------


def test_originals_stand_where_their_summary_stood():
    stored = tree(
        (user("a"), None), (says("b"), 1), (says("c"), 2), (summary(3), 1), (says("d"), 4)
    )
    assert texts(whole_path(stored, 5)) == ["a", "b", "c", "d"]


def test_a_summary_of_a_summary_opens_both():
    stored = tree(
        (user("a"), None), (says("b"), 1), (summary(2), 1), (says("c"), 3), (summary(4), 1),
        (says("d"), 5),
    )  # fmt: skip
    assert texts(whole_path(stored, 6)) == ["a", "b", "c", "d"]


def test_what_a_rewind_left_and_side_branches_are_left_out():
    aside = replace(says("aside"), branch_id="x", branch_type="reflection")
    stored = tree((user("a"), None), (says("ghost"), 1), (says("b"), 1), (aside, 3), (says("c"), 3))
    assert texts(whole_path(stored, 5)) == ["a", "b", "c"]


def test_a_summary_without_stored_originals_stays():
    stored = tree((replace(user("before"), source="summary"), None), (says("b"), 1))
    assert texts(whole_path(stored, 2)) == ["before", "b"]


# Goals -----------------------------------------------------------------------------------------


def test_a_trace_with_goals_keeps_its_own():
    add = call("g1", "goal", json.dumps({"add": ["Look", "Write"], "focus": "1"}))
    done = call("g2", "goal", json.dumps({"done": "1", "summary": "it works"}))
    path = numbered(
        user("a"), says(add), result("g1", "ok", name="goal"), *work("c1", "1"),
        says(done, goal="1"), result("g2", "ok", "1", name="goal"), says("b"),
    )  # fmt: skip
    found = segmented(path, "m")
    assert found.by == "goals"
    assert len(found.plan_of(2)) == 0  # the result of the first call is at place 2
    assert found.plan_of(3).get("1").status == "in_progress"
    assert found.plan_of(6).get("1").is_open
    assert found.plan_of(7).get("1").summary == "it works"


def test_todos_are_goals_whose_last_answer_is_their_summary():
    def todos(key: str, *statuses: str) -> Message:
        items = [{"content": f"step {n}", "status": s} for n, s in enumerate(statuses, 1)]
        return says(call(key, "TodoWrite", json.dumps({"todos": items})))

    path = numbered(
        user("a"),
        todos("t1", "in_progress", "pending"), result("t1", "ok", name="TodoWrite"),
        says("I looked.", goal="1"), says("All is  well.", goal="1"),
        todos("t2", "completed", "in_progress"), result("t2", "ok", "1", name="TodoWrite"),
        says("b", goal="2"),
    )  # fmt: skip
    found = segmented(path)
    assert found.by == "todos"
    plan = found.plan_of(7)
    assert [(g.description, g.status, g.summary) for g in plan.walk()] == [
        ("step 1", "completed", "All is well."),
        ("step 2", "in_progress", ""),
    ]
    assert found.plan_of(6).get("1").is_open


def test_without_goals_each_turn_of_a_user_is_one():
    path = numbered(
        says("hello"), user("Fix the login"), *work("c1"), says("Fixed."), operator("And the logs"),
        says("They " * 400),
    )  # fmt: skip
    found = segmented(path, "m")
    assert found.by == "user turns"
    assert [m.goal_id for m in found.messages] == ["", "1", "1", "1", "1", "2", "2"]
    before, after = found.plan_of(5), found.plan_of(6)
    assert [(g.status, g.summary) for g in before.walk()] == [("in_progress", "")]
    assert [(g.description, g.status, g.summary) for g in after.walk()] == [
        ("Fix the login", "completed", "Fixed."),
        ("And the logs", "in_progress", ""),
    ]
    assert after.current == "2" and after.mission == "m"
    assert len(found.plan_of(0)) == 0


def test_two_messages_without_an_answer_between_are_one_turn():
    found = segmented(numbered(user("a"), user("b"), says("c"), user("d")))
    assert [m.goal_id for m in found.messages] == ["1", "1", "1", "2"]


def test_a_long_answer_is_cut():
    found = segmented(numbered(user("a"), says("x" * 10_000), user("b"), says("c")))
    assert len(found.plan_of(3).get("1").summary) == SUMMARY_CHARS


def test_framework_messages_begin_no_turn():
    note = replace(user("reminder"), source="framework")
    assert segmented(numbered(user("a"), says("b"), note, says("c"))).messages[3].goal_id == "1"
