"""Anthropic's Messages API. Source: docs/providers.md, "anthropic"."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import httpx

from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import (
    File,
    Image,
    Json,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from cyberagent.core.window import Window
from cyberagent.providers.anthropic_stream import MessageReader
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.http import Endpoint, requested_model
from cyberagent.providers.prices import price
from cyberagent.providers.project import (
    clean_tools,
    is_base64,
    is_image,
    is_web_url,
    label,
    repair,
    split_system,
)
from cyberagent.providers.shapes import as_dict, as_str, json_object, sendable

MAX_TOKENS = 8_192
"""Output limit that is sent where none is known: this API demands one."""

SMALLEST_THINKING = 1_024
"""Tokens: the least that may be set aside for thinking."""

_MARK = {"type": "ephemeral"}


def project_anthropic(window: Window) -> dict[str, Json]:
    """The Messages payload of a window, streaming flag included. Pure and total."""
    params = window.params
    limit = params.get("max_output_tokens") or MAX_TOKENS
    thinking = _thinking(params, limit)
    tools = clean_tools(window.tools)
    system, items = split_system(window)
    history = repair(items, calls_as_text=not tools, framework_turns_as_text=thinking is not None)
    messages = _messages(history, as_str(params.get("model")))
    if thinking is not None and not _loop_has_thinking(messages):
        thinking = None
    _mark(messages)
    payload: dict[str, Json] = {"messages": messages, "max_tokens": limit, "stream": True}
    if system:
        payload["system"] = [{"type": "text", "text": system, "cache_control": _MARK}]
    if tools:
        payload["tools"] = [_tool(t) for t in tools]
        if not system:
            payload["tools"][-1]["cache_control"] = _MARK
        if params.get("tool_choice") == "none":
            payload["tool_choice"] = {"type": "none"}
    return payload | _options(params, thinking)


def _options(params: Mapping[str, Json], thinking: Json) -> dict[str, Json]:
    out: dict[str, Json] = {}
    if params.get("model") is not None:
        out["model"] = params["model"]
    if thinking is not None:
        out["thinking"] = thinking
    elif params.get("temperature") is not None:
        out["temperature"] = min(params["temperature"], 1)  # thinking takes no temperature
    if params.get("reasoning_effort") is not None:
        out["output_config"] = {"effort": params["reasoning_effort"]}
    return out


def _thinking(params: Mapping[str, Json], limit: int) -> Json:
    """What ``params["thinking"]`` asks for: "adaptive", or a budget in tokens that leaves room
    for an answer. None for no thinking."""
    asked = params.get("thinking")
    if asked == "adaptive":
        return {"type": "adaptive"}
    if isinstance(asked, bool) or not isinstance(asked, int):
        return None
    budget = min(asked, limit - 1)
    return {"type": "enabled", "budget_tokens": budget} if budget >= SMALLEST_THINKING else None


def _tool(tool: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "input_schema": tool["parameters"],
    }


# Messages ----------------------------------------------------------------------------------


def _messages(history: Sequence[Message], model: str) -> list[dict[str, Json]]:
    """Roles alternate: the results of a turn and what the user says after it are one message,
    results first."""
    out: list[dict[str, Json]] = []
    for message in history:
        if message.role == "assistant":
            role, blocks = "assistant", _assistant(message.parts, model)
        elif message.role == "tool":
            role, blocks = "user", [_result(message)]
        else:
            role, blocks = "user", [_block(p) for p in message.parts]
        if out and out[-1]["role"] == role:
            out[-1]["content"] += blocks
        else:
            out.append({"role": role, "content": blocks})
    return out


def _assistant(parts: Sequence[Part], model: str) -> list[dict[str, Json]]:
    """Blocks in the model's order. Thinking goes back unchanged, to the model that made it and
    with its signature; where one block of a turn cannot, none does."""
    thoughts = [p for p in parts if isinstance(p, Reasoning)]
    keep = all(p.model == model and _is_thinking(p.blob) for p in thoughts)
    keep = keep and not isinstance(parts[-1], Reasoning)  # none may stand last
    blocks: list[dict[str, Json]] = []
    for part in parts:
        if isinstance(part, Text):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, ToolCall):
            blocks.append(_call(part))
        elif isinstance(part, Reasoning) and keep:
            blocks.append(part.blob)
    return blocks


def _is_thinking(blob: Json) -> bool:
    block = as_dict(blob)
    if not block or sendable(block) != block:
        return False
    if block.get("type") == "redacted_thinking":
        return bool(as_str(block.get("data")))
    named = block.get("type") == "thinking" and isinstance(block.get("thinking"), str)
    return named and bool(as_str(block.get("signature")))


def _call(call: ToolCall) -> dict[str, Json]:
    arguments = json_object(call.arguments) or {}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _result(message: Message) -> dict[str, Json]:
    out: dict[str, Json] = {
        "type": "tool_result",
        "tool_use_id": message.tool_call_id,
        "content": [_block(p) for p in message.parts],
    }
    if message.is_error:
        out["is_error"] = True
    return out


def _block(part: Part) -> dict[str, Json]:
    """A block of a user message or a tool result."""
    if isinstance(part, Image):
        if is_web_url(part.url):
            return {"type": "image", "source": {"type": "url", "url": part.url}}
        if is_image(part):
            return {"type": "image", "source": _base64(part)}
    if isinstance(part, File) and part.media_type == "application/pdf" and is_base64(part.data):
        return {"type": "document", "source": _base64(part)}
    if isinstance(part, Image | File):
        return {"type": "text", "text": label(part)}
    return {"type": "text", "text": part.text if isinstance(part, Text) else ""}


def _base64(part: Image | File) -> dict[str, Json]:
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _loop_has_thinking(messages: Sequence[Mapping[str, Json]]) -> bool:
    """Whether each turn of the tool loop that is going on begins with thinking, as this API
    demands where thinking is on. The loop goes back to a user message without results."""
    for message in reversed(messages):
        blocks = message["content"]
        if message["role"] == "user":
            if blocks[0]["type"] != "tool_result":
                return True
        elif not blocks[0]["type"].endswith("thinking"):
            return False
    return True


def _mark(messages: Sequence[Mapping[str, Json]]) -> None:
    """Cache marks at the end of the last two user messages: the one writes what the next call
    reads, the other finds what the call before wrote, whatever came after it."""
    for message in [m for m in messages if m["role"] == "user"][-2:]:
        message["content"][-1]["cache_control"] = _MARK


# Provider ----------------------------------------------------------------------------------


class AnthropicProvider:
    """The Messages API as a :class:`cyberagent.core.ports.Provider`.

    ``params`` belongs into each window's params. ``timeout``: seconds without a byte after
    which the endpoint counts as gone. ``prices``: US dollars per million tokens, see
    ``prices.price``. Raises InvalidConfig for an unusable key.
    """

    name = "anthropic"
    projection = "anthropic/1"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = "https://api.anthropic.com/v1",
        api_key: str = "",
        timeout: float = 120.0,
        prices: Mapping[str, float] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.params: Mapping[str, Json] = {"model": model}
        self._prices = prices
        headers = {"anthropic-version": "2023-06-01"}
        self._endpoint = Endpoint(
            base_url,
            headers=headers | ({"x-api-key": api_key} if api_key else {}),
            secret=api_key,
            timeout=timeout,
            transport=transport,
        )

    def project(self, window: Window) -> dict[str, Json]:
        return project_anthropic(window)

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        return problems_anthropic(payload)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer, None]:
        model = requested_model(request.payload)
        reader = MessageReader(model=model, call=request.call, secret=self._endpoint.secret)
        async with aclosing(self._endpoint.events("/messages", request.payload)) as events:
            async for event in events:
                for delta in reader.feed(event.data):
                    yield delta
                if reader.ended:
                    break
        yield reader.answer()

    def cost(self, usage: Usage) -> float | None:
        return price(usage, self._prices)

    async def aclose(self) -> None:
        await self._endpoint.aclose()
