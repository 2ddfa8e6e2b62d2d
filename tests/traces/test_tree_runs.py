"""Whole recursive runs over rows: driven, cut and taken over, steered from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.lineage import open_protocol
from tests.core.trees import ANCHOR, agent, brief, calls, report, say, verdict
from traces import acts, commands, lease, protocols, runs, trees
from traces.bundle import bundle_of, store_bundle
from traces.models import Command, Event, Trace, ValidationResult
from traces.store import OrmStore

pytestmark = pytest.mark.usefixtures("threads")

TURNS = [
    calls({"agent": {"task_brief": brief("Count a.md")}}),
    calls({"review_child": {"child": "{id}", "decision": "ACCEPT"}}, id="Child {} ended"),
    say("a.md has 2 lines."),
]
JUDGES = [
    agent("a.md has 2 lines.", "validator", say(verdict("passed", "R1", evidence=7))),
    agent("# TaskReport", "validator", say(verdict("passed", "B1"))),
]
READ = calls({"read_file": {"path": "a.md"}})
REPORT = calls({"submit_report": {"report": report("Count a.md: done")}})
SLOWLY = {"say": "word " * 4000, "calls": [{"read_file": {"path": "a.md"}}]}


def start(folder: Path, *turns: Any, speed: float = 0) -> str:
    (folder / "a.md").write_text("one\ntwo\n")
    agents = [agent("Count a.md", "agent", *turns), *JUDGES]
    script = {"turns": TURNS, "agents": agents}
    config = RunConfig(
        provider="scripted",
        preset="recursive",
        workspace=str(folder),
        provider_options={"script": script, "speed": speed},
    )
    anchor = normalize_root_task_anchor(ANCHOR)
    return commands.start(None, "Count the notes.", config, anchor=anchor).pk


astart = sync_to_async(start)


async def family(root: str) -> dict[str, Trace]:
    """The traces of a tree by kind ("root" for the root); of one kind the last."""

    def found() -> dict[str, Trace]:
        return {str(trees.made_for(t).get("kind", "root")): t for t in trees.in_order(root)}

    return await sync_to_async(found)()


async def until(root: str, holds: Callable[[dict[str, Trace]], bool]) -> dict[str, Trace]:
    """Wait until the tree is so; a test that hangs is ended."""
    async with asyncio.timeout(30):
        while not holds(found := await family(root)):
            await asyncio.sleep(0.01)
    return found


def at_work(tree: dict[str, Trace]) -> bool:
    """Whether the child's model is being asked."""
    return "agent" in tree and tree["agent"].last_call > 0


async def statuses(root: str) -> dict[str, str]:
    return {kind: trace.status for kind, trace in (await family(root)).items()}


async def test_a_tree_is_driven_to_its_end_and_its_verdicts_are_rows(tmp_path: Path):
    root = await astart(tmp_path, READ, REPORT)
    assert await runs.drive(root, "me") == "completed"
    tree = await sync_to_async(trees.in_order)(root)
    assert len(tree) == 4  # the root, its child, a validator for each of the two
    assert {t.lease_owner for t in tree} == {""}
    rows = {row.trace_id: row async for row in ValidationResult.objects.all()}
    child = next(t for t in tree if t.parent_trace_id == root and t.preset == "recursive")
    assert {k: (r.verdict, r.task, r.is_root) for k, r in rows.items()} == {
        child.pk: ("passed", "Count a.md", False),
        root: ("passed", "Have the two notes counted", True),
    }
    for judged, row in rows.items():
        validator = await Trace.objects.aget(pk=row.validator_id)
        assert validator.parent_trace_id == judged
    store = OrmStore()
    for trace in (root, child.pk):
        opened = await open_protocol(store, await store.trace(trace), await store.path(trace))
        assert await sync_to_async(protocols.protocol_of)(trace) == opened


async def test_a_tree_that_was_run_comes_in_again_where_it_is_free(tmp_path: Path):
    root = await astart(tmp_path, READ, REPORT)
    await runs.drive(root, "me")

    def again() -> None:
        tree = trees.in_order(root)
        whole = bundle_of(tree[0])
        states = [protocols.protocol_of(t) for t in tree]
        told = list(ValidationResult.objects.order_by("trace", "sequence").values())
        for trace in reversed(tree):
            Trace.objects.get(pk=trace.pk).delete()
        store_bundle(whole, None)
        assert [protocols.protocol_of(t.pk) for t in tree] == states
        assert [t.pk for t in trees.in_order(root)] == [t.pk for t in tree]
        made = ValidationResult.objects.order_by("trace", "sequence").values()
        assert [r | {"id": 0} for r in made] == [r | {"id": 0} for r in told]

    await sync_to_async(again)()


