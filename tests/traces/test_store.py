"""What every Store promises, on the one in memory and on the one over rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.events import (
    GoalChanged,
    MessageStored,
    Nudge,
    Rewound,
    StatusChanged,
)
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.ports import CallEnd, NewTrace, Store
from cyberagent.core.types import (
    CallRecord,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    sha256,
    text_message,
)
from traces.store import OrmStore

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=[InMemoryStore, OrmStore], ids=["memory", "rows"])
def store(request: pytest.FixtureRequest) -> Store:
    kind: Callable[[], Store] = request.param
    return kind()


def said(text: str, **fields: object) -> Message:
    return text_message("user", text, source="user", **fields)


def call_record(number: int) -> CallRecord:
    return CallRecord(
        number=number,
        provider="scripted",
        model="m",
        projection="openai/1",
        manifest={"s": "a" * 64, "i": [["w", 1, 2]]},
        sha256="b" * 64,
        estimated_tokens=17,
        exact=False,
        composition={"user": 17},
        after_sequence=1,
    )


async def new(store: Store, mission: str = "Add a login") -> str:
    return (await store.create_trace(NewTrace(mission=mission))).id


async def texts(store: Store, trace: str, **where: int) -> list[str]:
    return [m.text for m in await store.path(trace, **where)]


async def test_a_new_trace_is_empty_and_holds_what_it_was_given(store: Store):
    made = await store.create_trace(
        NewTrace(
            mission="Größe 你好 \ud83d \x00",
            config={"model": "m", "limits": {"max_steps": 3}},
            context={"k": [1, None]},
            system_prompt="Be brief.",
        )
    )
    read = await store.trace(made.id)
    assert read == made
    assert (read.mission, read.status) == ("Größe 你好 \ud83d \x00", "queued")
    assert read.config == {"model": "m", "limits": {"max_steps": 3}}
    assert (read.head_sequence, read.last_event, read.last_call) == (0, 0, 0)
    assert await store.path(made.id) == []


async def test_messages_are_numbered_and_chained(store: Store):
    trace = await new(store)
    done = await store.append(trace, [said("one"), said("two")])
    await store.append(trace, [said("three")])
    path = await store.path(trace)
    assert [(m.sequence, m.parent_sequence, m.depth) for m in path] == [
        (1, None, 1),
        (2, 1, 2),
        (3, 2, 3),
    ]
    assert tuple(path[:2]) == done.messages
    assert (await store.trace(trace)).head_sequence == 3


async def test_a_message_comes_back_as_it_went_in(store: Store):
    trace = await new(store)
    draft = Message(
        role="assistant",
        parts=(
            Reasoning("why\ud800", model="m", blob={"signature": "x", "deep": [[[1.5]]]}),
            Text("a\x00b\r\n"),
            ToolCall("call\x00\udfff", "read_file", '{"path": NaN', extra={"k": None}),
            Image(media_type="image/png", data="iVBORw0K"),
        ),
        source="model",
        goal_id="2.1",
        turn=3,
        tokens=12,
        usage=Usage(prompt=10, completion=0, cached=None),
        duration_ms=5,
        full_output="\x1f whole \x00 output \ud800",
        metadata={"finish": "stop"},
        created_at="2026-02-03T04:05:06.789Z",
    )
    await store.append(trace, [draft])
    [read] = await store.path(trace)
    assert read.parts == draft.parts
    assert read.full_output == draft.full_output
    assert (read.usage, read.metadata) == (draft.usage, draft.metadata)
    assert read.created_at == "2026-02-03T04:05:06.789Z"
    assert (read.goal_id, read.turn, read.tokens, read.duration_ms) == ("2.1", 3, 12, 5)


async def test_a_tool_result_comes_back_as_it_went_in(store: Store):
    trace = await new(store)
    draft = Message(
        role="tool",
        parts=(Text("no such file"),),
        source="tool",
        tool_call_id="call\x00\udfff",
        name="read_file",
        is_error=True,
    )
    await store.append(trace, [draft])
    [read] = await store.path(trace)
    assert (read.tool_call_id, read.name, read.is_error) == ("call\x00\udfff", "read_file", True)
    assert read.full_output is None


async def test_each_message_has_its_event_before_the_given_ones(store: Store):
    trace = await new(store)
    drafts = [said("one", goal_id="1"), said("two")]
    done = await store.append(trace, drafts, [Nudge(what="x", message=-2), Nudge(what="y")])
    assert [(type(e), e.number, e.message) for e in done.events] == [
        (MessageStored, 1, 1),
        (MessageStored, 2, 2),
        (Nudge, 3, 2),
        (Nudge, 4, None),
    ]
    assert await store.events(trace) == list(done.events)
    assert done.trace.last_event == 4


async def test_events_are_read_after_a_number(store: Store):
    trace = await new(store)
    await store.append(trace, [], [Nudge(what=str(n)) for n in range(1, 8)])
    assert [e.number for e in await store.events(trace, after=2, limit=3)] == [3, 4, 5]
    assert await store.events(trace, after=7) == []


async def test_lists_in_an_event_come_back_as_tuples(store: Store):
    trace = await new(store)
    done = await store.append(trace, [], [GoalChanged(changes=("add 1", "focus 1"), total=1)])
    assert await store.events(trace) == list(done.events)


async def test_a_stale_head_is_a_conflict_that_changes_nothing(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one")])
    before = await store.trace(trace)
    with pytest.raises(Conflict):
        await store.append(trace, [said("two")], [Nudge(what="x")], expected_head=0)
    with pytest.raises(Conflict):
        await store.move_head(trace, 0, expected_head=7)
    assert await store.trace(trace) == before
    assert [e.number for e in await store.events(trace)] == [1]


async def test_unknown_traces_parents_and_targets_are_not_found(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one")])
    for attempt in (
        store.trace("none"),
        store.append("none", [said("x")]),
        store.append(trace, [said("x")], parent=9),
        store.move_head(trace, 9, expected_head=1),
        store.path(trace, head=9),
        store.events("none"),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert (await store.trace(trace)).last_sequence == 1


async def test_a_rewind_moves_the_head_and_the_next_message_forks(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one"), said("two"), said("three")])
    moved = await store.move_head(
        trace, 1, [Rewound(to_sequence=1, from_sequence=3, by="ann")], expected_head=3
    )
    assert moved.trace.head_sequence == 1
    assert moved.events[0].number == 4
    assert await texts(store, trace) == ["one"]
    await store.append(trace, [said("other")])
    assert await texts(store, trace) == ["one", "other"]
    assert await texts(store, trace, head=3) == ["one", "two", "three"]
    fourth = (await store.messages(trace, [4]))[4]
    assert (fourth.parent_sequence, fourth.depth) == (1, 2)


async def test_a_rewind_can_be_undone(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one"), said("two")])
    await store.move_head(trace, 1, expected_head=2)
    await store.append(trace, [said("other")])
    await store.move_head(trace, 2, expected_head=3)
    await store.append(trace, [said("three")])
    assert await texts(store, trace) == ["one", "two", "three"]


async def test_a_rewind_to_before_the_first_message_starts_a_new_root(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one")])
    await store.move_head(trace, 0, expected_head=1)
    assert await store.path(trace) == []
    [other] = (await store.append(trace, [said("other")])).messages
    assert (other.sequence, other.parent_sequence, other.depth) == (2, None, 1)


async def test_side_branches_leave_the_main_path_alone(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one"), said("two")])
    side = {"branch_type": "reflection", "branch_id": "r1"}
    await store.append(trace, [said("think", **side)], move_head=False)
    await store.append(trace, [said("three")])
    await store.append(trace, [said("more", **side)], parent=3, move_head=False)
    assert await texts(store, trace) == ["one", "two", "three"]
    assert await texts(store, trace, head=5) == ["one", "two", "think", "more"]
    assert (await store.trace(trace)).head_sequence == 4


async def test_a_page_of_a_path_is_cut_by_depth(store: Store):
    trace = await new(store)
    await store.append(trace, [said(str(n)) for n in range(1, 8)])
    await store.move_head(trace, 4, expected_head=7)
    await store.append(trace, [said("5b"), said("6b")])
    assert await texts(store, trace, first=3, last=5) == ["3", "4", "5b"]
    assert await texts(store, trace, first=6, last=9) == ["6b"]
    assert await texts(store, trace, first=7) == []
    assert await texts(store, trace, head=6, first=5) == ["5", "6"]


async def test_a_new_root_stands_beside_the_old_one(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one")])
    [root] = (await store.append(trace, [said("root")], root=True)).messages
    assert (root.parent_sequence, root.depth) == (None, 1)
    assert await texts(store, trace) == ["root"]


async def test_status_context_and_turn_are_written_with_the_messages(store: Store):
    trace = await new(store)
    done = await store.append(
        trace,
        [said("one")],
        [StatusChanged(status="paused", why="ann asked")],
        status="paused",
        context={"injected_skills": {"plan-well": 1}},
        turn=2,
    )
    assert done.trace == await store.trace(trace)
    assert (done.trace.status, done.trace.turn) == ("paused", 2)
    assert done.trace.context == {"injected_skills": {"plan-well": 1}}


async def test_a_call_is_recorded_before_it_is_sent_and_ended_with_its_answer(store: Store):
    trace = await new(store)
    await store.append(trace, [said("one")])
    blob = b'{"system":"Be brief."}'
    started = await store.start_call(trace, call_record(1), {sha256(blob): blob})
    assert [(e.kind, e.number) for e in started.events] == [("CallStarted", 2)]
    assert started.trace.last_call == 1
    sent = (await store.calls(trace, [1, 2]))[1]
    assert (sent.status, sent.message_sequence, sent.usage) == ("sent", None, None)
    assert await store.blobs([sha256(blob), "0" * 64]) == {sha256(blob): blob}

    end = CallEnd(
        number=1,
        status="ok",
        message=-1,
        usage=Usage(prompt=10, completion=3),
        finish_reason="stop",
        duration_ms=40,
        tries=2,
        cost=0.5,
    )
    answer = text_message("assistant", "done", source="model")
    await store.append(trace, [answer], call=end)
    read = (await store.calls(trace, [1]))[1]
    assert (read.status, read.message_sequence, read.tries) == ("ok", 2, 2)
    assert (read.usage, read.cost) == (Usage(prompt=10, completion=3), 0.5)
    assert read.manifest == call_record(1).manifest


async def test_calls_are_numbered_without_a_gap(store: Store):
    trace = await new(store)
    with pytest.raises(Conflict):
        await store.start_call(trace, call_record(2), {})
    await store.start_call(trace, call_record(1), {})
    with pytest.raises(Conflict):
        await store.start_call(trace, call_record(1), {})
    with pytest.raises(NotFound):
        await store.append(trace, [], call=CallEnd(number=5, status="failed"))


async def test_messages_are_found_by_sequence(store: Store):
    trace = await new(store)
    await store.append(trace, [said(str(n)) for n in range(1, 1202)])
    found = await store.messages(trace, [*range(1, 1202), 5000])
    assert [found[n].text for n in range(1, 1202)] == [str(n) for n in range(1, 1202)]
    assert 5000 not in found
