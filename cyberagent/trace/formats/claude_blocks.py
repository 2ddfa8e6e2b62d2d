"""Content blocks of Claude Code's messages, as parts. Source: docs/formats.md, "Claude Code"."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cyberagent.core.types import (
    File,
    Image,
    Json,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from cyberagent.trace.formats.reading import is_list, is_object, trimmed

_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


def blocks_of(content: Json) -> list[Json]:
    """A message's content as a list of blocks; a string is one text block, nothing is none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if is_list(content) else []


def answer_part(block: Json, model: str, call_id: str) -> Part | None:
    """A block of a model's answer. None: an empty text, or a block that has no part's form.
    ``call_id`` stands in for the id of a call that has none."""
    if not is_object(block):
        return None
    kind = block.get("type")
    if kind == "tool_use" and isinstance(block.get("name"), str):
        given = block.get("id")
        return ToolCall(
            id=given if isinstance(given, str) and given else call_id,
            name=block["name"],
            arguments=arguments_text(block.get("input")),
        )
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        signature = block.get("signature")
        blob = None
        if isinstance(signature, str):
            blob = {"type": kind, "thinking": block["thinking"], "signature": signature}
        return Reasoning(block["thinking"], model, blob)
    if kind == "redacted_thinking" and isinstance(block.get("data"), str):
        return Reasoning("", model, {"type": kind, "data": block["data"]})
    return content_part(block)


def content_part(block: Json) -> Part | None:
    """A text, image or document block; None for an empty text and for anything else."""
    if not is_object(block):
        return Text(block) if isinstance(block, str) and block else None
    kind, text = block.get("type"), block.get("text")
    if kind == "text":
        return Text(text) if isinstance(text, str) and text else None
    source = block.get("source")
    if kind not in ("image", "document") or not is_object(source):
        return None
    fields = {k: v for k in ("media_type", "data", "url") if isinstance(v := source.get(k), str)}
    if kind == "document":
        if "data" not in fields:
            return None
        return _document(block, source, fields)
    if "url" in fields:
        return Image(url=fields["url"])
    return Image(fields.get("media_type", ""), fields["data"]) if "data" in fields else None


def _document(block: dict[str, Any], source: dict[str, Any], fields: dict[str, str]) -> File:
    title = block.get("title")
    name = title if isinstance(title, str) and title else "document"
    media_type = fields.get("media_type", "text/plain")
    if source.get("type") == "text":
        return File(name, media_type, text=fields["data"])
    return File(name, media_type, data=fields["data"])


def content_parts(blocks: Iterable[Json]) -> tuple[list[Part], list[Json]]:
    """Parts of a human's or a tool's content, and the blocks that have no part's form (large
    ones by their names alone)."""
    parts: list[Part] = []
    other: list[Json] = []
    for block in blocks:
        part = content_part(block)
        if part is not None:
            parts.append(part)
        elif not is_empty_text(block):
            other.append(trimmed(block))
    return parts, other


def is_empty_text(block: Json) -> bool:
    return block == "" or (
        is_object(block) and block.get("type") == "text" and not block.get("text")
    )


def arguments_text(value: Json) -> str:
    """A call's arguments as JSON text: sorted keys, no blanks. Raises RecursionError where the
    value is nested too deeply to write."""
    if value is None:
        return "{}"
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def merge_usage(counts: dict[str, int], usage: Json) -> None:
    """Raise each count to the larger value: lines of one answer repeat its usage, and only the
    last one, if any, holds the final numbers."""
    if not is_object(usage):
        return
    for name in _USAGE:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            counts[name] = max(value, counts.get(name, 0))


def usage_of(counts: dict[str, int]) -> Usage | None:
    """The merged counts in normal form: ``prompt`` includes what came from and went to the
    cache. None where nothing, or only zeros, were reported."""
    if not any(counts.values()):
        return None
    return Usage(
        prompt=sum(counts.get(name, 0) for name in _USAGE[:3]),
        completion=counts.get("output_tokens"),
        cached=counts.get("cache_read_input_tokens"),
        cache_write=counts.get("cache_creation_input_tokens"),
    )
