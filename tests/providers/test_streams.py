"""Reading streams without a network: bytes cut anywhere, odd servers, nonsense."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import ConnectionBroken, PromptTooLong, ProviderError, TokenExhausted
from cyberagent.core.ports import Delta
from cyberagent.core.types import Reasoning, Text, ToolCall, Usage
from cyberagent.providers.anthropic_stream import MessageReader
from cyberagent.providers.http import EventDecoder, ServerEvent
from cyberagent.providers.openai_stream import ChatReader


def decoded(*chunks: bytes) -> list[ServerEvent]:
    decoder = EventDecoder()
    return [e for chunk in chunks for e in decoder.feed(chunk)] + decoder.close()


STREAM = (
    "\ufeff: hello\r\nevent: a\r\ndata: one\r\ndata: é\u2028\u0085x\r\n\r\ndata:two\n\n\ndata: tail"
)
EVENTS = [ServerEvent("a", "one\né\u2028\u0085x"), ServerEvent("", "two"), ServerEvent("", "tail")]


@given(st.lists(st.integers(0, len(STREAM.encode())), max_size=6))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]):
    data = STREAM.encode()
    edges = [0, *sorted(cuts), len(data)]
    assert decoded(*(data[a:b] for a, b in pairwise(edges))) == EVENTS


def test_carriage_returns_alone_end_lines_too():
    assert decoded(b"data: a\rdata: b\r\r") == [ServerEvent("", "a\nb")]


# Chat completions -----------------------------------------------------------------------------


def chat(*deltas: dict[str, Any], finish: str | None = "stop", **last: Any) -> ChatReader:
    reader = ChatReader(model="m", call=7)
    for delta in deltas:
        reader.feed(json.dumps({"choices": [{"index": 0, "delta": delta}]}))
    reader.feed(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    if last:
        reader.feed(json.dumps({"choices": [], **last}))
    return reader


def piece(index: int | None, arguments: Any = "", **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    at = {} if index is None else {"index": index}
    return {"tool_calls": [{**at, "function": function, **fields}]}


def test_parallel_calls_are_joined_by_index_and_not_by_order():
    reader = chat(
        piece(0, id="a", name="read"), piece(1, id="b", name="grep"),
        piece(1, '{"q":'), piece(0, '{"p":'), piece(0, "1}"), piece(1, "2}"),
        finish="tool_calls",
    )  # fmt: skip
    assert reader.answer().parts == (
        ToolCall("a", "read", '{"p":1}'),
        ToolCall("b", "grep", '{"q":2}'),
    )


def test_a_server_that_numbers_every_call_0_is_understood_by_the_ids():
    reader = chat(piece(0, '{"p":1}', id="a", name="f"), piece(0, '{"p":2}', id="b", name="f"))
    assert [(c.id, c.arguments) for c in reader.answer().parts] == [
        ("a", '{"p":1}'),
        ("b", '{"p":2}'),
    ]


def test_a_server_that_repeats_id_and_name_in_each_piece_makes_one_call():
    reader = chat(piece(0, '{"p"', id="a", name="f"), piece(0, ":1}", id="a", name="f"))
    assert reader.answer().parts == (ToolCall("a", "f", '{"p":1}'),)


def test_a_server_that_leaves_out_the_index_is_understood():
    reader = chat(piece(None, '{"p"', id="a", name="f"), piece(None, ":1}"), piece(None, name="g"))
    assert [(c.name, c.arguments) for c in reader.answer().parts] == [("f", '{"p":1}'), ("g", "{}")]


def test_arguments_sent_as_a_value_become_their_text():
    assert chat(piece(0, {"p": 1}, id="a", name="f")).answer().parts == (
        ToolCall("a", "f", '{"p": 1}'),
    )


def test_missing_and_repeated_call_ids_are_made_from_the_number_of_the_call():
    reader = chat(piece(0, name="f"), piece(1, id="x", name="g"), piece(2, id="x", name="h"))
    assert [c.id for c in reader.answer().parts] == ["call_7_0", "x", "call_7_2"]


def test_calls_make_the_finish_reason_even_where_the_server_says_stop():
    assert chat(piece(0, id="a", name="f"), finish="stop").answer().finish_reason == "tool_calls"


def test_a_thought_signature_is_kept_with_its_call():
    extra = {"google": {"thought_signature": "abc"}}
    reader = chat(piece(0, id="a", name="f", extra_content=extra))
    assert reader.answer().parts == (ToolCall("a", "f", "{}", extra=extra),)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_before_the_text_under_either_name(field: str):
    reader = chat({field: "let me "}, {field: "see"}, {"content": "yes"})
    assert reader.answer().parts == (Reasoning("let me see", "m"), Text("yes"))


def test_content_in_blocks_is_read():
    blocks = [{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "hi"}]
    assert chat({"content": blocks}).answer().parts == (Reasoning("hm", "m"), Text("hi"))


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("eos", "stop")],
)
def test_finish_reasons(finish: str, reason: str):
    assert chat({"content": "x"}, finish=finish).answer().finish_reason == reason


def test_a_refusal_is_text_with_its_own_reason():
    answer = chat({"refusal": "I will not"}).answer()
    assert (answer.parts, answer.finish_reason) == ((Text("I will not"),), "refusal")


def test_usage_comes_in_a_last_chunk_without_choices():
    usage = {
        "prompt_tokens": 100, "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }  # fmt: skip
    expected = Usage(prompt=100, completion=20, cached=80, reasoning=5)
    assert chat({"content": "x"}, usage=usage).answer().usage == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": 0, "completion_tokens": 3}, Usage(completion=3)),
        (
            {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
            Usage(prompt=9, cached=4),
        ),
        ({"prompt_tokens": "many", "completion_tokens": True}, None),
    ],
)
def test_usage_that_is_not_reported_is_unknown_and_not_zero(usage: Any, expected: Usage | None):
    assert chat({"content": "x"}, usage=usage).answer().usage == expected


@pytest.mark.parametrize("finish", [None, ""])
def test_a_stream_without_a_finish_reason_leaves_nothing_behind(finish: str | None):
    with pytest.raises(ConnectionBroken, match="before the answer did"):
        chat({"content": "half"}, finish=finish).answer()


def test_the_output_limit_with_nothing_but_reasoning_is_an_error():
    with pytest.raises(TokenExhausted):
        chat({"reasoning_content": "on and on"}, finish="length").answer()


def test_a_call_that_the_output_limit_cut_off_is_dropped():
    reader = chat({"content": "I read"}, piece(0, '{"path": "a', id="a", name="f"), finish="length")
    assert reader.answer().parts == (Text("I read"),)
    with pytest.raises(TokenExhausted):
        chat(piece(0, '{"path": "a', id="a", name="f"), finish="length").answer()


def test_a_full_window_with_no_answer_is_a_prompt_too_long():
    with pytest.raises(PromptTooLong):
        chat(finish="model_context_window_exceeded").answer()


def test_an_error_object_in_the_stream_is_raised():
    with pytest.raises(ConnectionBroken, match="upstream died"):
        ChatReader(model="m", call=1).feed('{"error": {"code": 502, "message": "upstream died"}}')


# Messages API ---------------------------------------------------------------------------------


def claude(*events: dict[str, Any]) -> MessageReader:
    reader = MessageReader(model="c", call=3)
    for event in events:
        reader.feed(json.dumps(event))
    return reader


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def end(reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def test_blocks_keep_the_order_in_which_the_model_made_them():
    reader = claude(
        start(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="let me "),
        delta(0, type="thinking_delta", thinking="see"),
        delta(0, type="signature_delta", signature="sig"),
        start(1, type="text", text=""),
        delta(1, type="text_delta", text="Reading."),
        start(2, type="tool_use", id="t1", name="f", input={}),
        delta(2, type="input_json_delta", partial_json='{"a"'),
        delta(2, type="input_json_delta", partial_json=":1}"),
        start(3, type="redacted_thinking", data="xyz"),
        start(4, type="tool_use", id="t2", name="g", input={}),
        end("tool_use"),
    )
    assert reader.answer().parts == (
        Reasoning(
            "let me see", "c", {"type": "thinking", "thinking": "let me see", "signature": "sig"}
        ),
        Text("Reading."),
        ToolCall("t1", "f", '{"a":1}'),
        Reasoning("", "c", {"type": "redacted_thinking", "data": "xyz"}),
        ToolCall("t2", "g", "{}"),
    )  # fmt: skip


def test_the_prompt_is_input_and_both_kinds_of_cached_tokens():
    usage = {
        "input_tokens": 10, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000,
        "output_tokens": 1,
    }  # fmt: skip
    reader = claude(
        {"type": "message_start", "message": {"usage": usage}},
        start(0, type="text", text="hi"),
        end(output_tokens=42, input_tokens=0),
    )
    expected = Usage(prompt=3210, completion=42, cached=3000, cache_write=200)
    assert reader.answer().usage == expected


def test_usage_that_messages_do_not_report_is_unknown():
    assert claude(start(0, type="text", text="hi"), end()).answer().usage is None


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"),
        ("pause_turn", "pause"), ("refusal", "refusal"),
        ("model_context_window_exceeded", "length"),
    ],
)  # fmt: skip
def test_stop_reasons(stop: str, reason: str):
    assert claude(start(0, type="text", text="x"), end(stop)).answer().finish_reason == reason


def test_a_refusal_may_be_empty():
    answer = claude(end("refusal")).answer()
    assert (answer.parts, answer.finish_reason) == ((), "refusal")


def test_messages_that_end_early_leave_nothing_behind():
    with pytest.raises(ConnectionBroken):
        claude(start(0, type="text", text="half"), {"type": "message_stop"}).answer()


# Nonsense -------------------------------------------------------------------------------------

_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=4),
        st.sampled_from(
            ["content_block_start", "content_block_delta", "message_delta", "text", "text_delta",
             "tool_use", "thinking", "input_json_delta", "signature_delta", "error", "stop"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tool_calls", "function", "name", "arguments",
                 "index", "id", "usage", "prompt_tokens", "error", "finish_reason", "type",
                 "content_block", "message", "partial_json", "thinking", "code", "stop_reason"]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(_values, max_size=5), st.sampled_from([ChatReader, MessageReader]))
def test_nonsense_raises_a_provider_error_or_nothing(chunks: list[Any], kind: Any):
    reader = kind(model="m", call=1)
    try:
        for chunk in chunks:
            deltas = reader.feed(json.dumps(chunk))
            assert all(isinstance(d, Delta) and d.text for d in deltas)
        answer = reader.answer()
        assert all(p.id for p in answer.parts if isinstance(p, ToolCall))
    except ProviderError:
        pass


@pytest.mark.parametrize("data", ["", "{", "[]", '"x"', "[" * 100_000, '{"a": NaN}'])
@pytest.mark.parametrize("kind", [ChatReader, MessageReader])
def test_an_event_that_is_no_json_object_breaks_the_stream(data: str, kind: Any):
    with pytest.raises(ConnectionBroken, match="malformed event"):
        kind(model="m", call=1).feed(data)
