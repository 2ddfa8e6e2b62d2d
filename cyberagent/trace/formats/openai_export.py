"""A trace's main path as a list of chat-completions messages.

Source: docs/formats.md, "Chat completions".
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cyberagent.core.types import Image, Json, Message, Part, Reasoning, Text, ToolCall


def export(system: str, messages: Sequence[Message]) -> list[dict[str, Json]]:
    """The messages in chat-completions form, the system prompt first.

    What that form cannot hold is left out: goals, branches, signatures of reasoning, the place
    of a call between texts. Reading it again gives the same roles, texts, calls and results.
    """
    out: list[dict[str, Json]] = [{"role": "system", "content": system}] if system else []
    return out + [_exported(message) for message in messages]


def export_text(system: str, messages: Sequence[Message]) -> bytes:
    """:func:`export` as an indented JSON document; text that UTF-8 cannot hold is escaped."""
    value = export(system, messages)
    try:
        return json.dumps(value, ensure_ascii=False, indent=1).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=1).encode()


def _exported(message: Message) -> dict[str, Json]:
    out: dict[str, Json] = {"role": message.role}
    if message.role == "tool":
        out |= {"tool_call_id": message.tool_call_id} | _name(message.name)
    blocks = [b for part in message.parts if (b := _exported_part(part)) is not None]
    out["content"] = _plain(blocks)
    if message.role == "assistant":
        thought = "\n".join(r.text for r in message.reasoning if r.text)
        if thought:
            out["reasoning_content"] = thought
        if message.tool_calls:
            out["content"] = out["content"] or None
            out["tool_calls"] = [
                {"id": c.id, "type": "function",
                 "function": {"name": c.name, "arguments": c.arguments}}
                for c in message.tool_calls
            ]  # fmt: skip
    return out


def _name(name: str) -> dict[str, Json]:
    return {"name": name} if name else {}


def _plain(blocks: list[dict[str, Json]]) -> Json:
    """A single text, or none, as a string; else the blocks."""
    if not blocks:
        return ""
    return blocks[0]["text"] if len(blocks) == 1 and "text" in blocks[0] else blocks


def _exported_part(part: Part) -> dict[str, Json] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text else None
    if isinstance(part, Image):
        url = part.url or f"data:{part.media_type};base64,{part.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(part, Reasoning | ToolCall):
        return None
    return {"type": "text", "text": part.text or f"[file {part.name}, {part.media_type}]"}
