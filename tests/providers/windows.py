"""Windows for tests of the providers: short ways to write them, and any that could be stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from cyberagent.core.types import (
    INTERRUPTED_RESULT,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
)
from cyberagent.core.window import Item, Window

READ = {
    "name": "read_file",
    "description": "Read a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}
PIXEL = "iVBORw0KGgo="
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}


def user(*parts: str | Part) -> Message:
    return Message(role="user", parts=_parts(parts), source="user")


def system(text: str) -> Message:
    return Message(role="system", parts=_parts([text]), source="framework")


def assistant(*parts: str | Part) -> Message:
    return Message(role="assistant", parts=_parts(parts), source="model")


def result(call_id: str, *parts: str | Part, **fields: Any) -> Message:
    return Message(role="tool", parts=_parts(parts), source="tool", tool_call_id=call_id, **fields)


def placeholder(call_id: str) -> Message:
    return result(call_id, INTERRUPTED_RESULT, is_error=True)


def call(call_id: str, name: str = "read_file", arguments: str = "{}", **fields: Any) -> ToolCall:
    return ToolCall(call_id, name, arguments, **fields)


def injected(call_id: str, name: str = "skill") -> ToolCall:
    return ToolCall(call_id, name, made_by="framework")


def window(
    *messages: Message | Item, system: str = "", tools: Sequence[Any] = (READ,), **params: Any
) -> Window:
    items = tuple(m if isinstance(m, Item) else Item(m) for m in messages)
    return Window(system=system, items=items, tools=tuple(tools), params={"model": "m", **params})


def _parts(parts: Sequence[str | Part]) -> tuple[Part, ...]:
    return tuple(Text(p) if isinstance(p, str) else p for p in parts)


# Any history, sound or broken -----------------------------------------------------------------

_texts = st.one_of(
    st.sampled_from(["", " ", "\n\t", "hello", "\ud800", "a\udfffb", "\x00", "\u2028", "[{", "😀"]),
    st.text(st.characters(codec=None), max_size=8),
)
_ids = st.sampled_from(
    ["", "a", "a", "b", "call_0", "id with spaces/éà", "x" * 90, "a_2", "\ud800"]
)
_names = st.sampled_from(["read_file", "", "名前", "n" * 80, "a.b/c", "\udc00"])
_arguments = st.one_of(
    st.sampled_from(
        [
            "{}",
            "",
            " ",
            '{"path": "a"}',
            '{"path": "\\ud800"}',
            "[1]",
            '"text"',
            "null",
            '{"a": NaN}',
            '{"a": 1e999}',
            '{"a"',
            '{"a":' * 200 + "1" + "}" * 200,
            "[" * 100_000,
            '{"n": ' + "9" * 5_000 + "}",
        ]
    ),
    _texts,
)
_extras = st.sampled_from(
    [
        None,
        {"google": {"thought_signature": "s1"}},
        {"google": 5},
        [float("nan")],
        {"google": {"thought_signature": "\ud800"}},
    ]
)
_calls = st.builds(
    ToolCall, _ids, _names, _arguments, st.sampled_from(["model", "framework"]), _extras
)
_blobs = st.sampled_from(
    [
        None,
        SIGNED,
        SIGNED,
        {"type": "thinking", "thinking": "", "signature": "x"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "thinking", "thinking": "\ud800", "signature": "x"},
        {"encrypted": float("inf")},
        "text",
    ]
)
_reasonings = st.builds(Reasoning, _texts, st.sampled_from(["m", "m", "m", "other", ""]), _blobs)
_images = st.builds(
    Image,
    st.sampled_from(["image/png", "", "image/tiff", "\ud800"]),
    st.sampled_from([PIXEL, "", "no base64", "====", "AAA"]),
    st.sampled_from(
        ["", "https://example.org/a.png", "file:///etc/passwd", "http://a b", "\ud800"]
    ),
)
_files = st.builds(
    File,
    _texts,
    st.sampled_from(["text/plain", "application/pdf", "\ud800"]),
    _texts,
    st.sampled_from(["", PIXEL, "é"]),
)
_any_parts = st.lists(
    st.one_of(_texts.map(Text), _calls, _reasonings, _images, _files), max_size=4
).map(tuple)
_messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "assistant", "tool", "tool"]),
    parts=_any_parts,
    source=st.sampled_from(["model", "tool", "user", "framework", "import"]),
    tool_call_id=_ids,
    name=_names,
    is_error=st.booleans(),
    metadata=st.sampled_from([{}, {}, {"placeholder": True}]),
)
_items = st.builds(Item, _messages, st.sampled_from(["whole", "whole", "replaced", "inserted"]))
_tools = st.fixed_dictionaries(
    {},
    optional={
        "name": _names,
        "description": _texts,
        "parameters": st.sampled_from(
            [None, {}, {"type": "object", "properties": {"\ud800": {}}}, {"type": "string"}, [1]]
        ),
    },
)


def windows(**params: st.SearchStrategy[Any]) -> st.SearchStrategy[Window]:
    """Windows with any list of messages at all."""
    return st.builds(
        Window,
        system=_texts,
        items=st.lists(_items, max_size=12).map(tuple),
        tools=st.one_of(st.just((READ,)), st.lists(_tools, max_size=4).map(tuple)),
        params=st.fixed_dictionaries({"model": st.just("m")}, optional=params),
    )
