"""What readers of both wire formats share: calls that come in pieces, and how an answer ends.
Source: docs/providers.md, "Streams"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from cyberagent.core.errors import ConnectionBroken, PromptTooLong, TokenExhausted
from cyberagent.core.ports import Answer, FinishReason
from cyberagent.core.types import Json, Part, Reasoning, Text, ToolCall, Usage
from cyberagent.providers.shapes import as_dict, parse_json


@dataclass(slots=True, eq=False)
class CallDraft:
    """A tool call of which more may come."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra: Json = None

    @property
    def arguments(self) -> str:
        return "".join(self.pieces) or "{}"

    @property
    def is_whole(self) -> bool:
        try:
            parse_json(self.arguments)
        except ValueError:
            return False
        return True

    def add(self, arguments: Json) -> None:
        """A fragment of the arguments' text; some servers send them as a value instead."""
        if isinstance(arguments, str):
            self.pieces.append(arguments)
        elif isinstance(arguments, dict):
            self.pieces.append(json.dumps(arguments))


@dataclass(slots=True, eq=False)
class ReasoningDraft:
    """Reasoning of which more may come. ``blob``: the provider's block, made at the end."""

    pieces: list[str] = field(default_factory=list[str])
    blob: Json = None


Draft = ReasoningDraft | list[str] | CallDraft
"""A part being read; a list of pieces is text."""


def event_object(data: str) -> dict[str, Json]:
    """The JSON object of one stream event. Raises ConnectionBroken where it is none."""
    try:
        value = parse_json(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConnectionBroken(f"the provider's stream holds a malformed event: {data[:100]!r}")
    return as_dict(value)


def finished(
    drafts: Sequence[Draft],
    reason: FinishReason,
    *,
    usage: Usage | None,
    model: str,
    call: int,
    overflowed: bool = False,
) -> Answer:
    """The whole answer. A call that the output limit cut off is dropped. Raises TokenExhausted
    where nothing usable is left then, PromptTooLong where the window was full (``overflowed``)."""
    if reason == "length":
        drafts = [d for d in drafts if not isinstance(d, CallDraft) or d.is_whole]
    parts = _parts(drafts, model, call)
    usable = any(not isinstance(p, Reasoning) for p in parts)
    if overflowed and not usable:
        raise PromptTooLong("the context window was full before the model could answer")
    if reason == "length" and not usable:
        raise TokenExhausted("the answer hit the output limit with nothing usable in it")
    if any(isinstance(p, ToolCall) for p in parts) and reason == "stop":
        reason = "tool_calls"
    return Answer(parts=parts, finish_reason=reason, usage=usage, model=model)


def _parts(drafts: Sequence[Draft], model: str, call: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    ids: set[str] = set()
    index = 0
    for draft in drafts:
        if isinstance(draft, CallDraft):
            made = f"call_{call}_{index}"
            call_id = draft.id if draft.id and draft.id not in ids else made
            ids.add(call_id)
            parts.append(ToolCall(call_id, draft.name, draft.arguments, extra=draft.extra))
            index += 1
        elif isinstance(draft, ReasoningDraft):
            text = "".join(draft.pieces)
            if text or draft.blob is not None:
                parts.append(Reasoning(text, model, draft.blob))
        elif text := "".join(draft):
            parts.append(Text(text))
    return tuple(parts)
