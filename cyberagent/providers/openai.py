"""Any chat-completions endpoint: OpenAI, DeepSeek, Qwen, Gemini's compatible one, OpenRouter,
vLLM, Ollama, llama.cpp. What differs between them is a :class:`Dialect`.
Source: docs/providers.md, "openai"."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import httpx

from cyberagent.core.errors import InvalidConfig
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
    clean_text,
)
from cyberagent.core.window import Window
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.http import Endpoint, requested_model
from cyberagent.providers.openai_stream import ChatReader
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
from cyberagent.providers.shapes import as_dict, as_str

ID_LENGTH = 40
"""Characters of a call id that OpenAI takes."""

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""What Gemini accepts in place of a thought signature on calls that its model did not make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How an endpoint differs. ``reasoning_back``: assistant turns carry reasoning_content.
    ``signatures``: calls carry a thought signature. ``choice_none``: tool_choice none works."""

    output_limit: str = "max_tokens"
    images: bool = True
    files: bool = False
    reasoning_back: bool = False
    signatures: bool = False
    choice_none: bool = True
    enable_thinking: bool = False


COMPATIBLE = Dialect()
DIALECTS: dict[str, Dialect] = {
    "openai": Dialect(output_limit="max_completion_tokens", files=True),
    "compatible": COMPATIBLE,
    "openrouter": COMPATIBLE,
    "vllm": COMPATIBLE,
    "gemini": Dialect(signatures=True),
    "deepseek": Dialect(images=False, reasoning_back=True),
    "deepseek-reasoner": Dialect(images=False),
    "qwen": Dialect(enable_thinking=True),
    "ollama": Dialect(choice_none=False),
    "llamacpp": Dialect(images=False),
}


def dialect_of(params: Mapping[str, Json]) -> Dialect:
    return DIALECTS.get(as_str(params.get("dialect")) or "openai", COMPATIBLE)


def project_openai(window: Window) -> dict[str, Json]:
    """The chat-completions payload of a window, streaming flags included. Pure and total."""
    params = window.params
    dialect = dialect_of(params)
    no_calls = params.get("tool_choice") == "none"
    tools = clean_tools(window.tools) if dialect.choice_none or not no_calls else []
    system, items = split_system(window)
    history = repair(items, id_length=ID_LENGTH, calls_as_text=not tools)
    messages = _messages(history, dialect, as_str(params.get("model")))
    if system:
        messages.insert(0, {"role": "system", "content": system})
    payload: dict[str, Json] = {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        payload["tools"] = [{"type": "function", "function": t} for t in tools]
        if no_calls:
            payload["tool_choice"] = "none"
    return payload | _options(params, dialect)


def _options(params: Mapping[str, Json], dialect: Dialect) -> dict[str, Json]:
    names = {
        "model": "model",
        "temperature": "temperature",
        "max_output_tokens": dialect.output_limit,
        "reasoning_effort": "reasoning_effort",
    }
    if dialect.enable_thinking:
        names["enable_thinking"] = "enable_thinking"
    return {key: params[k] for k, key in names.items() if params.get(k) is not None}


# Messages ----------------------------------------------------------------------------------


def _messages(history: Sequence[Message], dialect: Dialect, model: str) -> list[dict[str, Json]]:
    """Tool messages hold text alone; the images of a batch of results go into the user message
    after the batch."""
    out: list[dict[str, Json]] = []
    carried: list[Part] = []
    for message in history:
        if message.role == "tool":
            out.append(_result(message, dialect))
            carried += [p for p in message.parts if _is_shown(p, dialect)]
            continue
        if message.role == "user":
            out.append(_user([*carried, *message.parts], dialect))
        else:
            if carried:
                out.append(_user(carried, dialect))
            out.append(_assistant(message, dialect, model))
        carried = []
    if carried:
        out.append(_user(carried, dialect))
    return out


def _user(parts: Sequence[Part], dialect: Dialect) -> dict[str, Json]:
    if not any(_is_shown(p, dialect) for p in parts):
        return {"role": "user", "content": "\n\n".join(_as_text(p) for p in parts)}
    return {"role": "user", "content": [_block(p, dialect) for p in parts]}


def _result(message: Message, dialect: Dialect) -> dict[str, Json]:
    texts = [
        "[An image or file: see the next user message]" if _is_shown(p, dialect) else _as_text(p)
        for p in message.parts
    ]
    text = "\n".join(texts)
    return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}


