"""The anthropic provider: what it sends, and what it makes of answers over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cyberagent.core.errors import (
    ConnectionBroken,
    ModelError,
    Overloaded,
    PromptTooLong,
    ProviderError,
    ProviderTimeout,
)
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import (
    File,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    canonical_json,
)
from cyberagent.core.window import Item, Window
from cyberagent.providers.anthropic import AnthropicProvider, project_anthropic
from tests.peers.provider_server import Call, ProviderServer, Turn
from tests.providers.windows import (
    PIXEL,
    READ,
    SIGNED,
    assistant,
    call,
    injected,
    result,
    user,
    window,
)

MARK = {"cache_control": {"type": "ephemeral"}}
TALK = (user("go"), assistant("Reading.", call("a", arguments='{"path":"x"}')), result("a", "A"))
THOUGHT = Reasoning("hm", "m", SIGNED)


def test_the_payload_of_a_small_window_written_out():
    payload = project_anthropic(
        window(*TALK, system="Help.", temperature=1.5, max_output_tokens=100)
    )
    assert payload == {
        "model": "m",
        "system": [{"type": "text", "text": "Help.", **MARK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go", **MARK}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "a", "name": "read_file", "input": {"path": "x"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [{"type": "text", "text": "A"}],
                        **MARK,
                    }
                ],
            },
        ],
        "tools": [
            {
                "name": "read_file",
                "description": "Read a file.",
                "input_schema": READ["parameters"],
            }
        ],
        "temperature": 1,
        "max_tokens": 100,
        "stream": True,
    }


def sent(*messages: Message | Item, **params: Any) -> list[dict[str, Any]]:
    return project_anthropic(window(*messages, **params))["messages"]


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def test_an_output_limit_is_sent_even_where_none_is_known():
    assert project_anthropic(window(user("x")))["max_tokens"] == 8192


def test_all_results_of_a_turn_are_one_message_with_the_users_words_after_them():
    messages = sent(
        user("go"),
        assistant(call("a"), call("b")),
        result("b", "B", is_error=True), user("wait"), result("a", "A"), user("and?"),
    )  # fmt: skip
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert kinds(messages[2]) == ["tool_result", "tool_result", "text", "text"]
    assert [b.get("is_error") for b in messages[2]["content"][:2]] == [None, True]


def test_signed_thinking_goes_back_as_it_came_even_with_empty_text():
    empty = {"type": "thinking", "thinking": "", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    turn = assistant(Reasoning("", "m", empty), call("a"), Reasoning("", "m", hidden), call("b"))
    messages = sent(user("go"), turn, result("a", "A"), result("b", "B"))
    assert messages[1]["content"][0] == empty
    assert messages[1]["content"][2] == hidden


@pytest.mark.parametrize(
    "other",
    [
        Reasoning("hm", "another model", SIGNED),
        Reasoning("hm", "m"),
        Reasoning("hm", "m", {"type": "thinking", "thinking": "hm"}),
        Reasoning("\ud800", "m", {"type": "thinking", "thinking": "\ud800", "signature": "s"}),
    ],
)
def test_thinking_that_cannot_go_back_is_dropped_with_all_of_its_turn(other: Reasoning):
    messages = sent(user("go"), assistant(THOUGHT, other, "x", call("a")), result("a", "A"))
    assert kinds(messages[1]) == ["text", "tool_use"]


def test_thinking_at_the_end_of_a_turn_is_dropped():
    assert kinds(sent(user("go"), assistant("x", THOUGHT), user("y"))[1]) == ["text"]


def test_an_edited_turn_loses_its_thinking():
    edited = Item(assistant(THOUGHT, "x", call("a")), "replaced")
    assert kinds(sent(user("go"), edited, result("a", "A"))[1]) == ["text", "tool_use"]


def test_with_thinking_a_turn_of_the_framework_alone_is_text_of_the_user():
    history = (user("go"), assistant(injected("s")), result("s", "how to ask"))
    assert [m["role"] for m in sent(*history)] == ["user", "assistant", "user"]
    messages = sent(*history, thinking="adaptive")
    assert [m["role"] for m in messages] == ["user"]
    assert [b["text"] for b in messages[0]["content"]] == [
        "go",
        "[The framework called skill({}). Its result:]",
        "> how to ask",
    ]


def test_thinking_is_asked_for_with_room_for_an_answer():
    asked = project_anthropic(
        window(user("x"), thinking=4000, max_output_tokens=9000, temperature=0.5)
    )
    assert asked["thinking"] == {"type": "enabled", "budget_tokens": 4000}
    assert "temperature" not in asked
    tight = project_anthropic(window(user("x"), thinking=4000, max_output_tokens=2000))
    assert tight["thinking"] == {"type": "enabled", "budget_tokens": 1999}
    none = project_anthropic(window(user("x"), thinking=4000, max_output_tokens=1024))
    assert "thinking" not in none


def test_a_tool_loop_that_began_without_thinking_goes_on_without_it():
    without = (user("go"), assistant("x", call("a")), result("a", "A"))
    assert "thinking" not in project_anthropic(window(*without, thinking=2000))
    with_it = (user("go"), assistant(THOUGHT, call("a")), result("a", "A"))
    assert "thinking" in project_anthropic(window(*with_it, thinking=2000))
    ended = (*without, assistant("done"), user("next"))
    assert "thinking" in project_anthropic(window(*ended, thinking=2000))


def test_the_marks_stand_on_the_system_prompt_and_on_the_last_two_user_messages():
    talk = [m for n in range(6) for m in (assistant(call(f"c{n}")), result(f"c{n}", "x"))]
    payload = project_anthropic(window(user("go"), *talk, system="Help."))
    marked = [n for n, m in enumerate(payload["messages"]) if "cache_control" in m["content"][-1]]
    assert marked == [10, 12]
    assert str(payload).count("cache_control") == 3


def test_without_a_system_prompt_the_last_tool_is_marked():
    tools = [READ, {**READ, "name": "g"}]
    payload = project_anthropic(window(user("go"), tools=tools))
    assert ["cache_control" in t for t in payload["tools"]] == [False, True]


def test_tools_stay_when_no_call_is_wanted():
    payload = project_anthropic(window(*TALK, tool_choice="none"))
    assert (payload["tool_choice"], len(payload["tools"])) == ({"type": "none"}, 1)


def test_images_and_papers_of_users_and_tools():
    shown = (Image("image/png", PIXEL), File("a.pdf", "application/pdf", data=PIXEL))
    messages = sent(user("see", *shown), assistant(call("a")), result("a", *shown))
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    assert messages[0]["content"][1] == {"type": "image", "source": source}
    assert kinds(messages[0]) == ["text", "image", "document"]
    assert [b["type"] for b in messages[2]["content"][0]["content"]] == ["image", "document"]


# Over HTTP ------------------------------------------------------------------------------------


async def ask(
    server: ProviderServer, asked: Window | None = None, **options: Any
) -> tuple[list[Delta], Answer]:
    provider = AnthropicProvider(model="m", base_url=server.url, **options)
    try:
        payload = canonical_json(provider.project(asked or window(*TALK)))
        items = [i async for i in provider.stream(ModelRequest(payload=payload, call=4))]
    finally:
        await provider.aclose()
    assert isinstance(items[-1], Answer)
    return [i for i in items[:-1] if isinstance(i, Delta)], items[-1]


async def test_a_whole_answer_with_thinking_text_parallel_calls_and_usage():
    turn = Turn(
        reasoning="I should read both.",
        text="Reading both files — 两个文件。",
        calls=[Call(name="read_file", arguments={"path": "a.py"}), Call(name="f")],
        usage={"prompt": 1200, "completion": 30, "cached": 1024},
    )
    async with ProviderServer([turn], api_key="sk-1") as server:
        deltas, answer = await ask(server, api_key="sk-1")
    block = {"type": "thinking", "thinking": turn.reasoning, "signature": "signature-1"}
    assert answer == Answer(
        parts=(
            Reasoning(turn.reasoning, "m", block),
            Text(turn.text),
            ToolCall("toolu_1_0", "read_file", '{"path": "a.py"}'),
            ToolCall("toolu_1_1", "f", "{}"),
        ),
        finish_reason="tool_calls",
        usage=Usage(prompt=1200, completion=30, cached=1024, cache_write=0),
        model="m",
    )
    assert "".join(d.text for d in deltas if d.stream == "text") == turn.text
    assert "".join(d.text for d in deltas if d.stream == "reasoning") == turn.reasoning


async def test_an_answer_goes_back_and_the_bytes_arrive_as_recorded():
    """Thinking, a call, its result: the second request is taken, and is what was projected."""
    turns = [Turn(reasoning="hm", calls=[Call(name="read_file")]), Turn(text="done")]
    async with ProviderServer(turns) as server:
        _, first = await ask(server, window(user("go"), thinking=2000))
        (made,) = [p for p in first.parts if isinstance(p, ToolCall)]
        history = (user("go"), assistant(*first.parts), result(made.id, "A"))
        asked = window(*history, thinking=2000)
        _, second = await ask(server, asked)
    assert second.parts == (Text("done"),)
    assert server.requests[1].body == canonical_json(project_anthropic(asked))
    assert server.requests[1].payload["messages"][1]["content"][0]["signature"] == "signature-1"
    assert server.requests[1].payload["thinking"]["budget_tokens"] == 2000


@pytest.mark.parametrize(
    ("turn", "kind", "words"),
    [
        (Turn(status=529, body='{"error": {"message": "Overloaded"}}'), Overloaded, "Overloaded"),
        (Turn(status=400, body="prompt is too long: 9 > 8"), PromptTooLong, "too long"),
        (Turn(text="half of this", cut_after=4), ConnectionBroken, "broke"),
        (Turn(text="half of this", malformed_at=4), ConnectionBroken, "malformed event"),
        (Turn(text="half of this", ends=False), ConnectionBroken, "before the answer did"),
    ],
)
async def test_what_goes_wrong_has_a_name(turn: Turn, kind: type[ProviderError], words: str):
    async with ProviderServer([turn]) as server:
        with pytest.raises(kind, match=words) as caught:
            await ask(server)
    assert type(caught.value) is kind


async def test_a_payload_with_a_broken_rule_is_refused_by_the_server():
    payload = project_anthropic(window(*TALK))
    del payload["messages"][-1]
    async with ProviderServer([Turn(text="ok")]) as server:
        provider = AnthropicProvider(model="m", base_url=server.url)
        with pytest.raises(ModelError, match="must have exactly one result"):
            await anext(provider.stream(ModelRequest(payload=canonical_json(payload))))
        await provider.aclose()


async def test_a_stream_that_falls_silent_times_out():
    async with ProviderServer([Turn(text="and then", hang_after=4)]) as server:
        with pytest.raises(ProviderTimeout):
            await ask(server, timeout=0.2)


async def test_closing_the_answer_closes_the_connection_at_once():
    async with ProviderServer([Turn(text="and then", hang_after=4)]) as server:
        provider = AnthropicProvider(model="m", base_url=server.url)
        payload = canonical_json(provider.project(window(*TALK)))
        stream = provider.stream(ModelRequest(payload=payload))
        assert await anext(stream) == Delta("and the")
        await stream.aclose()
        await asyncio.wait_for(server.requests[0].left.wait(), timeout=5)
        await provider.aclose()
