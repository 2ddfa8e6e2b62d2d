"""todo_write writes into the same plan."""

from __future__ import annotations

import pytest

from cyberagent.core.errors import InvalidGoalOperation
from cyberagent.trace.goals import GoalOperation, GoalTree
from cyberagent.trace.todos import read_todos


def write(tree: GoalTree, *todos: tuple[str, ...]) -> GoalTree:
    value = [dict(zip(("content", "status", "priority"), t, strict=False)) for t in todos]
    return tree.apply_todos(read_todos(value))[0]


def states(tree: GoalTree) -> list[tuple[str, str, str]]:
    return [(g.id, g.description, g.status) for g in tree.walk()]


def test_todos_become_top_level_goals_with_their_states():
    tree = write(
        GoalTree(),
        ("read", "completed"),
        ("write", "in_progress", "high"),
        ("test", "pending", "low"),
        ("dream", "cancelled"),
    )
    assert states(tree) == [
        ("1", "read", "completed"),
        ("2", "write", "in_progress"),
        ("3", "test", "pending"),
        ("4", "dream", "abandoned"),
    ]
    assert tree.current == "2"
    assert [g.priority for g in tree.walk()] == ["", "high", "low", ""]


def test_the_same_text_is_the_same_goal():
    tree = write(GoalTree(), ("a", "pending"), ("b", "pending"))
    tree = write(tree, ("a", "completed"), ("b", "in_progress"))
    assert states(tree) == [("1", "a", "completed"), ("2", "b", "in_progress")]


def test_what_is_not_listed_any_more_is_abandoned_unless_closed():
    tree = write(GoalTree(), ("a", "completed"), ("b", "in_progress"), ("c", "pending"))
    tree = write(tree, ("c", "in_progress"))
    assert states(tree) == [("1", "a", "completed"), ("2", "b", "abandoned"),
                            ("3", "c", "in_progress")]  # fmt: skip
    assert tree.current == "3"


def test_a_new_todo_stands_after_the_one_before_it():
    tree = write(GoalTree(), ("a", "pending"), ("b", "pending"))
    tree = write(tree, ("a", "pending"), ("new", "pending"), ("b", "pending"))
    assert [g.id for g in tree.walk()] == ["1", "3", "2"]


def test_an_abandoned_todo_that_comes_back_replaces_the_old_goal():
    tree = write(GoalTree(), ("a", "pending"), ("b", "pending"))
    tree = write(tree, ("b", "pending"))
    tree = write(tree, ("a", "in_progress"), ("b", "pending"))
    assert states(tree)[:2] == [("1", "a", "abandoned"), ("1'", "a", "in_progress")]


def test_a_completed_todo_never_opens_again():
    tree = write(GoalTree(), ("a", "completed"))
    for status in ("pending", "in_progress", "cancelled"):
        with pytest.raises(InvalidGoalOperation, match="goal 1 is completed"):
            write(tree, ("a", status))


def test_at_most_one_todo_is_the_focus():
    tree = write(GoalTree(), ("a", "in_progress"), ("b", "in_progress"))
    assert tree.current == "1"
    assert tree.get("2").status == "in_progress"
    assert write(tree, ("a", "pending"), ("b", "pending")).current is None


def test_a_focus_below_the_todo_in_progress_stays():
    tree, _ = GoalTree().apply(GoalOperation(add="a, b", focus="1"))
    tree, _ = tree.apply(GoalOperation(add="x", focus="1.1"))
    assert write(tree, ("a", "in_progress"), ("b", "pending")).current == "1.1"
    with pytest.raises(InvalidGoalOperation, match=r"open children: 1\.1"):
        write(tree, ("a", "completed"), ("b", "in_progress"))


def test_two_todos_with_one_text_are_two_goals():
    tree = write(GoalTree(), ("a", "pending"), ("a", "pending"))
    assert write(tree, ("a", "completed"), ("a", "pending")).progress() == (1, 2)


@pytest.mark.parametrize(
    ("todos", "words"),
    [
        ("a", "todos must be a list"),
        (["a"], "todo 1 must be an object"),
        ([{"content": "a"}, {"content": " "}], "todo 2 has no content"),
        ([{"content": "a", "status": "done"}], "todo 1: status must be one of"),
        ([{"content": "a", "priority": "urgent"}], "todo 1: priority must be"),
        ([{"content": "a", "status": ["pending"]}], "todo 1: status"),
    ],
)
def test_a_malformed_list_is_refused(todos: object, words: str):
    with pytest.raises(InvalidGoalOperation, match=words):
        read_todos(todos)


def test_another_agents_odd_todo_does_not_cost_the_plan():
    odd = [
        {"content": "Read", "status": "completed"},
        {"content": "Check", "status": "deferred", "priority": 7},
        {"content": "  "},
        "not a todo",
        {"content": "Report", "status": ["pending"]},
    ]
    assert [(t.content, t.status) for t in read_todos(odd, lenient=True)] == [
        ("Read", "completed"), ("Check", "pending"), ("Report", "pending"),
    ]  # fmt: skip
    with pytest.raises(InvalidGoalOperation):
        read_todos(odd)