async def test_a_run_that_was_cut_goes_on_with_the_same_child_elsewhere(tmp_path: Path):
    root = await astart(tmp_path, SLOWLY, REPORT, speed=2_000)
    run = asyncio.ensure_future(runs.drive(root, "first"))
    before = await until(root, at_work)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await Trace.objects.filter(pk=root).aupdate(lease_owner="", lease_until=None)
    await quickly()
    assert await runs.drive(root, "second") == "completed"
    after = await family(root)
    assert after["agent"].pk == before["agent"].pk
    assert await Trace.objects.filter(parent_trace=root, preset="recursive").acount() == 1
    sessions = Event.objects.filter(trace=before["agent"].pk, kind="Session").order_by("number")
    assert [json.loads(d)["owner"] async for d in sessions.values_list("data", flat=True)] == [
        "first",
        "second",
    ]


async def quickly() -> None:
    """From here on the script is played without its waits."""
    async for trace in Trace.objects.filter(preset__in=("recursive", "validator")):
        config = json.loads(trace.config)
        config["provider_options"]["speed"] = 0
        await Trace.objects.filter(pk=trace.pk).aupdate(config=json.dumps(config))


async def test_a_former_owner_that_was_only_slow_writes_to_no_sub_agent(tmp_path: Path):
    root = await astart(tmp_path, SLOWLY, REPORT, speed=2_000)
    slow = asyncio.ensure_future(runs.drive(root, "slow"))
    tree = await until(root, at_work)
    await Trace.objects.filter(pk=root).aupdate(lease_owner="", lease_until=None)
    await quickly()
    assert await runs.drive(root, "other") == "completed"
    await asyncio.wait_for(slow, 30)
    child = tree["agent"].pk
    answers = [m for m in await OrmStore().path(child) if m.role == "assistant"]
    assert [m.tool_calls[0].name for m in answers][:2] == ["read_file", "submit_report"]
    assert await ValidationResult.objects.filter(trace=child).acount() == 1


async def test_a_sub_agent_alone_is_stopped_and_its_run_goes_on(tmp_path: Path):
    root = await astart(tmp_path, SLOWLY, REPORT, speed=200)
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, at_work)
    command = await sync_to_async(commands.stop)(tree["agent"], by=None)
    assert command.status == "pending"
    found = await until(root, lambda t: t["agent"].status == "stopped")
    assert found["root"].status == "running"
    await sync_to_async(commands.stop)(found["root"], by=None)
    assert await run == "stopped"
    assert {c.status async for c in Command.objects.all()} == {"applied"}


async def test_a_sub_agent_that_is_paused_pauses_its_run_and_is_resumed_with_it(tmp_path: Path):
    root = await astart(tmp_path, SLOWLY, REPORT, speed=20_000)
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, at_work)
    await sync_to_async(commands.pause)(tree["agent"], by=None)
    assert await run == "paused"
    assert await statuses(root) == {"root": "paused", "agent": "paused"}
    await quickly()
    await sync_to_async(commands.resume)(tree["agent"], by=None)
    assert await sync_to_async(lease.due)() == [root]
    assert await runs.drive(root, "you") == "completed"
    after = await family(root)
    assert after["agent"].pk == tree["agent"].pk
    assert after["agent"].status == "completed"


async def test_a_sub_agent_that_is_driven_is_taken_back_and_goes_on_from_there(tmp_path: Path):
    root = await astart(tmp_path, READ, SLOWLY, REPORT, speed=20_000)
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, lambda t: at_work(t) and t["agent"].head_sequence >= 3)

    def rewound() -> Command:
        child = Trace.objects.get(pk=tree["agent"].pk)
        return acts.rewind(child, 1, by=None, expected_head=child.head_sequence)

    assert (await sync_to_async(rewound)()).status == "pending"
    assert await run == "paused"
    child = await Trace.objects.aget(pk=tree["agent"].pk)
    assert (child.head_sequence, child.status) == (1, "paused")
    assert (await Command.objects.aget()).status == "applied"
    await quickly()
    await sync_to_async(commands.resume)(child, by=None)
    assert await runs.drive(root, "me") == "completed"


async def test_a_run_that_was_stopped_at_rest_and_resumed_finds_its_child_stopped(tmp_path: Path):
    root = await astart(tmp_path, SLOWLY, REPORT, speed=20_000)
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, at_work)
    await sync_to_async(commands.pause)(tree["root"], by=None)
    assert await run == "paused"
    await sync_to_async(commands.stop)(await Trace.objects.aget(pk=root), by=None)
    assert await statuses(root) == {"root": "stopped", "agent": "stopped"}
    await quickly()
    await sync_to_async(commands.resume)(await Trace.objects.aget(pk=root), by=None)
    await runs.drive(root, "me")
    said = [m.text for m in await OrmStore().path(root) if m.role == "tool"]
    assert "ended: stopped" in said[0]
