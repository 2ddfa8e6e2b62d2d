"""Trees of the recursive protocol in files: what of them holds, and what a file may not bring.

A trace's records say what it may read and what was decided; a file can claim anything. So a tree
comes in as it went out, whole and under its own ids, or as a transcript that grants nothing.
Source: docs/formats.md, "Recursive runs".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cyberagent.core.errors import InvalidInput, InvalidTaskValue
from cyberagent.core.lineage import LINEAGE, PINNED, SPAWNED, TOLD
from cyberagent.core.protocol import replay_protocol
from cyberagent.core.types import Json, Message
from cyberagent.trace.formats.reading import is_object
from cyberagent.trace.formats.values import TraceBundle

RESERVED = frozenset({"protocol", "validator", "verdict", TOLD, PINNED})
"""Keys of a message's metadata that only the framework writes."""

_KINDS: dict[str, type] = {"call": str, "message": int, "validator": str, "verdict": str, TOLD: str}
"""What the framework's own keys of a message with records hold."""

_ID = re.compile("[0-9a-f]{12}")


def is_recursive(bundle: TraceBundle) -> bool:
    return LINEAGE in bundle.state.context


# Our own format ------------------------------------------------------------------------------


def checked_tree(bundle: TraceBundle) -> TraceBundle:
    """A trace as it may be stored with all below it: self, where it is a recursive run whose
    lineages, anchors and records hold. A sub-agent that was exported without the run above it
    becomes a transcript: what stands there is not here. Raises InvalidInput."""
    if bundle.state.context.get(LINEAGE, []) != []:
        return transcript(bundle)
    if not is_recursive(bundle):
        if any(is_recursive(one) or one.anchors for one in bundle.walk()):
            raise InvalidInput("sub-agents say that they are recursive, the run above is not")
        return _own(bundle)
    if not bundle.anchors:
        raise InvalidInput("the run is recursive and has no root anchor: create it anew")
    _check(bundle, bundle, ())
    return _own(bundle)


def _own(bundle: TraceBundle) -> TraceBundle:
    """A run of its own was made for nobody's call."""
    return _without(bundle, SPAWNED)


def _check(bundle: TraceBundle, root: TraceBundle, above: Sequence[str]) -> None:
    """Raises InvalidInput where a trace of a tree is not what it says that it is."""
    name, context = bundle.state.id, bundle.state.context
    where = f"trace {name or bundle.state.mission[:40]!r}"
    if context.get(LINEAGE, list(above)) != list(above):
        raise InvalidInput(f"{where}: its lineage is not that of the file")
    if bundle.anchors and above:
        raise InvalidInput(f"{where}: only the run at the root has an anchor")
    if bundle.children and not _ID.fullmatch(name):
        raise InvalidInput(f"{where}: the id of a recursive run has 12 hexadecimal digits")
    if is_recursive(bundle):
        try:
            replay_protocol(
                list(_recorded(bundle)), trace_id=name or "-", anchor=root.anchors[-1].anchor
            )
        except InvalidTaskValue as error:
            raise InvalidInput(f"{where}: {error}") from None
    for message in _recorded(bundle):
        for key, kind in _KINDS.items():
            if not isinstance(message.metadata.get(key, kind()), kind):
                raise InvalidInput(f"{where}: message {message.sequence}: {key} is malformed")
    for child in bundle.children:
        if not 0 < (child.state.parent_message or 0) <= len(bundle.messages):
            raise InvalidInput(f"{where}: no message of it asked for the trace {child.state.id}")
        if is_recursive(child) and not is_recursive(bundle):
            raise InvalidInput(f"trace {child.state.id}: the trace above it is not recursive")
        _check(child, root, (*above, name))


def _recorded(bundle: TraceBundle) -> Iterator[Message]:
    return (m for m in bundle.messages if "protocol" in m.metadata or "snapshot" in m.metadata)


def transcript(bundle: TraceBundle) -> TraceBundle:
    """The trace and all below it as something to be read: nothing in it grants or decides."""
    children = tuple(transcript(child) for child in bundle.children)
    return replace(_without(bundle, LINEAGE, SPAWNED), children=children, anchors=())


def _without(bundle: TraceBundle, *names: str) -> TraceBundle:
    context = bundle.state.context
    if not any(name in context for name in names):
        return bundle
    kept = {k: v for k, v in context.items() if k not in names}
    return replace(bundle, state=replace(bundle.state, context=kept))


# Other programs' formats -----------------------------------------------------------------------


def foreign(bundle: TraceBundle) -> TraceBundle:
    """A trace that another program wrote, without anything that only the framework may say."""
    return replace(
        transcript(bundle),
        messages=tuple(map(_foreign_message, bundle.messages)),
        children=tuple(map(foreign, bundle.children)),
    )


def _foreign_message(message: Message) -> Message:
    metadata = message.metadata
    snapshot: Json = metadata.get("snapshot")
    inner = snapshot if is_object(snapshot) else dict[str, Json]()
    if not RESERVED & metadata.keys() and not RESERVED & inner.keys():
        return message
    kept = {k: v for k, v in metadata.items() if k not in RESERVED}
    if inner:
        kept["snapshot"] = {k: v for k, v in inner.items() if k not in RESERVED}
    return replace(message, metadata=kept)
