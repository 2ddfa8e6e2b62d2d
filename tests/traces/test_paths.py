"""Paths over ranges against a walk parent by parent, on random trees; then the places by hand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import Message, Text, ToolCall, text_message
from tests.traces.naive import Naive
from traces import bulk, paths, write
from traces.models import Branch, PathRange, Trace
from traces.models import Message as MessageRow
from traces.place import TOTALS

pytestmark = pytest.mark.django_db

GOALS = ("", "1", "1.1", "2'")


@dataclass(frozen=True)
class Step:
    """``kind``: append, rewind, side (a side branch from the head), more (of the last side
    branch), root. ``pick`` chooses a message to rewind to; ``drafts``: (goal, calls) each."""

    kind: str
    pick: int
    drafts: tuple[tuple[str, int], ...]


steps = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(["append", "append", "append", "rewind", "side", "more", "root"]),
        pick=st.integers(0, 10_000),
        drafts=st.lists(
            st.tuples(st.sampled_from(GOALS), st.integers(0, 3)), min_size=1, max_size=4
        ).map(tuple),
    ),
    max_size=14,
)


def messages_of(drafts: tuple[tuple[str, int], ...], **fields: str) -> tuple[Message, ...]:
    """Answers with ``calls`` tool calls each, followed by their results."""
    made: list[Message] = []
    for goal, calls in drafts:
        parts = tuple(ToolCall(f"c{i}", "read_file") for i in range(calls))
        made.append(
            Message(
                role="assistant",
                source="model",
                parts=(Text("text"), *parts) if calls != 1 else parts,
                goal_id=goal,
                tokens=7 + calls,
                duration_ms=10,
                **fields,
            )
        )
        made += [
            Message(
                role="tool",
                source="tool",
                parts=(Text("found"),),
                tool_call_id=part.id,
                goal_id=goal,
                tokens=3,
                **fields,
            )
            for part in parts
        ]
    return tuple(made)


def rows_of(message: Message) -> int:
    """Counted by hand: a text is a row, each call is a row, a result is shown on its call's."""
    if message.role == "tool":
        return 0
    return sum(isinstance(p, Text | ToolCall) for p in message.parts)


class Played:
    """The same steps played on the rows and on the naive tree."""

    def __init__(self, played: list[Step]) -> None:
        self.trace_id = write.create_trace(NewTrace(mission="m")).id
        self.naive = Naive()
        self.sides = 0
        for step in played:
            self.play(step)
        self.trace = Trace.objects.get(pk=self.trace_id)
        self.rows = {n: rows_of(m) for n, m in self.naive.messages.items()}

    def play(self, step: Step) -> None:
        of_sides = [n for n, m in self.naive.messages.items() if m.branch_type]
        main = [n for n in self.naive.messages if n not in of_sides]
        match step.kind:
            case "append" | "root":
                made = messages_of(step.drafts)
                done = write.append(self.trace_id, made, root=step.kind == "root")
                self.naive.add(*done.messages)
            case "rewind":
                to = [0, *main][step.pick % (len(main) + 1)]
                write.move_head(self.trace_id, to, expected_head=self.naive.head)
                self.naive.head = to
            case "side":
                self.sides += 1
                self.add_side(step, parent=None)
            case "more" if of_sides:
                self.add_side(step, parent=of_sides[-1])
            case _:
                pass

    def add_side(self, step: Step, parent: int | None) -> None:
        made = messages_of(step.drafts, branch_type="reflection", branch_id=f"r{self.sides}")
        done = write.append(self.trace_id, made, move_head=False, parent=parent)
        self.naive.add(*done.messages, moves=False)


def on_random_trees(test: Any) -> Any:
    return settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )(given(played=steps)(test))


@on_random_trees
def test_every_page_of_every_path_is_what_a_walk_finds(played: list[Step]):
    tree = Played(played)
    assert paths.page(tree.trace) == tree.naive.path()
    for head in tree.naive.messages:
        walked = tree.naive.path(head)
        assert paths.page(tree.trace, head=head) == walked
        half = len(walked) // 2
        assert paths.page(tree.trace_id, half + 1, half + 3, head=head) == walked[half : half + 3]


@on_random_trees
def test_the_main_path_is_read_on_after_any_sequence(played: list[Step]):
    tree = Played(played)
    walked = tree.naive.path()
    for after in range(len(tree.naive.messages) + 2):
        later = [m for m in walked if m.sequence > after]
        assert paths.main_page(tree.trace, after, 3) == later[:3]


