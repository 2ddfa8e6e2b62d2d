"""Driving one run: preset, store, lease, operators and watchers put together.

Source: docs/running.md, "Driving".
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from contextlib import suppress

from django.db import InterfaceError, OperationalError

from cyberagent import presets
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import CyberAgentError, LeaseLost
from cyberagent.core.events import CallFailed, Done, Error, Event, StatusChanged, TextDelta
from cyberagent.core.events import UsageReported as Usage
from traces import commands, lease, live, ports, write
from traces.control import DbControl
from traces.environment import environment
from traces.store import OrmStore, read_trace
from traces.threads import in_reader, in_writer

log = logging.getLogger(__name__)


def new_owner() -> str:
    """A name for whoever drives: machine, process, and a part that no other one has."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


async def drive(trace_id: str, owner: str) -> str:
    """Drive the run until it ends, pauses or waits; its status then. Where somebody else drives
    it, or it is not due, nothing is done. When this task is cancelled the run stays ``running``
    with its lease given back, so that the next owner goes on at once."""
    if not await in_writer(lease.take, trace_id, owner):
        return (await in_reader(read_trace, trace_id)).status
    try:
        await in_writer(lease.adopt, trace_id, owner)
        await _while_owned(trace_id, owner)
    except LeaseLost as error:
        log.warning("run %s: %s", trace_id, error)
    except (OperationalError, InterfaceError) as error:
        # The database went away. What was committed stands, and an owner that can reach it takes
        # the run over once the lease has run out.
        log.warning("run %s is left to another owner: %s", trace_id, error)
        return "running"
    except Exception as error:
        # Edge: whatever a run can meet, a person must find it on its page.
        trouble = None if isinstance(error, CyberAgentError) else error
        log.error("run %s failed: %s", trace_id, error, exc_info=trouble)
        await in_writer(_store_failure, trace_id, owner, error)
    finally:
        with suppress(OperationalError, InterfaceError):
            await asyncio.shield(in_writer(lease.release, trace_id, owner))
    if await in_writer(commands.settle, trace_id):
        return await drive(trace_id, owner)
    return (await in_reader(read_trace, trace_id)).status


async def _while_owned(trace_id: str, owner: str) -> None:
    """Run until the end, or until the lease is lost: then the run is cancelled at once."""
    control = DbControl(trace_id)
    run = asyncio.ensure_future(_run(trace_id, owner, control))
    beside = [
        asyncio.ensure_future(_keep_lease(trace_id, owner)),
        asyncio.ensure_future(control.watch()),
    ]
    try:
        waiting: set[asyncio.Future[None]] = {run, *beside}
        while not run.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {run}:
                ended.result()  # raises LeaseLost, or what the database said
        run.result()
    finally:
        for task in (run, *beside):
            task.cancel()
        await asyncio.gather(run, *beside, return_exceptions=True)


async def _keep_lease(trace_id: str, owner: str) -> None:
    while True:
        await asyncio.sleep(lease.BEAT_SECONDS)
        if not await in_writer(lease.beat, trace_id, owner):
            raise LeaseLost(f"{owner} no longer drives it")


async def _run(trace_id: str, owner: str, control: DbControl) -> None:
    state = await in_reader(read_trace, trace_id)
    config = presets.resolve(RunConfig.from_json(state.config), environment())
    runner = await presets.build_runner(
        config,
        store=OrmStore(owner),
        environment=environment(),
        control=control,
        skills=await in_writer(ports.current_skills),
        owner=owner,
        control_for=DbControl,
        heard=_tell,
    )
    wanted = state.context.get(commands.SKILLS, ())
    try:
        events = runner.run((), config, trace_id=trace_id, inject_skills=tuple(wanted))
        async for event in events:
            _tell(trace_id, event)
    finally:
        await runner.aclose()


def _tell(trace_id: str, event: Event) -> None:
    """Stored events are told of by the write path; here is only what is never stored."""
    if isinstance(event, TextDelta):
        live.publish_delta(trace_id, event)
    elif isinstance(event, Usage | CallFailed):
        live.forget(trace_id, event.call)


def _store_failure(trace_id: str, owner: str, error: Exception) -> None:
    """End the run as failed. A lease that was lost meanwhile makes it another owner's matter."""
    name = type(error).__name__
    text = str(error) if isinstance(error, CyberAgentError) else f"{name}: {error}"
    told = [
        Error(error=text, error_class=name),
        StatusChanged(status="failed", why=text),
        Done(trace=trace_id, status="failed", why=text),
    ]
    with suppress(LeaseLost):
        write.append(trace_id, [], told, status="failed", owner=owner)
