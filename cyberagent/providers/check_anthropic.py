"""The rules of the Messages API.

Written from docs/providers.md, "anthropic", and not from the projection: each rule looks at a
payload and says what is wrong with it. Source: docs/providers.md, "Checks".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from cyberagent.core.types import Json
from cyberagent.providers.check import (
    encoding_problems,
    is_base64_text,
    is_blank,
    is_number,
    is_whole_number,
    mapping,
    messages_of,
    sequence,
)

Payload = Mapping[str, Json]
Rule = Callable[[Payload], Iterator[str]]
"""Payload in, one sentence per problem out."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING = ("thinking", "redacted_thinking")
_BLOCKS = {
    "user": ("text", "image", "document", "tool_result"),
    "assistant": ("text", "tool_use", *_THINKING),
}
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def problems_anthropic(payload: Payload) -> list[str]:
    """Broken rules, one sentence each; empty when the payload may be sent."""
    return [problem for rule in RULES_ANTHROPIC for problem in rule(payload)]


def model_is_named(payload: Payload) -> Iterator[str]:
    if not isinstance(payload.get("model"), str) or is_blank(payload.get("model")):
        yield "model must be a name"


def output_is_limited(payload: Payload) -> Iterator[str]:
    if not is_whole_number(payload.get("max_tokens"), 1):
        yield "max_tokens must be a whole number above 0"


def messages_are_listed(payload: Payload) -> Iterator[str]:
    messages = sequence(payload.get("messages"))
    if not messages or len(messages_of(payload)) != len(messages):
        yield "messages must be a list of at least one object"


def roles_are_known(payload: Payload) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        if message.get("role") not in list(_BLOCKS):
            yield f"messages[{n}]: unknown role {message.get('role')!r}"


def roles_alternate(payload: Payload) -> Iterator[str]:
    roles = [m.get("role") for m in messages_of(payload)]
    for n, (a, b) in enumerate(pairwise(roles), start=1):
        if a == b:
            yield f"messages[{n}]: two messages of role {a!r} in a row"


def user_opens(payload: Payload) -> Iterator[str]:
    messages = messages_of(payload)
    if messages and messages[0].get("role") == "assistant":
        yield "the first message must be a user message"


def no_prefill(payload: Payload) -> Iterator[str]:
    messages = messages_of(payload)
    if messages and messages[-1].get("role") == "assistant":
        yield "the last message must be a user message"


def content_has_a_form(payload: Payload) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        content = message.get("content")
        if is_blank(content) or content == [] or not isinstance(content, str | list):
            yield f"messages[{n}]: content must be text or blocks, and not empty"


def blocks_suit_roles(payload: Payload) -> Iterator[str]:
    for n, message, block in _blocks(payload):
        role = message.get("role")
        allowed = _BLOCKS.get(role) if isinstance(role, str) else None
        if allowed is not None and block.get("type") not in allowed:
            yield f"messages[{n}]: a {block.get('type')!r} block of the {role}"


def texts_are_not_empty(payload: Payload) -> Iterator[str]:
    results = [(n, mapping(b)) for n, r in _of(payload, "tool_result") for b in _inner(r)]
    for n, block in [(n, b) for n, _, b in _blocks(payload)] + results:
        text = block.get("text")
        if block.get("type") == "text" and (not isinstance(text, str) or is_blank(text)):
            yield f"messages[{n}]: a text block without text"


def uses_have_a_form(payload: Payload) -> Iterator[str]:
    for n, use in _of(payload, "tool_use"):
        if not isinstance(use.get("input"), dict):
            yield f"messages[{n}]: the input of a tool_use must be an object"
        for key, pattern in (("id", _ID), ("name", _NAME)):
            value = use.get(key)
            if not isinstance(value, str) or not pattern.fullmatch(value):
                yield f"messages[{n}]: illegal {key} {value!r} of a tool_use"


def use_ids_are_unique(payload: Payload) -> Iterator[str]:
    seen: set[str] = set()
    for n, use in _of(payload, "tool_use"):
        if isinstance(use_id := use.get("id"), str):
            if use_id in seen:
                yield f"messages[{n}]: the tool_use id {use_id!r} was used before"
            seen.add(use_id)


