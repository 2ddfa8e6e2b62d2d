"""Going back over rows: receipts, undo, forks, and what goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.rebuild import rebuilt
from cyberagent.providers.projections import PROJECTIONS
from goals.models import Goal
from traces import commands, paths, rewind, runs
from traces.models import Event, Message, ModelCall, Trace
from traces.store import OrmStore

pytestmark = pytest.mark.usefixtures("threads")

TURNS: list[Any] = [
    {"calls": [{"goal": {"add": "Read, Report", "focus": "1"}}]},
    {"calls": [{"read_file": {"path": "f0.txt"}}, {"read_file": {"path": "f1.txt"}}]},
    {"calls": [{"goal": {"done": "1", "summary": "read"}}]},
    {"say": "The report."},
    {"say": "Another report."},
]
# 1 user, 2 goal call, 3 its result, 4 two reads, 5 and 6 their results, 7 done, 8 its result,
# 9 the report.


def started(folder: Path, turns: list[Any] = TURNS, **config: Any) -> str:
    for n in range(4):
        lines = "\n".join(f"file {n} line {i} holds a fact" for i in range(75))
        (folder / f"f{n}.txt").write_text(lines)
    branches = {"compression": [{"say": "1. **Findings**: [2-7] f0 to f2 hold facts."}]}
    options = {"script": {"turns": turns, "branches": branches}, "speed": 0}
    settings = RunConfig(
        provider="scripted", workspace=str(folder), provider_options=options, **config
    )
    return commands.start(None, "Look at the files.", settings).pk


async def ran(folder: Path, turns: list[Any] = TURNS, **config: Any) -> Trace:
    trace_id = await sync_to_async(started)(folder, turns, **config)
    assert await runs.drive(trace_id, "me") == "completed"
    return await Trace.objects.aget(pk=trace_id)


@sync_to_async
def previewed(trace: Trace, to: int) -> rewind.Receipt:
    return rewind.preview(trace, to)


@sync_to_async
def moved(trace: Trace, to: int, head: int | None = None) -> rewind.Receipt:
    expected = trace.head_sequence if head is None else head
    receipt = rewind.move(trace, to, by="ada", why="wrong file", expected_head=expected)
    trace.refresh_from_db()
    return receipt


@sync_to_async
def on_path(trace: Trace) -> list[int]:
    return [m.sequence for m in paths.page(trace)]


async def test_a_receipt_says_what_would_be_left_and_that_every_window_holds(tmp_path: Path):
    trace = await ran(tmp_path)
    receipt = await previewed(trace, 6)
    assert (receipt.to, receipt.leaves, receipt.brings_back) == (6, 3, 0)
    assert (receipt.calls, receipt.held, receipt.first_broken) == (2, 2, None)
    sent = await ModelCall.objects.aget(trace=trace, number=3)
    assert receipt.then == 3 and receipt.equal
    assert receipt.then_sha256 == receipt.now_sha256 == sent.sha256
    assert receipt.plan.current == "1" and receipt.plan.progress() == (0, 2)
    assert receipt.state == "holds"
    await trace.arefresh_from_db()
    assert trace.head_sequence == 9  # nothing was written


async def test_going_back_into_a_batch_leads_to_before_it(tmp_path: Path):
    trace = await ran(tmp_path)
    assert (await previewed(trace, 5)).to == 3
    assert (await previewed(trace, 4)).to == 3
    assert (await previewed(trace, 0)).to == 0


async def test_a_rewind_moves_the_head_the_plan_and_says_who_and_why(tmp_path: Path):
    trace = await ran(tmp_path)
    await moved(trace, 6)
    assert await on_path(trace) == [1, 2, 3, 4, 5, 6]
    assert trace.status == "paused"
    statuses = {g.goal_id: g.status async for g in Goal.objects.filter(trace=trace)}
    assert statuses == {"1": "in_progress", "2": "pending"}
    event = await Event.objects.aget(trace=trace, kind="Rewound")
    told = json.loads(event.data)
    assert (told["from_sequence"], told["to_sequence"]) == (9, 6)
    assert (told["by"], told["why"]) == ("ada", "wrong file")
    assert await Message.objects.filter(trace=trace).acount() == 9


async def test_the_resumed_run_sends_what_was_sent_there_and_goes_on_as_a_new_branch(
    tmp_path: Path,
):
    trace = await ran(tmp_path)
    await moved(trace, 6)
    await sync_to_async(commands.resume)(trace, by=None)
    assert await runs.drive(trace.pk, "me") == "completed"
    third = await ModelCall.objects.aget(trace=trace, number=3)
    fifth = await ModelCall.objects.aget(trace=trace, number=5)
    assert fifth.sha256 == third.sha256
    await trace.arefresh_from_db()
    assert await on_path(trace) == [1, 2, 3, 4, 5, 6, 10, 11, 12]


async def test_an_undo_leads_back_to_the_old_head(tmp_path: Path):
    trace = await ran(tmp_path)
    before = await on_path(trace)
    await moved(trace, 3)
    receipt = await moved(trace, 9)
    assert await on_path(trace) == before and receipt.brings_back == 6
    statuses = {g.goal_id: g.status async for g in Goal.objects.filter(trace=trace)}
    assert statuses["1"] == "completed"


async def test_a_head_that_moved_meanwhile_is_a_conflict_and_nothing_changes(tmp_path: Path):
    trace = await ran(tmp_path)
    with pytest.raises(Conflict, match="head"):
        await moved(trace, 3, head=8)
    await trace.arefresh_from_db()
    assert (trace.head_sequence, trace.status) == (9, "completed")
    with pytest.raises(NotFound):
        await previewed(trace, 99)


READS: list[Any] = [
    *({"calls": [{"read_file": {"path": f"f{n}.txt"}}]} for n in range(4)),
    {"say": "End."},
]
SMALL: dict[str, Any] = {"context_window": 8_400, "tools": ("goal", "read_file")}


async def test_going_back_into_what_a_summary_stands_for_brings_the_originals_back(
    tmp_path: Path,
):
    trace = await ran(tmp_path, READS, **SMALL)
    summary = await Message.objects.aget(trace=trace, source="summary")
    assert summary.sequence in await on_path(trace)
    receipt = await moved(trace, 5)
    assert receipt.equal and receipt.brings_back == 4
    assert await on_path(trace) == [1, 2, 3, 4, 5]
    # A message of the side branch that wrote it can never be a head.
    side = await Message.objects.filter(trace=trace, branch_type="compression").afirst()
    assert side is not None
    with pytest.raises(Conflict, match="side branch"):
        await previewed(trace, side.sequence)


async def test_a_fork_shares_the_prefix_and_its_windows_and_nothing_else(tmp_path: Path):
    trace = await ran(tmp_path)
    made = await sync_to_async(rewind.fork)(trace, 6, owner=None)
    assert made.pk != trace.pk and made.status == "paused" and made.config == trace.config
    assert await on_path(made) == [1, 2, 3, 4, 5, 6]
    assert made.last_call == 2
    for number in (1, 2):
        assert (await rebuilt(OrmStore(), made.pk, number, PROJECTIONS)).holds
    await sync_to_async(commands.resume)(made, by=None)
    assert await runs.drive(made.pk, "me") == "completed"
    theirs = await ModelCall.objects.aget(trace=trace, number=3)
    ours = await ModelCall.objects.aget(trace=made, number=3)
    assert ours.sha256 == theirs.sha256
    await trace.arefresh_from_db()
    assert trace.head_sequence == 9 and trace.last_call == 4
