"""The real thing: llama.cpp in this process, with real weights. No key, no network."""

from __future__ import annotations

import pytest

from cyberagent.core.errors import PromptTooLong
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import Text, canonical_json
from cyberagent.providers import local
from cyberagent.providers.anthropic import AnthropicProvider
from tests.providers.windows import assistant, call, result, user, window

pytestmark = pytest.mark.skipif(local.available() is not None, reason=str(local.available()))


@pytest.fixture
async def provider():
    made = local.LocalProvider()
    yield made
    await made.aclose()


async def test_a_real_model_answers_after_a_tool_loop(provider: local.LocalProvider):
    asked = window(
        user("Say hello."),
        assistant(call("a", arguments='{"path":"x"}')),
        result("a", "hello"),
        system="Be brief.",
        temperature=0,
        max_output_tokens=12,
        **provider.params,
    )
    payload = provider.project(asked)
    assert provider.problems(payload) == []
    items = [i async for i in provider.stream(ModelRequest(payload=canonical_json(payload)))]
    answer = items[-1]
    assert isinstance(answer, Answer)
    assert answer.finish_reason in ("stop", "length")
    (said,) = [p.text for p in answer.parts if isinstance(p, Text)]
    assert "".join(i.text for i in items[:-1] if isinstance(i, Delta)) == said != ""
    assert answer.usage is not None
    assert answer.usage.prompt is not None
    assert answer.usage.prompt > 10
    assert answer.usage.completion is not None
    assert 1 <= answer.usage.completion <= 12
    assert provider.cost(answer.usage) == 0


async def test_a_prompt_beyond_its_window_is_too_long(provider: local.LocalProvider):
    asked = window(user("hello " * (local.CONTEXT_WINDOW + 100)), **provider.params)
    payload = canonical_json(provider.project(asked))
    with pytest.raises(PromptTooLong, match="available context size"):
        await anext(provider.stream(ModelRequest(payload=payload)))


async def test_the_server_speaks_the_messages_api_too(provider: local.LocalProvider):
    """llama.cpp's own reading of Anthropic's wire format, against ours."""
    asked = window(user("Say hello."), model=local.MODEL, temperature=0, max_output_tokens=5)
    claude = AnthropicProvider(model=local.MODEL, base_url=local.base_url())
    payload = canonical_json(claude.project(asked))
    items = [i async for i in claude.stream(ModelRequest(payload=payload))]
    await claude.aclose()
    assert isinstance(items[-1], Answer)
    assert any(isinstance(p, Text) and p.text for p in items[-1].parts)
    assert items[-1].usage is not None


def test_the_server_is_started_once():
    assert local.base_url() == local.base_url()
