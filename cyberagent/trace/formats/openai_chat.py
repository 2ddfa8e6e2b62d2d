"""Lists of chat-completions messages, as many programs write them.

Source: docs/formats.md, "Chat completions".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyberagent.core.errors import ImportRefused
from cyberagent.core.types import (
    Image,
    Json,
    Part,
    Reasoning,
    Text,
    ToolCall,
    TraceState,
    Usage,
)
from cyberagent.trace.formats.claude_blocks import answer_part, arguments_text
from cyberagent.trace.formats.drafts import Draft, finish
from cyberagent.trace.formats.reading import (
    JsonReader,
    is_list,
    is_object,
    json_lines,
    read_bytes,
    trimmed,
)
from cyberagent.trace.formats.values import Imported, Notes, TraceBundle, mission_of

NAME = "openai_chat"
# Tuples: what a file says may be of any type, and not all can be looked up in a set.
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_KNOWN = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id", "name", "reasoning_content",
     "refusal", "is_error"}
)  # fmt: skip
_LISTS = ("messages", "traj")
# Blocks of the Messages API, which many programs keep in lists of the same shape.
_MESSAGES_API = ("tool_use", "thinking", "redacted_thinking", "image", "document")


def looks_like(value: Json) -> bool:
    """Whether a document's (or one line's) value can be a conversation or hold some."""
    if is_list(value):
        return any(looks_like(item) for item in value[:20])
    if not is_object(value):
        return False
    return (
        value.get("role") in _ROLES
        or any(
            is_list(found) and looks_like(found) for name in _LISTS if (found := value.get(name))
        )
        or _tool_bench(value) is not None
    )


def read(path: Path) -> list[Imported]:
    """Every conversation in ``path``: one JSON document, or JSON lines.

    Raises ImportRefused where the file is too large or holds no conversation. What could not be
    used is told once, by the first one.
    """
    notes = Notes()
    found = [c for c in _conversations(path, notes) if c.drafts]
    if not found:
        raise ImportRefused(f"{path.name} holds no list of chat messages{_hint(notes)}")
    many = len(found) > 1
    first, *rest = (
        Imported(format=NAME, trace=c.bundle(f"{path.stem} #{n}" if many else path.stem))
        for n, c in enumerate(found, 1)
    )
    told = Imported(
        format=NAME,
        trace=first.trace,
        skipped=tuple(notes.skipped),
        skipped_lines=notes.skipped_lines,
        ignored=dict(notes.ignored),
        warnings=notes.warnings(),
    )
    return [told, *rest]


def _hint(notes: Notes) -> str:
    if not notes.skipped:
        return ""
    return f"; line {notes.skipped[0].line}: {notes.skipped[0].why}"


# Finding conversations -----------------------------------------------------------------------


def _conversations(path: Path, notes: Notes) -> Iterator[_Conversation]:
    data = read_bytes(path)
    try:
        document = JsonReader(notes).parse(data.strip(b"\x00 \t\r\n"))
    except ValueError:
        yield from _from_lines(path, notes)
        return
    yield from _from_value(document, notes, 1)


def _from_lines(path: Path, notes: Notes) -> Iterator[_Conversation]:
    """One conversation a line, or the messages of a single one, one a line."""
    single = _Conversation(notes)
    for line, value in json_lines(path, notes):
        if value.get("role") in _ROLES:
            single.add(line, value)
        else:
            yield from _from_value(value, notes, line)
    yield single.ended()


def _from_value(value: Json, notes: Notes, line: int) -> Iterator[_Conversation]:
    if is_list(value):
        if any(is_object(item) and item.get("role") in _ROLES for item in value):
            yield _one(value, {}, notes)
        else:
            for number, item in enumerate(value, 1):
                yield from _from_value(item, notes, number)
        return
    if is_object(value):
        bench = _tool_bench(value)
        if bench is not None:
            yield _one(bench, {"tools": value["answer_generation"].get("function")}, notes)
            return
        for name in _LISTS:
            if is_list(value.get(name)):
                yield _one(value[name], value, notes)
                return
    notes.skip(line, _why_not(value))


def _tool_bench(value: dict[str, Any]) -> list[Json] | None:
    """The final path of a ToolBench record: the last, longest of its ``train_messages``."""
    answer = value.get("answer_generation")
    paths = answer.get("train_messages") if is_object(answer) else None
    return paths[-1] if is_list(paths) and paths and is_list(paths[-1]) else None


def _why_not(value: Json) -> str:
    if is_object(value) and "messages_display" in value:
        return "messages_display is one text for people, not a list of messages"
    if is_object(value) and "ticks" in value:
        return "a voice simulation (ticks) is not a list of messages"
    return "no list of messages in it"


def _one(values: list[Json], record: dict[str, Any], notes: Notes) -> _Conversation:
    conversation = _Conversation(notes)
    for number, value in enumerate(values, 1):
        conversation.add(number, value)
    tools = record.get("tools")
    conversation.tools = tools if is_list(tools) else []
    conversation.facts = {
        k: v for k in ("task_id", "trial", "reward", "instance_id", "id", "model", "cost")
        if isinstance(v := record.get(k), str | int | float)
    }  # fmt: skip
    conversation.answer(record.get("response"), len(values) + 1)
    return conversation.ended()


# One conversation ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Conversation:
    notes: Notes
    drafts: list[Draft] = field(default_factory=list[Draft])
    tools: list[Json] = field(default_factory=list[Any])
    facts: dict[str, Json] = field(default_factory=dict[str, Any])
    _open: list[ToolCall] = field(default_factory=list[ToolCall])
    _caller: Draft | None = None

    def add(self, number: int, value: Json) -> Draft | None:
        """Take in message ``number`` (or the one on line ``number``); the draft made of it, the
        last one where its content holds tool results beside text."""
        draft: Draft | None = None
        for single in _split(value):
            draft = self._add(number, single)
        return draft

    def _add(self, number: int, value: Json) -> Draft | None:
        role = value.get("role") if is_object(value) else None
        if role not in _ROLES:
            self.notes.skip(number, f"a message with the role {str(role)[:40]!r}")
            return None
        try:
            draft = self._draft(number, role, value)
        except RecursionError:
            self.notes.skip(number, "nested too deeply")
            return None
        draft.parent = self.drafts[-1] if self.drafts else None
        draft.turn = (draft.parent.turn if draft.parent else 0) + draft.human
        extra = {k: trimmed(v) for k, v in value.items() if k not in _KNOWN and v is not None}
        if extra:
            draft.metadata["other_fields"] = trimmed(extra)
        self.drafts.append(draft)
        return draft

    def _draft(self, number: int, role: str, value: dict[str, Any]) -> Draft:
        other: list[Json] = []
        parts = _content(value.get("content"), other, f"call_{number}")
        if role == "assistant":
            draft = self._assistant(number, value, parts)
        elif role in ("tool", "function"):
            draft = self._result(value, parts)
        elif role == "user":
            draft = Draft("user", "user", parts, human=True)
        else:
            draft = Draft("system", "framework", parts)
        name = value.get("name")
        if draft.role != "tool" and isinstance(name, str) and name:
            draft.metadata["name"] = name[:200]
        if other:
            draft.metadata["other_blocks"] = other
        return draft

    def _assistant(self, number: int, value: dict[str, Any], parts: list[Part]) -> Draft:
        for key in ("reasoning_content", "reasoning"):
            if isinstance(text := value.get(key), str) and text:
                parts.insert(0, Reasoning(text))
                break
        if isinstance(refusal := value.get("refusal"), str) and refusal:
            parts.append(Text(refusal))
        calls = value.get("tool_calls")
        listed: list[Json] = calls if is_list(calls) else []
        found = [_call(c, f"call_{number}_{i}") for i, c in enumerate(listed)]
        if not listed and is_object(old := value.get("function_call")):
            found = [_call({"function": old}, f"call_{number}_0")]
        self._unanswered()
        added = [c for c in found if c is not None]
        if len(added) < len(found):
            self.notes.warn("a tool call without a function name was left out")
        self._caller = Draft("assistant", "model", [*parts, *added])
        self._open = [p for p in self._caller.parts if isinstance(p, ToolCall)]
        return self._caller

    def _result(self, value: dict[str, Any], parts: list[Part]) -> Draft:
        """A tool's answer: to the open call of that id; where none has it, to the first open
        one. Ids may be used again later in a conversation, so only open calls count."""
        given, name = value.get("tool_call_id"), value.get("name")
        draft = Draft("tool", "tool", parts, is_error=value.get("is_error") is True)
        call = next((c for c in self._open if c.id == given), None)
        if call is None and self._open:
            call = next((c for c in self._open if c.name == name), self._open[0])
        if call is not None:
            self._open.remove(call)
            draft.tool_call_id, draft.name, draft.caller = call.id, call.name, self._caller
            if given != call.id and isinstance(given, str):
                draft.metadata["tool_call_id"] = given[:200]
        else:
            self.notes.warn("a result answers no open call")
            draft.tool_call_id = given if isinstance(given, str) else ""
        if isinstance(name, str) and name:
            draft.name = name
        return draft

    def answer(self, response: Json, number: int) -> None:
        """The answer beside a logged request: its first choice ends the conversation."""
        choices = response.get("choices") if is_object(response) else None
        first = choices[0] if is_list(choices) and choices else None
        message = first.get("message") if is_object(first) else None
        if is_object(message):
            draft = self.add(number, message)
            if draft is not None:
                draft.usage = _usage(response.get("usage"))
                if isinstance(model := response.get("model"), str):
                    draft.metadata["model"] = model[:200]

    def _unanswered(self) -> None:
        for _ in self._open:
            self.notes.warn("a call has no result")

    def ended(self) -> _Conversation:
        self._unanswered()
        return self

    def bundle(self, fallback: str) -> TraceBundle:
        users = (d for d in self.drafts if d.role == "user")
        asked = (p.text for d in users for p in d.parts if isinstance(p, Text))
        mission = mission_of(next((text for text in asked if text.strip()), "")) or fallback
        done = finish(self.drafts, self.drafts[-1] if self.drafts else None, mission)
        messages = done.messages
        return TraceBundle(
            state=TraceState(
                id="",
                mission=mission,
                status="completed",
                head_sequence=len(messages),
                last_sequence=len(messages),
                turn=max((m.turn for m in messages), default=0),
                context={"imported": self.facts | ({"tools": self.tools} if self.tools else {})},
                origin=NAME,
            ),
            messages=messages,
            goals=done.goals,
        )


def _call(value: Json, fallback: str) -> ToolCall | None:
    function = value.get("function") if is_object(value) else None
    if not is_object(function):
        return None
    name, arguments, given = function.get("name"), function.get("arguments"), value.get("id")
    return ToolCall(
        id=given if isinstance(given, str) and given else fallback,
        name=name if isinstance(name, str) and name else "unknown",
        arguments=arguments if isinstance(arguments, str) else arguments_text(arguments),
    )


def _split(value: Json) -> list[Json]:
    """A user message whose content holds ``tool_result`` blocks, as one message for each of
    them and one for the rest; any other message as it is."""
    content = value.get("content") if is_object(value) else None
    if not is_list(content) or value.get("role") != "user":
        return [value]
    results = [b for b in content if is_object(b) and b.get("type") == "tool_result"]
    if not results:
        return [value]
    rest = [b for b in content if b not in results]
    made = [
        {"role": "tool", "tool_call_id": b.get("tool_use_id"), "name": b.get("name"),
         "content": b.get("content"), "is_error": b.get("is_error")}
        for b in results
    ]  # fmt: skip
    return [*made, {**value, "content": rest}] if rest else list(made)


def _content(content: Json, other: list[Json], fallback: str = "") -> list[Part]:
    """Parts of a message's content; blocks without a part's form are added to ``other``.
    ``fallback`` begins the ids of calls that have none."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[Part] = []
    for index, block in enumerate(content if is_list(content) else ()):
        part = _block(block, f"{fallback}_{index}")
        if part is not None:
            parts.append(part)
        elif block != "" and not (is_object(block) and block.get("text") == ""):
            other.append(trimmed(block))
    return parts


def _block(block: Json, call_id: str) -> Part | None:
    if isinstance(block, str):
        return Text(block) if block else None
    if not is_object(block):
        return None
    if block.get("type") in _MESSAGES_API:
        return answer_part(block, "", call_id)
    text = block.get("text") or block.get("refusal")
    if isinstance(text, str) and text:
        return Text(text)
    image = block.get("image_url")
    url = image.get("url") if is_object(image) else image
    if not isinstance(url, str) or not url:
        return None
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return Image(head[5:-7], data)
    return Image(url=url)


def _usage(value: Json) -> Usage | None:
    if not is_object(value):
        return None
    details = value.get("prompt_tokens_details")
    out = value.get("completion_tokens_details")
    return Usage(
        prompt=_count(value, "prompt_tokens"),
        completion=_count(value, "completion_tokens"),
        cached=_count(details, "cached_tokens"),
        cache_write=_count(value, "cache_creation_input_tokens"),
        reasoning=_count(out, "reasoning_tokens"),
    )


def _count(value: Json, name: str) -> int | None:
    found = value.get(name) if is_object(value) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
