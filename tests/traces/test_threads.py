"""The writer's thread: many runs at once, groups that share a commit, death in the middle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.db import DatabaseError, connection

from cyberagent.core.errors import Conflict
from cyberagent.core.events import Nudge
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import text_message
from tests import services
from traces import paths, threads, write
from traces.models import Event, Message, Trace
from traces.store import OrmStore

pytestmark = pytest.mark.usefixtures("threads")

ROOT = Path(__file__).resolve().parent.parent.parent


def said(text: str):
    return text_message("user", text, source="user")


async def test_eight_runs_at_once_and_writers_outside_lose_nothing():
    store = OrmStore()
    traces = [(await store.create_trace(NewTrace(mission=str(n)))).id for n in range(8)]
    outside = [(await store.create_trace(NewTrace(mission="outside"))).id for _ in range(2)]

    async def run(trace: str) -> None:
        for n in range(40):
            await store.append(trace, [said(f"{n}")], [Nudge(what="x")], expected_head=n)

    def write_outside(trace: str) -> None:
        try:
            for n in range(40):
                write.append(trace, [said(f"{n}")], [Nudge(what="x")])
        finally:
            connection.close()

    await asyncio.gather(
        *map(run, traces), *(asyncio.to_thread(write_outside, trace) for trace in outside)
    )
    for trace in [*traces, *outside]:
        assert [m.text for m in await store.path(trace)] == [str(n) for n in range(40)]
        assert [e.number for e in await store.events(trace)] == list(range(1, 81))


async def grouped(*acts: object) -> list[object]:
    """What became of acts that the writer found waiting together, in one commit."""
    held = threading.Event()
    first = asyncio.ensure_future(threads.in_writer(held.wait))
    rest = [asyncio.ensure_future(threads.in_writer(act)) for act in acts]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    held.set()
    await first
    return await asyncio.gather(*rest, return_exceptions=True)


async def test_one_that_fails_in_a_group_takes_nothing_of_the_others_with_it():
    store = OrmStore()
    trace = (await store.create_trace(NewTrace(mission="m"))).id

    def broken() -> None:
        write.append(trace, [said("never")])
        Message.objects.create(trace_id=trace, sequence=1, depth=1, branch_id=0)

    results = await grouped(
        lambda: write.append(trace, [said("one")]),
        lambda: write.append(trace, [said("never")], expected_head=7),
        broken,
        lambda: write.append(trace, [said("two")]),
    )
    assert isinstance(results[1], Conflict)
    assert isinstance(results[2], DatabaseError)
    assert [m.text for m in await store.path(trace)] == ["one", "two"]
    assert (await store.trace(trace)).last_event == 2


async def test_a_caller_that_goes_away_before_its_turn_writes_nothing():
    store = OrmStore()
    trace = (await store.create_trace(NewTrace(mission="m"))).id
    held = threading.Event()
    first = asyncio.ensure_future(threads.in_writer(held.wait))
    await asyncio.sleep(0)
    gone = asyncio.ensure_future(store.append(trace, [said("gone")]))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    held.set()
    await first
    await store.append(trace, [said("stays")])
    assert [m.text for m in await store.path(trace)] == ["stays"]


CRASHING = """
import asyncio, django
django.setup()
from cyberagent.core.events import Nudge
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import text_message
from traces.store import OrmStore

async def main():
    store = OrmStore()
    trace = (await store.create_trace(NewTrace(mission="m"))).id
    print(trace, flush=True)
    while True:
        batch = [text_message("user", "x" * 500, source="user") for _ in range(5)]
        await store.append(trace, batch, [Nudge(what="n", message=-5)])
        print("stored", flush=True)

asyncio.run(main())
"""


def test_a_process_that_is_killed_leaves_whole_commits_behind():
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING],
        env=os.environ | database_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        trace_id = process.stdout.readline().strip()
        told = sum(process.stdout.readline() == "stored\n" for _ in range(30))
        process.kill()
    trace = Trace.objects.get(pk=trace_id)
    count = Message.objects.filter(trace=trace).count()
    assert told == 30 and count >= 150 and count % 5 == 0
    assert (trace.last_sequence, trace.head_sequence) == (count, count)
    assert [m.depth for m in paths.page(trace)] == list(range(1, count + 1))
    numbers = list(Event.objects.filter(trace=trace).order_by("number").values_list("number"))
    assert numbers == [(n,) for n in range(1, count // 5 * 6 + 1)]
    assert trace.last_event == len(numbers)


def database_environment() -> dict[str, str]:
    """For another process that is to work on this test's database."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        url = f"sqlite:///{name}"
    else:
        url = services.with_database(os.environ["DATABASE_URL"], name)
    return {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "cyberagent.settings"}
