"""The message tree: pairing, safe points, paths, branches and ghosts."""

from __future__ import annotations

import pytest

from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.core.types import INTERRUPTED_RESULT, Json, Message, Text, ToolCall
from cyberagent.trace.tree import branches, ghosts, pair, path_of, safe_point, stood_for, unanswered


def user(sequence: int, parent: int | None = None, **more: Json) -> Message:
    return Message(
        role="user", source="user", sequence=sequence, parent_sequence=parent or None, **more
    )


def asks(sequence: int, *ids: str) -> Message:
    parts = tuple(ToolCall(i, "read_file") for i in ids)
    return Message(role="assistant", source="model", parts=parts, sequence=sequence)


def says(sequence: int) -> Message:
    return Message(role="assistant", source="model", parts=(Text("x"),), sequence=sequence)


def tells(sequence: int, call_id: str, text: str = "ok") -> Message:
    return Message(
        role="tool", source="tool", parts=(Text(text),), tool_call_id=call_id, sequence=sequence
    )


PATH = [user(1), asks(2, "a", "b"), tells(3, "a"), tells(4, "b"), says(5)]


@pytest.mark.parametrize(("to", "safe"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5)])
def test_a_safe_point_leaves_no_call_unanswered(to: int, safe: int):
    assert safe_point(PATH, to) == safe


def test_there_may_be_no_safe_point_at_all():
    assert safe_point([asks(1, "a")], 1) == 0


def test_a_message_that_is_not_on_the_path_is_no_point():
    with pytest.raises(NotFound):
        safe_point(PATH, 9)


def test_an_old_dead_call_does_not_bar_later_points():
    path = [user(1), asks(2, "dead"), user(3), says(4)]
    assert [safe_point(path, n) for n in (2, 3, 4)] == [1, 3, 4]


def test_a_late_result_is_waited_for():
    path = [user(1), asks(2, "a"), user(3), tells(4, "a")]
    assert [safe_point(path, n) for n in (3, 4)] == [1, 4]


def test_a_placeholder_answers_until_the_real_result_replaces_it():
    path = [asks(1, "a"), tells(2, "a", INTERRUPTED_RESULT), user(3), tells(4, "a")]
    (one,) = pair(path).answered
    assert (one.result, one.answered_at) == (3, 1)
    assert safe_point(path, 3) == 3
    assert pair(path).orphans == ()


def test_results_are_matched_by_position_where_ids_are_used_again():
    path = [asks(1, "a", "a"), tells(2, "a"), tells(3, "a"), asks(4, "a"), tells(5, "a")]
    assert [(p.caller, p.call, p.result) for p in pair(path).answered] == [
        (0, 0, 1),
        (0, 1, 2),
        (3, 0, 4),
    ]


def test_what_answers_nothing_or_again_is_an_orphan():
    path = [tells(1, "x"), asks(2, "a"), tells(3, "a"), tells(4, "a")]
    assert pair(path).orphans == (0, 3)


def test_unanswered_calls_come_with_their_message():
    assert [(m.sequence, c.id) for m, c in unanswered([asks(1, "a", "b"), tells(2, "a")])] == [
        (1, "b")
    ]


def tree(*messages: Message) -> dict[int, Message]:
    return {m.sequence: m for m in messages}


def test_the_path_goes_from_the_root_to_the_head():
    messages = tree(user(1), user(2, 1), user(3, 2), user(4, 2))
    assert [m.sequence for m in path_of(messages, 4)] == [1, 2, 4]
    assert path_of(messages, 0) == []


def test_a_path_with_a_hole_or_a_circle_is_refused():
    with pytest.raises(NotFound):
        path_of(tree(user(2, 1)), 2)
    with pytest.raises(InvalidInput):
        path_of(tree(user(1, 2), user(2, 1)), 2)


def test_a_side_branch_hangs_where_it_left():
    messages = tree(
        user(1),
        user(2, 1, branch_id="r1", branch_type="reflection"),
        user(3, 2, branch_id="r1", branch_type="reflection"),
        user(4, 1),
    )
    (branch,) = branches(messages)
    assert (branch.left_from, branch.sequences, branch.branch_type) == (1, (2, 3), "reflection")
    assert ghosts(messages, 4) == []


def test_what_a_rewind_left_behind_is_a_ghost():
    messages = tree(user(1), user(2, 1), user(3, 2), user(4, 1), user(5, 4), user(6, 2))
    found = [(g.left_from, g.sequences) for g in ghosts(messages, 5)]
    assert found == [(1, (2, 3, 6))]


def test_what_a_summary_stands_for_is_no_ghost():
    summary = Message(
        role="user",
        source="summary",
        sequence=4,
        parent_sequence=1,
        metadata={"stands_for": {"last": 3, "messages": 2}},
    )
    messages = tree(user(1), user(2, 1), user(3, 2), summary, user(5, 4))
    assert stood_for(messages, summary) == [2, 3]
    assert ghosts(messages, 5) == []
