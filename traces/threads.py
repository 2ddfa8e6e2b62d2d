"""The threads in which runs touch rows: one that writes, a few that read.

All writes of runs in a process go through one thread with one connection, which commits what has
queued up in one transaction: several runs at once share a commit, SQLite's one writer is never
fought over, and no event loop waits for a database. Source: docs/rows.md, "One writer".
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, connection, connections, transaction

T = TypeVar("T")

GROUP = 64
"""At most this many writes share a commit."""

READERS = 2


class _Job:
    """A write that waits for its turn, and the future that its caller waits for. Without
    ``act`` it asks that the connection be closed."""

    __slots__ = ("act", "error", "future", "result")

    def __init__(self, act: Callable[[], Any] | None) -> None:
        self.act = act
        self.future: Future[Any] = Future()
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Run inside a transaction; an error undoes this job's rows and nobody else's."""
        try:
            with transaction.atomic():
                self.result = self.act() if self.act else None
        except Exception as error:  # noqa: BLE001 - edge: the caller's future raises it again
            self.error = error

    def tell(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Writer:
    """One thread, one connection: takes what is queued and commits it as a group.

    A job whose caller went away meanwhile (a cancelled run) is still committed if it had been
    taken: a caller that is cancelled never knows, as with any commit.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, act: Callable[[], Any] | None) -> Future[Any]:
        job = _Job(act)
        self._jobs.put(job)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        return job.future

    def close(self) -> None:
        """Close the thread's connection; the next write opens a new one."""
        self.submit(None).result()

    def _start(self) -> None:
        # Made on first use, so that a process that forks (Celery) has its own thread after it.
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            group = [self._jobs.get()]
            while len(group) < GROUP and not self._jobs.empty():
                group.append(self._jobs.get())
            group = [job for job in group if job.future.set_running_or_notify_cancel()]
            if work := [job for job in group if job.act]:
                self._commit(work)
            if len(work) < len(group):
                connections.close_all()
            for job in group:
                job.tell()

    def _commit(self, group: list[_Job]) -> None:
        try:
            if len(group) == 1:
                group[0].run()
            else:
                with transaction.atomic():
                    for job in group:
                        job.run()
        except Exception as error:  # noqa: BLE001 - edge of the thread: each caller is told
            for job in group:
                job.error = job.error or error
        if any(isinstance(job.error, DatabaseError) for job in group):
            connection.close_if_unusable_or_obsolete()


_writer = _Writer()
_readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")


async def in_writer(act: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``act`` in the writer's thread, within a transaction that is committed when this
    returns. ``act`` may be undone and must touch nothing but rows."""
    return await asyncio.wrap_future(_writer.submit(partial(act, *args, **kwargs)))


async def in_reader(act: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``act``, which only reads, in one of the reading threads."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_readers, partial(_read, act, *args, **kwargs))


def _read(act: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    try:
        return act(*args, **kwargs)
    except DatabaseError:
        connection.close_if_unusable_or_obsolete()
        raise


def close_connections() -> None:
    """Close the connections of the threads here, e.g. before a database is dropped; the next
    use opens new ones. For when no run is active."""
    _writer.close()
    ready = threading.Barrier(READERS)

    def close() -> None:
        ready.wait(timeout=10)  # each thread must take one of the jobs
        connections.close_all()

    for done in [_readers.submit(close) for _ in range(READERS)]:
        done.result()
