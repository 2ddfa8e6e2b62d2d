"""A trace with secrets taken out, for exports that leave the house.

Source: docs/formats.md, "Redaction".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, cast

from cyberagent.core.events import Event
from cyberagent.core.types import File, Json, Message, Part, Reasoning, Text, ToolCall
from cyberagent.trace.formats.lineages import transcript
from cyberagent.trace.formats.reading import is_list, is_object
from cyberagent.trace.formats.values import TraceBundle

Clean = Callable[[str], str]

# Strings of events that name something; changing them would break what they point at.
_NAMES = frozenset(
    {"id", "name", "branch_id", "branch_type", "status", "trace", "child", "at", "validator",
     "sha256", "supersedes"}
)  # fmt: skip


def redacted(bundle: TraceBundle, clean: Clean) -> TraceBundle:
    """The trace with ``clean`` applied to all that people, models and tools wrote.

    Ids, names and base64 data stay. A window's content that ``clean`` would change is left out
    whole, and calls keep their hashes: a window that held a secret cannot be rebuilt any more,
    and says so, rather than being rebuilt to something that was never sent. For the same reason
    a recursive run whose anchor or records would change becomes a transcript.
    """
    if any(cleaned(value, clean) != value for value in _records(bundle)):
        bundle = transcript(bundle)
    return _redacted(bundle, clean)


def _records(bundle: TraceBundle) -> Iterator[Json]:
    """What of a tree is bound by hashes."""
    for one in bundle.walk():
        yield [r.to_json() for r in one.anchors]
        for message in one.messages:
            yield message.metadata.get("protocol")
            snapshot: Json = message.metadata.get("snapshot")
            yield snapshot.get("protocol") if is_object(snapshot) else None


def _redacted(bundle: TraceBundle, clean: Clean) -> TraceBundle:
    state = bundle.state
    return replace(
        bundle,
        state=replace(
            state,
            mission=clean(state.mission),
            system_prompt=clean(state.system_prompt),
            config=cleaned(dict(state.config), clean),
            context=cleaned(dict(state.context), clean),
        ),
        messages=tuple(_message(m, clean) for m in bundle.messages),
        events=tuple(_event(e, clean) for e in bundle.events),
        calls=tuple(replace(c, error=clean(c.error)) for c in bundle.calls),
        blobs={name: data for name, data in bundle.blobs.items() if _harmless(data, clean)},
        goals=cleaned(bundle.goals, clean),
        children=tuple(_redacted(child, clean) for child in bundle.children),
    )


def cleaned(value: Any, clean: Clean) -> Any:
    """A JSON value with every text in it cleaned; keys stay."""
    if isinstance(value, str):
        return clean(value)
    if is_object(value):
        return {k: cleaned(v, clean) for k, v in value.items()}
    if is_list(value):
        return [cleaned(v, clean) for v in value]
    return value


def _message(message: Message, clean: Clean) -> Message:
    full = message.full_output
    return replace(
        message,
        parts=tuple(_part(part, clean) for part in message.parts),
        full_output=full if full is None else clean(full),
        metadata=cleaned(dict(message.metadata), clean),
    )


def _part(part: Part, clean: Clean) -> Part:
    if isinstance(part, Text | File):
        return replace(part, text=clean(part.text))
    if isinstance(part, ToolCall):
        return replace(part, arguments=clean(part.arguments))
    if isinstance(part, Reasoning):
        text = clean(part.text)
        # The signed form repeats the text: it goes with what was taken out of it.
        return part if text == part.text else replace(part, text=text, blob=None)
    return part


def _event(event: Event, clean: Clean) -> Event:
    changed: dict[str, Json] = {}
    for spec in fields(event):
        value = getattr(event, spec.name)
        if spec.name in _NAMES:
            continue
        if isinstance(value, str):
            changed[spec.name] = clean(value)
        elif isinstance(value, tuple):
            items = cast("tuple[Json, ...]", value)
            changed[spec.name] = tuple(cleaned(item, clean) for item in items)
    return replace(event, **changed)


def _harmless(data: bytes, clean: Clean) -> bool:
    value = json.loads(data)
    return cleaned(value, clean) == value
