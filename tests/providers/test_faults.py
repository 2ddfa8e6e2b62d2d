"""Errors by status and wording. The wordings are those of the providers named beside them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from cyberagent.core.errors import (
    ConnectionBroken,
    ModelError,
    Overloaded,
    PromptTooLong,
    ProviderTimeout,
    RateLimited,
    TokenExhausted,
)
from cyberagent.providers.faults import fault, retry_after, stream_fault

OVERFLOWS = [
    ("Anthropic", "prompt is too long: 213462 tokens > 200000 maximum"),
    ("Anthropic", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    ("OpenAI", "Your input exceeds the context window of this model"),
    ("OpenAI", "This model's maximum context length is 8192 tokens. However, you requested 27022"),
    ("OpenRouter", "This endpoint's maximum context length is 65536 tokens. However, you ask for"),
    ("Gemini", "The input token count (1196265) exceeds the maximum number of tokens allowed"),
    ("Bedrock", "Input is too long for requested model."),
    ("xAI", "This model's maximum prompt length is 131072 but the request contains 537812 tokens"),
    ("Groq", "Please reduce the length of the messages or completion"),
    ("llama.cpp", "request (3031 tokens) exceeds the available context size (2048 tokens)"),
    ("LM Studio", "tokens to keep from the initial prompt is greater than the context length"),
    ("Ollama", "prompt too long; exceeded max context length by 4 tokens"),
    ("Mistral", "Prompt contains 200000 tokens, too large for model with 131072 maximum context"),
    ("MiniMax", "invalid params, context window exceeds limit"),
    ("Kimi", "Your request exceeded model token limit: 262144 (requested: 300000)"),
    ("z.ai", "model_context_window_exceeded"),
    ("Copilot", "prompt token count of 300000 exceeds the limit of 128000"),
    (
        "Together",
        "The input (9000 tokens) is longer than the model's context length (8000 tokens).",
    ),
    ("Poolside", "Input length 30000 exceeds the maximum allowed input length of 26214 tokens."),
    ("Qwen", "Range of input length should be [1, 98304]"),
]


@pytest.mark.parametrize(("who", "words"), OVERFLOWS)
@pytest.mark.parametrize("status", [400, 422, 500])
def test_each_providers_way_to_say_too_long_is_understood(who: str, words: str, status: int):
    body = json.dumps({"error": {"message": words}})
    assert type(fault(status, words)) is PromptTooLong
    assert type(fault(status, body)) is PromptTooLong
    assert type(stream_fault({"message": words})) is PromptTooLong


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, '{"error": {"message": "too many tokens per minute"}}', RateLimited),
        (429, '{"error": {"code": "insufficient_quota", "message": "no credit"}}', ModelError),
        (529, "", Overloaded),
        (413, "", PromptTooLong),
        (400, "", PromptTooLong),
        (400, "{}", PromptTooLong),
        (408, "", ProviderTimeout),
        (504, "gateway timeout", ProviderTimeout),
        (524, "", ProviderTimeout),
        (500, "boom", ConnectionBroken),
        (503, "", ConnectionBroken),
        (400, "Throttling error: Too many tokens, please wait", ModelError),
        (400, '{"error": {"message": "tool_use ids were found without tool_result"}}', ModelError),
        (401, '{"error": {"message": "bad key"}}', ModelError),
        (404, "", ModelError),
        (400, "max_tokens or model output limit was reached", TokenExhausted),
    ],
)
def test_the_status_decides_first_and_the_words_after_it(status: int, body: str, kind: type):
    error = fault(status, body)
    assert (type(error), error.status) == (kind, status)


def test_only_what_may_pass_is_retryable():
    retryable = [s for s in (400, 401, 404, 408, 413, 429, 500, 502, 503, 504, 529)
                 if fault(s, "some words").retryable]  # fmt: skip
    assert retryable == [408, 429, 500, 502, 503, 504, 529]


def test_the_error_repeats_the_providers_words_but_never_the_key():
    error = fault(401, '{"error": {"message": "wrong key sk-secret-1"}}', secret="sk-secret-1")
    assert str(error) == "the provider answered 401: wrong key [key]"
    assert "sk-secret" not in str(stream_fault("key sk-secret-1", secret="sk-secret-1"))


@pytest.mark.parametrize(
    "body", ['[{"error": {"message": "no"}}]', '{"message": "no"}', '{"detail": "no"}', "no",
             '{"error": "no"}'],
)  # fmt: skip
def test_the_words_are_found_in_every_form_of_body(body: str):
    assert str(fault(404, body)) == "the provider answered 404: no"


def test_a_long_body_is_cut():
    assert len(str(fault(404, "x" * 10_000))) < 600


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, Overloaded),
        ({"type": "rate_limit_error", "message": "slow down"}, RateLimited),
        ({"code": 502, "message": "upstream"}, ConnectionBroken),
        ({"code": 429, "message": "wait"}, RateLimited),
        ({"type": "invalid_request_error", "message": "prompt is too long"}, PromptTooLong),
        ({"message": "no idea"}, ModelError),
        ("rate limit reached", RateLimited),
        (None, ModelError),
    ],
)
def test_an_error_inside_a_stream_is_sorted_too(error: object, kind: type):
    assert type(stream_fault(error)) is kind


NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_is_asked_for(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers, NOW) == seconds
    assert fault(429, "", headers, now=NOW).retry_after == seconds
