"""The rules of chat completions, as strict as the strictest endpoint that speaks it.

Written from docs/providers.md, "openai", and not from the projection: each rule looks at a
payload and says what is wrong with it. Source: docs/providers.md, "Checks".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from cyberagent.core.types import Json
from cyberagent.providers.check import (
    encoding_problems,
    is_blank,
    is_number,
    is_whole_number,
    mapping,
    messages_of,
    sequence,
)

Payload = Mapping[str, Json]
Rule = Callable[[Payload, str], Iterator[str]]
"""Payload and dialect in, one sentence per problem out."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_TEXT_ONLY = ("deepseek", "deepseek-reasoner", "llamacpp")


def problems_openai(payload: Payload, dialect: str = "openai") -> list[str]:
    """Broken rules, one sentence each; empty when the payload may be sent."""
    return [problem for rule in RULES_OPENAI for problem in rule(payload, dialect)]


def model_is_named(payload: Payload, dialect: str) -> Iterator[str]:
    if not isinstance(payload.get("model"), str) or is_blank(payload.get("model")):
        yield "model must be a name"


def messages_are_listed(payload: Payload, dialect: str) -> Iterator[str]:
    messages = payload.get("messages")
    if not sequence(messages) or len(messages_of(payload)) != len(sequence(messages)):
        yield "messages must be a list of at least one object"


