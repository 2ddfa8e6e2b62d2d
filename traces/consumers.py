"""Live updates over WebSocket: of one run, and of the list of runs.

What is told over the channel layer are numbers; a consumer reads the rows after its watcher's
number, so that nothing is missed and nothing comes twice. Of what is below a run its watcher is
sent states, not steps: the newest line of each sub-agent that changed. Whoever watches is asked
for again: who signed out or lost the trace hears nothing more within ``ASKED_EVERY``.
Source: docs/pages.md, "Live".
"""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.utils import translation

from cyberagent.core.errors import NotFound
from cyberagent.core.types import Json
from traces import access, boardviews, fragments, lease, live, trees
from traces.below import MOST, Below, below
from traces.models import Trace

GATHER_SECONDS = 0.12
"""News is gathered for so long before it is sent: a busy run makes ten messages a second."""

BELOW_SECONDS = 0.5
"""A line of a sub-agent is sent twice a second at most, however fast it works."""

BOARD_SECONDS = 1.0
"""A board is sent whole, and once a second at most."""

LIST_GATHER_SECONDS = 0.5
ASKED_EVERY = 2.0
"""Seconds for which an answer about who may see what holds."""

SIGN_IN, NOT_FOUND = 4403, 4404
"""Close codes: the client must not come back with either."""

_LANGUAGES = frozenset(code for code, _ in settings.LANGUAGES)


class Watcher(AsyncWebsocketConsumer):
    """Gathers what happened for a moment, then sends it, one message after the other."""

    gather = GATHER_SECONDS

    async def connect(self) -> None:
        query = parse_qs(self.scope["query_string"].decode("ascii", "replace"))
        self.language = query.get("lang", [""])[0]
        if self.language not in _LANGUAGES:
            self.language = settings.LANGUAGE_CODE
        after = query.get("after", ["0"])[0]
        self.after = int(after) if after.isdecimal() and len(after) < 10 else 0
        self._sending: asyncio.Task[None] | None = None
        self._again = False
        self._asked = 0.0
        await self.accept()
        if code := await self.refused():
            await self.close(code)
            return
        await self.join()
        self.soon(0)

    async def disconnect(self, code: int) -> None:
        if self._sending is not None:
            self._sending.cancel()
        await self.leave()

    def soon(self, seconds: float | None = None) -> None:
        """Send after a moment; what comes meanwhile goes with it."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_soon(seconds))
        else:
            self._again = True

    async def _send_soon(self, seconds: float | None) -> None:
        await asyncio.sleep(self.gather if seconds is None else seconds)
        while True:
            self._again = False
            if code := await self.refused():
                await self.close(code)
                return
            await self.send_news()
            if not self._again:
                return
            await asyncio.sleep(self.gather)

    async def refused(self) -> int:
        """The close code for somebody who may not watch; 0 for who may."""
        if time.monotonic() < self._asked + ASKED_EVERY:
            return 0
        code = await database_sync_to_async(self.ask)()
        self._asked = time.monotonic()
        return code

    def ask(self) -> int:
        raise NotImplementedError

    async def join(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    async def send_news(self) -> None:
        raise NotImplementedError

    def person(self) -> access.Person:
        """Who the session is now, read anew: it may have ended since the socket was opened."""
        session = self.scope.get("session")
        key = getattr(session, "session_key", None)
        if not key:
            return AnonymousUser()
        return get_user(SimpleNamespace(session=type(session._wrapped)(key)))


class TreeWatcher(Watcher):
    """Hears of one trace, and of all that are below it: those that come later too."""

    below_seconds = BELOW_SECONDS

    async def connect(self) -> None:
        self.trace_id: str = self.scope["url_route"]["kwargs"]["trace_id"]
        self.can_act = False
        self._heard: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._tell_again = False
        self._told_at = 0.0
        await super().connect()

    def ask(self) -> int:
        user = self.person()
        if access.role_of(user) is None:
            return SIGN_IN
        try:
            access.find_trace(user, self.trace_id)
        except NotFound:
            return NOT_FOUND
        self.can_act = access.has_role(user, "operator")
        return 0

    async def join(self) -> None:
        await self.channel_layer.group_add(live.group_of(self.trace_id), self.channel_name)
        await self.read_below()

    async def disconnect(self, code: int) -> None:
        if self._telling is not None:
            self._telling.cancel()
        await super().disconnect(code)

    async def leave(self) -> None:
        for trace_id in (self.trace_id, *self._heard):
            await self.channel_layer.group_discard(live.group_of(trace_id), self.channel_name)

    async def read_below(self) -> list[Below]:
        """What is below the trace now, and listen to all of it."""
        while True:
            found = await database_sync_to_async(below)(self.trace_id)
            new = {one.id for one in found} - self._heard
            if not new:
                return found
            # What they did before they were listened to is read after it.
            for trace_id in new:
                await self.channel_layer.group_add(live.group_of(trace_id), self.channel_name)
            self._heard |= new

    async def trace_news(self, message: dict[str, Any]) -> None:
        if message["trace"] == self.trace_id:
            self.soon()
        else:
            self.below_soon()

    async def trace_delta(self, message: dict[str, Any]) -> None:
        """Text that is being written: of no use here."""

    def below_soon(self) -> None:
        """Tell what changed below, in a moment if that was done just now."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_soon())
        else:
            self._tell_again = True

    async def _tell_soon(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._told_at + self.below_seconds - time.monotonic()))
            self._tell_again = False
            if code := await self.refused():
                await self.close(code)
                return
            await self.send_below(await self.read_below())
            self._told_at = time.monotonic()
            if not self._tell_again:
                return

    async def send_below(self, found: list[Below]) -> None:
        raise NotImplementedError


