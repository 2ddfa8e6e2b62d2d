"""The protocol state of a stored trace, for pages, commands and the API.

Source: docs/rows.md, "Trees"; docs/protocol.md, "Protocol state".
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from cyberagent.core.anchor import AnchorRevision, RootTaskAnchor
from cyberagent.core.lineage import open_protocol
from cyberagent.core.ports import TreeTrace
from cyberagent.core.protocol import ProtocolState, replay_protocol
from cyberagent.core.types import Message, TraceState
from traces import records, trees
from traces.models import Trace
from traces.store import OrmStore, read_messages, read_trace

T = TypeVar("T")


def protocol_of(
    trace: Trace | str, head: int | None = None, *, look: Look | None = None
) -> ProtocolState | None:
    """What is in force for a trace, under those above it up to the root; None where it is not
    recursive. ``head``: as of that message (None: of its head). ``look``: what the caller has
    read already.

    Its cost does not grow with what stands between the messages that carry entries. Raises
    NotFound, InvalidInput where the root has no anchor, InvalidTaskValue where a record is
    damaged."""
    trace_id = trace if isinstance(trace, str) else trace.pk
    return _at_once(_opened(look or Look(), trace_id, head))


async def _opened(look: Look, trace_id: str, head: int | None) -> ProtocolState | None:
    path = look.recorded(trace_id, head)
    return await open_protocol(look, await look.trace(trace_id), path)


def records_of(trace: Trace | str, head: int | None = None) -> list[Message]:
    """The messages of a path that may carry entries, by depth; see
    :func:`traces.records.recorded`."""
    return records.recorded(trace if isinstance(trace, str) else trace.pk, head)


def state_of(
    trace: Trace | str, recorded: Sequence[Message], anchor: RootTaskAnchor
) -> ProtocolState:
    """The state that follows from a trace's own records under an anchor of the caller's choice,
    whatever the traces above it hand down. Raises InvalidTaskValue."""
    trace_id = trace if isinstance(trace, str) else trace.pk
    return replay_protocol(recorded, trace_id=trace_id, anchor=anchor)


def tree_of(trace: Trace) -> list[Trace]:
    """All traces of the tree of ``trace``: parents before their children, those of one parent
    in the order in which they were made."""
    return trees.in_order(trace.pk)


def root_of(trace: Trace) -> Trace:
    """The trace at the root of the tree of ``trace``."""
    return trace if trace.parent_trace_id is None else trees.root(trace.pk).get()


class Look(OrmStore):
    """One look at a tree, for who opens several states of it in a row: each row is read once,
    in the caller's own thread, paths as far as the protocol needs them. What is written
    meanwhile is not seen, so it lives as long as one request and is never kept."""

    def __init__(self) -> None:
        super().__init__()
        self._traces: dict[str, TraceState] = {}
        self._paths: dict[tuple[str, int | None], list[Message]] = {}
        self._messages: dict[tuple[str, tuple[int, ...]], dict[int, Message]] = {}
        self._anchors: dict[str, tuple[AnchorRevision, ...]] = {}

    async def trace(self, trace_id: str) -> TraceState:
        if trace_id not in self._traces:
            self._traces[trace_id] = read_trace(trace_id)
        return self._traces[trace_id]

    def recorded(self, trace_id: str, head: int | None) -> list[Message]:
        if (trace_id, head) not in self._paths:
            self._paths[trace_id, head] = records.protocol_path(trace_id, head)
        return list(self._paths[trace_id, head])

    async def protocol_path(self, trace_id: str) -> list[Message]:
        return self.recorded(trace_id, None)

    async def messages(self, trace_id: str, sequences: Sequence[int]) -> dict[int, Message]:
        wanted = trace_id, tuple(sequences)
        if wanted not in self._messages:
            self._messages[wanted] = read_messages(trace_id, sequences)
        return dict(self._messages[wanted])

    async def anchors(self, trace_id: str) -> tuple[AnchorRevision, ...]:
        if trace_id not in self._anchors:
            self._anchors[trace_id] = trees.read_anchors(trace_id)
        return self._anchors[trace_id]

    async def tree(self, trace_id: str) -> list[TreeTrace]:
        return trees.read_tree(trace_id)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing: pages have no event loop, and another
    thread's connection would not see what this one's transaction has written."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("reading rows for the protocol had to wait for something")