@on_random_trees
def test_goal_totals_are_what_a_count_finds(played: list[Step]):
    tree = Played(played)
    counted = tree.naive.goal_totals(tree.rows)
    found = paths.goal_totals(tree.trace, [*GOALS, "7"])
    assert {
        goal: (t.goal_rows, t.goal_steps, t.goal_tokens, t.goal_ms) for goal, t in found.items()
    } == counted
    for goal in counted:
        newest = [m for m in tree.naive.path() if m.goal_id == goal][-1]
        assert paths.last_in_goal(tree.trace, goal) == newest


@on_random_trees
def test_pages_by_row_hold_the_messages_that_show_those_rows(played: list[Step]):
    tree = Played(played)
    assert_pages(tree, tree.naive.path(), lambda s, n: paths.rows_page(tree.trace, s, n))
    for goal in GOALS:
        under = [m for m in tree.naive.path() if m.goal_id == goal]
        assert_pages(tree, under, lambda s, n, g=goal: paths.goal_rows(tree.trace, g, s, n))


def assert_pages(tree: Played, messages: list[Message], page: Any) -> None:
    """``messages`` laid out row by row, against pages of two rows."""
    path = tree.naive.path()
    laid = [m for m in messages for _ in range(tree.rows[m.sequence])]
    for start in range(len(laid) + 1):
        wanted = list({m.sequence: m for m in laid[start : start + 2]}.values())
        found = page(start, 2)
        assert found.messages == wanted
        if wanted:
            assert found.first_row == laid.index(wanted[0])
        assert found.results == [r for m in wanted for r in answers(path, m)]


def answers(path: list[Message], message: Message) -> list[Message]:
    """The results that follow ``message`` on the path, at most one for each of its calls."""
    behind = path[message.depth : message.depth + len(message.tool_calls)]
    return list(itertools.takewhile(lambda m: m.role == "tool", behind))


@on_random_trees
def test_ghosts_and_side_branches_hold_all_that_is_off_the_path(played: list[Step]):
    tree = Played(played)
    on_path = {m.sequence for m in tree.naive.path()}
    ghosts, sides = paths.ghosts(tree.trace), paths.side_branches(tree.trace)
    off = [m.sequence for g in ghosts for m in paths.span_messages(g.span)]
    beside = [m.sequence for s in sides for m in paths.span_messages(s.span)]
    everything = tree.naive.messages
    assert sorted(off) == [
        n for n, m in everything.items() if n not in on_path and not m.branch_type
    ]
    assert sorted(beside) == [n for n, m in everything.items() if m.branch_type]
    for piece in [*ghosts, *sides]:
        first = everything[piece.first_sequence]
        assert piece.fork_sequence == first.parent_sequence
        assert piece.count == len(paths.span_messages(piece.span))


@on_random_trees
def test_a_tree_planned_at_once_stands_as_one_that_grew(played: list[Step]):
    """An import places messages as appends do: same branches, ranges and totals."""
    tree = Played(played)
    plan = bulk.plan_tree(list(tree.naive.messages.values()))
    branches = list(Branch.objects.filter(trace=tree.trace).order_by("pk"))
    number = {branch.pk: i for i, branch in enumerate(branches)}
    for planned, row in zip(plan.branches, branches, strict=True):
        for name in ("kind", "start_depth", "fork_sequence", "first_sequence"):
            assert getattr(planned, name) == getattr(row, name)
        stored = PathRange.objects.filter(path=row).order_by("start_depth")
        assert planned.ranges == [(number[r.branch_id], r.start_depth, r.end_depth) for r in stored]
    rows = MessageRow.objects.filter(trace=tree.trace).order_by("sequence")
    for place, row in zip(plan.placed, rows, strict=True):
        assert (place.branch, place.depth) == (number[row.branch_id], row.depth)
        assert place.totals.columns() == {name: getattr(row, name) for name in TOTALS}


# By hand -------------------------------------------------------------------------------------


def said(text: str, **fields: Any) -> Message:
    return text_message("user", text, source="user", **fields)


def trace_with(count: int) -> Trace:
    made = write.create_trace(NewTrace(mission="m"))
    write.append(made.id, [said(str(n)) for n in range(1, count + 1)])
    return Trace.objects.get(pk=made.id)


def test_a_branch_is_made_only_when_something_is_appended_after_a_rewind():
    trace = trace_with(5)
    write.move_head(trace.pk, 3, expected_head=5)
    assert Branch.objects.filter(trace=trace).count() == 1
    write.move_head(trace.pk, 5, expected_head=3)
    write.append(trace.pk, [said("6")])
    assert Branch.objects.filter(trace=trace).count() == 1
    write.move_head(trace.pk, 3, expected_head=6)
    write.append(trace.pk, [said("4b")])
    assert Branch.objects.filter(trace=trace).count() == 2
    trace.refresh_from_db()
    (first, second) = paths.ranges(trace)
    assert (first[1:], second[1:]) == ((1, 3), (4, 4))


