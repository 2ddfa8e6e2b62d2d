"""Whole runs over rows: driven, paused, stopped, cut in the middle and taken over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from cyberagent.core.config import RunConfig
from cyberagent.core.rebuild import rebuilt
from cyberagent.providers.projections import PROJECTIONS
from traces import commands, embedded, lease, live, runs, write
from traces.models import Command, Event, Trace
from traces.store import OrmStore

pytestmark = pytest.mark.usefixtures("threads")

READ = {"calls": [{"read_file": {"path": "notes.md"}}]}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes.md").write_text("one\ntwo\n")
    return tmp_path


def start(folder: Path, turns: list[Any], speed: float = 0) -> str:
    config = RunConfig(
        provider="scripted",
        workspace=str(folder),
        provider_options={"script": {"turns": turns}, "speed": speed},
    )
    return commands.start(None, "Look at the notes.", config).pk


astart = sync_to_async(start)


async def state(trace_id: str) -> Trace:
    return await Trace.objects.aget(pk=trace_id)


async def kinds(trace_id: str) -> list[str]:
    found = Event.objects.filter(trace=trace_id).order_by("number")
    return [kind async for kind in found.values_list("kind", flat=True)]


async def until(trace_id: str, kind: str, times: int = 1) -> None:
    """Wait until the trace has as many events of that kind; a test that hangs is ended."""
    async with asyncio.timeout(30):
        while (await kinds(trace_id)).count(kind) < times:
            await asyncio.sleep(0.01)


async def test_a_run_is_driven_to_its_end(notes: Path):
    trace_id = await astart(notes, [READ, {"say": "Two lines."}])
    assert await runs.drive(trace_id, "a") == "completed"
    row = await state(trace_id)
    assert (row.status, row.lease_owner, row.steps) == ("completed", "", 2)
    path = await OrmStore().path(trace_id)
    assert [m.role for m in path] == ["user", "assistant", "tool", "assistant"]
    assert "one" in path[2].text
    found = await kinds(trace_id)
    assert found[-1] == "Done"
    assert row.last_event == len(found)


async def test_each_window_of_a_run_rebuilds_from_its_rows(notes: Path):
    trace_id = await astart(notes, [READ, READ, {"say": "Two lines."}])
    await runs.drive(trace_id, "a")
    for number in (1, 2, 3):
        assert (await rebuilt(OrmStore(), trace_id, number, PROJECTIONS)).holds


async def test_the_plan_of_a_run_stands_in_goal_rows(notes: Path):
    turns = [
        {"calls": [{"goal": {"add": "Read, Report", "focus": "1"}}]},
        {"calls": [{"goal": {"done": "1", "summary": "two lines"}}]},
        {"say": "End."},
    ]
    trace_id = await astart(notes, turns)
    await runs.drive(trace_id, "a")
    row = await state(trace_id)
    assert (row.goals_done, row.goals_total) == (1, 2)
    rows = row.goals.values_list("goal_id", "description", "status", "summary")  # type: ignore[attr-defined]
    assert [r async for r in rows] == [
        ("1", "Read", "completed", "two lines"),
        ("2", "Report", "pending", ""),
    ]


async def test_a_run_that_somebody_drives_is_left_alone(notes: Path):
    trace_id = await astart(notes, [{"say": "End."}])
    assert await sync_to_async(lease.take)(trace_id, "other")
    assert await runs.drive(trace_id, "a") == "queued"
    assert "Session" not in await kinds(trace_id)


async def test_a_run_that_cannot_begin_is_failed_with_its_reason(notes: Path):
    trace_id = await astart(notes, [{"say": "End."}])
    config = json.dumps({"provider": "nobody"})
    await Trace.objects.filter(pk=trace_id).aupdate(config=config)
    assert await runs.drive(trace_id, "a") == "failed"
    row = await state(trace_id)
    assert "nobody" in row.status_why
    assert (await kinds(trace_id))[-3:] == ["Error", "StatusChanged", "Done"]


async def test_a_stop_reaches_a_model_that_is_talking(notes: Path):
    trace_id = await astart(notes, [{"say": "word " * 4000}], speed=20)
    run = asyncio.ensure_future(runs.drive(trace_id, "a"))
    await until(trace_id, "CallStarted")
    await sync_to_async(commands.stop)(await state(trace_id), by=None)
    assert await run == "stopped"
    assert (await Command.objects.aget()).status == "applied"


async def test_a_pause_gives_the_worker_back_and_a_resume_goes_on(notes: Path):
    trace_id = await astart(notes, [READ, {"say": "End."}])
    await Command.objects.acreate(trace_id=trace_id, name="pause")
    assert await runs.drive(trace_id, "a") == "paused"
    assert (await state(trace_id)).lease_owner == ""
    await sync_to_async(commands.resume)(await state(trace_id), by=None)
    assert await runs.drive(trace_id, "b") == "completed"


async def test_what_is_said_to_a_completed_run_is_heard(notes: Path):
    trace_id = await astart(notes, [{"say": "One."}, {"say": "Two."}])
    await runs.drive(trace_id, "a")
    await sync_to_async(commands.say)(await state(trace_id), "And now?", by=None)
    assert await runs.drive(trace_id, "a") == "completed"
    path = await OrmStore().path(trace_id)
    assert [m.text for m in path] == ["Look at the notes.", "One.", "And now?", "Two."]
    assert (path[2].source, path[2].turn) == ("operator", 2)


async def test_a_cancelled_run_gives_its_lease_back_and_goes_on_elsewhere(notes: Path):
    trace_id = await astart(notes, [READ, {"say": "word " * 4000}], speed=20)
    run = asyncio.ensure_future(runs.drive(trace_id, "a"))
    await until(trace_id, "CallStarted", times=2)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    row = await state(trace_id)
    assert (row.status, row.lease_owner) == ("running", "")
    await faster(trace_id)
    assert await runs.drive(trace_id, "b") == "completed"
    path = await OrmStore().path(trace_id)
    assert [m.role for m in path] == ["user", "assistant", "tool", "assistant"]
    assert (await state(trace_id)).takeovers == 0


async def faster(trace_id: str) -> None:
    row = await state(trace_id)
    config = json.loads(row.config)
    config["provider_options"]["speed"] = 0
    await Trace.objects.filter(pk=trace_id).aupdate(config=json.dumps(config))


async def test_a_run_that_loses_its_lease_stops_at_once(notes: Path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    trace_id = await astart(notes, [{"say": "word " * 4000}], speed=20)
    run = asyncio.ensure_future(runs.drive(trace_id, "a"))
    await until(trace_id, "CallStarted")
    await Trace.objects.filter(pk=trace_id).aupdate(lease_owner="b")
    assert await run == "running"
    row = await state(trace_id)
    assert (row.status, row.lease_owner) == ("running", "b")
    assert "Done" not in await kinds(trace_id)


async def test_watchers_get_the_text_as_it_is_written(notes: Path):
    from channels.layers import get_channel_layer

    live.bind(asyncio.get_running_loop())
    layer = get_channel_layer()
    trace_id = await astart(notes, [{"say": "A short answer."}])
    channel = await layer.new_channel()
    await layer.group_add(live.group_of(trace_id), channel)
    try:
        await runs.drive(trace_id, "a")
        heard = [await layer.receive(channel)]
        number = (await state(trace_id)).last_event
        while heard[-1].get("number") != number:
            async with asyncio.timeout(10):
                heard.append(await layer.receive(channel))
    finally:
        live.bind(None)
    text = "".join(m["text"] for m in heard if m["type"] == "trace.delta")
    assert text == "A short answer."
    assert live.partial(trace_id, 1) is None


def test_the_thread_beside_the_server_drives_what_is_queued(notes: Path):
    loop = embedded.Loop(drives=True, slots=2)
    loop.start()
    try:
        ids = [start(notes, [READ, {"say": "End."}]) for _ in range(5)]
        asyncio.run(all_done(ids))
    finally:
        loop.stop()
    assert set(Trace.objects.values_list("status", flat=True)) == {"completed"}


async def all_done(ids: list[str]) -> None:
    await asyncio.gather(*(until(trace_id, "Done") for trace_id in ids))


def test_stopping_the_thread_leaves_its_runs_to_the_next(notes: Path):
    loop = embedded.Loop(drives=True)
    loop.start()
    trace_id = start(notes, [READ, {"say": "word " * 4000}], speed=20)
    asyncio.run(until(trace_id, "CallStarted", times=2))
    loop.stop(30)
    row = Trace.objects.get(pk=trace_id)
    assert (row.status, row.lease_owner) == ("running", "")
    assert lease.due() == [trace_id]


def test_a_watcher_queues_what_a_dead_worker_left_and_not_again_and_again(monkeypatch):
    from cyberagent.core.ports import NewTrace
    from traces import queueing

    queued: list[str] = []
    monkeypatch.setattr(queueing, "queue", queued.append)
    trace_id = write.create_trace(NewTrace(mission="m", status="running")).id
    loop = embedded.Loop(drives=False)
    loop._loop.run_until_complete(loop._look())
    loop._loop.run_until_complete(loop._look())
    loop._loop.close()
    assert queued == [trace_id]


async def test_an_unforeseen_error_is_stored_where_people_look(notes: Path, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(runs, "_tell", broken)
    trace_id = await astart(notes, [{"say": "End."}])
    assert await runs.drive(trace_id, "a") == "failed"
    row = await state(trace_id)
    assert row.status_why == "ZeroDivisionError: nobody thought of it"
    assert (row.lease_owner, "Traceback" in caplog.text) == ("", True)
