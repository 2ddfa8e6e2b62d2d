"""Reads a chat-completions stream into deltas and one Answer.
Source: docs/providers.md, "Streams"."""

from __future__ import annotations

from typing import Any

from cyberagent.core.errors import ConnectionBroken
from cyberagent.core.ports import Answer, Delta, FinishReason
from cyberagent.core.types import Json, Usage
from cyberagent.providers.faults import stream_fault
from cyberagent.providers.reading import CallDraft, Draft, ReasoningDraft, event_object, finished
from cyberagent.providers.shapes import as_count, as_dict, as_list, as_str

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}


class ChatReader:
    """State of one answer. ``model``: the one that was asked; ``call``: numbers missing ids."""

    def __init__(self, *, model: str, call: int, secret: str = "") -> None:
        self._model, self._call, self._secret = model, call, secret
        self._reasoning = ReasoningDraft()
        self._text: list[str] = []
        self._calls: list[CallDraft] = []
        self._at: dict[int, CallDraft] = {}
        self._finish = ""
        self._refused = False
        self._usage: Usage | None = None

    def feed(self, data: str) -> list[Delta]:
        """Deltas of one event. Raises a ProviderError for an error or nonsense in the stream."""
        chunk = event_object(data)
        if chunk.get("error"):
            raise stream_fault(chunk["error"], secret=self._secret)
        choice = as_dict(next(iter(as_list(chunk.get("choices"))), None))
        usage = chunk.get("usage") or choice.get("usage")  # Moonshot puts it into the choice
        self._usage = read_usage(usage) or self._usage
        if choice.get("error"):
            raise stream_fault(choice["error"], secret=self._secret)
        self._finish = as_str(choice.get("finish_reason")) or self._finish
        return self._delta(as_dict(choice.get("delta")))

    def answer(self) -> Answer:
        """The whole answer. Raises ConnectionBroken where the stream ended before it did."""
        if not self._finish:
            raise ConnectionBroken("the stream ended before the answer did")
        if self._finish == "error":
            raise ConnectionBroken("the provider broke off the answer: no reason given")
        drafts: list[Draft] = [self._reasoning, self._text, *self._calls]
        reason = "refusal" if self._refused else _FINISH.get(self._finish, "stop")
        return finished(
            drafts,
            reason,
            usage=self._usage,
            model=self._model,
            call=self._call,
            overflowed=self._finish == "model_context_window_exceeded",
        )

    def _delta(self, delta: dict[str, Any]) -> list[Delta]:
        out: list[Delta] = []
        thought = as_str(delta.get("reasoning_content")) or as_str(delta.get("reasoning"))
        self._refused = self._refused or bool(as_str(delta.get("refusal")))
        text = as_str(delta.get("content")) + as_str(delta.get("refusal"))
        for block in as_list(delta.get("content")):  # Mistral sends lists of blocks
            text += as_str(as_dict(block).get("text"))
            for inner in as_list(as_dict(block).get("thinking")):
                thought += as_str(as_dict(inner).get("text"))
        if thought:
            self._reasoning.pieces.append(thought)
            out.append(Delta(thought, "reasoning"))
        if text:
            self._text.append(text)
            out.append(Delta(text))
        for piece in as_list(delta.get("tool_calls")):
            self._piece(as_dict(piece))
        return out

    def _piece(self, piece: dict[str, Any]) -> None:
        """A fragment of a call: joined by index. Two whole calls under one index are told apart
        by their ids, since some servers give every parallel call the index 0."""
        call_id, function = as_str(piece.get("id")), as_dict(piece.get("function"))
        name = as_str(function.get("name"))
        index = as_count(piece.get("index"))
        if index is None:
            index = len(self._calls) if name or not self._calls else len(self._calls) - 1
        draft = self._at.get(index)
        another = draft is not None and call_id and name and draft.id not in ("", call_id)
        if draft is None or (another and draft.is_whole):
            draft = self._at[index] = CallDraft()
            self._calls.append(draft)
        draft.id = draft.id or call_id
        draft.name = draft.name or name
        draft.extra = draft.extra or piece.get("extra_content")
        draft.add(function.get("arguments"))


def read_usage(value: Json) -> Usage | None:
    """Normalised usage: the prompt as reported has the cached tokens in it. None where nothing
    is reported; a prompt of 0 tokens is not a report."""
    usage = as_dict(value)
    prompt = as_dict(usage.get("prompt_tokens_details"))
    completion = as_dict(usage.get("completion_tokens_details"))
    cached = as_count(prompt.get("cached_tokens"))
    for name in ("prompt_cache_hit_tokens", "cached_tokens"):  # DeepSeek; Moonshot
        cached = as_count(usage.get(name)) if cached is None else cached
    found = Usage(
        prompt=as_count(usage.get("prompt_tokens")) or None,
        completion=as_count(usage.get("completion_tokens")),
        cached=cached,
        cache_write=as_count(prompt.get("cache_write_tokens")),
        reasoning=as_count(completion.get("reasoning_tokens")),
    )
    return found if found != Usage() else None