class RunConsumer(TreeWatcher):
    """``?after=N``: the last event that the page has. Sends batches (docs/pages.md, "Live"), the
    pieces of the answer that is being written, and the lines of sub-agents that changed."""

    async def connect(self) -> None:
        self._deltas: list[dict[str, Json]] = []
        self._clocks: dict[str, int] = {}
        await super().connect()

    async def join(self) -> None:
        await self.channel_layer.group_add(live.group_of(self.trace_id), self.channel_name)
        self._clocks = {one.id: one.clock for one in await self.read_below()}
        for message in await database_sync_to_async(self._so_far)():
            self._deltas.append(message)

    def _so_far(self) -> list[dict[str, Json]]:
        """What was written of an answer before this watcher came."""
        call = Trace.objects.values_list("last_call", flat=True).get(pk=self.trace_id)
        if not call or fragments.last_answered(self.trace_id) == call:
            return []
        written = live.partial(self.trace_id, call)
        if written is None:
            return []
        streams = {"reasoning": written["reasoning"], "text": written["text"]}
        return [
            {"call": call, "offset": 0, "text": text, "stream": stream}
            for stream, text in streams.items()
            if text
        ]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """``{"after": N}``: the client missed something and asks again from N on.
        ``{"lease": true}``: it wants to know whether the run's owner is still alive.
        ``{"lines": {id: clock}}``: it was away, and shows these lines of sub-agents."""
        self._asked = 0.0
        try:
            wanted = json.loads(text_data or "")
        except (ValueError, RecursionError):
            return
        if not isinstance(wanted, dict) or await self.refused():
            return
        if wanted.get("lease"):
            await self.send(text_data=json.dumps(await database_sync_to_async(self._lease)()))
        after = wanted.get("after")
        if isinstance(after, int) and 0 <= after < 2**31:
            self.after = after
            self.soon(0)
        lines = wanted.get("lines")
        if isinstance(lines, dict) and 0 < len(lines) <= MOST:
            self._clocks |= {i: c for i, c in lines.items() if isinstance(c, int)}
            self.below_soon()

    def _lease(self) -> dict[str, Json]:
        trace = Trace.objects.only("status", "lease_until").get(pk=self.trace_id)
        gone = trace.status == Trace.Status.RUNNING and lease.is_free(trace.pk)
        until = trace.lease_until
        return {"lease": until.isoformat() if until else None, "gone": gone}

    async def trace_delta(self, message: dict[str, Any]) -> None:
        if message["trace"] != self.trace_id:
            return
        new = {k: message[k] for k in ("call", "offset", "text", "stream")}
        old = self._deltas[-1] if self._deltas else None
        if (
            old
            and all(old[k] == new[k] for k in ("call", "stream"))
            and (old["offset"] + len(old["text"]) == new["offset"])
        ):
            old["text"] += new["text"]
        else:
            self._deltas.append(new)
        self.soon()

    async def send_news(self) -> None:
        deltas, self._deltas = self._deltas, []
        for delta in deltas:
            await self.send(text_data=json.dumps({"delta": delta}))
        after = self.after
        upto, text = await database_sync_to_async(fragments.batch)(
            self.trace_id, after, self.language, self.can_act
        )
        if text:
            self.after = upto
            await self.send(text_data=text)
            if await database_sync_to_async(fragments.stirs_below)(self.trace_id, after, upto):
                self.below_soon()

    async def send_below(self, found: list[Below]) -> None:
        changed = [one for one in found if one.clock != self._clocks.get(one.id)]
        self._clocks = {one.id: one.clock for one in found}
        if changed:
            lines = await database_sync_to_async(fragments.children_json)(changed, self.language)
            await self.send(text_data=json.dumps({"children": lines}))


