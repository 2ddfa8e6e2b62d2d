"""Stored history as providers accept it: one pure, total repair that every projection shares.

Whatever list of messages comes in, the list that goes out keeps the rules that providers agree
on: it starts with a user message, every call is followed at once by exactly one result, no
result stands alone, ids are unique, nothing is empty, no system message stands in it, and it
ends with something to answer. Source: docs/providers.md, "Repair".
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cyberagent.core.types import (
    INTERRUPTED_RESULT,
    File,
    Image,
    Json,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    canonical_json,
    clean_text,
)
from cyberagent.core.window import Item, Window
from cyberagent.providers.shapes import as_dict, as_str, json_object, sendable

NAME_LENGTH = 64
HISTORY_GAP = "[The conversation before this point is not shown.]"
GO_ON = "[Continue.]"
NO_OUTPUT = "(no output)"


def split_system(window: Window) -> tuple[str, tuple[Item, ...]]:
    """The system prompt, and the items without the system messages that they start with.
    Those join the prompt, unless they only say again what it says."""
    texts = [clean_text(window.system)] if window.system.strip() else []
    start = 0
    for item in window.items:
        if item.message.role != "system":
            break
        start += 1
        text = clean_text(item.message.text)
        if text.strip() and text not in texts:
            texts.append(text)
    return "\n\n".join(texts), window.items[start:]


def clean_tools(tools: Sequence[Json]) -> list[dict[str, Json]]:
    """Neutral tool schemas with names and parameters that providers accept, each name once."""
    cleaned: dict[str, dict[str, Json]] = {}
    for tool in tools:
        schema = as_dict(tool)
        name = clean_name(as_str(schema.get("name")))
        parameters = as_dict(sendable(schema.get("parameters")))
        if parameters.get("type") != "object":
            parameters = _ANY_OBJECT
        description = clean_text(as_str(schema.get("description")))
        cleaned.setdefault(
            name, {"name": name, "description": description, "parameters": parameters}
        )
    return list(cleaned.values())


_ANY_OBJECT: dict[str, Json] = {"type": "object", "properties": {}}


def clean_name(name: str) -> str:
    return _UNSAFE.sub("_", name)[:NAME_LENGTH] or "tool"


_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")


def repair(
    items: Iterable[Item],
    *,
    id_length: int = NAME_LENGTH,
    calls_as_text: bool = False,
    framework_turns_as_text: bool = False,
) -> list[Message]:
    """The items' messages, put right.

    ``calls_as_text``: no tools are offered, so calls and results become labelled user text.
    ``framework_turns_as_text``: the same for turns in which the model itself said nothing.
    In the messages returned, an assistant message with calls is followed by one tool message
    for each, in order; arguments are the text of a JSON object; texts hold no lone surrogates.
    """
    out: list[Message] = []
    ids = _Ids(id_length)
    for turn in _paired(items):
        as_text = turn.slots and (
            calls_as_text or (framework_turns_as_text and turn.is_framework_only)
        )
        out += turn.as_text() if as_text else turn.as_messages(ids)
    return _framed(_merged(out))


# Pairing -----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Slot:
    """A call and the one result that answers it."""

    call: ToolCall
    result: Message | None = None

    def result_message(self) -> Message:
        if self.result is None:
            parts: tuple[Part, ...] = (Text(INTERRUPTED_RESULT),)
            return Message(role="tool", parts=parts, source="framework", is_error=True)
        parts = _shown(self.result.parts) or (Text(NO_OUTPUT),)
        return replace(self.result, parts=parts)


@dataclass(slots=True, eq=False)
class _Turn:
    message: Message
    slots: list[_Slot] = field(default_factory=list[_Slot])

    @property
    def is_framework_only(self) -> bool:
        made = all(s.call.made_by == "framework" for s in self.slots)
        return made and not any(isinstance(p, Text | Reasoning) for p in self.message.parts)

    def as_messages(self, ids: _Ids) -> list[Message]:
        if not any(not isinstance(p, Reasoning) for p in self.message.parts):
            return []
        parts: list[Part] = []
        results: list[Message] = []
        slots = iter(self.slots)
        for part in self.message.parts:
            if isinstance(part, ToolCall):
                slot = next(slots)
                part = _clean_call(slot.call, ids.give(slot.call.id))
                result = slot.result_message()
                results.append(replace(result, tool_call_id=part.id, name=part.name))
            parts.append(part)
        return [self.message.with_parts(parts), *results]

    def as_text(self) -> list[Message]:
        """The same without calls: what the assistant said, then what its calls brought."""
        said = tuple(p for p in self.message.parts if isinstance(p, Text))
        out = [self.message.with_parts(said)] if said else []
        parts: list[Part] = []
        for slot in self.slots:
            parts.append(Text(_call_line(slot.call)))
            parts += _quoted(slot.result_message().parts)
        return [*out, Message(role="user", parts=tuple(parts), source="framework")]


def _paired(items: Iterable[Item]) -> list[_Turn]:
    """Turns in order, each call with its result: by place first, by id among those in reach.

    A result goes to the nearest turn before it whose call of that id still waits for one, or
    holds a placeholder. So ids may repeat from turn to turn, and a late real result takes the
    place of the placeholder that stood in for it.
    """
    turns: list[_Turn] = []
    waiting: dict[str, list[deque[_Slot]]] = {}
    known: set[str] = set()
    last: list[_Slot] = []
    for item in items:
        message = item.message
        if message.role == "tool":
            placed = _place(message, waiting, last)
            if not placed and message.tool_call_id not in known and not message.is_placeholder:
                turns.append(_orphan(message))
            continue
        turn = _turn(item)
        turns.append(turn)
        if turn.slots:
            last = turn.slots
            groups: dict[str, deque[_Slot]] = {}
            for slot in turn.slots:
                groups.setdefault(slot.call.id, deque()).append(slot)
            for call_id, group in groups.items():
                waiting.setdefault(call_id, []).append(group)
                known.add(call_id)
    return turns


def _place(message: Message, waiting: dict[str, list[deque[_Slot]]], last: list[_Slot]) -> bool:
    """Give the result to its call; False where no call wants it."""
    call_id = message.tool_call_id
    if not call_id and "" not in waiting:
        empty = next((s for s in last if s.result is None), None)
        if empty is None:
            return False
        call_id = empty.call.id
    groups = waiting.get(call_id)
    if not groups:
        return False
    group = groups[-1]  # calls without a result stand before those with a placeholder
    if message.is_placeholder:
        if group[0].result is not None:
            return False
        group[0].result = message
        group.rotate(-1)
        return True
    group.popleft().result = message
    if not group:
        groups.pop()
    return True


# Parts -------------------------------------------------------------------------------------


def _turn(item: Item) -> _Turn:
    """The item's message with only what its role may hold, cleaned; maybe with no parts."""
    message = item.message
    if message.role == "assistant":
        parts = _assistant_parts(message.parts, edited=item.kind == "replaced")
        calls = [_Slot(p) for p in parts if isinstance(p, ToolCall)]
        return _Turn(message.with_parts(parts), calls)
    parts = _shown(message.parts)
    if message.role == "system" and parts:
        parts = (Text("[System note]"), *parts)
    return _Turn(replace(message, role="user", parts=parts))


