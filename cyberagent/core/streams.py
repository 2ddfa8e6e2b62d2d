"""Waiting for a model, with an ear for the operator. Source: docs/running.md, "Stop"."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeAlias, TypeVar

from cyberagent.core.errors import CyberAgentError
from cyberagent.core.events import TextDelta
from cyberagent.core.ports import Answer, Delta, PendingCommand
from cyberagent.core.recovery import UseFallback

COALESCE_SECONDS = 0.05
"""Text deltas are gathered for this long before they are passed on."""

T = TypeVar("T")
Streamed: TypeAlias = Delta | Answer | UseFallback


class Stopped(CyberAgentError):
    """An operator asked for a stop while the run was waiting."""

    def __init__(self) -> None:
        super().__init__("stopped by an operator")


class Paused(CyberAgentError):
    """An operator asked for a pause, and the run is at a safe point. ``command``: the one that
    the pause is the end of; None where it waits for what comes after."""

    def __init__(self, why: str, command: PendingCommand | None = None) -> None:
        super().__init__(why)
        self.command = command


async def unless_stopped(work: Awaitable[T], stop: asyncio.Event) -> T:
    """The result of ``work``, or Stopped as soon as ``stop`` is set; work is then cancelled."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Stopped
        return task.result()
    finally:
        waiter.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Coalescer:
    """Gathers deltas of one call into TextDelta events of some 50 ms each, with offsets."""

    def __init__(self, call: int) -> None:
        self._call = call
        self._offsets = {"text": 0, "reasoning": 0}
        self._held: list[Delta] = []
        self._since = 0.0

    def add(self, delta: Delta) -> list[TextDelta]:
        """Events that are due now that ``delta`` has come."""
        ready = self.flush() if self._held and self._held[0].stream != delta.stream else []
        if not self._held:
            self._since = time.monotonic()
        self._held.append(delta)
        if time.monotonic() - self._since >= COALESCE_SECONDS:
            ready += self.flush()
        return ready

    @property
    def due_in(self) -> float | None:
        """Seconds until what is held must go out; None when nothing is held."""
        if not self._held:
            return None
        return max(0.0, self._since + COALESCE_SECONDS - time.monotonic())

    def flush(self) -> list[TextDelta]:
        if not self._held:
            return []
        stream, text = self._held[0].stream, "".join(d.text for d in self._held)
        self._held.clear()
        offset = self._offsets[stream]
        self._offsets[stream] += len(text)
        return [TextDelta(call=self._call, offset=offset, text=text, stream=stream)]

    def restart(self) -> None:
        """Forget what came: the try failed and the answer starts anew at offset 0."""
        self._held.clear()
        self._offsets = {"text": 0, "reasoning": 0}


async def watched(
    stream: AsyncGenerator[Streamed, None],
    coalescer: Coalescer,
    stop: asyncio.Event,
) -> AsyncIterator[TextDelta | Answer | UseFallback]:
    """The stream with its deltas coalesced; raises Stopped at once when ``stop`` is set. The
    stream is closed in every case, which ends the request."""
    stopped = asyncio.ensure_future(stop.wait())
    following: asyncio.Future[Streamed] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(stream))
            await asyncio.wait(
                {following, stopped},
                timeout=coalescer.due_in,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if stopped.done():
                raise Stopped
            if not following.done():
                for event in coalescer.flush():
                    yield event
                continue
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            following = None
            if isinstance(item, Delta):
                for event in coalescer.add(item):
                    yield event
                continue
            for event in coalescer.flush():
                yield event
            yield item
            return
    finally:
        stopped.cancel()
        if following is not None:
            following.cancel()  # one that failed meanwhile is asked for its error all the same
            await asyncio.gather(following, return_exceptions=True)
        await stream.aclose()