def uses_are_answered(payload: Payload) -> Iterator[str]:
    """All in the one message after the turn, each once."""
    messages = messages_of(payload)
    for n, message in enumerate(messages):
        after = messages[n + 1] if n + 1 < len(messages) else {}
        answered = [b.get("tool_use_id") for b in _typed(after, "tool_result")]
        for use in _typed(message, "tool_use"):
            if answered.count(use.get("id")) != 1:
                yield f"messages[{n}]: the call {use.get('id')!r} must have exactly one result"


def results_have_uses(payload: Payload) -> Iterator[str]:
    before: list[Json] = []
    for n, message in enumerate(messages_of(payload)):
        for result in _typed(message, "tool_result"):
            if result.get("tool_use_id") not in before:
                yield f"messages[{n}]: a result of {result.get('tool_use_id')!r}, not called before"
        before = [b.get("id") for b in _typed(message, "tool_use")]


def results_come_first(payload: Payload) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        kinds = [mapping(b).get("type") == "tool_result" for b in sequence(message.get("content"))]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages[{n}]: tool results must come before all else"


def results_have_a_form(payload: Payload) -> Iterator[str]:
    for n, result in _of(payload, "tool_result"):
        kinds = [mapping(b).get("type") for b in _inner(result)]
        if not isinstance(result.get("content", ""), str | list):
            yield f"messages[{n}]: the content of a result must be text or blocks"
        if any(k not in ("text", "image", "document") for k in kinds):
            yield f"messages[{n}]: a result holds blocks that it may not"
        if not isinstance(result.get("is_error", False), bool):
            yield f"messages[{n}]: is_error must be true or false"


def sources_have_a_form(payload: Payload) -> Iterator[str]:
    outer = [(n, b) for n, _, b in _blocks(payload)]
    inner = [(n, mapping(b)) for n, r in _of(payload, "tool_result") for b in _inner(r)]
    for n, block in outer + inner:
        if block.get("type") in ("image", "document"):
            source = mapping(block.get("source"))
            kinds = _IMAGES if block["type"] == "image" else ("application/pdf",)
            if not _is_source(source, kinds):
                yield f"messages[{n}]: an {block['type']} block without a usable source"


def _is_source(source: Mapping[str, Json], kinds: tuple[str, ...]) -> bool:
    if source.get("type") == "url":
        return bool(re.match(r"https?://\S+$", str(source.get("url"))))
    known = source.get("type") == "base64" and source.get("media_type") in kinds
    return known and is_base64_text(source.get("data"))


def thinking_has_a_form(payload: Payload) -> Iterator[str]:
    for n, block in _of(payload, "thinking"):
        signed = isinstance(block.get("signature"), str) and block["signature"]
        if not signed or not isinstance(block.get("thinking"), str):
            yield f"messages[{n}]: a thinking block needs its text and signature"
    for n, block in _of(payload, "redacted_thinking"):
        if not isinstance(block.get("data"), str) or not block["data"]:
            yield f"messages[{n}]: a redacted_thinking block needs its data"


def thinking_is_not_last(payload: Payload) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        blocks = sequence(message.get("content"))
        if blocks and mapping(blocks[-1]).get("type") in _THINKING:
            yield f"messages[{n}]: thinking must not be the last block"


def thinking_leaves_room(payload: Payload) -> Iterator[str]:
    thinking = mapping(payload.get("thinking"))
    if "thinking" not in payload or thinking.get("type") in ("disabled", "adaptive"):
        return
    budget, limit = thinking.get("budget_tokens"), payload.get("max_tokens")
    if thinking.get("type") != "enabled" or not is_whole_number(budget, 1024):
        yield "thinking needs a budget of at least 1,024 tokens"
    elif is_whole_number(limit, 1) and not is_whole_number(limit, int(budget or 0) + 1):
        yield "the thinking budget must be below max_tokens"


def thinking_goes_on(payload: Payload) -> Iterator[str]:
    """With thinking on, the turns of a tool loop that has not ended begin with thinking."""
    if mapping(payload.get("thinking")).get("type") not in ("enabled", "adaptive"):
        return
    messages = messages_of(payload)
    n = len(messages) - 1
    while n > 0 and _typed(messages[n], "tool_result"):
        first = mapping(next(iter(sequence(messages[n - 1].get("content"))), None))
        if first.get("type") not in _THINKING:
            yield f"messages[{n - 1}]: this turn must begin with thinking"
        n -= 2