def _assistant_parts(parts: Sequence[Part], *, edited: bool) -> tuple[Part, ...]:
    """``edited``: the turn is not as the model made it, so its thinking is dropped whole."""
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCall) or (isinstance(part, Reasoning) and not edited):
            kept.append(part)
        elif isinstance(part, Text) and part.text.strip():
            kept.append(Text(clean_text(part.text)))
        elif isinstance(part, Image | File):
            kept.append(Text(label(part)))
    return tuple(kept)


def _shown(parts: Sequence[Part]) -> tuple[Part, ...]:
    """What a user message or a tool result may hold: texts that are not blank, images, files."""
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            if part.text.strip():
                kept.append(Text(clean_text(part.text)))
        elif isinstance(part, File) and part.text.strip():
            kept.append(Text(f"[File {clean_text(part.name)}]\n{clean_text(part.text)}"))
        elif isinstance(part, Image | File):
            kept.append(part)
    return tuple(kept)


def label(part: Image | File) -> str:
    """What stands for an image or file where a provider cannot be shown it."""
    if isinstance(part, File):
        return f"[File {clean_text(part.name)} ({clean_text(part.media_type)}) is not shown]"
    where = clean_text(part.url) if part.url else clean_text(part.media_type)
    return f"[An image is not shown{': ' + where if where else ''}]"


