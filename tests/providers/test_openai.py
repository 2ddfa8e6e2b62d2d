"""The openai provider: what it sends, and what it makes of answers over real HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import pytest

from cyberagent.core.errors import (
    ConnectionBroken,
    InvalidConfig,
    ModelError,
    Overloaded,
    PromptTooLong,
    ProviderError,
    ProviderTimeout,
    RateLimited,
)
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import (
    File,
    Image,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    canonical_json,
)
from cyberagent.core.window import Window
from cyberagent.providers.openai import DUMMY_SIGNATURE, OpenAIProvider, project_openai
from tests.peers.provider_server import Call, ProviderServer, Turn
from tests.providers.windows import PIXEL, READ, assistant, call, injected, result, user, window

TALK = (user("go"), assistant("Reading.", call("a", arguments='{"path":"x"}')), result("a", "A"))


# Projection -----------------------------------------------------------------------------------


def test_the_payload_of_a_small_window_written_out():
    payload = project_openai(
        window(*TALK, system="Help.", temperature=0.5, max_output_tokens=100, dialect="openai")
    )
    assert payload == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": "Reading.",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path":"x"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "A"},
        ],
        "tools": [{"type": "function", "function": READ}],
        "temperature": 0.5,
        "max_completion_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def sent(*messages: Any, **params: Any) -> list[dict[str, Any]]:
    return project_openai(window(*messages, **params))["messages"]


def test_a_longer_history_has_the_shorter_one_as_its_prefix():
    more = (*TALK, assistant(call("a")), result("a", "B"))
    assert sent(*more)[:3] == sent(*TALK)


def test_other_endpoints_are_told_the_limit_by_its_older_name():
    payload = project_openai(window(user("x"), max_output_tokens=5, dialect="vllm"))
    assert payload["max_tokens"] == 5
    assert "max_completion_tokens" not in payload


def test_tools_stay_when_no_call_is_wanted():
    payload = project_openai(window(*TALK, tool_choice="none"))
    assert payload["tool_choice"] == "none"
    assert payload["tools"] == [{"type": "function", "function": READ}]


def test_where_that_choice_is_not_known_the_history_is_told_as_text():
    payload = project_openai(window(*TALK, tool_choice="none", dialect="ollama"))
    assert "tools" not in payload
    assert [m["role"] for m in payload["messages"]] == ["user", "assistant", "user"]
    assert payload["messages"][2]["content"].endswith("\n\n> A")


def test_deepseek_gets_the_reasoning_of_turns_with_calls_and_an_empty_one_elsewhere():
    messages = sent(
        user("go"),
        assistant(Reasoning("I must read", "m"), call("a")), result("a", "A"),
        assistant(Reasoning("all clear", "m"), "done"), user("next"),
        assistant(injected("s")), result("s", "S"),
        assistant(Reasoning("foreign", "other model"), call("b")), result("b", "B"),
        dialect="deepseek",
    )  # fmt: skip
    texts = [m["reasoning_content"] for m in messages if m["role"] == "assistant"]
    assert texts == ["I must read", "", "", ""]


def test_reasoning_is_sent_to_nobody_else():
    for dialect in ("openai", "deepseek-reasoner", "qwen", "gemini"):
        talk = sent(user("go"), assistant(Reasoning("hm", "m"), "yes"), user("x"), dialect=dialect)
        assert talk[1] == {"role": "assistant", "content": "yes"}


def test_gemini_gets_signatures_back_and_a_dummy_for_calls_its_model_did_not_make():
    real = {"google": {"thought_signature": "real"}}
    dummy = {"google": {"thought_signature": DUMMY_SIGNATURE}}
    messages = sent(
        user("go"),
        assistant(call("a", extra=real), call("b"), injected("c")),
        result("a", "A"), result("b", "B"), result("c", "C"),
        assistant(injected("s")), result("s", "S"),
        dialect="gemini",
    )  # fmt: skip
    extras = [c.get("extra_content") for m in messages for c in m.get("tool_calls", ())]
    assert extras == [real, None, dummy, dummy]


def test_the_thinking_switch_goes_to_qwen_alone():
    asked = window(user("x"), enable_thinking=False, dialect="qwen")
    assert project_openai(asked)["enable_thinking"] is False
    other = window(user("x"), enable_thinking=False, dialect="openai")
    assert "enable_thinking" not in project_openai(other)


def test_images_and_files_of_the_user():
    picture, linked = Image("image/png", PIXEL), Image(url="https://example.org/a.png")
    paper, notes = File("a.pdf", "application/pdf", data=PIXEL), File("n.txt", text="notes")
    assert sent(user("see", picture, linked, paper, notes))[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"},
        },
        {"type": "text", "text": "[File n.txt]\nnotes"},
    ]


def test_a_text_only_model_is_told_that_an_image_is_not_shown():
    picture = Image("image/png", PIXEL)
    assert sent(user("see", picture), dialect="deepseek")[0]["content"] == (
        "see\n\n[An image is not shown: image/png]"
    )


def test_images_of_a_batch_of_results_follow_it_in_one_user_message():
    picture = Image("image/png", PIXEL)
    history = (
        user("go"), assistant(call("a"), call("b")), result("a", picture), result("b", "B"),
    )  # fmt: skip
    roles = ["user", "assistant", "tool", "tool", "user"]
    for after in ((), (assistant("I see"), user("ok")), (user("and?"),)):
        messages = sent(*history, *after)
        assert [m["role"] for m in messages[:5]] == roles
        assert messages[2]["content"] == "[An image or file: see the next user message]"
        assert messages[4]["content"][0]["type"] == "image_url"
    assert messages[4]["content"][1] == {"type": "text", "text": "and?"}


def test_lone_surrogates_are_replaced_and_pairs_are_joined():
    assert sent(user("a\ud800b \ud83d\ude00"))[0]["content"] == "a\ufffdb 😀"


def test_more_tools_than_128_are_refused_before_the_call():
    tools = [{**READ, "name": f"t{n}"} for n in range(129)]
    provider = OpenAIProvider(model="m")
    problems = provider.problems(provider.project(window(user("x"), tools=tools)))
    assert problems == ["129 tools are more than 128"]


def test_an_unknown_dialect_and_an_impossible_key_are_refused():
    with pytest.raises(InvalidConfig, match="dialect"):
        OpenAIProvider(model="m", dialect="latin")
    with pytest.raises(InvalidConfig) as caught:
        OpenAIProvider(model="m", api_key="sk-1\nX-Evil: 1")
    assert "sk-1" not in str(caught.value)


# Over HTTP ------------------------------------------------------------------------------------


async def ask(
    server: ProviderServer, asked: Window | None = None, **options: Any
) -> tuple[list[Delta], Answer]:
    provider = OpenAIProvider(model="m", base_url=server.url, **options)
    try:
        payload = canonical_json(provider.project(asked or window(*TALK)))
        items = [i async for i in provider.stream(ModelRequest(payload=payload, call=4))]
    finally:
        await provider.aclose()
    assert isinstance(items[-1], Answer)
    return [i for i in items[:-1] if isinstance(i, Delta)], items[-1]


async def test_a_whole_answer_with_reasoning_text_parallel_calls_and_usage():
    turn = Turn(
        reasoning="I should read both.",
        text="Reading both files — 两个文件。",
        calls=[Call(name="read_file", arguments={"path": "a.py"}), Call(name="f", arguments={})],
        usage={"prompt": 1200, "completion": 30, "cached": 1024},
    )
    async with ProviderServer([turn]) as server:
        deltas, answer = await ask(server)
    assert answer == Answer(
        parts=(
            Reasoning("I should read both.", "m"),
            Text("Reading both files — 两个文件。"),
            ToolCall("call_1_0", "read_file", '{"path": "a.py"}'),
            ToolCall("call_1_1", "f", "{}"),
        ),
        finish_reason="tool_calls",
        usage=Usage(prompt=1200, completion=30, cached=1024),
        model="m",
    )
    assert "".join(d.text for d in deltas if d.stream == "text") == turn.text
    assert "".join(d.text for d in deltas if d.stream == "reasoning") == turn.reasoning
    assert len(deltas) > 5


async def test_the_bytes_that_arrive_are_the_bytes_that_were_recorded():
    provider_payload = canonical_json(project_openai(window(*TALK, system="Hilf — 帮助")))
    async with ProviderServer([Turn(text="ok")]) as server:
        await ask(server, window(*TALK, system="Hilf — 帮助"))
    assert server.requests[0].body == provider_payload
    recorded = hashlib.sha256(provider_payload).hexdigest()
    assert hashlib.sha256(server.requests[0].body).hexdigest() == recorded


async def test_a_payload_with_a_broken_rule_is_refused_by_the_server():
    payload = project_openai(window(*TALK))
    del payload["messages"][-1]
    async with ProviderServer([Turn(text="ok")]) as server:
        provider = OpenAIProvider(model="m", base_url=server.url)
        with pytest.raises(ModelError, match="must have exactly one result"):
            await anext(provider.stream(ModelRequest(payload=canonical_json(payload))))
        await provider.aclose()


@pytest.mark.parametrize(
    ("turn", "kind", "words"),
    [
        (Turn(status=429, headers={"retry-after": "3"}), RateLimited, "429"),
        (Turn(status=529), Overloaded, "529"),
        (Turn(status=500, body="boom"), ConnectionBroken, "boom"),
        (Turn(status=400), PromptTooLong, "400"),
        (Turn(status=413), PromptTooLong, "413"),
        (Turn(status=302, headers={"location": "/elsewhere"}), ModelError, "302"),
        (Turn(text="half of this", cut_after=2), ConnectionBroken, "broke"),
        (Turn(text="half of this", malformed_at=2), ConnectionBroken, "malformed event"),
        (Turn(text="half of this", ends=False), ConnectionBroken, "before the answer did"),
    ],
)
async def test_what_goes_wrong_has_a_name(turn: Turn, kind: type[ProviderError], words: str):
    async with ProviderServer([turn]) as server:
        with pytest.raises(kind, match=words) as caught:
            await ask(server)
    assert type(caught.value) is kind
    assert caught.value.retry_after == (3 if turn.status == 429 else None)


async def test_a_stream_without_usage_is_an_answer_with_usage_unknown():
    async with ProviderServer([Turn(text="ok", usage=None)]) as server:
        _, answer = await ask(server)
    assert (answer.usage, answer.parts) == (None, (Text("ok"),))


async def test_a_slow_stream_is_read_as_it_comes():
    async with ProviderServer([Turn(text="slowly but surely", delay_ms=5)]) as server:
        deltas, answer = await ask(server)
    assert [d.text for d in deltas] == ["slowly ", "but sur", "ely"]
    assert answer.parts == (Text("slowly but surely"),)


async def test_a_stream_that_falls_silent_times_out():
    async with ProviderServer([Turn(text="and then", hang_after=2)]) as server:
        with pytest.raises(ProviderTimeout):
            await ask(server, timeout=0.2)


async def test_a_refused_connection_is_a_broken_one():
    async with ProviderServer([]) as server:
        url = server.url
    provider = OpenAIProvider(model="m", base_url=url)
    with pytest.raises(ConnectionBroken):
        await anext(provider.stream(ModelRequest(payload=b"{}")))
    await provider.aclose()


@pytest.mark.parametrize("url", ["", "no url", "ftp://example.org", "http://", "http://a:b:c"])
def test_an_address_that_nothing_can_be_sent_to_is_refused(url: str):
    with pytest.raises(InvalidConfig, match="address"):
        OpenAIProvider(model="m", base_url=url)


async def test_closing_the_answer_closes_the_connection_at_once():
    async with ProviderServer([Turn(text="and then", hang_after=2)]) as server:
        provider = OpenAIProvider(model="m", base_url=server.url)
        payload = canonical_json(provider.project(window(*TALK)))
        stream = provider.stream(ModelRequest(payload=payload))
        assert await anext(stream) == Delta("and the")
        await stream.aclose()
        await asyncio.wait_for(server.requests[0].left.wait(), timeout=5)
        await provider.aclose()


async def test_cancelling_the_task_closes_the_connection_at_once():
    async with ProviderServer([Turn(text="and then", hang_after=2)]) as server:
        begun = asyncio.Event()
        provider = OpenAIProvider(model="m", base_url=server.url)
        payload = canonical_json(provider.project(window(*TALK)))

        async def read() -> None:
            async for _ in provider.stream(ModelRequest(payload=payload)):
                begun.set()

        task = asyncio.ensure_future(read())
        await asyncio.wait_for(begun.wait(), timeout=5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.requests[0].left.wait(), timeout=5)
        await provider.aclose()


async def test_the_key_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with ProviderServer([Turn(text="ok")], api_key="sk-secret-1") as server:
        await ask(server, api_key="sk-secret-1")
        assert server.requests[0].headers["authorization"] == "Bearer sk-secret-1"
        echo = Turn(status=401, body="sk-secret-1 is no key of ours")
        async with ProviderServer([echo]) as other:
            with pytest.raises(ModelError) as caught:
                await ask(other, api_key="sk-secret-1")
    assert "sk-secret" not in str(caught.value) + repr(caught.value)
    assert "sk-secret" not in caplog.text
