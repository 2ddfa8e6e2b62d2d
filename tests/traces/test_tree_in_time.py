"""Trees of agents over rows, in time: three generations stopped, paused, spoken to, cut anywhere
and taken over, with nothing lost and nothing twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import LeaseLost
from tests.core.flows import (
    ACCEPT,
    AGAIN,
    ANSWER,
    BOTH,
    FAST,
    ONE,
    PASSING,
    READ,
    check_whole,
    records,
    revise,
    slow,
    submit,
    works_as,
)
from tests.core.trees import ANCHOR, brief, calls
from traces import commands, lease, runs, trees
from traces.models import Command, Event, Trace
from traces.store import OrmStore

pytestmark = pytest.mark.usefixtures("threads")

ROOT = "Count the notes."
CHILD = [calls({"agent": {"task_brief": ONE}}), ACCEPT, submit("Count both")]


def start(folder: Path, turns: list[Any], *agents: Any, **config: Any) -> str:
    (folder / "a.md").write_text("one\ntwo\n")
    script = {"turns": turns, "agents": [*agents, *PASSING]}
    settings = RunConfig(
        provider="scripted",
        preset="recursive",
        workspace=str(folder),
        provider_options={"script": script, "speed": FAST},
        **config,
    )
    return commands.start(None, ROOT, settings, anchor=normalize_root_task_anchor(ANCHOR)).pk


astart = sync_to_async(start)


async def members(root: str) -> dict[str, Trace]:
    """The traces of a tree by mission; of validators the last."""

    def found() -> dict[str, Trace]:
        return {t.mission: t for t in trees.in_order(root)}

    return await sync_to_async(found)()


async def until(root: str, holds: Callable[[dict[str, Trace]], bool]) -> dict[str, Trace]:
    """Wait until the tree is so; a test that hangs is ended."""
    async with asyncio.timeout(30):
        while not holds(found := await members(root)):
            await asyncio.sleep(0.01)
    return found


def asked(*missions: str) -> Callable[[dict[str, Trace]], bool]:
    """Whether the models of all these are, or were, asked."""
    return lambda tree: all(m in tree and tree[m].last_call > 0 for m in missions)


async def statuses(root: str) -> dict[str, str]:
    return {m: t.status for m, t in (await members(root)).items() if not m.startswith("Validate")}


async def quickly() -> None:
    """From here on no model keeps anybody waiting."""
    async for trace in Trace.objects.all():
        config = json.loads(trace.config)
        config["provider_options"]["speed"] = 0
        await Trace.objects.filter(pk=trace.pk).aupdate(config=json.dumps(config))


async def act(command: Any, trace: Trace, *given: Any, by: User | None = None) -> Command:
    return await sync_to_async(command)(trace, *given, by=by)


async def whole(root: str) -> None:
    await check_whole(OrmStore(), root)


async def path_of(root: str, mission: str) -> list[Any]:
    return await OrmStore().path((await members(root))[mission].pk)


async def test_a_stop_ends_three_generations_and_the_stopped_child_can_be_revised(tmp_path: Path):
    turns = [calls({"agent": {"task_brief": BOTH}}), *revise(AGAIN), ACCEPT, ANSWER]
    child = works_as("Count both", CHILD[0], ACCEPT, submit("Count again"))
    root = await astart(tmp_path, turns, child, works_as("Count a.md", slow(READ)))
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, asked("Count a.md"))
    await act(commands.stop, tree[ROOT])
    assert await asyncio.wait_for(run, 30) == "stopped"
    assert await statuses(root) == dict.fromkeys((ROOT, "Count both", "Count a.md"), "stopped")
    assert (await Command.objects.aget()).status == "applied"
    await whole(root)

    await quickly()
    await act(commands.resume, tree[ROOT])
    assert await runs.drive(root, "you") == "completed"
    after = await members(root)
    assert after["Count both"].pk == tree["Count both"].pk
    assert after["Count both"].status == "completed"
    assert records(await path_of(root, ROOT)).count("delegated") == 2
    await whole(root)


async def test_a_pause_rests_children_side_by_side_and_they_go_on_as_they_were(tmp_path: Path):
    parts = [brief(f"Do part {n}") for n in (1, 2)]
    turns = [
        calls(*({"agent": {"task_brief": b}} for b in parts)),
        {
            "calls": [
                {"review_child": {"child": f"{{c{n}}}", "decision": "ACCEPT"}} for n in (1, 2)
            ],
            "find": {f"c{n}": {"text": "Child {} ended", "nth": n} for n in (1, 2)},
        },
        ANSWER,
    ]
    agents = [works_as(b["objective"], slow(READ, 0.5), submit(b["objective"])) for b in parts]
    root = await astart(tmp_path, turns, *agents, children="parallel")
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, asked("Do part 1", "Do part 2"))
    await act(commands.pause, tree[ROOT])
    assert await run == "paused"
    resting = await members(root)
    assert {t.status for t in resting.values()} == {"paused"}
    assert {t.lease_owner for t in resting.values()} == {""}
    command = await Command.objects.aget()
    assert (command.name, command.status) == ("pause", "applied")
    await whole(root)

    # What is said now is heard once the children's results are there.
    await quickly()
    await act(commands.say, resting[ROOT], "Be brief.")
    assert await runs.drive(root, "you") == "completed"
    after = await members(root)
    for part in ("Do part 1", "Do part 2"):
        assert after[part].pk == tree[part].pk
    path = await path_of(root, ROOT)
    said = next(n for n, m in enumerate(path) if m.text == "Be brief.")
    assert [m.name for m in path[said - 2 : said]] == ["agent", "agent"]
    assert records(path).count("child_ended") == records(path).count("reviewed") == 2
    await whole(root)


async def test_what_is_said_to_a_grandchild_is_heard_by_it_alone(tmp_path: Path):
    turns = [calls({"agent": {"task_brief": BOTH}}), ACCEPT, ANSWER]
    grand = works_as("Count a.md", slow(READ, 0.5), submit("Count a.md"))
    root = await astart(tmp_path, turns, works_as("Count both", *CHILD), grand)
    run = asyncio.ensure_future(runs.drive(root, "me"))
    tree = await until(root, asked("Count a.md"))
    await act(commands.say, tree["Count a.md"], "Blank lines too.")
    assert await run == "completed"
    heard = {
        mission: [m.text for m in await path_of(root, mission) if m.source == "operator"]
        for mission in (ROOT, "Count both", "Count a.md")
    }
    assert heard == {ROOT: [], "Count both": [], "Count a.md": ["Blank lines too."]}
    assert (await Command.objects.aget()).status == "applied"
    await whole(root)


POINTS = (
    (ROOT, "ChildStarted", 1),  # the child was made, and not opened
    ("Count a.md", "CallStarted", 1),  # in a model call
    ("Count a.md", "ToolCall", 2),  # its report is handed in, nobody was asked
    ("Validate: Count a.md", "Usage", 1),  # the validator answered
    ("Validate: Count a.md", "Done", 1),  # the verdict is not stored
    ("Count a.md", "Done", 1),  # the child ended, its parent knows nothing of it
    ("Count both", "Done", 1),
    ("Count both", "Session", 2),  # it was given its revised contract
    (ROOT, "Usage", 5),  # the root answered
    ("Validate: Have the two notes counted", "CallStarted", 1),
    (ROOT, "Verdict", 1),  # it was judged, and has not ended
)


@pytest.mark.parametrize(("mission", "kind", "times"), POINTS)
async def test_a_tree_that_was_cut_is_ended_by_another_owner_as_if_nothing_had_happened(
    tmp_path: Path, mission: str, kind: str, times: int
):
    turns = [calls({"agent": {"task_brief": BOTH}}), *revise(AGAIN), ACCEPT, ANSWER]
    child = works_as("Count both", *CHILD, READ, submit("Count again"))
    grand = works_as("Count a.md", READ, submit("Count a.md"))
    root = await astart(tmp_path, turns, child, grand)

    run = asyncio.ensure_future(runs.drive(root, "first"))
    seen = Event.objects.filter(trace__mission=mission, kind=kind)
    async with asyncio.timeout(30):
        while not run.done() and await seen.acount() < times:
            await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert await runs.drive(root, "second") == "completed"

    assert await statuses(root) == dict.fromkeys((ROOT, "Count both", "Count a.md"), "completed")
    made = Counter([t.mission async for t in Trace.objects.all()])
    assert made == {
        ROOT: 1,
        "Count both": 1,
        "Count a.md": 1,
        "Validate: Count a.md": 1,
        "Validate: Count both": 1,
        "Validate: Count again": 1,
        "Validate: Have the two notes counted": 1,
    }
    assert records(await path_of(root, ROOT)) == [
        *("delegated", "child_ended", "reviewed"),
        *("delegated", "child_ended", "reviewed"),
        "validated",
    ]
    assert records(await path_of(root, "Count both")) == [
        *("briefed", "delegated", "child_ended", "reviewed", "reported", "validated"),
        *("briefed", "reported", "validated"),
    ]
    ended = Event.objects.filter(trace__parent_trace=None, kind="ChildEnded")
    assert await ended.acount() == 3
    verdicts = Event.objects.filter(kind="Verdict")
    assert await verdicts.acount() == 4
    await whole(root)


async def test_a_former_owner_can_write_to_no_generation(tmp_path: Path):
    turns = [calls({"agent": {"task_brief": BOTH}}), ACCEPT, ANSWER]
    grand = works_as("Count a.md", slow(READ), submit("Count a.md"))
    root = await astart(tmp_path, turns, works_as("Count both", *CHILD), grand)
    run = asyncio.ensure_future(runs.drive(root, "slow"))
    tree = await until(root, asked("Count a.md"))
    await Trace.objects.filter(pk=root).aupdate(lease_owner="", lease_until=None)
    assert await sync_to_async(lease.take)(root, "other")
    await sync_to_async(lease.adopt)(root, "other")
    zombie = OrmStore("slow")
    for trace in tree.values():
        with pytest.raises(LeaseLost):
            await zombie.append(trace.pk, [], [], turn=9)
    # It sees for itself that its lease is gone, and changes nothing any more.
    await asyncio.wait_for(run, 30)
    assert await statuses(root) == dict.fromkeys((ROOT, "Count both", "Count a.md"), "running")
    await sync_to_async(lease.release)(root, "other")
    await quickly()
    assert await runs.drive(root, "third") == "completed"
    await whole(root)