def _assistant(message: Message, dialect: Dialect, model: str) -> dict[str, Json]:
    calls = message.tool_calls
    out: dict[str, Json] = {
        "role": "assistant",
        "content": "\n\n".join(p.text for p in message.parts if isinstance(p, Text)) or None,
    }
    if calls:
        out["tool_calls"] = [_call(c, n == 0, dialect) for n, c in enumerate(calls)]
    if dialect.reasoning_back:
        out["reasoning_content"] = _reasoning(message.reasoning, model) if calls else ""
    return out


def _reasoning(parts: Sequence[Reasoning], model: str) -> str:
    return clean_text("".join(p.text for p in parts if p.model in ("", model)))


def _call(call: ToolCall, first: bool, dialect: Dialect) -> dict[str, Json]:
    function = {"name": call.name, "arguments": call.arguments}
    out: dict[str, Json] = {"id": call.id, "type": "function", "function": function}
    if dialect.signatures:
        signature = _signature(call.extra)
        if signature:
            out["extra_content"] = call.extra
        elif first or call.made_by == "framework":
            out["extra_content"] = {"google": {"thought_signature": DUMMY_SIGNATURE}}
    return out


def _signature(extra: Json) -> str:
    return as_str(as_dict(as_dict(extra).get("google")).get("thought_signature"))


def _is_shown(part: Part, dialect: Dialect) -> bool:
    """Whether this part goes out as an image or file of its own, and not as text."""
    if isinstance(part, Image):
        return dialect.images and (is_web_url(part.url) or is_image(part))
    if isinstance(part, File):
        return dialect.files and part.media_type == "application/pdf" and is_base64(part.data)
    return False


def _block(part: Part, dialect: Dialect) -> dict[str, Json]:
    if isinstance(part, Image) and _is_shown(part, dialect):
        url = part.url if is_web_url(part.url) else _data_url(part.media_type, part.data)
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(part, File) and _is_shown(part, dialect):
        data = _data_url(part.media_type, part.data)
        name = clean_text(part.name) or "file.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": data}}
    return {"type": "text", "text": _as_text(part)}


def _as_text(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    return label(part) if isinstance(part, Image | File) else ""


def _data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


# Provider ----------------------------------------------------------------------------------


class OpenAIProvider:
    """A chat-completions endpoint as a :class:`cyberagent.core.ports.Provider`.

    ``params`` belongs into each window's params. ``timeout``: seconds without a byte after
    which the endpoint counts as gone. ``prices``: US dollars per million tokens, see
    ``prices.price``. Raises InvalidConfig for an unknown dialect or an unusable key.
    """

    name = "openai"
    projection = "openai/1"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        api_key: str = "",
        dialect: str = "openai",
        timeout: float = 120.0,
        prices: Mapping[str, float] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if dialect not in DIALECTS:
            raise InvalidConfig(f"dialect must be one of {', '.join(DIALECTS)}, not {dialect!r}")
        self.params: Mapping[str, Json] = {"model": model, "dialect": dialect}
        self._dialect = dialect
        self._prices = prices
        self._endpoint = Endpoint(
            base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            secret=api_key,
            timeout=timeout,
            transport=transport,
        )

    def project(self, window: Window) -> dict[str, Json]:
        return project_openai(window)

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        return problems_openai(payload, self._dialect)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer, None]:
        model = requested_model(request.payload)
        reader = ChatReader(model=model, call=request.call, secret=self._endpoint.secret)
        async with aclosing(self._endpoint.events("/chat/completions", request.payload)) as events:
            async for event in events:
                if event.data.strip() == "[DONE]":
                    break
                for delta in reader.feed(event.data):
                    yield delta
        yield reader.answer()

    def cost(self, usage: Usage) -> float | None:
        return price(usage, self._prices)

    async def aclose(self) -> None:
        await self._endpoint.aclose()