def temperature_suits(payload: Payload) -> Iterator[str]:
    if "temperature" not in payload:
        return
    if not is_number(payload["temperature"], 0, 1):
        yield "temperature must be from 0 to 1"
    elif "thinking" in payload and payload["temperature"] != 1:
        yield "thinking allows no temperature but 1"


def system_has_a_form(payload: Payload) -> Iterator[str]:
    system = payload.get("system", "absent")
    if isinstance(system, str):
        if not system.strip():
            yield "system is empty"
        return
    blocks = [mapping(b) for b in sequence(system)]
    texts = [b.get("text") for b in blocks if b.get("type") == "text"]
    if not blocks or len(texts) != len(blocks) or any(not t or is_blank(t) for t in texts):
        yield "system must be text or text blocks, none of them empty"


def tools_have_a_form(payload: Payload) -> Iterator[str]:
    names: list[Json] = []
    for n, tool in enumerate(mapping(t) for t in sequence(payload.get("tools"))):
        name = tool.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield f"tools[{n}]: illegal name {name!r}"
        elif name in names:
            yield f"tools[{n}]: a second tool {name!r}"
        if mapping(tool.get("input_schema")).get("type") != "object":
            yield f"tools[{n}]: input_schema must be a schema of type object"
        names.append(name)


def tools_are_few_enough(payload: Payload) -> Iterator[str]:
    if len(sequence(payload.get("tools"))) > 128:
        yield f"{len(payload['tools'])} tools are more than 128"


def tools_are_offered(payload: Payload) -> Iterator[str]:
    used = any(b.get("type") in ("tool_use", "tool_result") for _, _, b in _blocks(payload))
    if used and not payload.get("tools"):
        yield "a history with tool calls needs tools"


def choice_has_tools(payload: Payload) -> Iterator[str]:
    if "tool_choice" not in payload:
        return
    if not payload.get("tools"):
        yield "tool_choice needs tools"
    if mapping(payload["tool_choice"]).get("type") not in ("auto", "any", "tool", "none"):
        yield f"unknown tool_choice {payload['tool_choice']!r}"


def marks_are_few(payload: Payload) -> Iterator[str]:
    """At most 4 cache marks, and none on thinking."""
    outer = [b for _, _, b in _blocks(payload)]
    inner = [mapping(b) for _, r in _of(payload, "tool_result") for b in _inner(r)]
    heads = [mapping(b) for k in ("system", "tools") for b in sequence(payload.get(k))]
    marked = [b for b in outer + inner + heads if b.get("cache_control")]
    if len(marked) > 4:
        yield f"{len(marked)} cache marks are more than 4"
    if any(b.get("type") in _THINKING for b in marked):
        yield "thinking cannot carry a cache mark"


def text_is_encodable(payload: Payload) -> Iterator[str]:
    yield from encoding_problems(payload)


RULES_ANTHROPIC: list[Rule] = [
    model_is_named,
    output_is_limited,
    messages_are_listed,
    roles_are_known,
    roles_alternate,
    user_opens,
    no_prefill,
    content_has_a_form,
    blocks_suit_roles,
    texts_are_not_empty,
    uses_have_a_form,
    use_ids_are_unique,
    uses_are_answered,
    results_have_uses,
    results_come_first,
    results_have_a_form,
    sources_have_a_form,
    thinking_has_a_form,
    thinking_is_not_last,
    thinking_leaves_room,
    thinking_goes_on,
    temperature_suits,
    system_has_a_form,
    tools_have_a_form,
    tools_are_few_enough,
    tools_are_offered,
    choice_has_tools,
    marks_are_few,
    text_is_encodable,
]


def _blocks(payload: Payload) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    for n, message in enumerate(messages_of(payload)):
        for block in sequence(message.get("content")):
            yield n, message, mapping(block)


def _of(payload: Payload, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((n, block) for n, _, block in _blocks(payload) if block.get("type") == kind)


def _typed(message: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    blocks = [mapping(b) for b in sequence(message.get("content"))]
    return [b for b in blocks if b.get("type") == kind]


def _inner(result: Mapping[str, Any]) -> list[Any]:
    return sequence(result.get("content"))
