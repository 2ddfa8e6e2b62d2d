"""Where a trace stands in its tree, and the protocol state that follows from it.

Nothing of this is kept beside the messages: a state is opened by replay of the trace's path and
of those above it. Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cyberagent.core.anchor import AnchorRevision, RootTaskAnchor
from cyberagent.core.errors import InvalidInput
from cyberagent.core.ports import Store
from cyberagent.core.protocol import ProtocolState, replay_protocol
from cyberagent.core.protocol_entries import Delegated
from cyberagent.core.protocol_view import Noted
from cyberagent.core.types import Json, Message, TraceState, text_message
from cyberagent.core.wording import wording

LINEAGE = "lineage"
"""Where the context of a recursive trace keeps the ids of those above it, the root first."""

SPAWNED = "spawned"
"""Where a sub-agent's context keeps what it was made for: ``{kind, call, index}``."""

TOLD = "anchor"
"""Key of the SHA-256 of the anchor that a message tells, in its metadata."""

PINNED = "pinned"
"""Marks a message that no compaction may take, in its metadata."""


def is_recursive(trace: TraceState) -> bool:
    return LINEAGE in trace.context


def lineage_of(trace: TraceState) -> list[str]:
    """The ids of the traces above a recursive one, the root first."""
    return list(cast("Sequence[str]", trace.context[LINEAGE]))


def spawned(trace: TraceState) -> Mapping[str, Json]:
    """What a sub-agent was made for; empty for a run of its own."""
    return cast("Mapping[str, Json]", trace.context.get(SPAWNED) or {})


# The anchor, as traces are told it -----------------------------------------------------------


def root_opening(anchor: RootTaskAnchor, language: str) -> Message:
    """The framework's message that follows the mission of a recursive root."""
    text = wording(language, "root_anchor").format(anchor=anchor_text(anchor))
    return anchor_message(text, anchor)


def anchor_text(anchor: RootTaskAnchor) -> str:
    return f"{anchor.text}\nSHA-256 {anchor.sha256}"


def superseding(revision: AnchorRevision, language: str) -> Message:
    """The message that tells a trace at work that its tree has another anchor."""
    text = wording(language, "anchor_superseded").format(
        anchor=anchor_text(revision.anchor), why=revision.why or "-"
    )
    return anchor_message(text, revision.anchor)


def anchor_message(text: str, anchor: RootTaskAnchor, **metadata: Json) -> Message:
    told = {PINNED: True, TOLD: anchor.sha256, **metadata}
    return text_message("user", text, source="framework", metadata=told)


def told_anchor(messages: Sequence[Message]) -> str:
    """SHA-256 of the anchor that these messages told last; "" where they told none."""
    told = (m.metadata.get(TOLD) for m in reversed(messages) if m.source == "framework")
    return next((sha for sha in told if isinstance(sha, str)), "")


# Opening -------------------------------------------------------------------------------------


async def open_protocol(
    store: Store, trace: TraceState, path: Sequence[Message]
) -> ProtocolState | None:
    """The protocol state at the end of ``path``, under those above it up to the root; None
    where the trace is not recursive. Raises InvalidInput where its root has no anchor, and
    InvalidTaskValue where a record is damaged."""
    if not is_recursive(trace):
        return None
    root = next(iter(lineage_of(trace)), trace.id)
    revisions = await store.anchors(root)
    if not revisions:
        raise InvalidInput("this run's root has no anchor: create the run anew")
    anchor = revisions[-1].anchor
    above: ProtocolState | None = None
    above_path: Sequence[Message] = ()
    for name in (*lineage_of(trace), trace.id):
        own_path = path if name == trace.id else await store.protocol_path(name)
        state = replay_protocol(own_path, trace_id=name, anchor=anchor)
        if above is not None:
            contract = await contract_in_force(store, state)
            state = state.under_parent(with_open_call(above, above_path, state, contract))
        above, above_path = state, own_path
    return above


async def contract_in_force(store: Store, protocol: ProtocolState) -> Message | None:
    """The message that brought a trace its present contract, also where a summary stands for it
    on the path; None for a root."""
    if not protocol.briefs:
        return None
    sequence = protocol.briefs[-1].given_at_sequence
    return (await store.messages(protocol.trace_id, [sequence])).get(sequence)


def with_open_call(
    parent: ProtocolState,
    parent_path: Sequence[Message],
    child: ProtocolState,
    contract: Message | None,
) -> ProtocolState:
    """``parent`` with the contract that ``child`` is at work on: the parent's own record of it
    comes only with the result, once its call is answered."""
    if contract is None or not is_brought_by_open_call(contract, parent_path):
        return parent
    access = tuple(g.snapshot.ref for g in child.catalogue.grants if g.granted_by)
    entry = Delegated(child.trace_id, child.briefs[-1].brief, access)
    sequence = parent.entries[-1].sequence if parent.entries else 0
    return replace(parent, entries=(*parent.entries, Noted(sequence, entry)))


def is_brought_by_open_call(contract: Message, parent_path: Sequence[Message]) -> bool:
    """Whether the call that a contract answers still waits at the end of the parent's path. The
    call's id alone does not tell: some providers use ids again."""
    asked = next((m for m in reversed(parent_path) if m.role == "assistant"), None)
    call: Json = contract.metadata.get("call")
    return (
        asked is not None
        and contract.metadata.get("message") == asked.sequence
        and isinstance(call, str)
        and call in open_calls(parent_path)
    )


def newest_contract(path: Sequence[Message]) -> Message | None:
    """The message of a path that brought the contract in force."""
    return next((m for m in reversed(path) if is_contract(m)), None)


def is_contract(message: Message) -> bool:
    if message.role != "user" or message.source != "framework":
        return False
    entries = cast("Sequence[Mapping[str, Json]]", message.metadata.get("protocol") or ())
    return any(e.get("entry") == "briefed" for e in entries)


def open_calls(path: Sequence[Message]) -> frozenset[str]:
    """Ids of the calls at the end of a path that no result answers yet."""
    answered: list[str] = []
    for message in reversed(path):
        if message.role == "tool":
            answered.append(message.tool_call_id)
        elif message.role == "assistant":
            return frozenset(c.id for c in message.tool_calls) - set(answered)
        else:
            break
    return frozenset()
