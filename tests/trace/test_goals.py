"""The plan: each rule of docs/goals.md, then what must hold whatever is done to it."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import InvalidGoalOperation, InvalidInput
from cyberagent.trace.goals import GoalOperation, GoalTree, UnknownGoal
from tests.examples import examples
from tests.trace.operations import OPERATIONS

MISSION = "Implement user authentication"


def plan(*operations: dict[str, object], mission: str = MISSION) -> GoalTree:
    tree = GoalTree(mission=mission)
    for operation in operations:
        tree, _ = tree.apply(GoalOperation.from_arguments(operation))
    return tree


def shown(tree: GoalTree) -> list[str]:
    return [g.id for g in tree.walk()]


def lines(tree: GoalTree, operation: dict[str, object], language: str = "en") -> list[str]:
    _, changes = tree.apply(GoalOperation.from_arguments(operation))
    return [c.line(language) for c in changes]


# Adding --------------------------------------------------------------------------------------


def test_without_a_focus_goals_are_added_at_the_top():
    tree = plan({"add": "分析代码, 实现功能, 测试"}, mission="实现用户认证功能")
    assert [(g.id, g.description) for g in tree.walk()] == [
        ("1", "分析代码"),
        ("2", "实现功能"),
        ("3", "测试"),
    ]


def test_with_a_focus_goals_become_its_children():
    tree = plan({"add": "a, b, c"}, {"focus": "2"}, {"add": "设计接口, 实现代码"})
    assert shown(tree) == ["1", "2", "2.1", "2.2", "3"]


def test_under_says_otherwise():
    tree = plan({"add": "a, b", "focus": "1"}, {"add": "c", "under": "2"})
    assert shown(tree) == ["1", "2", "2.1"]


def test_after_changes_the_order_shown_and_no_id():
    tree = plan({"add": "a, b"}, {"add": "c", "after": "1"})
    assert shown(tree) == ["1", "3", "2"]


def test_the_next_number_counts_every_goal_that_was_ever_there():
    tree = plan({"add": "a, b"}, {"abandon": "2"}, {"add": "c"}, {"add": "d", "after": "1"})
    assert shown(tree) == ["1", "4", "2", "3"]


def test_a_comma_inside_a_description_needs_a_list():
    for add in (["fix a, b", "c"], '["fix a, b", "c"]'):
        assert [g.description for g in plan({"add": add}).walk()] == ["fix a, b", "c"]


def test_a_description_may_begin_with_a_bracket():
    assert [g.description for g in plan({"add": "[urgent] a, b"}).walk()] == ["[urgent] a", "b"]


def test_a_goal_after_an_abandoned_sibling_replaces_it():
    tree = plan(
        {"add": "a, plan A, c", "focus": "2"},
        {"abandon": "needs Redis"},
        {"add": "plan B", "after": "2", "focus": "2'"},
    )
    assert shown(tree) == ["1", "2", "2'", "3"]
    assert tree.current == "2'"
    tree, _ = tree.apply(GoalOperation(abandon="2'", add="plan C", after="2'"))
    assert shown(tree) == ["1", "2", "2'", "2''", "3"]


def test_a_second_replacement_of_the_same_goal_has_two_marks():
    tree = plan({"add": "a"}, {"abandon": "1"}, {"add": "b", "after": "1"})
    tree, _ = tree.apply(GoalOperation(add="c", after="1"))
    assert shown(tree) == ["1", "1''", "1'"]


def test_only_the_first_of_several_replaces():
    tree = plan({"add": "a, b"}, {"abandon": "1"}, {"add": "c, d", "after": "1"})
    assert shown(tree) == ["1", "1'", "3", "2"]


def test_a_goal_after_an_open_or_a_done_one_takes_the_next_number():
    assert shown(plan({"add": "a"}, {"done": "1"}, {"add": "b", "after": "1"})) == ["1", "2"]


def test_replacements_nest():
    tree = plan(
        {"add": "a", "focus": "1"}, {"add": "x"}, {"abandon": "1.1"}, {"add": "y", "after": "1.1"}
    )
    tree, _ = tree.apply(GoalOperation(add="z", under="1.1'"))
    assert shown(tree) == ["1", "1.1", "1.1'", "1.1'.1"]


def test_why_goals_were_added_is_kept():
    assert plan({"add": "a", "reason": "asked for"}).get("1").reason == "asked for"


# Closing -------------------------------------------------------------------------------------


def test_done_takes_an_id_with_a_summary_or_the_summary_of_the_goal_in_focus():
    by_id = plan({"add": "a", "focus": "1"}, {"done": "1", "summary": "found it"})
    by_text = plan({"add": "a", "focus": "1"}, {"done": "found it"})
    assert by_id == by_text
    assert (by_id.get("1").status, by_id.get("1").summary) == ("completed", "found it")


def test_a_pending_goal_can_be_done():
    assert plan({"add": "a"}, {"done": "1"}).get("1").status == "completed"


def test_open_children_bar_done_and_are_named():
    tree = plan({"add": "a", "focus": "1"}, {"add": "b, c, d"}, {"done": "1.2"})
    with pytest.raises(InvalidGoalOperation, match=r"goal 1 has open children: 1\.1, 1\.3"):
        tree.apply(GoalOperation(done="1"))


def test_the_focus_goes_to_the_parent_else_away():
    tree = plan({"add": "a, b", "focus": "1"}, {"add": "c", "focus": "1.1"})
    tree, _ = tree.apply(GoalOperation(done="1.1"))
    assert tree.current == "1"
    tree, _ = tree.apply(GoalOperation(done="all of it"))
    assert tree.current is None


def test_done_elsewhere_leaves_the_focus_alone():
    assert plan({"add": "a, b", "focus": "1"}, {"done": "2"}).current == "1"


def test_abandoning_a_goal_abandons_what_is_open_below_it():
    tree = plan({"add": "a", "focus": "1"}, {"add": "b, c"}, {"done": "1.1", "focus": "1.2"})
    tree, _ = tree.apply(GoalOperation(abandon="1", summary="no way"))
    assert [(g.id, g.status) for g in tree.walk()] == [
        ("1", "abandoned"),
        ("1.1", "completed"),
        ("1.2", "abandoned"),
    ]
    assert (tree.current, tree.get("1").summary) == (None, "no way")


def test_focusing_a_child_puts_the_goals_above_it_in_progress():
    tree = plan({"add": "a"}, {"add": "b", "under": "1"}, {"focus": "1.1"})
    assert [g.status for g in tree.walk()] == ["in_progress", "in_progress"]


def test_several_operations_run_in_the_order_done_add_focus():
    tree = plan({"add": "a, b", "focus": "2"}, {"focus": "2'", "add": "c", "after": "2",
                                                "abandon": "2", "summary": "no"})  # fmt: skip
    assert (shown(tree), tree.current) == (["1", "2", "2'"], "2'")


# Refusals ------------------------------------------------------------------------------------

BASE = ({"add": "a, b", "focus": "1"}, {"done": "a is done", "focus": "2"})


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ({}, "nothing was asked"),
        ({"add": ""}, "nothing was asked"),
        ({"add": "   "}, "no description"),
        ({"add": "x,,y"}, "goal 2 of 3 to add has no description"),
        ({"add": ["x", "\u0000"]}, "goal 2 of 2"),
        ({"add": '["x", 3]'}, "goal 2 of 2 to add is not a text"),
        ({"focus": "7"}, "there is no goal 7"),
        ({"focus": "the second"}, "there is no goal the second"),
        ({"done": "9.9"}, "there is no goal 9.9"),
        ({"abandon": "7"}, "there is no goal 7"),
        ({"done": "1"}, "goal 1 is completed already"),
        ({"abandon": "1"}, "goal 1 is completed"),
        ({"focus": "1"}, "goal 1 is completed"),
        ({"add": "x", "under": "1"}, "goal 1 is completed"),
        ({"add": "x", "under": "5"}, "there is no goal 5"),
        ({"add": "x", "after": "5"}, "there is no goal 5"),
        ({"add": "x", "under": "2", "after": "1"}, "goal 1 does not stand under goal 2"),
        ({"under": "2", "focus": "2"}, "nothing to add"),
        ({"done": "well done", "abandon": "oh no"}, "need the ids"),
        ({"done": "   "}, "done is empty"),
        ({"add": "fine", "focus": "9"}, "there is no goal 9"),
        ({"done": "2", "add": "fine", "focus": "2"}, "goal 2 is completed"),
    ],
)
def test_a_wrong_operation_names_the_problem_and_changes_nothing(
    operation: dict[str, object], words: str
):
    tree = plan(*BASE)
    before = json.dumps(tree.to_json())
    with pytest.raises(InvalidGoalOperation, match=words):
        tree.apply(GoalOperation.from_arguments(operation))
    assert json.dumps(tree.to_json()) == before


def test_a_summary_without_a_focus_asks_for_the_id():
    with pytest.raises(InvalidGoalOperation, match="no goal is in focus"):
        plan({"add": "a"}, {"done": "found it"})


def test_goals_cannot_nest_without_end():
    tree = plan({"add": "a", "focus": "1"})
    with pytest.raises(InvalidGoalOperation, match="nested deeper"):
        for depth in range(200):
            tree, _ = tree.apply(GoalOperation(add="x", focus="1" + ".1" * (depth + 1)))
    assert len(tree) == 50  # "1" and 49 times ".1" are 99 characters


def test_an_unknown_goal_can_be_told_from_other_errors():
    with pytest.raises(UnknownGoal) as caught:
        plan(*BASE).get("2.4")
    assert caught.value.goal_id == "2.4"


# What models and people read -----------------------------------------------------------------


def test_the_prompt_form():
    tree = plan(
        {"add": "Analyse the code, Build it, Test", "focus": "1"},
        {"done": "user model in models/user.py, uses bcrypt", "focus": "2"},
        {"add": "Implement the login endpoint", "focus": "2.1"},
    )
    assert tree.to_prompt(include_summary=True) == (
        "## Current Plan\n"
        "**Mission**: Implement user authentication\n"
        "**Current**: 2.1 Implement the login endpoint\n"
        "**Progress**:\n"
        "[✓] 1. Analyse the code\n"
        "    → user model in models/user.py, uses bcrypt\n"
        "[→] 2. Build it\n"
        "    [→] 2.1 Implement the login endpoint  ← current\n"
        "[ ] 3. Test"
    )
    assert "bcrypt" not in tree.to_prompt()


def test_an_abandoned_goal_says_why():
    tree = plan({"add": "分析代码, 实现方案 A, 测试"}, {"abandon": "2", "summary": "依赖问题"})
    assert "[✗] 2. 实现方案 A (abandoned: 依赖问题)" in tree.to_prompt().splitlines()
    assert "[✗] 2. 实现方案 A (已放弃: 依赖问题)" in tree.to_prompt(language="zh").splitlines()


def test_a_description_cannot_write_lines_of_the_plan():
    tree = plan({"add": ["a\n[✓] 2. b\x1b[2J"], "focus": "1"}, {"done": "x\n[✓] 3. c"})
    progress = tree.to_prompt(True).split("**Progress**:\n")[1]
    assert progress == "[✓] 1. a [✓] 2. b [2J\n    → x [✓] 3. c"


def test_changes_are_told_in_both_languages():
    tree = plan({"add": "a, b", "focus": "1"}, {"add": "c"})
    assert lines(tree, {"focus": "1.1"}) == ["Focus moved to: 1.1"]
    assert lines(tree, {"focus": "1.1"}, "zh") == ["焦点切换到: 1.1"]
    assert lines(tree, {"abandon": "1"}) == ["Abandoned: 1", "Abandoned: 1.1", "Focus: none"]


def test_progress_counts_top_level_goals_that_are_not_abandoned():
    tree = plan(
        {"add": "a, b, c", "focus": "1"}, {"add": "x"}, {"done": "1.1"}, {"done": "1"},
        {"abandon": "2"}, {"add": "d", "after": "2"},
    )  # fmt: skip
    assert tree.progress() == (1, 3)


def test_a_long_plan_is_shown_around_its_focus():
    tree = plan({"add": [f"goal number {n}" for n in range(1, 5001)], "focus": "2500"})
    text = tree.to_prompt(limit=2_000)
    assert len(text) < 2_200
    assert "[→] 2500. goal number 2500  ← current" in text
    (above,) = re.findall(r"\[(\d+) goals above not shown\]", text)
    (below,) = re.findall(r"\[(\d+) goals below not shown\]", text)
    shown_rows = len(re.findall(r"^\[.\] \d+\. goal number", text, re.MULTILINE))
    assert int(above) + shown_rows + int(below) == 5_000


def test_open_goals_come_in_the_order_shown():
    tree = plan({"add": "a, b, c"}, {"add": "d", "after": "1"}, {"done": "2"})
    assert [g.id for g in tree.open_goals()] == ["1", "4", "3"]


# JSON ----------------------------------------------------------------------------------------


def test_the_json_form_is_a_tree():
    tree = plan({"add": "a", "focus": "1"}, {"add": "b"})
    assert tree.to_json() == {
        "mission": MISSION,
        "current_id": "1",
        "goals": [
            {
                "id": "1",
                "description": "a",
                "status": "in_progress",
                "children": [{"id": "1.1", "description": "b", "status": "pending"}],
            }
        ],
    }


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"goals": {}},
        {"goals": [{"id": "1", "status": "pending"}]},
        {"goals": [{"id": "1", "description": "a", "status": "open"}]},
        {"goals": [{"id": "one", "description": "a", "status": "pending"}]},
        {"goals": [{"id": "1.1", "description": "a", "status": "pending"}]},
        {"goals": [{"id": "1", "description": "a", "status": "pending"}] * 2},
        {"goals": [{"id": "1", "description": "a", "status": "completed"}], "current_id": "1"},
        {"goals": [], "current_id": "1"},
        {"goals": [{"id": "1", "description": "a", "status": ["pending"]}]},
    ],
)
def test_a_malformed_plan_is_refused(value: object):
    with pytest.raises(InvalidInput):
        GoalTree.from_json(value)


# Whatever is done ----------------------------------------------------------------------------


@examples(300)
@given(st.lists(OPERATIONS, max_size=25))
def test_what_holds_whatever_is_done(operations: list[dict[str, object]]):
    tree = GoalTree()
    for operation in operations:
        before, frozen = tree, json.dumps(tree.to_json())
        with contextlib.suppress(InvalidGoalOperation):
            tree, _ = tree.apply(GoalOperation.from_arguments(operation))
        assert json.dumps(before.to_json()) == frozen, "apply changed its old value"
        for old in before.walk():
            new = tree.get(old.id)
            assert new.description == old.description
            if not old.is_open:
                assert (new.status, new.summary) == (old.status, old.summary)
        assert {g.id for g in tree.walk()} == set(tree.by_id), "a goal hangs nowhere"
        assert len(shown(tree)) == len(tree), "a goal hangs twice"
        for goal in tree.walk():
            if goal.status == "completed":
                assert not any(tree.get(c).is_open for c in goal.children)
        if tree.focused:
            assert tree.focused.status == "in_progress"
        assert tree.to_prompt().count("← current") == (1 if tree.current else 0)
        assert GoalTree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


@examples(100)
@given(st.one_of(st.text(), st.lists(st.text(), max_size=4)))
def test_any_description_is_added_or_refused(text: str | list[str]):
    try:
        tree = plan({"add": text})
    except InvalidGoalOperation:
        return
    for goal in tree.walk():
        assert goal.description.strip() and "\n" not in goal.description
        goal.description.encode()
