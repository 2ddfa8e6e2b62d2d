"""Reads a Messages API stream into deltas and one Answer.
Source: docs/providers.md, "Streams"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyberagent.core.errors import ConnectionBroken
from cyberagent.core.ports import Answer, Delta, FinishReason
from cyberagent.core.types import Json, Usage
from cyberagent.providers.faults import stream_fault
from cyberagent.providers.reading import CallDraft, Draft, ReasoningDraft, event_object, finished
from cyberagent.providers.shapes import as_count, as_dict, as_str

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}


class MessageReader:
    """State of one answer. ``model``: the one that was asked; ``call``: numbers missing ids."""

    def __init__(self, *, model: str, call: int, secret: str = "") -> None:
        self._model, self._call, self._secret = model, call, secret
        self._drafts: dict[int, Draft] = {}
        self._usage: dict[str, int] = {}
        self._finish = ""
        self.ended = False

    def feed(self, data: str) -> list[Delta]:
        """Deltas of one event. Raises a ProviderError for an error or nonsense in the stream."""
        event = event_object(data)
        kind = as_str(event.get("type"))
        if kind == "error":
            raise stream_fault(event.get("error"), secret=self._secret)
        if kind == "message_start":
            self._count(as_dict(event.get("message")).get("usage"))
        elif kind == "content_block_start":
            return self._start(_index(event), as_dict(event.get("content_block")))
        elif kind == "content_block_delta":
            return self._add(_index(event), as_dict(event.get("delta")))
        elif kind == "message_delta":
            self._finish = as_str(as_dict(event.get("delta")).get("stop_reason")) or self._finish
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self.ended = True
        return []

    def answer(self) -> Answer:
        """The whole answer. Raises ConnectionBroken where the stream ended before it did."""
        if not self._finish:
            raise ConnectionBroken("the stream ended before the answer did")
        drafts = [_closed(self._drafts[k]) for k in sorted(self._drafts)]
        return finished(
            drafts,
            _FINISH.get(self._finish, "stop"),
            usage=read_usage(self._usage),
            model=self._model,
            call=self._call,
            overflowed=self._finish == "model_context_window_exceeded",
        )

    def _count(self, usage: Json) -> None:
        """Take in the counts of one event: running totals, of which a zero says nothing new."""
        for key, value in as_dict(usage).items():
            self._usage[key] = max(as_count(value) or 0, self._usage.get(key, 0))

    def _start(self, index: int, block: dict[str, Any]) -> list[Delta]:
        kind = as_str(block.get("type"))
        if kind == "text":
            text = as_str(block.get("text"))
            self._drafts[index] = [text]
            return [Delta(text)] if text else []
        if kind == "tool_use":
            draft = CallDraft(as_str(block.get("id")), as_str(block.get("name")))
            if block.get("input"):
                draft.add(block["input"])
            self._drafts[index] = draft
        elif kind in ("thinking", "redacted_thinking"):
            thought = as_str(block.get("thinking"))
            self._drafts[index] = ReasoningDraft([thought] if thought else [], block)
            return [Delta(thought, "reasoning")] if thought else []
        return []

    def _add(self, index: int, delta: dict[str, Any]) -> list[Delta]:
        adder = _ADDERS.get(as_str(delta.get("type")))
        draft = self._drafts.get(index)
        return adder(draft, delta) if adder and draft is not None else []


def _add_text(draft: Draft, delta: dict[str, Any]) -> list[Delta]:
    text = as_str(delta.get("text"))
    if not isinstance(draft, list) or not text:
        return []
    draft.append(text)
    return [Delta(text)]


def _add_input(draft: Draft, delta: dict[str, Any]) -> list[Delta]:
    if isinstance(draft, CallDraft):
        draft.add(as_str(delta.get("partial_json")))
    return []


def _add_thinking(draft: Draft, delta: dict[str, Any]) -> list[Delta]:
    text = as_str(delta.get("thinking"))
    if not isinstance(draft, ReasoningDraft) or not text:
        return []
    draft.pieces.append(text)
    return [Delta(text, "reasoning")]


def _add_signature(draft: Draft, delta: dict[str, Any]) -> list[Delta]:
    if isinstance(draft, ReasoningDraft):
        blob = as_dict(draft.blob)
        signature = as_str(blob.get("signature")) + as_str(delta.get("signature"))
        draft.blob = {**blob, "signature": signature}
    return []


_ADDERS: dict[str, Callable[[Draft, dict[str, Any]], list[Delta]]] = {
    "text_delta": _add_text,
    "input_json_delta": _add_input,
    "thinking_delta": _add_thinking,
    "signature_delta": _add_signature,
}


def _closed(draft: Draft) -> Draft:
    """A thinking block gets its whole text into its blob: the form in which it goes back."""
    if isinstance(draft, ReasoningDraft) and as_dict(draft.blob).get("type") == "thinking":
        draft.blob = {**as_dict(draft.blob), "thinking": "".join(draft.pieces)}
    return draft


def _index(event: dict[str, Any]) -> int:
    return as_count(event.get("index")) or 0


def read_usage(usage: dict[str, int]) -> Usage | None:
    """Normalised usage: the prompt is input, plus what was written to and read from the cache,
    which ``input_tokens`` leaves out. A prompt of 0 tokens is not a report."""
    counts = [
        usage.get(k)
        for k in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    ]
    found = Usage(
        prompt=sum(c or 0 for c in counts) or None,
        completion=usage.get("output_tokens"),
        cached=counts[2],
        cache_write=counts[1],
    )
    return found if found != Usage() else None
