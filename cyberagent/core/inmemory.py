"""A Store in memory: for library use and tests. Same promises as the one over rows, but no
process ever outlives it. Source: docs/architecture.md, "Ports"."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.context_policy import revise_anchor
from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.events import CallStarted, Event, MessageStored
from cyberagent.core.ports import Appended, CallEnd, CommandEnd, NewTrace, TreeTrace
from cyberagent.core.types import CallRecord, Json, Message, TraceState, TraceStatus, utc_now


@dataclass(slots=True)
class _Rows:
    state: TraceState
    anchors: tuple[AnchorRevision, ...] = ()
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    events: list[Event] = field(default_factory=list[Event])
    calls: dict[int, CallRecord] = field(default_factory=dict[int, CallRecord])


class InMemoryStore:
    """See :class:`cyberagent.core.ports.Store`. ``now``: what gives the time of a row."""

    def __init__(self, now: Callable[[], str] = utc_now) -> None:
        self._now = now
        self._traces: dict[str, _Rows] = {}
        self._blobs: dict[str, bytes] = {}

    async def create_trace(self, new: NewTrace) -> TraceState:
        state = TraceState(
            id=secrets.token_hex(6),
            mission=new.mission,
            status=new.status,
            config=dict(new.config),
            context=dict(new.context),
            system_prompt=new.system_prompt,
            origin=new.origin,
            parent_trace=new.parent_trace,
            parent_message=new.parent_message,
            created_at=self._now(),
        )
        first = (AnchorRevision(anchor=new.anchor, at=self._now()),) if new.anchor else ()
        self._traces[state.id] = _Rows(state, first)
        return state

    async def trace(self, trace_id: str) -> TraceState:
        return self._rows(trace_id).state

    async def append(
        self,
        trace_id: str,
        messages: Sequence[Message],
        events: Sequence[Event] = (),
        *,
        parent: int | None = None,
        root: bool = False,
        move_head: bool = True,
        expected_head: int | None = None,
        call: CallEnd | None = None,
        status: TraceStatus | None = None,
        context: Mapping[str, Json] | None = None,
        turn: int | None = None,
        goals: Mapping[str, Json] | None = None,
        command: CommandEnd | None = None,
    ) -> Appended:
        rows = self._rows(trace_id)
        self._check_head(rows, expected_head)
        above = None if root else (rows.state.head_sequence if parent is None else parent)
        stored = self._chain(rows, messages, above)
        if call is not None:
            self._end_call(rows, call, stored)
        made = [_stored_event(m) for m in stored] + [_resolved(e, stored) for e in events]
        numbered = _numbered(made, rows.state.last_event, self._now())
        last = stored[-1].sequence if stored else 0
        rows.messages.update((m.sequence, m) for m in stored)
        rows.events += numbered
        rows.state = replace(
            rows.state,
            last_sequence=last or rows.state.last_sequence,
            head_sequence=last if last and move_head else rows.state.head_sequence,
            last_event=rows.state.last_event + len(numbered),
            status=status or rows.state.status,
            context=rows.state.context if context is None else dict(context),
            turn=rows.state.turn if turn is None else turn,
        )
        return Appended(trace=rows.state, messages=tuple(stored), events=tuple(numbered))

    async def path(
        self, trace_id: str, *, head: int | None = None, first: int = 1, last: int | None = None
    ) -> list[Message]:
        rows = self._rows(trace_id)
        at = rows.state.head_sequence if head is None else head
        found: list[Message] = []
        while at:
            if at not in rows.messages:
                raise NotFound("message", at)
            message = rows.messages[at]
            found.append(message)
            at = message.parent_sequence or 0
        return found[::-1][first - 1 : last]

    async def protocol_path(self, trace_id: str) -> list[Message]:
        return await self.path(trace_id)

    async def messages(self, trace_id: str, sequences: Sequence[int]) -> dict[int, Message]:
        rows = self._rows(trace_id)
        return {n: rows.messages[n] for n in sequences if n in rows.messages}

    async def move_head(
        self,
        trace_id: str,
        to: int,
        events: Sequence[Event] = (),
        *,
        expected_head: int,
        goals: Mapping[str, Json] | None = None,
    ) -> Appended:
        rows = self._rows(trace_id)
        self._check_head(rows, expected_head)
        if to and to not in rows.messages:
            raise NotFound("message", to)
        numbered = _numbered(list(events), rows.state.last_event, self._now())
        rows.events += numbered
        rows.state = replace(
            rows.state, head_sequence=to, last_event=rows.state.last_event + len(numbered)
        )
        return Appended(trace=rows.state, events=tuple(numbered))

    async def start_call(
        self, trace_id: str, record: CallRecord, blobs: Mapping[str, bytes]
    ) -> Appended:
        rows = self._rows(trace_id)
        if record.number != rows.state.last_call + 1:
            raise Conflict(f"call {record.number} does not follow call {rows.state.last_call}")
        record = replace(record, created_at=self._now())
        started = CallStarted(
            call=record.number,
            tokens=record.estimated_tokens,
            exact=record.exact,
            branch_id=record.branch_id,
        )
        numbered = _numbered([started], rows.state.last_event, self._now())
        rows.events += numbered
        rows.calls[record.number] = record
        self._blobs.update(blobs)
        rows.state = replace(
            rows.state, last_call=record.number, last_event=rows.state.last_event + 1
        )
        return Appended(trace=rows.state, events=tuple(numbered))

    async def calls(self, trace_id: str, numbers: Sequence[int]) -> dict[int, CallRecord]:
        rows = self._rows(trace_id)
        return {n: rows.calls[n] for n in numbers if n in rows.calls}

    async def main_calls(self, trace_id: str) -> list[tuple[int, int]]:
        calls = self._rows(trace_id).calls.values()
        return [(c.number, c.after_sequence) for c in calls if not c.branch_id]

    async def blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        return {h: self._blobs[h] for h in hashes if h in self._blobs}

    async def events(self, trace_id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._rows(trace_id).events[after : after + limit]

    async def tree(self, trace_id: str) -> list[TreeTrace]:
        root = self._rows(trace_id).state
        while root.parent_trace is not None:
            root = self._rows(root.parent_trace).state
        below = {root.id}
        found: list[TreeTrace] = []
        for rows in self._traces.values():  # in the order in which they were made
            if rows.state.id in below or rows.state.parent_trace in below:
                below.add(rows.state.id)
                found.append(_tree_trace(rows))
        return found

    async def anchors(self, trace_id: str) -> tuple[AnchorRevision, ...]:
        return self._rows(trace_id).anchors

    def revise_anchor(self, trace_id: str, value: Json, *, by: str, why: str) -> AnchorRevision:
        """Give the tree of a root trace another anchor; runs below it are told at their next
        safe point. Raises as :func:`cyberagent.core.context_policy.revise_anchor`."""
        rows = self._rows(trace_id)
        rows.anchors = revise_anchor(rows.anchors, value, by=by, at=self._now(), why=why)
        return rows.anchors[-1]

    def _rows(self, trace_id: str) -> _Rows:
        if trace_id not in self._traces:
            raise NotFound("trace", trace_id)
        return self._traces[trace_id]

    @staticmethod
    def _check_head(rows: _Rows, expected: int | None) -> None:
        if expected is not None and expected != rows.state.head_sequence:
            raise Conflict(
                f"the head is message {rows.state.head_sequence}, not {expected}: "
                "something was appended or rewound meanwhile"
            )

    def _chain(self, rows: _Rows, drafts: Sequence[Message], above: int | None) -> list[Message]:
        depth = 0
        if above:
            if above not in rows.messages:
                raise NotFound("message", above)
            depth = rows.messages[above].depth
        stored: list[Message] = []
        numbers = itertools.count(rows.state.last_sequence + 1)
        for draft, sequence in zip(drafts, numbers, strict=False):
            depth += 1
            stored.append(
                replace(
                    draft,
                    sequence=sequence,
                    parent_sequence=above or None,
                    depth=depth,
                    created_at=draft.created_at or self._now(),
                )
            )
            above = sequence
        return stored

    @staticmethod
    def _end_call(rows: _Rows, end: CallEnd, stored: Sequence[Message]) -> None:
        if end.number not in rows.calls:
            raise NotFound("call", end.number)
        rows.calls[end.number] = replace(
            rows.calls[end.number],
            status=end.status,
            message_sequence=_sequence(end.message, stored),
            usage=end.usage,
            finish_reason=end.finish_reason,
            first_token_ms=end.first_token_ms,
            duration_ms=end.duration_ms,
            tries=end.tries,
            error=end.error,
            cost=end.cost,
        )


def _tree_trace(rows: _Rows) -> TreeTrace:
    costs = [c.cost for c in rows.calls.values() if c.cost is not None]
    steps = sum(m.source == "model" and not m.branch_id for m in rows.messages.values())
    return TreeTrace(state=rows.state, steps=steps, cost=sum(costs) if costs else None)


def _sequence(index: int | None, stored: Sequence[Message]) -> int | None:
    return stored[-index - 1].sequence if index is not None and index < 0 else index


def _stored_event(message: Message) -> Event:
    return MessageStored(
        message=message.sequence,
        role=message.role,
        source=message.source,
        goal_id=message.goal_id,
        branch_id=message.branch_id,
    )


def _resolved(event: Event, stored: Sequence[Message]) -> Event:
    return replace(event, message=_sequence(event.message, stored))


def _numbered(events: Sequence[Event], last: int, at: str) -> list[Event]:
    return [replace(e, number=last + i, at=at) for i, e in enumerate(events, 1)]
