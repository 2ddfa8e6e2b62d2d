"""Level 1: what stays and what goes of closed goals. Expected values are docs/compaction.md's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cyberagent.compaction.goal import GoalCompaction, compress_completed_goals
from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.types import Reasoning
from tests.compaction.histories import (
    SIGNED,
    call,
    facts,
    history,
    operator,
    plan,
    result,
    says,
    texts,
    user,
    work,
)

FOCUS = '{"focus": "1.1"}'
DONE = '{"done": "1.1", "summary": "前端使用 React..."}'
PLAN = "## 更新\n- 焦点切换到: 1.1\n\n## Current Plan\n..."


def goal_call(call_id: str, arguments: str, answer: str = "## Updated", goal: str = ""):
    return [
        says(call(call_id, "goal", arguments), goal=goal),
        result(call_id, answer, goal, "goal"),
    ]


def worked_on(goal: str, count: int = 1):
    """``count`` turns of work on a goal that nothing else belongs to."""
    return [m for n in range(count) for m in work(f"{goal}-{n}", goal, text="output " * 50)]


def test_a_done_goal_keeps_its_goal_calls_and_says_that_details_were_cleared():
    items = history(
        user("做一个登录页"),
        goal_call("f", FOCUS, PLAN),
        work("r", "1.1"),
        work("s", "1.1", name="bash"),
        goal_call("d", DONE, "## 更新\n- 完成: 1.1", "1.1"),
        says("接下来"),
    )
    known = facts(plan(g1="in_progress", g1_1="completed"), language="zh")
    step = compress_completed_goals(items, known)
    assert texts(step.items) == [
        "[user] 做一个登录页",
        f"[assistant] goal({FOCUS})",
        f"[tool] {PLAN}",
        f"[assistant] goal({DONE})",
        "[tool] 具体执行过程已清理",
        "[assistant] 接下来",
    ]
    assert [(e.what, e.sequences) for e in step.edits] == [
        ("removed", (4, 5, 6, 7)),
        ("replaced", (9,)),
    ]


def test_in_english_the_wording_is_english():
    items = history(user("x"), goal_call("d", DONE, "## Updated", "1.1"), says("next"))
    step = compress_completed_goals(items, facts(plan(g1="in_progress", g1_1="completed")))
    assert texts(step.items)[2] == "[tool] Execution details were cleared"


def test_a_mixed_message_keeps_only_the_goal_calls_and_drops_its_thinking_whole():
    mixed = says(
        SIGNED, "I read and close.", call("r"), call("d", "goal", '{"done": "1"}'),
        call("c", "get_current_context", made_by="framework"), goal="1",
    )  # fmt: skip
    items = history(
        user("x"),
        mixed,
        result("r", "content", "1"),
        result("d", "## Updated", "1", "goal"),
        result("c", "now", "1", "get_current_context"),
        says("next"),
    )
    step = compress_completed_goals(items, facts(plan(g1="completed")))
    assert texts(step.items) == [
        "[user] x",
        '[assistant] goal({"done": "1"})',
        "[tool] Execution details were cleared",
        "[assistant] next",
    ]
    assert not any(isinstance(p, Reasoning) for p in step.items[1].message.parts)
    assert step.items[1].kind == "replaced" and step.items[1].message.sequence == 2


def test_an_unmixed_goal_turn_stays_as_it_was_stored_with_its_thinking():
    items = history(
        user("x"), says(SIGNED, "Done.", call("d", "goal", '{"done": "1"}'), goal="1"),
        result("d", "## Updated", "1", "goal"), says("next"),
    )  # fmt: skip
    step = compress_completed_goals(items, facts(plan(g1="completed")))
    assert step.items[1] is items[1]


def test_what_users_and_operators_said_during_a_goal_stays():
    items = history(
        user("x"), worked_on("1"), user("use port 81", goal_id="1"),
        operator("and no cache", goal_id="1"), worked_on("1"), says("next"),
    )  # fmt: skip
    step = compress_completed_goals(items, facts(plan(g1="completed")))
    assert texts(step.items) == [
        "[user] x", "[user] use port 81", "[user] and no cache", "[assistant] next",
    ]  # fmt: skip


def test_an_abandoned_goal_is_cleared_too():
    items = history(
        user("x"), worked_on("2"),
        goal_call("a", '{"abandon": "2", "summary": "needs Redis"}', goal="2"), says("plan B"),
    )  # fmt: skip
    step = compress_completed_goals(items, facts(plan(g2="abandoned")))
    assert texts(step.items)[1:3] == [
        '[assistant] goal({"abandon": "2", "summary": "needs Redis"})',
        "[tool] Execution details were cleared",
    ]


def test_a_done_child_of_an_open_parent_goes_and_the_parent_stays():
    items = history(user("x"), worked_on("2"), worked_on("2.1"), says("next"))
    step = compress_completed_goals(items, facts(plan(g2="in_progress", g2_1="completed")))
    assert [i.message.sequence for i in step.items] == [1, 2, 3, 6]


def test_a_done_parent_goes_with_its_done_children():
    items = history(user("x"), worked_on("2"), worked_on("2.1"), says("next"))
    step = compress_completed_goals(items, facts(plan(g2="completed", g2_1="completed")))
    assert [i.message.sequence for i in step.items] == [1, 6]


def test_the_newest_turn_is_left_alone_until_there_is_a_newer_one():
    items = history(user("x"), worked_on("1"), goal_call("d", '{"done": "1"}', goal="1"))
    known = facts(plan(g1="completed"))
    now = compress_completed_goals(items, known)
    assert [i.message.sequence for i in now.items] == [1, 4, 5]
    assert now.items[2] is items[4]
    following = history(*[i.message for i in items], says("next"))
    then = compress_completed_goals(following, known)
    assert then.items[2].message.text == "Execution details were cleared"


def test_a_turn_that_waits_for_a_result_is_not_folded():
    waiting = says(call("ask", "terminal"), call("r"), goal="1")
    items = history(user("x"), worked_on("1"), waiting, result("r", "content", "1"), says("next"))
    step = compress_completed_goals(items, facts(plan(g1="completed")))
    assert [i.message.sequence for i in step.items] == [1, 4, 5, 6]


def test_results_follow_their_call_whatever_goal_they_carry():
    items = history(
        user("x"),
        says(call("a"), goal="1"), result("a", "of goal 1", "2"),
        says(call("b"), goal="2"), result("b", "of goal 2", "1"),
        says("next"),
    )  # fmt: skip
    step = compress_completed_goals(items, facts(plan(g1="completed", g2="in_progress")))
    assert [i.message.sequence for i in step.items] == [1, 4, 5, 6]


def test_ids_that_are_used_again_do_not_mix_up_turns():
    items = history(
        user("x"), work("call_0", "1"), work("call_0", "2"), work("call_0", "1"), says("next")
    )
    step = compress_completed_goals(items, facts(plan(g1="completed", g2="in_progress")))
    assert [i.message.sequence for i in step.items] == [1, 4, 5, 8]


def test_a_late_result_goes_with_the_placeholder_that_stood_in_for_it():
    late = [says(call("a"), goal="1"), result("a", "(gone)", "1", metadata={"placeholder": True})]
    items = history(user("x"), late, work("b", "2"), result("a", "late", "2"), says("next"))
    step = compress_completed_goals(items, facts(plan(g1="completed", g2="in_progress")))
    assert [i.message.sequence for i in step.items] == [1, 4, 5, 7]


def test_a_turn_whose_late_result_is_in_the_newest_turn_waits_for_the_next_pass():
    late = [says(call("a"), goal="1"), result("a", "(gone)", "1", metadata={"placeholder": True})]
    items = history(user("x"), late, says("next"), result("a", "late", "1"))
    assert compress_completed_goals(items, facts(plan(g1="completed"))).items is items


def test_a_placeholder_of_a_goal_result_stays_one_since_the_result_may_still_come():
    items = history(
        user("x"),
        says(call("d", "goal", '{"done": "1"}'), goal="1"),
        result("d", "(not stored)", "1", "goal", metadata={"placeholder": True}),
        says("next"),
    )
    assert compress_completed_goals(items, facts(plan(g1="completed"))).items is items


def test_an_error_of_the_goal_tool_stays_an_error():
    failed = [
        says(call("d", "goal", '{"done": "9"}'), goal="1"),
        result("d", "there is no goal 9", "1", "goal", is_error=True),
    ]
    items = history(user("x"), failed, says("next"))
    step = compress_completed_goals(items, facts(plan(g1="completed")))
    assert step.edits == () and step.items is items


def test_a_skill_that_goes_is_named_so_that_it_can_be_loaded_again():
    skill = [
        says(call("k", "skill", '{"name": "ask"}'), goal="1"),
        result("k", "text", "1", "skill"),
    ]
    items = history(user("x"), skill, says("next"))
    step = compress_completed_goals(items, facts(plan(g1="completed"), skills={"ask": 3}))
    assert "skill ask" in step.edits[0].why


def test_a_summary_outlives_the_goal_that_it_was_made_under():
    summary = replace(user("[Summary …]", goal_id="1"), source="summary")
    items = history(user("x"), summary, worked_on("1"), says("next"))
    step = compress_completed_goals(items, facts(plan(g1="completed")))
    assert [i.message.sequence for i in step.items] == [1, 2, 5]


# Modes and forms ----------------------------------------------------------------------------


def test_on_overflow_clears_the_oldest_goals_first_and_stops_at_the_target():
    items = history(user("x"), worked_on("1", 3), worked_on("2", 3), worked_on("3", 3), says("n"))
    known = facts(plan(g3="completed", g2="completed", g1="completed"))
    one_less = raw_size(items) - 1
    step = GoalCompaction().apply(items, Budget(target=one_less, threshold=one_less), known)
    assert [i.message.sequence for i in step.items] == [1, *range(8, 21)]


def test_a_budget_counts_what_stands_before_the_history():
    items = history(user("x"), worked_on("1"), worked_on("2"), says("n"))
    known = facts(plan(g1="completed", g2="completed"))
    room = raw_size(items)
    step = GoalCompaction().apply(items, Budget(fixed=1, target=room, threshold=room), known)
    assert [i.message.sequence for i in step.items] == [1, 4, 5, 6]


def test_on_complete_clears_every_closed_goal_whatever_the_size():
    items = history(user("x"), worked_on("1"), worked_on("2"), says("n"))
    step = compress_completed_goals(items, facts(plan(g1="completed", g2="abandoned")))
    assert [i.message.sequence for i in step.items] == [1, 6]


def test_none_skips_level_1():
    items = history(user("x"), worked_on("1"), says("n"))
    step = GoalCompaction(mode="none").apply(items, Budget(), facts(plan(g1="completed")))
    assert step.items is items and step.edits == ()


def test_an_open_goal_is_never_touched():
    items = history(user("x"), worked_on("1"), says("n"))
    for status in ("pending", "in_progress"):
        assert compress_completed_goals(items, facts(plan(g1=status))).items is items


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (
            "completed",
            "[Goal 2 was completed: goal 2. Its 6 messages were cleared. What came of it:]",
        ),
        ("abandoned", "[Goal 2 was abandoned: goal 2. Its 6 messages were cleared. Why:]"),
    ],
)
def test_the_older_form_puts_one_line_in_place_of_a_goal(status: str, line: str):
    items = history(
        user("x"), worked_on("2", 2), user("mind the port", goal_id="2"),
        goal_call("a", '{"abandon": "2"}', goal="2"), says("next"),
    )  # fmt: skip
    known = facts(plan(g2=status))
    step = compress_completed_goals(items, known, form="summary_line")
    assert texts(step.items) == [
        "[user] x", f"[user] {line}\n> what came of 2", "[user] mind the port", "[assistant] next",
    ]  # fmt: skip
    assert sum(e.tokens_saved for e in step.edits) == raw_size(items) - raw_size(step.items)


def test_what_is_left_of_a_goal_later_adds_no_second_line():
    early = history(user("x"), worked_on("2", 2), goal_call("d", '{"done": "2"}', goal="2"))
    known = facts(plan(g2="completed"))
    once = compress_completed_goals(early, known, form="summary_line")
    assert [i.kind for i in once.items] == ["whole", "inserted", "whole", "whole"]
    more = (*once.items, history(*[i.message for i in early], says("next"))[-1])
    twice = compress_completed_goals(more, known, form="summary_line")
    assert [i.kind for i in twice.items] == ["whole", "inserted", "whole"]


def test_a_goal_whose_line_would_be_longer_than_its_messages_is_left_alone():
    items = history(user("x"), says("k", goal="1"), says("next"))
    step = compress_completed_goals(items, facts(plan(g1="completed")), form="summary_line")
    assert step.items is items