class BoardConsumer(TreeWatcher):
    """``?clock=TEXT``: the board that the page has. Where there is another one it is sent whole,
    ``{"board": html, "html": out-of-band pieces, "clock": text}``; the buttons are among the
    pieces where the trace's status is another one."""

    below_seconds = BOARD_SECONDS

    async def connect(self) -> None:
        query = parse_qs(self.scope["query_string"].decode("ascii", "replace"))
        self._clock = query.get("clock", [""])[0]
        self._status = ""
        await super().connect()

    async def join(self) -> None:
        """The run at the root is listened to as well: its end makes orphans."""
        self._heard.add(await database_sync_to_async(trees.root_id)(self.trace_id))
        for trace_id in self._heard:
            await self.channel_layer.group_add(live.group_of(trace_id), self.channel_name)
        await super().join()

    async def trace_news(self, message: dict[str, Any]) -> None:
        self.below_soon()

    async def send_news(self) -> None:
        """Asked for once, on connecting: what happened while the page was away."""
        self.below_soon()

    async def send_below(self, found: list[Below]) -> None:
        clock = await database_sync_to_async(boardviews.clock_of)(self.trace_id, found)
        if clock == self._clock:
            return
        status = await database_sync_to_async(boardviews.status_of)(self.trace_id)
        # Only with another status: to be drawn anew would close an opened menu.
        acts = self.can_act and status != self._status
        text = await database_sync_to_async(boardviews.live_json)(
            self.trace_id, clock, self.language, acts
        )
        self._clock, self._status = clock, status
        await self.send(text_data=text)


class RunsConsumer(Watcher):
    """The list of runs: a row for each visible root trace that something happened in."""

    gather = LIST_GATHER_SECONDS

    async def connect(self) -> None:
        self._changed: set[str] = set()
        await super().connect()

    def ask(self) -> int:
        return 0 if access.role_of(self.person()) is not None else SIGN_IN

    async def join(self) -> None:
        await self.channel_layer.group_add(live.RUNS_GROUP, self.channel_name)

    async def leave(self) -> None:
        await self.channel_layer.group_discard(live.RUNS_GROUP, self.channel_name)

    async def trace_news(self, message: dict[str, Any]) -> None:
        self._changed.add(message["trace"])
        self.soon()

    async def send_news(self) -> None:
        changed, self._changed = self._changed, set()
        if not changed:
            return
        rows = await database_sync_to_async(self._rows)(changed)
        if rows:
            await self.send(text_data=json.dumps({"rows": rows}))

    def _rows(self, changed: set[str]) -> list[dict[str, Json]]:
        user = self.person()
        found = access.visible_traces(user).filter(pk__in=changed, parent_trace=None)
        with translation.override(self.language):
            return [
                {"id": trace.pk, "html": fragments.list_row_html(trace, user)}
                for trace in found.select_related("owner").order_by("created_at")
            ]
