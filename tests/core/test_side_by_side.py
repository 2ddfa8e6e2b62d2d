"""Children side by side: at most four at a time, results as each ends, no event lost or twice.

The rules are those of docs/protocol.md, "In a run".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyberagent.core.config import Limits
from cyberagent.core.control import ManualControl
from cyberagent.core.events import ChildEnded, ChildStarted, Reviewed, ToolResult, Verdict
from tests.core.flows import (
    ANSWER,
    PASSING,
    READ,
    Flow,
    check_whole,
    in_order,
    records,
    slow,
    submit,
    works_as,
)
from tests.core.trees import brief, calls

NAMES = ("one", "two", "three", "four", "five", "six")


def parts(*names: str) -> dict[str, Any]:
    """One answer that shares out these parts."""
    return calls(*({"agent": {"task_brief": brief(f"Do part {name}")}} for name in names))


def does(name: str, seconds: float = 0) -> dict[str, Any]:
    objective = f"Do part {name}"
    return works_as(objective, slow(READ, seconds), submit(objective))


def accepted(*places: int) -> dict[str, Any]:
    """One answer that accepts children by how many ended after them."""
    finds = {f"c{n}": {"text": "Child {} ended", "nth": n} for n in places}
    made = [
        {"review_child": {"child": f"{{c{n}}}", "decision": "ACCEPT", "reason": "good"}}
        for n in places
    ]
    return {"calls": made, "find": finds}


def flow_of(folder: Path, names: tuple[str, ...], agents: list[Any], **config: Any) -> Flow:
    turns = [parts(*names), accepted(*range(1, len(names) + 1)), ANSWER]
    return Flow(folder, turns, [*agents, *PASSING], children="parallel", **config)


async def test_results_are_stored_as_each_child_ends(tmp_path: Path):
    flow = flow_of(
        tmp_path, ("one", "two", "three"), [does("one", 0.6), does("two", 0.3), does("three")]
    )
    await flow.begin()
    assert flow.why[0] == "completed"
    path = await flow.path("Count the notes.")
    asked = [c.id for c in path[2].tool_calls]
    assert [m.tool_call_id for m in path[3:6]] == asked[::-1]
    # Each result was stored when its child ended, and not when the last one did.
    told = [e for e in flow.events if isinstance(e, ChildEnded | ToolResult)]
    assert [e.kind for e in told[:6]] == ["ChildEnded", "ToolResult"] * 3
    await check_whole(flow.store, flow.root)


async def test_four_work_at_a_time_and_every_event_is_told_once_in_order(tmp_path: Path):
    flow = flow_of(tmp_path, NAMES, [does(name, 0.2) for name in NAMES])
    await flow.begin()
    assert flow.why[0] == "completed"
    assert in_order(flow.events)
    assert [e for e in flow.events if e.stored] == await flow.told()
    at_work = most = 0
    for event in flow.events:
        if isinstance(event, ChildStarted) and event.agent == "agent":
            at_work += 1
        if isinstance(event, ChildEnded) and event.agent == "agent":
            at_work -= 1
        most = max(most, at_work)
    assert most == 4
    # The first four begin, and are told of, before any of them ends.
    kinds = [e.kind for e in flow.events if e.kind in ("ChildStarted", "ChildEnded")]
    assert kinds[:4] == ["ChildStarted"] * 4
    await check_whole(flow.store, flow.root)


async def test_a_child_is_told_of_when_it_begins_and_not_when_it_ends(tmp_path: Path):
    flow = flow_of(tmp_path, ("one",), [does("one", 0.1)])
    await flow.begin()
    heard = [(flow.store.missions[t], e.kind) for t, e in flow.all]
    began = heard.index(("Count the notes.", "ChildStarted"))
    assert began < heard.index(("Do part one", "Usage"))


async def test_a_tree_is_told_of_in_an_order_that_makes_sense(tmp_path: Path):
    flow = flow_of(tmp_path, ("one",), [does("one")])
    await flow.begin()
    kinds = (ChildStarted, ChildEnded, Verdict, Reviewed)
    told = [
        (flow.store.missions[t], e.kind, getattr(e, "agent", ""))
        for t, e in flow.all
        if isinstance(e, kinds)
    ]
    root, child = "Count the notes.", "Do part one"
    assert told == [
        (root, "ChildStarted", "agent"),
        (child, "ChildStarted", "validator"),
        (child, "ChildEnded", "validator"),
        (child, "Verdict", ""),
        (root, "ChildEnded", "agent"),
        (root, "Reviewed", ""),
        (root, "ChildStarted", "validator"),
        (root, "ChildEnded", "validator"),
        (root, "Verdict", ""),
    ]


async def test_a_child_that_fails_does_not_hurt_the_others(tmp_path: Path):
    (tmp_path / "big.md").write_text("some words and more\n" * 8_000)
    fails = works_as("Do part one", calls({"read_file": {"path": "big.md"}}), ANSWER)
    flow = flow_of(
        tmp_path,
        ("one", "two"),
        [fails, does("two", 0.2)],
        policy="off",
        context_window=20_000,
        limits=Limits(max_tool_output_chars=0),
    )
    await flow.begin()
    assert flow.why[0] == "completed"
    found = dict(await flow.statuses())
    assert (found["Do part one"], found["Do part two"]) == ("failed", "completed")
    one, two = [m for m in await flow.path("Count the notes.") if m.name == "agent"]
    assert "ended: failed" in one.text and "tokens" in one.text
    assert "Verdict: passed" in two.text
    await check_whole(flow.store, flow.root)


async def test_a_pause_waits_for_each_at_its_safe_point_and_no_child_is_made_twice(tmp_path: Path):
    agents = [does("one"), *(does(name, 0.4) for name in NAMES[1:])]
    flow = flow_of(tmp_path, NAMES, agents)
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("ChildEnded", "Count the notes.")
    control.request("pause")
    await run
    assert flow.why == ("paused", "paused by ann")
    assert in_order(flow.events)
    found = dict(await flow.statuses())
    assert found["Do part one"] == "completed" and found["Do part two"] == "paused"
    # Its result is there already, the others are not; who had no place was not even made.
    assert [m.name for m in (await flow.path("Count the notes."))[3:]] == ["agent"]
    assert "Do part six" not in found
    await check_whole(flow.store, flow.root)

    await flow.go_on(control=control)
    assert flow.why[0] == "completed"
    made = [name for name, _ in await flow.statuses() if name.startswith("Do part")]
    assert sorted(made) == sorted(f"Do part {name}" for name in NAMES)
    path = await flow.path("Count the notes.")
    assert records(path).count("child_ended") == records(path).count("reviewed") == 6
    await check_whole(flow.store, flow.root)


async def test_a_stop_reaches_all_at_once_and_lets_nobody_begin(tmp_path: Path):
    flow = flow_of(tmp_path, NAMES, [does(name, 60) for name in NAMES])
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("CallStarted", "Do part", times=4)
    control.request("stop")
    await run
    assert flow.why == ("stopped", "stopped by ann")
    found = dict(await flow.statuses())
    assert found == {"Count the notes.": "stopped"} | {f"Do part {n}": "stopped" for n in NAMES[:4]}
    path = await flow.path("Count the notes.")
    assert [m.is_error for m in path[3:]] == [False] * 4 + [True] * 2
    await check_whole(flow.store, flow.root)
    assert in_order(flow.events)
