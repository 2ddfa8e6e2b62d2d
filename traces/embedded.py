"""Beside the web server: a thread with its own event loop that drives runs, or watches over them.

On the embedded default it drives the runs themselves, away from the server's loop, since what a
step computes would make pages wait. Where workers drive (``REDIS_URL``) the same loop only
looks for runs that nobody drives, e.g. those of a worker that died, and queues them.
Source: docs/running.md, "Who drives".
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from traces import commands, lease, live, queueing
from traces.runs import drive, new_owner
from traces.threads import in_reader, in_writer

log = logging.getLogger(__name__)

SLOTS: int = getattr(settings, "RUNS_AT_ONCE", 8)
"""Runs that are driven at the same time; further ones stay queued."""

LOOK_SECONDS = 1.0
QUEUE_AGAIN_SECONDS = 30.0
"""How long the watcher waits for a worker before it queues the same run once more."""


class Loop:
    """The thread. ``drives`` False: it watches only."""

    def __init__(self, *, drives: bool, slots: int = SLOTS) -> None:
        self._drives, self._slots = drives, slots
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)
        self._news = asyncio.Event()
        self._stopping = False
        self._running: dict[str, asyncio.Task[str]] = {}
        self._queued: dict[str, float] = {}
        self._unhook: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unhook = queueing.on_queued(self.wake)
        self._thread.start()

    def wake(self) -> None:
        """Look for due runs now; from any thread."""
        self._loop.call_soon_threadsafe(self._news.set)

    def stop(self, seconds: float = 5.0) -> None:
        """Stop driving: leases are given back, and the runs go on wherever they are driven
        next. Returns when that is done, after ``seconds`` at most."""
        self._unhook()
        self._stopping = True
        if self._thread.is_alive():
            self.wake()
            self._thread.join(seconds)

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        while not self._stopping:
            try:
                await self._look()
            except DatabaseError as error:
                log.warning("the database cannot be asked for due runs: %s", error)
            try:
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue
            finally:
                self._news.clear()
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        for trace_id in await in_reader(commands.unsettled):
            await in_writer(commands.settle, trace_id)
        for trace_id in await in_reader(lease.due):
            if not self._drives:
                self._queue(trace_id)
            elif trace_id not in self._running and len(self._running) < self._slots:
                task = self._loop.create_task(drive(trace_id, new_owner()))
                self._running[trace_id] = task
                task.add_done_callback(lambda done, key=trace_id: self._ended(key, done))

    def _ended(self, trace_id: str, task: asyncio.Task[str]) -> None:
        del self._running[trace_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run %s could not be driven", trace_id, exc_info=error)
        self._news.set()  # a slot is free

    def _queue(self, trace_id: str) -> None:
        """Hand a due run to the workers, who may only be slow: not again and again."""
        now = time.monotonic()
        self._queued = {k: t for k, t in self._queued.items() if now - t < QUEUE_AGAIN_SECONDS}
        if trace_id not in self._queued:
            self._queued[trace_id] = now
            queueing.queue(trace_id)


_loop: Loop | None = None


def start() -> None:
    """Start the thread of this process, once; from the server's own thread, when its loop runs
    or is about to."""
    global _loop
    if _loop is None:
        live.bind(_server_loop())
        _loop = Loop(drives=settings.RUNS_EMBEDDED)
        _loop.start()


def stop() -> None:
    """Stop what :func:`start` started; safe to call twice."""
    global _loop
    if _loop is not None:
        _loop.stop()
        live.bind(None)
        _loop = None


def attach() -> None:
    """Start with the web server that loads this application, and stop with it. Nothing happens
    in processes that only import it, nor with the setting ``RUNS_BESIDE_WEB`` off."""
    server = sys.modules.get("daphne.server")
    if server is None or not getattr(settings, "RUNS_BESIDE_WEB", True):
        return
    from twisted.internet import reactor  # installed by daphne.server, on its own loop

    running: Any = reactor
    running.callWhenRunning(start)
    running.addSystemEventTrigger("before", "shutdown", stop)


def _server_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        # Twisted calls what waits for its start just before it runs the loop.
        return sys.modules["daphne.server"].twisted_loop