def roles_are_known(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        if message.get("role") not in _ROLES:
            yield f"messages[{n}]: unknown role {message.get('role')!r}"


def system_stands_first(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        if n and message.get("role") in ("system", "developer"):
            yield f"messages[{n}]: a system message that is not the first message"


def user_opens(payload: Payload, dialect: str) -> Iterator[str]:
    rest = [m for m in messages_of(payload) if m.get("role") not in ("system", "developer")]
    if payload.get("messages") and (not rest or rest[0].get("role") in ("assistant", "tool")):
        yield "the first message after the system prompt must be a user message"


def end_is_open(payload: Payload, dialect: str) -> Iterator[str]:
    messages = messages_of(payload)
    if messages and messages[-1].get("role") == "assistant":
        yield "the last message must be of the user or a tool"


def content_has_a_form(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        content = message.get("content")
        if content is None:
            if message.get("role") != "assistant" or "tool_calls" not in message:
                yield f"messages[{n}]: content is required"
        elif isinstance(content, list):
            kinds = [_part_problem(p, message.get("role")) for p in sequence(content)]
            yield from (f"messages[{n}]: {k}" for k in kinds if k)
        elif not isinstance(content, str):
            yield f"messages[{n}]: content must be text or a list of parts"


def _part_problem(part: Json, role: Json) -> str:
    fields = mapping(part)
    kind = fields.get("type")
    if kind == "text":
        return "" if isinstance(fields.get("text"), str) else "a text part without text"
    if role != "user":
        return f"a {kind!r} part in a message of role {role!r}"
    if kind == "image_url":
        url = mapping(fields.get("image_url")).get("url")
        good = isinstance(url, str) and re.match(r"https?://|data:image/\w+;base64,\w", url)
        return "" if good else "an image part without a usable url"
    if kind == "file":
        data = mapping(fields.get("file")).get("file_data")
        good = isinstance(data, str) and re.match(r"data:[\w/.+-]+;base64,\w", data)
        return "" if good else "a file part without data"
    return f"unknown part type {kind!r}"


def content_is_not_empty(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        content = message.get("content")
        texts = [mapping(p).get("text") for p in sequence(content)]
        if is_blank(content) or content == [] or any(is_blank(t) for t in texts):
            yield f"messages[{n}]: empty content"


def images_are_understood(payload: Payload, dialect: str) -> Iterator[str]:
    if dialect not in _TEXT_ONLY:
        return
    for n, message in enumerate(messages_of(payload)):
        if any(mapping(p).get("type") != "text" for p in sequence(message.get("content"))):
            yield f"messages[{n}]: this endpoint takes text alone"


def calls_have_a_form(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        if "tool_calls" not in message:
            continue
        if message.get("role") != "assistant" or not sequence(message["tool_calls"]):
            yield f"messages[{n}]: tool_calls must be a non-empty list of an assistant"
        for call in _calls(message):
            function = mapping(call.get("function"))
            texts = (call.get("id"), function.get("name"), function.get("arguments"))
            if call.get("type") != "function" or not all(isinstance(t, str) for t in texts):
                yield f"messages[{n}]: a call needs type, id, name and arguments"


def call_ids_are_legal(payload: Payload, dialect: str) -> Iterator[str]:
    for n, call_id in _call_ids(payload):
        if not _ID.fullmatch(call_id):
            yield f"messages[{n}]: illegal call id {call_id!r}"


def call_ids_are_unique(payload: Payload, dialect: str) -> Iterator[str]:
    seen: set[str] = set()
    for n, call_id in _call_ids(payload):
        if call_id in seen:
            yield f"messages[{n}]: the call id {call_id!r} was used before"
        seen.add(call_id)


def call_names_are_legal(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        for call in _calls(message):
            name = mapping(call.get("function")).get("name")
            if isinstance(name, str) and not _NAME.fullmatch(name):
                yield f"messages[{n}]: illegal tool name {name!r}"


def arguments_are_objects(payload: Payload, dialect: str) -> Iterator[str]:
    for n, message in enumerate(messages_of(payload)):
        for call in _calls(message):
            text = mapping(call.get("function")).get("arguments")
            if isinstance(text, str) and not _is_json_object(text):
                yield f"messages[{n}]: arguments must be the text of a JSON object"


def calls_are_answered(payload: Payload, dialect: str) -> Iterator[str]:
    """Each call by one tool message, directly after the turn that made it."""
    messages = messages_of(payload)
    for n, message in enumerate(messages):
        answered = [m.get("tool_call_id") for m in _results_after(messages, n)]
        for call in _calls(message):
            if answered.count(call.get("id")) != 1:
                yield f"messages[{n}]: the call {call.get('id')!r} must have exactly one result"


def results_have_calls(payload: Payload, dialect: str) -> Iterator[str]:
    messages = messages_of(payload)
    asked: list[Json] = []
    for n, message in enumerate(messages):
        if message.get("role") != "tool":
            asked = [c.get("id") for c in _calls(message)]
        elif message.get("tool_call_id") not in asked:
            yield f"messages[{n}]: a result of {message.get('tool_call_id')!r}, which has no call"


def tools_are_offered(payload: Payload, dialect: str) -> Iterator[str]:
    used = any(m.get("role") == "tool" or _calls(m) for m in messages_of(payload))
    if used and not payload.get("tools"):
        yield "a history with tool calls needs tools"


def tools_have_a_form(payload: Payload, dialect: str) -> Iterator[str]:
    names: list[Json] = []
    for n, tool in enumerate(sequence(payload.get("tools"))):
        function = mapping(mapping(tool).get("function"))
        name = function.get("name")
        if mapping(tool).get("type") != "function" or not isinstance(name, str):
            yield f"tools[{n}]: must be a function with a name"
        elif not _NAME.fullmatch(name):
            yield f"tools[{n}]: illegal name {name!r}"
        elif name in names:
            yield f"tools[{n}]: a second tool {name!r}"
        if mapping(function.get("parameters")).get("type") != "object":
            yield f"tools[{n}]: parameters must be a schema of type object"
        names.append(name)


def tools_are_few_enough(payload: Payload, dialect: str) -> Iterator[str]:
    if len(sequence(payload.get("tools"))) > 128:
        yield f"{len(payload['tools'])} tools are more than 128"


def choice_has_tools(payload: Payload, dialect: str) -> Iterator[str]:
    if "tool_choice" not in payload:
        return
    if not payload.get("tools"):
        yield "tool_choice needs tools"
    choice = payload["tool_choice"]
    if choice not in ("none", "auto", "required") and not isinstance(choice, dict):
        yield f"unknown tool_choice {choice!r}"


def options_have_a_form(payload: Payload, dialect: str) -> Iterator[str]:
    for name in ("max_tokens", "max_completion_tokens"):
        if name in payload and not is_whole_number(payload[name], 1):
            yield f"{name} must be a whole number above 0"
    if "temperature" in payload and not is_number(payload["temperature"], 0, 2):
        yield "temperature must be from 0 to 2"
    if "stream_options" in payload and payload.get("stream") is not True:
        yield "stream_options needs stream"


def reasoning_goes_back(payload: Payload, dialect: str) -> Iterator[str]:
    """DeepSeek's thinking models want it with every call; the others refuse it, or pay no heed."""
    for n, message in enumerate(messages_of(payload)):
        text = message.get("reasoning_content")
        if dialect == "deepseek":
            if _calls(message) and not isinstance(text, str):
                yield f"messages[{n}]: reasoning_content must be sent back"
        elif "reasoning_content" in message:
            yield f"messages[{n}]: reasoning_content is not for this endpoint"


def signatures_go_back(payload: Payload, dialect: str) -> Iterator[str]:
    """Gemini wants a thought signature on the first call of each batch."""
    if dialect != "gemini":
        return
    for n, message in enumerate(messages_of(payload)):
        for call in _calls(message)[:1]:
            google = mapping(mapping(call.get("extra_content")).get("google"))
            if not google.get("thought_signature"):
                yield f"messages[{n}]: the first call has no thought signature"


def roles_alternate(payload: Payload, dialect: str) -> Iterator[str]:
    """Gemini and the templates of local models: user and model take turns."""
    roles = [m.get("role") for m in messages_of(payload)]
    for n, (a, b) in enumerate(pairwise(roles), start=1):
        if a == b and a in ("user", "assistant"):
            yield f"messages[{n}]: two messages of role {a!r} in a row"


def text_is_encodable(payload: Payload, dialect: str) -> Iterator[str]:
    yield from encoding_problems(payload)


RULES_OPENAI: list[Rule] = [
    model_is_named,
    messages_are_listed,
    roles_are_known,
    system_stands_first,
    user_opens,
    end_is_open,
    roles_alternate,
    content_has_a_form,
    content_is_not_empty,
    images_are_understood,
    calls_have_a_form,
    call_ids_are_legal,
    call_ids_are_unique,
    call_names_are_legal,
    arguments_are_objects,
    calls_are_answered,
    results_have_calls,
    tools_are_offered,
    tools_have_a_form,
    tools_are_few_enough,
    choice_has_tools,
    options_have_a_form,
    reasoning_goes_back,
    signatures_go_back,
    text_is_encodable,
]


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [mapping(c) for c in sequence(message.get("tool_calls"))]


def _call_ids(payload: Payload) -> Iterator[tuple[int, str]]:
    for n, message in enumerate(messages_of(payload)):
        for call in _calls(message):
            if isinstance(call.get("id"), str):
                yield n, call["id"]


def _results_after(messages: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    end = n + 1
    while end < len(messages) and messages[end].get("role") == "tool":
        end += 1
    return messages[n + 1 : end]


def _is_json_object(text: str) -> bool:
    def refuse(constant: str) -> Json:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=refuse)
        # Servers that parse it choke on what only escapes can say: lone surrogates, 1e999.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)
