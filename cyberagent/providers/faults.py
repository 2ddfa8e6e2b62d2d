"""What went wrong, from what the provider answered: status first, then its words.
Source: docs/providers.md, "Faults"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from cyberagent.core.errors import (
    ConnectionBroken,
    ModelError,
    Overloaded,
    PromptTooLong,
    ProviderError,
    ProviderTimeout,
    RateLimited,
    TokenExhausted,
)
from cyberagent.core.types import Json, clean_text
from cyberagent.providers.shapes import as_dict, as_list, as_str, parse_json

QUOTE_LENGTH = 500
"""Characters of a provider's own words that an error repeats."""

OVERFLOW = re.compile(
    "|".join(
        (
            r"prompt (?:is )?too long",  # Anthropic; Ollama
            r"input is too long",  # Bedrock
            r"exceeds? context limit",  # Anthropic, input plus max_tokens
            r"request_too_large",  # Anthropic, bytes
            r"exceeds? the context window",  # OpenAI
            r"maximum context length",  # OpenAI, OpenRouter, vLLM, DeepSeek, Mistral, LiteLLM
            r"context[_ ]length[_ ]exceeded",  # OpenAI's code, and those who copied it
            r"input token count.{0,40}exceeds",  # Gemini
            r"maximum prompt length is",  # xAI
            r"reduce the length",  # Groq
            r"exceeds the limit of \d+",  # Copilot
            r"exceeds? the available context size|exceed_context_size",  # llama.cpp
            r"greater than the context length",  # LM Studio
            r"longer than the model's context length",  # Together
            r"exceeded (?:the )?(?:max(?:imum)? )?context length",  # Ollama
            r"context window exceeds limit",  # MiniMax
            r"exceeded model token limit",  # Kimi
            r"model_context_window_exceeded",  # z.ai, Anthropic's stop reason
            r"too large for model with \d+",  # Mistral
            r"maximum allowed input length",  # Poolside
            r"range of input length should be",  # Qwen
            r"configured context size",
            r"too many tokens|token limit exceeded",
        )
    ),
    re.IGNORECASE,
)
"""How providers say that the prompt does not fit."""

_RATE = re.compile(r"rate.?limit|too many requests|throttl|quota|per minute", re.IGNORECASE)
_NO_CREDIT = re.compile(r"insufficient_quota|insufficient balance|billing", re.IGNORECASE)
_EXHAUSTED = re.compile(r"max_tokens or model output limit was reached", re.IGNORECASE)

_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 504,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "overloaded_error": 529,
}


def fault(
    status: int | None,
    body: str,
    headers: Mapping[str, str] | None = None,
    *,
    secret: str = "",
    now: datetime | None = None,
) -> ProviderError:
    """The error for an answer that was refused. ``status`` None: inside a stream, untold.
    ``secret`` is taken out of the provider's words. ``now``: what a retry date is counted from."""
    words = said(body, secret)
    kind = _kind(status, body, words)
    origin = "the provider" if status is None else f"the provider answered {status}"
    message = f"{origin}: {words}" if words else f"{origin} without a word"
    wait = retry_after(headers or {}, now or datetime.now(UTC))
    return kind(message, status=status, retry_after=wait)


def stream_fault(error: Json, *, secret: str = "") -> ProviderError:
    """The error for an error object that came inside a stream."""
    value = as_dict(error)
    status = next((v for k in ("code", "status") if _is_status(v := value.get(k))), None)
    if status is None:
        names = (as_str(value.get("type")), as_str(value.get("code")))
        status = next((_STATUS_OF_TYPE[n] for n in names if n in _STATUS_OF_TYPE), None)
    words = as_str(error) or as_str(value.get("message")) or as_str(value.get("type"))
    names = " ".join(as_str(value.get(k)) for k in ("type", "code"))
    words = _redacted(words, secret)
    kind = _kind(status, f"{names} {words}", words)
    return kind(f"the provider broke off: {words or 'no reason given'}", status=status)


def _is_status(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599


def _kind(status: int | None, body: str, words: str) -> type[ProviderError]:
    if status == 413:
        return PromptTooLong
    if status == 429:
        return ModelError if _NO_CREDIT.search(body) else RateLimited
    if status == 529:
        return Overloaded
    if status in (408, 504, 524):
        return ProviderTimeout
    if OVERFLOW.search(body) and not _RATE.search(body):
        return PromptTooLong
    if status == 400 and not words:  # some say no more than that when the prompt is too long
        return PromptTooLong
    if _EXHAUSTED.search(body):
        return TokenExhausted
    if status is not None and status >= 500:
        return ConnectionBroken
    if status is None and _RATE.search(body):
        return RateLimited
    return ModelError


def said(body: str, secret: str = "") -> str:
    """The provider's words in a body: its error message where there is one, else the text."""
    try:
        value = parse_json(body)
    except ValueError:
        return _redacted(body.strip(), secret)
    if isinstance(value, list):
        value = next(iter(as_list(value)), None)
    outer = as_dict(value)
    error = outer.get("error", outer)
    words = as_str(error) or as_str(as_dict(error).get("message"))
    words = words or as_str(outer.get("message")) or as_str(outer.get("detail"))
    return _redacted(words or ("" if value in (None, {}, "") else body.strip()), secret)


def _redacted(text: str, secret: str) -> str:
    text = text.replace(secret, "[key]") if secret else text
    return clean_text(text if len(text) <= QUOTE_LENGTH else text[:QUOTE_LENGTH] + "…")


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that the provider asks to wait; None where it does not, or not legibly."""
    lower = {k.lower(): v for k, v in headers.items()}
    milliseconds = _number(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    value = lower.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
