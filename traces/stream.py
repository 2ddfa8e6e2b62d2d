"""Events of a trace as Server-Sent Events: replayed from the rows, then followed live.

The rows are the truth: whatever woke the stream, it reads the rows after its client's number,
so that nothing is missed and nothing comes twice. Text that is being written is no row yet; it
is passed on as it comes, without a number. How far sub-agents are is told as states, without a
number too. Source: docs/api.md, "Events as a stream".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from channels.layers import get_channel_layer

from cyberagent.core.events import CallStarted, Event
from cyberagent.core.types import Json
from traces import lease, live
from traces.below import Below, below
from traces.models import ModelCall, Trace
from traces.store import in_reader, read_events

ENDED = frozenset({"completed", "failed", "stopped", "interrupted"})
PAGE = 500
POLL_SECONDS = 1.0
"""How long the stream trusts the channel layer, which does not cross processes everywhere."""

HEARTBEAT_SECONDS = 15.0

BELOW_SECONDS = 0.5
"""How far a sub-agent is is told twice a second at most."""


async def event_stream(trace_id: str, after: int, *, until_done: bool) -> AsyncIterator[str]:
    """The text of the stream: what :func:`follow` yields, numbered events with their number as
    ``id``. A comment every 15 seconds shows that the connection lives. With ``until_done`` it
    ends once the run has ended and all was sent."""
    yield "retry: 1000\n\n"
    clock = asyncio.get_running_loop().time
    heard_at = clock()
    async for event in follow(trace_id, after):
        if event is not None:
            heard_at = clock()
            after = event.get("number", after)
            yield _text(event)
        elif until_done and await in_reader(_has_ended, trace_id, after):
            return
        elif clock() - heard_at >= HEARTBEAT_SECONDS:
            heard_at = clock()
            yield ": alive\n\n"


async def follow(trace_id: str, after: int = 0) -> AsyncIterator[Json | None]:
    """Every stored event after number ``after``, once and in order, then each new one, and
    between them the text that is being written (``TextDelta``, without a number). Each event is
    a flat JSON object. How far the traces below it are comes as ``ChildProgress``, without a
    number: the state of each that is at work, then of each that changed. None says that nothing
    more is there at the moment; it comes about every second, for ever: the caller decides when
    to leave."""
    ear, progress = _Ear(), _Progress(trace_id)
    async with _listening(trace_id, ear):
        ear.deltas.extend(await in_reader(_text_so_far, trace_id))
        while True:
            ear.news.clear()
            deltas = list(ear.take_deltas())
            events = await in_reader(read_events, trace_id, after, PAGE)
            # Read after the events and told before them: nothing of a child comes after the end.
            for told in await progress.told(events):
                yield told
            started = {e.call for e in events if isinstance(e, CallStarted)}
            for delta in deltas:
                if delta["call"] not in started:
                    yield delta
            for event in events:
                after = event.number
                yield event.to_json()
                if isinstance(event, CallStarted):
                    for delta in deltas:
                        if delta["call"] == event.call:
                            yield delta
            if len(events) < PAGE:
                yield None
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ear.news.wait(), progress.patience)


def _text(event: Json) -> str:
    data = json.dumps(event, ensure_ascii=True, allow_nan=False)
    number = f"id: {event['number']}\n" if "number" in event else ""
    return f"{number}event: {event['event']}\ndata: {data}\n\n"


def _has_ended(trace_id: str, after: int) -> bool:
    """Whether the run has ended and event ``after`` was its last. Who drives it gives the lease
    back after the very last event: Done comes after the new status."""
    trace = Trace.objects.only("status", "last_event").filter(pk=trace_id).first()
    if trace is None or trace.status not in ENDED or trace.last_event > after:
        return trace is None
    # Asked in this order: what was written before the lease was given back is seen then.
    return lease.is_free(trace_id) and not _is_beyond(trace_id, after)


def _is_beyond(trace_id: str, after: int) -> bool:
    return Trace.objects.filter(pk=trace_id, last_event__gt=after).exists()


# What is below -----------------------------------------------------------------------------

_TELL_AT_ONCE = frozenset({"ChildStarted", "ChildEnded", "Verdict", "StatusChanged", "Done"})


class _Progress:
    """Of the traces below one: what was told of them, and when."""

    def __init__(self, trace_id: str) -> None:
        self._trace_id = trace_id
        self._told: dict[str, Below] | None = None
        self._at = 0.0

    async def told(self, events: Sequence[Event]) -> list[Json]:
        """The states that changed; at first those of all that are at work. None within half a
        second, unless one of ``events`` makes it due."""
        now = asyncio.get_running_loop().time()
        at_once = any(e.kind in _TELL_AT_ONCE for e in events)
        if now < self._at + BELOW_SECONDS and not at_once:
            return []
        found = await in_reader(below, self._trace_id)
        before, self._told, self._at = self._told, {one.id: one for one in found}, now
        if before is None:
            return [_state(one) for one in found if one.is_live]
        return [_state(one) for one in found if one != before.get(one.id)]

    @property
    def patience(self) -> float:
        """Seconds until the next look, if nothing calls for one before."""
        works = any(one.is_live for one in (self._told or {}).values())
        return BELOW_SECONDS if works else POLL_SECONDS


def _state(one: Below) -> Json:
    """``parent`` asked for it in ``message``; ``verdict``: that a validator gave, else on it."""
    return {
        "event": "ChildProgress",
        "child": one.id,
        "parent": one.parent,
        "message": one.message,
        "agent": one.kind,
        "mission": one.mission,
        "status": one.status,
        "steps": one.steps,
        "current_goal": one.goal,
        "goals_done": one.goals_done,
        "goals_total": one.goals_total,
        "verdict": one.verdict,
    }


# Text that is being written --------------------------------------------------------------------


@dataclass(slots=True)
class _Ear:
    """What the channel layer told since the last look. Pieces of text beyond a thousand are
    dropped: the stored message has them all."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    deltas: deque[Json] = field(default_factory=lambda: deque(maxlen=1000))

    def take_deltas(self) -> Iterator[Json]:
        while self.deltas:
            yield self.deltas.popleft()

    def hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "trace.delta":
            self.deltas.append(_delta(message))
        self.news.set()


def _delta(message: Json) -> Json:
    own = {name: message[name] for name in ("call", "offset", "text", "stream")}
    return {"event": "TextDelta"} | own


def _text_so_far(trace_id: str) -> list[Json]:
    """For who joins in the middle of an answer: its text from the beginning."""
    open_call = ModelCall.objects.filter(trace=trace_id, status="sent").order_by("-number").first()
    partial = live.partial(trace_id, open_call.number) if open_call else None
    if partial is None:
        return []
    return [
        _delta({"call": open_call.number, "offset": 0, "text": text, "stream": stream})
        for stream, text in partial.items()
        if text
    ]


@contextlib.asynccontextmanager
async def _listening(trace_id: str, ear: _Ear) -> AsyncIterator[None]:
    """While inside, ``ear`` hears what is published of the trace in this process, or wherever
    the channel layer reaches."""
    layer = get_channel_layer()
    channel = await layer.new_channel()
    group = live.group_of(trace_id)
    await layer.group_add(group, channel)

    async def listen() -> None:
        while True:
            ear.hear(await layer.receive(channel))

    listener = asyncio.create_task(listen())
    try:
        yield
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener
        await layer.group_discard(group, channel)
