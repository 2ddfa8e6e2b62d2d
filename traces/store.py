"""The Store over the ORM: what runs write through.

Its methods run in the threads of ``traces.threads``. Source: docs/rows.md, "The store".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.errors import NotFound
from cyberagent.core.events import Event
from cyberagent.core.ports import Appended, CallEnd, CommandEnd, NewTrace, TreeTrace
from cyberagent.core.types import CallRecord, Json, Message, TraceState, TraceStatus
from traces import models, paths, records, rows, write
from traces.threads import in_reader, in_writer
from traces.trees import read_anchors, read_tree

T = TypeVar("T")


class OrmStore:
    """See :class:`cyberagent.core.ports.Store`. With ``owner``, every write checks inside its
    transaction that this owner still holds the trace's lease, and raises LeaseLost if not."""

    def __init__(self, owner: str = "") -> None:
        self.owner = owner

    async def create_trace(self, new: NewTrace) -> TraceState:
        # A child trace is driven by the run that spawned it: it is born with the same owner.
        return await in_writer(write.create_trace, new, driver=self.owner)

    async def trace(self, trace_id: str) -> TraceState:
        return await in_reader(read_trace, trace_id)

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
        return await in_writer(
            write.append,
            trace_id,
            messages,
            events,
            parent=parent,
            root=root,
            move_head=move_head,
            expected_head=expected_head,
            call=call,
            status=status,
            context=context,
            turn=turn,
            goals=goals,
            command=command,
            owner=self.owner,
        )

    async def path(
        self, trace_id: str, *, head: int | None = None, first: int = 1, last: int | None = None
    ) -> list[Message]:
        return await in_reader(paths.page, trace_id, first, last, head=head)

    async def protocol_path(self, trace_id: str) -> list[Message]:
        return await in_reader(records.protocol_path, trace_id)

    async def messages(self, trace_id: str, sequences: Sequence[int]) -> dict[int, Message]:
        return await in_reader(read_messages, trace_id, sequences)

    async def move_head(
        self,
        trace_id: str,
        to: int,
        events: Sequence[Event] = (),
        *,
        expected_head: int,
        goals: Mapping[str, Json] | None = None,
    ) -> Appended:
        return await in_writer(
            write.move_head,
            trace_id,
            to,
            events,
            expected_head=expected_head,
            goals=goals,
            owner=self.owner,
        )

    async def start_call(
        self, trace_id: str, record: CallRecord, blobs: Mapping[str, bytes]
    ) -> Appended:
        return await in_writer(write.start_call, trace_id, record, blobs, owner=self.owner)

    async def calls(self, trace_id: str, numbers: Sequence[int]) -> dict[int, CallRecord]:
        return await in_reader(read_calls, trace_id, numbers)

    async def main_calls(self, trace_id: str) -> list[tuple[int, int]]:
        return await in_reader(read_main_calls, trace_id)

    async def blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        return await in_reader(read_blobs, hashes)

    async def events(self, trace_id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        return await in_reader(read_events, trace_id, after, limit)

    async def tree(self, trace_id: str) -> list[TreeTrace]:
        return await in_reader(read_tree, trace_id)

    async def anchors(self, trace_id: str) -> tuple[AnchorRevision, ...]:
        return await in_reader(read_anchors, trace_id)


# Reading -----------------------------------------------------------------------------------

_MANY = 500
"""Values of one IN: SQLite takes no more than 999 in older builds."""


def read_trace(trace_id: str) -> TraceState:
    """Raises NotFound."""
    row = models.Trace.objects.filter(pk=trace_id).values(*rows.STATE_COLUMNS).first()
    if row is None:
        raise NotFound("trace", trace_id)
    return rows.state_from(row)


def read_messages(trace_id: str, sequences: Sequence[int]) -> dict[int, Message]:
    """Those of ``sequences`` that are stored."""
    found = models.Message.objects.filter(trace_id=trace_id)
    return {
        row["sequence"]: rows.message_from(row)
        for part in _parts(sequences)
        for row in found.filter(sequence__in=part).values(*rows.MESSAGE_COLUMNS)
    }


def read_calls(trace_id: str, numbers: Sequence[int]) -> dict[int, CallRecord]:
    found = models.ModelCall.objects.filter(trace_id=trace_id)
    return {
        row["number"]: rows.call_from(row)
        for part in _parts(numbers)
        for row in found.filter(number__in=part).values(*rows.CALL_COLUMNS)
    }


def read_main_calls(trace_id: str) -> list[tuple[int, int]]:
    calls = models.ModelCall.objects.filter(trace_id=trace_id, branch_id="").order_by("number")
    return list(calls.values_list("number", "after_sequence"))


def read_blobs(hashes: Sequence[str]) -> dict[str, bytes]:
    return {
        name: bytes(data)
        for part in _parts(hashes)
        for name, data in models.Blob.objects.filter(pk__in=part).values_list("pk", "data")
    }


def read_events(trace_id: str, after: int = 0, limit: int = 1000) -> list[Event]:
    """Raises NotFound for an unknown trace."""
    found = models.Event.objects.filter(trace_id=trace_id, number__gt=after).order_by("number")
    events = [rows.event_from(row) for row in found.values(*rows.EVENT_COLUMNS)[:limit]]
    if not events and not models.Trace.objects.filter(pk=trace_id).exists():
        raise NotFound("trace", trace_id)
    return events


def _parts(values: Sequence[T]) -> Iterable[Sequence[T]]:
    return (values[i : i + _MANY] for i in range(0, len(values), _MANY))