def test_what_a_rewind_leaves_is_one_ghost_with_its_fork_and_count():
    trace = trace_with(5)
    write.move_head(trace.pk, 2, expected_head=5)
    trace.refresh_from_db()
    [ghost] = paths.ghosts(trace)
    assert (ghost.fork_sequence, ghost.first_sequence, ghost.count) == (2, 3, 3)
    assert [m.text for m in paths.span_messages(ghost.span, 4, 4)] == ["4"]


def test_a_side_branch_is_found_by_its_name():
    trace = trace_with(2)
    side = {"branch_type": "reflection", "branch_id": "r1"}
    write.append(trace.pk, [said("think", **side)], move_head=False)
    [found] = paths.side_branches(trace)
    assert (found.branch_id, found.kind, found.fork_sequence, found.count) == (
        "r1",
        "reflection",
        2,
        1,
    )
    assert [m.text for m in paths.messages_of_branch(trace, "r1")] == ["think"]
    with pytest.raises(NotFound):
        paths.messages_of_branch(trace, "r2")


def test_the_head_cannot_move_onto_a_side_branch():
    trace = trace_with(1)
    side = {"branch_type": "reflection", "branch_id": "r1"}
    write.append(trace.pk, [said("think", **side)], move_head=False)
    with pytest.raises(Conflict, match="side branch"):
        write.move_head(trace.pk, 2, expected_head=1)


def test_a_page_takes_as_many_queries_deep_down_as_at_the_top():
    trace = trace_with(300)
    for turn in range(40):
        write.move_head(trace.pk, 290 - turn, expected_head=trace.head_sequence)
        write.append(trace.pk, [said("again")])
        trace.refresh_from_db()
    counts: set[int] = set()
    for first in (1, 100, 240):
        with CaptureQueriesContext(connection) as queries:
            paths.page(trace, first, first + 9)
        counts.add(len(queries))
    assert counts == {2}


def test_totals_of_many_goals_take_a_bounded_number_of_queries():
    made = write.create_trace(NewTrace(mission="m"))
    write.append(made.id, [said("x", goal_id=str(n)) for n in range(90)])
    trace = Trace.objects.get(pk=made.id)
    with CaptureQueriesContext(connection) as queries:
        found = paths.goal_totals(trace, [str(n) for n in range(90)])
    assert len(found) == 90
    assert len(queries) == 2


def test_columns_of_the_list_follow_each_append():
    made = write.create_trace(NewTrace(mission="m", config={"provider": "openai", "model": "x"}))
    write.append(made.id, messages_of((("1", 2), ("1", 0))))
    plan = {
        "mission": "m",
        "current_id": "1.1",
        "goals": [
            {"id": "1", "description": "Build", "status": "in_progress", "children": [
                {"id": "1.1", "description": "Login", "status": "in_progress"},
            ]},
            {"id": "2", "description": "Old", "status": "abandoned"},
            {"id": "3", "description": "Read", "status": "completed"},
        ],
    }  # fmt: skip
    write.append(made.id, [], goals=plan)
    trace = Trace.objects.get(pk=made.id)
    assert (trace.provider, trace.model, trace.steps) == ("openai", "x", 2)
    assert (trace.goals_done, trace.goals_total) == (1, 2)
    assert trace.current_goal == "1.1 Login"
    rows = trace.goals.values_list("goal_id", "parent_goal_id", "level", "is_current", "status")
    assert list(rows) == [
        ("1", "", 0, False, "in_progress"),
        ("1.1", "1", 1, True, "in_progress"),
        ("2", "", 0, False, "abandoned"),
        ("3", "", 0, False, "completed"),
    ]


def test_goal_rows_follow_the_plan_and_only_what_changed_is_written():
    made = write.create_trace(NewTrace(mission="m"))
    first = {"id": "1", "description": "Read", "status": "pending"}
    second = {"id": "2", "description": "Write", "status": "pending"}
    write.append(made.id, [], goals={"current_id": None, "goals": [first, second]})
    trace = Trace.objects.get(pk=made.id)
    kept = trace.goals.get(goal_id="1").pk
    done = second | {"status": "completed", "summary": "written"}
    write.move_head(made.id, 0, expected_head=0, goals={"current_id": None, "goals": [first, done]})
    assert trace.goals.get(goal_id="1").pk == kept
    assert trace.goals.get(goal_id="2").summary == "written"
    write.append(made.id, [], goals={"current_id": None, "goals": []})
    assert not trace.goals.exists()
