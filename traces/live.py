"""Telling watchers that something is new. The one module that knows the channel layer.

Numbers alone go through it: who watches reads the rows after the number that it has. Text of an
answer that is being written is not a row yet; its pieces are sent with their offsets, and the
text so far lies in the cache for whoever joins in the middle. Nothing here can break a run:
what cannot be sent is logged, and the next read of the rows heals it. Source: docs/running.md,
"Live".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypedDict

from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.core.cache import cache

from cyberagent.core.events import TextDelta
from cyberagent.core.types import clean_text

log = logging.getLogger(__name__)

RUNS_GROUP = "runs"
"""Watchers of the list of runs."""

PARTIAL_SECONDS = 600


def group_of(trace_id: str) -> str:
    """The group of those who watch one trace."""
    return f"trace.{trace_id}"


class Partial(TypedDict):
    """An answer as far as it was written, by stream."""

    text: str
    reasoning: str


# Where sending happens ---------------------------------------------------------------------


class _Sender:
    """The loop that the channel layer is used in: the web server's where there is one, since the
    in-memory layer wakes nobody from outside it; else a loop of its own thread."""

    def __init__(self) -> None:
        self._bound: asyncio.AbstractEventLoop | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._news: dict[str, int] = {}
        self._sending: set[concurrent.futures.Future[None]] = set()

    def bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._bound = loop

    def news(self, trace_id: str, number: int) -> None:
        """Send a number soon. One that waits to be sent is replaced: the higher one says all."""
        loop = self._loop()
        if loop is None:
            return
        with self._lock:
            waits = bool(self._news)
            self._news[trace_id] = number
        if not waits:
            self._start(self._send_news(), loop)

    async def _send_news(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        for trace_id, number in news.items():
            message = {"type": "trace.news", "trace": trace_id, "number": number}
            await _group_send((group_of(trace_id), RUNS_GROUP), message)

    def send(self, groups: tuple[str, ...], message: dict[str, Any]) -> None:
        loop = self._loop()
        if loop is not None:
            self._start(_group_send(groups, message), loop)

    def _start(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        sent = asyncio.run_coroutine_threadsafe(work, loop)
        self._sending.add(sent)
        sent.add_done_callback(self._done)

    def flush(self, seconds: float) -> None:
        concurrent.futures.wait(list(self._sending), timeout=seconds)

    def _done(self, sent: concurrent.futures.Future[None]) -> None:
        self._sending.discard(sent)
        if not sent.cancelled() and (error := sent.exception()) is not None:
            log.warning("watchers could not be told: %s: %s", type(error).__name__, error)

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """None where nobody can hear it: outside a server, the in-memory layer has no ears."""
        bound = self._bound
        if bound is not None and bound.is_running():
            return bound
        if isinstance(get_channel_layer(), InMemoryChannelLayer):
            return None
        with self._lock:
            # A process that forked (Celery) has the loop's memory, not its thread.
            if self._own is None or self._pid != os.getpid():
                self._own, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._own.run_forever, name="live", daemon=True).start()
            return self._own


_sender = _Sender()


def bind(loop: asyncio.AbstractEventLoop | None) -> None:
    """Send through this loop from now on: the web server's own. None: no more."""
    _sender.bind(loop)


def flush(seconds: float = 2.0) -> None:
    """Wait until what was published is sent; for processes that end. Not from the loop itself."""
    _sender.flush(seconds)


async def _group_send(groups: tuple[str, ...], message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is not None:
        for group in groups:
            await layer.group_send(group, message)


# Publishing --------------------------------------------------------------------------------


def publish(trace_id: str, number: int) -> None:
    """Say that trace ``trace_id`` has events up to ``number``; from any thread, after the
    commit. Watchers get ``{"type": "trace.news", "trace", "number"}``; of several numbers in
    quick succession they may get the last one alone."""
    _sender.news(trace_id, number)


def publish_delta(trace_id: str, delta: TextDelta) -> None:
    """Send a piece of the answer that is being written, and keep the text so far. Watchers get
    ``{"type": "trace.delta", "trace", "call", "offset", "text", "stream"}``, offsets in
    characters. An offset of 0 starts a stream anew, as after a failed try."""
    text = clean_text(delta.text)
    _keep(trace_id, delta, text)
    message = {
        "type": "trace.delta",
        "trace": trace_id,
        "call": delta.call,
        "offset": delta.offset,
        "text": text,
        "stream": delta.stream,
    }
    _sender.send((group_of(trace_id),), message)


def partial(trace_id: str, call: int) -> Partial | None:
    """The text so far of an answer that is being written; None where there is none."""
    return cache.get(_key(trace_id, call))


def forget(trace_id: str, call: int) -> None:
    """The answer of ``call`` is stored, or will never be: drop its text so far."""
    _cached(lambda: cache.delete(_key(trace_id, call)))


def _keep(trace_id: str, delta: TextDelta, text: str) -> None:
    def keep() -> None:
        key = _key(trace_id, delta.call)
        so_far: Partial = cache.get(key) or {"text": "", "reasoning": ""}
        # clean_text keeps lengths but for a lone surrogate's pair; a cut heals what is off.
        so_far[delta.stream] = so_far[delta.stream][: delta.offset] + text
        cache.set(key, so_far, PARTIAL_SECONDS)

    _cached(keep)


def _key(trace_id: str, call: int) -> str:
    return f"partial:{trace_id}:{call}"


def _cached(act: Any) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - edge: a cache server that is away breaks no run
        log.warning("the text so far could not be kept: %s: %s", type(error).__name__, error)
