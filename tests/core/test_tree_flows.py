"""How trees of agents run in time: stopped, paused, gone on with, spoken to, side by side.

The rules are those of docs/protocol.md, "In a run".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.control import ManualControl
from cyberagent.core.errors import Conflict
from cyberagent.core.events import ChildStarted, StatusChanged
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import Message, ToolCall, text_message
from tests.core.flows import (
    ACCEPT,
    AGAIN,
    ANSWER,
    BOTH,
    ONE,
    PASSING,
    READ,
    Flow,
    check_whole,
    in_order,
    records,
    revise,
    slow,
    submit,
    works_as,
)
from tests.core.trees import agent, calls, say, verdict

GRAND = [READ, submit("Count a.md")]
CHILD = [calls({"agent": {"task_brief": ONE}}), ACCEPT, submit("Count both")]
ROOT = [calls({"agent": {"task_brief": BOTH}}), ACCEPT, ANSWER]


def family(
    root: list[Any], child: list[Any], grand: list[Any] = GRAND, *more: Any
) -> tuple[Any, Any]:
    """The turns of the root and the agents of a tree of up to three generations."""
    return root, [works_as("Count both", *child), works_as("Count a.md", *grand), *more, *PASSING]


# Stop ----------------------------------------------------------------------------------------


async def test_a_stop_of_the_root_ends_all_three_generations_and_they_can_go_on(tmp_path: Path):
    turns = [ROOT[0], *revise(AGAIN), ACCEPT, ANSWER]
    child = [CHILD[0], ACCEPT, submit("Count again")]
    flow = Flow(tmp_path, *family(turns, child, [slow(READ), *GRAND[1:]]))
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("CallStarted", "Count a.md")
    control.request("stop")
    await run
    assert flow.why == ("stopped", "stopped by ann")
    assert await flow.statuses() == [
        ("Count the notes.", "stopped"),
        ("Count both", "stopped"),
        ("Count a.md", "stopped"),
    ]
    # Each ends in order, the one above it after it.
    ends = [flow.store.missions[t] for t, e in flow.all if isinstance(e, StatusChanged)]
    assert ends == ["Count a.md", "Count both", "Count the notes."]
    await check_whole(flow.store, flow.root)
    assert in_order(flow.events)

    # The stopped child's result is there once; its review is due, and the same trace goes on.
    result = (await flow.path("Count the notes."))[-1]
    assert result.name == "agent" and "the run above it was stopped" in result.text
    before = await flow.id_of("Count both")
    await flow.go_on()
    assert flow.why[0] == "completed"
    assert await flow.statuses() == [
        ("Count the notes.", "completed"),
        ("Count both", "completed"),
        ("Count a.md", "stopped"),
        ("validator", "completed"),
        ("validator", "completed"),
    ]
    assert await flow.id_of("Count both") == before
    assert records(await flow.path("Count the notes.")) == [
        *("delegated", "child_ended", "reviewed"),
        *("delegated", "child_ended", "reviewed"),
        "validated",
    ]
    await check_whole(flow.store, flow.root)


async def test_a_stop_while_the_answer_is_judged_is_no_verdict(tmp_path: Path):
    judging = agent(
        "# TaskBrief\nnull", "validator", slow(say(verdict("passed", "R1", evidence=1)))
    )
    flow = Flow(tmp_path, [ANSWER], [judging])
    control = ManualControl()
    run = flow.started(control=control)
    await flow.when("CallStarted", "Validate")
    control.request("stop")
    await run
    assert flow.why == ("stopped", "stopped by operator")
    assert records(await flow.path("Count the notes.")) == []
    await flow.go_on()
    assert flow.why == ("completed", "the validator found the answer passed")
    # The same validator was asked once more.
    assert await flow.statuses() == [("Count the notes.", "completed"), ("validator", "completed")]
    assert [m.text for m in await flow.path("Count the notes.")].count("a.md has 2 lines.") == 1
    await check_whole(flow.store, flow.root)


async def test_a_stop_while_a_report_is_judged_leaves_no_report(tmp_path: Path):
    judging = agent("# TaskReport", "validator", slow(say(verdict("passed", "B1"))))
    flow = Flow(
        tmp_path, [ROOT[0], ACCEPT, ANSWER], [works_as("Count both", READ, CHILD[2]), judging]
    )
    control = ManualControl()
    run = flow.started(control=control)
    await flow.when("CallStarted", "Validate")
    control.request("stop")
    await run
    child = await flow.path("Count both")
    assert records(child) == ["briefed"]
    assert (child[-1].name, child[-1].is_error) == ("submit_report", True)
    assert "Verdict: unknown" in (await flow.path("Count the notes."))[-1].text
    await check_whole(flow.store, flow.root)


async def test_a_child_that_its_own_operator_stops_does_not_stop_the_run(tmp_path: Path):
    flow = Flow(tmp_path, *family(ROOT, [slow(READ)]))
    run = flow.started()
    await flow.when("CallStarted", "Count both")
    flow.hand_on("Count both").request("stop")
    await run
    result = next(m for m in await flow.path("Count the notes.") if m.name == "agent")
    assert "ended: stopped" in result.text and "stopped by ann" in result.text
    assert flow.why[0] == "completed"
    await check_whole(flow.store, flow.root)


# Pause ---------------------------------------------------------------------------------------


async def test_a_pause_of_the_root_rests_all_below_and_the_same_children_go_on(tmp_path: Path):
    flow = Flow(tmp_path, *family(ROOT, CHILD, [slow(READ, 0.2), GRAND[1]]))
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("CallStarted", "Count a.md")
    control.request("pause")
    await run
    assert flow.why == ("paused", "paused by ann")
    assert not await control.pending()
    paused = [("Count the notes.", "paused"), ("Count both", "paused"), ("Count a.md", "paused")]
    assert await flow.statuses() == paused
    # What the grandchild was asked is done; the calls that wait for children stay open.
    assert [m.role for m in await flow.path("Count a.md")] == ["user", "assistant", "tool"]
    for above in ("Count the notes.", "Count both"):
        assert (await flow.path(above))[-1].tool_calls[0].name == "agent"
    await check_whole(flow.store, flow.root)
    ids = [await flow.id_of("Count both"), await flow.id_of("Count a.md")]

    await flow.go_on(control=control)
    assert flow.why[0] == "completed"
    assert [await flow.id_of("Count both"), await flow.id_of("Count a.md")] == ids
    assert records(await flow.path("Count both")) == [
        *("briefed", "delegated", "child_ended", "reviewed", "reported", "validated")
    ]
    started = [e for e in await flow.told() if isinstance(e, ChildStarted)]
    assert [e.resumed for e in started if e.child == ids[0]] == [False, True]
    await check_whole(flow.store, flow.root)


async def test_a_child_that_is_paused_alone_pauses_what_is_above_it(tmp_path: Path):
    flow = Flow(tmp_path, *family(ROOT, CHILD, [slow(READ, 0.2), GRAND[1]]))
    run = flow.started()
    await flow.when("CallStarted", "Count a.md")
    flow.hand_on("Count a.md").request("pause")
    await run
    child = await flow.id_of("Count both")
    assert flow.why == ("paused", f"its sub-agent {child} was paused")
    assert {status for _, status in await flow.statuses()} == {"paused"}
    await flow.go_on()
    assert flow.why[0] == "completed"
    await check_whole(flow.store, flow.root)


EDIT = {"edit_file": {"path": "a.md", "old": "two", "new": "three"}}
"""A call that is not run twice."""


async def test_what_a_batch_had_not_begun_when_it_paused_is_run_later(tmp_path: Path):
    batch = calls({"agent": {"task_brief": BOTH}}, EDIT)
    flow = Flow(tmp_path, *family([batch, ACCEPT, ANSWER], [slow(READ, 0.2), CHILD[2]]))
    control = ManualControl()
    run = flow.started(control=control)
    await flow.when("CallStarted", "Count both")
    control.request("pause")
    await run
    assert flow.why[0] == "paused" and (tmp_path / "a.md").read_text() == "one\ntwo\n"
    await flow.go_on()
    results = [m for m in await flow.path("Count the notes.") if m.role == "tool"]
    assert [(m.name, m.is_error) for m in results[:2]] == [("agent", False), ("edit_file", False)]
    assert (tmp_path / "a.md").read_text() == "one\nthree\n"
    await check_whole(flow.store, flow.root)


# Said ----------------------------------------------------------------------------------------


async def test_what_is_said_to_a_child_at_work_is_heard_by_it_alone(tmp_path: Path):
    flow = Flow(tmp_path, *family(ROOT, [slow(READ, 0.2), CHILD[2]]))
    run = flow.started()
    await flow.when("CallStarted", "Count both")
    flow.hand_on("Count both").request("say", text="Count blank lines too.")
    await run
    heard = [m for m in await flow.path("Count both") if m.source == "operator"]
    assert [(m.text, m.metadata["by"]) for m in heard] == [("Count blank lines too.", "ann")]
    assert not any(m.source == "operator" for m in await flow.path("Count the notes."))
    assert flow.why[0] == "completed"
    await check_whole(flow.store, flow.root)


async def test_what_is_said_to_a_paused_root_comes_after_its_childrens_results(tmp_path: Path):
    flow = Flow(tmp_path, *family(ROOT, [slow(READ, 0.2), CHILD[2]]))
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("CallStarted", "Count both")
    control.request("pause")
    await run
    with pytest.raises(Conflict, match="sub-agents are at work"):
        await flow.go_on([{"role": "user", "content": "Quick."}])
    control.request("say", text="Be brief.")
    await flow.go_on(control=control)
    path = await flow.path("Count the notes.")
    at = next(n for n, m in enumerate(path) if m.text == "Be brief.")
    assert path[at - 1].name == "agent"
    assert flow.why[0] == "completed"
    await check_whole(flow.store, flow.root)


async def test_a_sibling_of_a_paused_child_comes_to_its_own_end_first(tmp_path: Path):
    accept = [{"review_child": {"child": c, "decision": "ACCEPT"}} for c in ("{one}", "{two}")]
    ids: Any = {"one": "Child {} ended", "two": {"text": "Child {} ended", "nth": 2}}
    turns = [
        calls({"agent": {"task_brief": BOTH}}, {"agent": {"task_brief": ONE}}),
        calls(*accept, **ids),
        ANSWER,
    ]
    agents = [
        works_as("Count both", slow(READ, 0.2), CHILD[2]),
        works_as("Count a.md", slow(READ, 0.4), GRAND[1]),
    ]
    flow = Flow(tmp_path, turns, [*agents, *PASSING], children="parallel")
    run = flow.started()
    await flow.when("CallStarted", "Count both")
    flow.hand_on("Count both").request("pause")
    await run
    found = dict(await flow.statuses())
    assert (found["Count both"], found["Count a.md"]) == ("paused", "completed")
    assert flow.why[0] == "paused"
    results = [m for m in await flow.path("Count the notes.") if m.role == "tool"]
    assert len(results) == 1 and "Count a.md: done" in results[0].text
    await flow.go_on()
    assert flow.why[0] == "completed"
    await check_whole(flow.store, flow.root)


async def test_a_call_that_nobody_knows_of_is_not_run(tmp_path: Path):
    """A transcript from elsewhere ends in a call without a result: it may well have been run."""
    flow = Flow(tmp_path, [ANSWER, ANSWER], [], preset="cyber")
    trace = await flow.store.create_trace(NewTrace(mission="Write.", status="paused"))
    call = ToolCall("c1", "edit_file", json.dumps(EDIT["edit_file"]))
    asks = Message(role="assistant", source="model", parts=(call,))
    await flow.store.append(trace.id, [text_message("user", "Write.", source="user"), asks])
    flow.root = trace.id
    await flow.go_on()
    assert (tmp_path / "a.md").read_text() == "one\ntwo\n"
    result = (await flow.path("Write."))[2]
    assert (result.tool_call_id, result.is_error) == ("c1", True)
