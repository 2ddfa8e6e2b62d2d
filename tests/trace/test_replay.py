"""The plan is what the path says: replayed, it equals the plan that was made step by step."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import InvalidGoalOperation
from cyberagent.core.types import INTERRUPTED_RESULT, Json, Message, Text, ToolCall
from cyberagent.trace.goals import GoalOperation, GoalTree, replay
from tests.examples import examples
from tests.trace.operations import OPERATIONS


def call(call_id: str, arguments: Json, name: str = "goal") -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message(role="assistant", source="model", parts=(ToolCall(call_id, name, text),))


def result(call_id: str, text: str = "ok", *, is_error: bool = False) -> Message:
    return Message(
        role="tool", source="tool", parts=(Text(text),), tool_call_id=call_id, is_error=is_error
    )


def ids(messages: list[Message]) -> list[str]:
    return [g.id for g in replay(messages, "m").walk()]


@examples(200)
@given(st.lists(OPERATIONS, max_size=20))
def test_replay_equals_the_plan_made_step_by_step(operations: list[dict[str, object]]):
    tree, path = GoalTree(mission="m"), []
    for number, operation in enumerate(operations):
        failed = False
        try:
            tree, _ = tree.apply(GoalOperation.from_arguments(operation))
        except InvalidGoalOperation:
            failed = True
        path += [call(f"c{number % 3}", operation), result(f"c{number % 3}", is_error=failed)]
    assert replay(path, "m") == tree


def test_a_call_without_a_result_or_with_an_error_counts_for_nothing():
    path = [call("a", {"add": "x"}), result("a", is_error=True), call("b", {"add": "y"})]
    assert ids(path) == []


def test_a_placeholder_counts_for_nothing_until_the_real_result_comes():
    path = [call("a", {"add": "x"}), result("a", INTERRUPTED_RESULT)]
    assert ids(path) == []
    assert ids([*path, result("a")]) == ["1"]


def test_results_give_the_order():
    both = Message(
        role="assistant",
        source="model",
        parts=(ToolCall("a", "goal", '{"add": "x"}'), ToolCall("b", "goal", '{"add": "y"}')),
    )
    tree = replay([both, result("b"), result("a")], "m")
    assert [g.description for g in tree.walk()] == ["y", "x"]


def test_an_id_that_is_used_again_belongs_to_the_newer_call():
    path = [call("a", {"add": "x"}), result("a"), call("a", {"add": "y"}), result("a")]
    assert [g.description for g in replay(path, "m").walk()] == ["x", "y"]


def test_replay_starts_at_the_newest_snapshot():
    kept, _ = GoalTree(mission="m").apply(GoalOperation(add="kept", focus="1"))
    summary = Message(
        role="user", source="summary", metadata={"snapshot": {"goals": kept.to_json()}}
    )
    path = [call("a", {"add": "x, y"}), result("a"), summary, call("b", {"add": "z"}), result("b")]
    assert [g.description for g in replay(path, "m").walk()] == ["kept", "z"]


def test_what_is_no_snapshot_or_no_operation_is_passed_over():
    odd = Message(role="user", source="import", metadata={"snapshot": {"goals": {"goals": 3}}})
    deep = "[" * 100_000
    path = [odd]
    for number, arguments in enumerate(['{"add": ', deep, "[]", '{"text": 1}', '{"add": 1}']):
        path += [call(str(number), arguments), result(str(number))]
    path += [call("t", "[1]", "todo_write"), result("t"), call("e", {"add": "x"}), result("e")]
    assert ids(path) == ["1"]


def test_todo_write_writes_the_same_plan():
    todos = {"todos": [{"content": "a", "status": "completed"}, {"content": "b"}]}
    path = [call("a", todos, "todo_write"), result("a"), call("b", {"done": "2"}), result("b")]
    assert replay(path, "m").progress() == (2, 2)


def test_replay_can_start_from_a_plan():
    start, _ = GoalTree(mission="m").apply(GoalOperation(add="a"))
    path = [replace(call("a", {"done": "1"}), sequence=1), result("a")]
    assert replay(path, start=start).progress() == (1, 1)