def is_web_url(url: str) -> bool:
    return re.fullmatch(r"https?://[!-~]+", url) is not None


def is_image(part: Image) -> bool:
    """Whether it carries an image of a kind that models are shown."""
    known = part.media_type in ("image/png", "image/jpeg", "image/gif", "image/webp")
    return known and is_base64(part.data)


def is_base64(data: str) -> bool:
    """Whether ``data`` is non-empty standard base64, padding and all."""
    return len(data) % 4 == 0 and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", data) is not None


def _clean_call(call: ToolCall, call_id: str) -> ToolCall:
    arguments = call.arguments if call.arguments.strip() else "{}"
    value = json_object(arguments)
    if value is None:
        arguments = canonical_json({"_raw": clean_text(call.arguments)}).decode()
    elif not _is_plain(arguments):
        arguments = canonical_json(value).decode()
    name, extra = clean_name(call.name), sendable(call.extra)
    return replace(call, id=call_id, name=name, arguments=arguments, extra=extra)


def _is_plain(text: str) -> bool:
    """Whether a JSON text can be sent as it stands: no surrogates, not even escaped ones."""
    return clean_text(text) == text and not re.search(r"\\u[dD][89a-fA-F]", text)


def _orphan(message: Message) -> _Turn:
    name = clean_text(message.name) or "a tool"
    head = Text(f"[A stored result of {name}, whose call is not in this history]")
    parts = (head, *_quoted(_shown(message.parts) or (Text(NO_OUTPUT),)))
    return _Turn(Message(role="user", parts=parts, source="framework"))


def _call_line(call: ToolCall) -> str:
    who = "The framework" if call.made_by == "framework" else "The assistant"
    return f"[{who} called {clean_name(call.name)}({clean_text(call.arguments)}). Its result:]"


def _quoted(parts: Sequence[Part]) -> list[Part]:
    """Tool output inside a user message: each line marked, never to pass for the user's own."""
    return [
        Text("\n".join(f"> {line}" for line in p.text.split("\n"))) if isinstance(p, Text) else p
        for p in parts
    ]


# Order -------------------------------------------------------------------------------------


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Users' messages in a row become one, and assistant text joins the turn after it."""
    out: list[Message] = []
    parts: list[Part] = []
    for message in messages:
        if not message.parts:
            continue
        if out and _joins(out[-1].role, parts, message.role):
            parts += message.parts
            continue
        if out:
            out[-1] = out[-1].with_parts(parts)
        out.append(message)
        parts = list(message.parts)
    if out:
        out[-1] = out[-1].with_parts(parts)
    return out


def _joins(role: str, parts: Sequence[Part], following: str) -> bool:
    if role != following or role == "tool":
        return False
    return role == "user" or not isinstance(parts[-1], ToolCall)


def _framed(messages: list[Message]) -> list[Message]:
    if not messages or messages[0].role != "user":
        gap = Message(role="user", parts=(Text(HISTORY_GAP),), source="framework")
        messages = [gap, *messages]
    if messages[-1].role == "assistant":
        messages.append(Message(role="user", parts=(Text(GO_ON),), source="framework"))
    return messages


class _Ids:
    """Ids as providers accept them, each given once: an id that comes again gets a number."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._given: set[str] = set()
        self._times: dict[str, int] = {}

    def give(self, raw: str) -> str:
        base = _UNSAFE.sub("_", raw)[: self._length] or "call"
        candidate = base
        while candidate in self._given:
            self._times[base] = self._times.get(base, 1) + 1
            suffix = f"_{self._times[base]}"
            candidate = base[: self._length - len(suffix)] + suffix
        self._given.add(candidate)
        return candidate
