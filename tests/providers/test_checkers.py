"""The payload checkers. For each rule there is a payload, written by hand, that this rule alone
refuses: take any rule away and one of these payloads passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.providers import check_anthropic, check_openai
from cyberagent.providers.check_anthropic import RULES_ANTHROPIC, problems_anthropic
from cyberagent.providers.check_openai import RULES_OPENAI, problems_openai
from tests.examples import examples

Json = Any
SCHEMA = {"type": "object", "properties": {}}


# Chat completions -----------------------------------------------------------------------------


def tool(name: str = "f", **function: Json) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **function}}


def made(call_id: Json = "a", name: str = "f", arguments: str = "{}", **more: Json) -> Json:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }


def calls(*each: Json, content: Json = None, **more: Json) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(each), **more}


def answered(call_id: Json = "a", content: Json = "x") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


GO = {"role": "user", "content": "go"}
YES = {"role": "assistant", "content": "yes"}


def asked(*parts: Json) -> Json:
    return {"role": "user", "content": list(parts)}


def chat(*messages: Json, **fields: Json) -> Json:
    payload = {"model": "m", "messages": list(messages), "tools": [tool()], **fields}
    return {k: v for k, v in payload.items() if v is not ...}


SOUND_CHATS = [
    chat(GO, tools=...),
    chat({"role": "system", "content": "s"}, GO, calls(made()), answered()),
    chat({"role": "developer", "content": "s"}, GO, YES, GO, tool_choice="none", temperature=2),
    chat(GO, calls(made("a"), made("b")), answered("b"), answered("a"), YES, GO, max_tokens=1),
    chat(asked({"type": "text", "text": "x"}), stream=True, stream_options={}),
]  # fmt: skip

BROKEN_CHATS: dict[str, list[tuple[Json, str]]] = {
    "model_is_named": [(chat(GO, model=...), "openai"), (chat(GO, model=" "), "openai")],
    "messages_are_listed": [(chat(GO, messages=[]), "openai"), (chat(GO, "x"), "openai")],
    "roles_are_known": [(chat(GO, {"role": "function", "content": "x"}), "openai")],
    "system_stands_first": [(chat(GO, {"role": "system", "content": "s"}), "openai")],
    "user_opens": [
        (chat({"role": "system", "content": "s"}, YES, GO), "openai"),
        (chat({"role": "system", "content": "s"}), "openai"),
    ],
    "end_is_open": [(chat(GO, YES), "openai")],
    "roles_alternate": [(chat(GO, GO), "openai"), (chat(GO, YES, YES, GO), "openai")],
    "content_has_a_form": [
        (chat(GO, {"role": "assistant"}, GO), "openai"),
        (chat({"role": "user", "content": None}), "openai"),
        (chat({"role": "user", "content": 5}), "openai"),
        (chat(asked({"type": "video"})), "openai"),
        (chat(asked({"type": "image_url", "image_url": {"url": "x"}})), "openai"),
        (chat(GO, calls(made()), answered(content=[{"type": "image_url"}])), "openai"),
    ],
    "content_is_not_empty": [
        (chat({"role": "user", "content": ""}), "openai"),
        (chat({"role": "user", "content": []}), "openai"),
        (chat({"role": "user", "content": [{"type": "text", "text": "\n"}]}), "openai"),
        (chat(GO, calls(made(), content=""), answered()), "openai"),
    ],
    "images_are_understood": [
        (
            chat({"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
            ]}),
            "deepseek",
        )
    ],
    "calls_have_a_form": [
        (chat(GO, {"role": "assistant", "content": "x", "tool_calls": []}, GO), "openai"),
        (chat(GO, calls(made(type="custom")), answered()), "openai"),
        (chat(GO, calls({**made(), "function": {"name": "f"}}), answered()), "openai"),
    ],
    "call_ids_are_legal": [
        (chat(GO, calls(made("a b")), answered("a b")), "openai"),
        (chat(GO, calls(made("x" * 41)), answered("x" * 41)), "openai"),
    ],
    "call_ids_are_unique": [
        (chat(GO, calls(made()), answered(), calls(made()), answered()), "openai")
    ],
    "call_names_are_legal": [
        (chat(GO, calls(made(name="a.b")), answered()), "openai"),
        (chat(GO, calls(made(name="x" * 65)), answered()), "openai"),
    ],
    "arguments_are_objects": [
        (chat(GO, calls(made(arguments=text)), answered()), "openai")
        for text in ("", "[]", "{", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1e999}')
    ],
    "calls_are_answered": [
        (chat(GO, calls(made()), GO), "openai"),
        (chat(GO, calls(made()), answered(), answered()), "openai"),
        (chat(GO, calls(made("a"), made("b")), answered("a")), "openai"),
    ],
    "results_have_calls": [
        (chat(GO, answered()), "openai"),
        (chat(GO, calls(made()), answered(), answered("b")), "openai"),
        (chat(GO, calls(made()), answered(), GO, answered("b")), "openai"),
    ],
    "tools_are_offered": [
        (chat(GO, calls(made()), answered(), tools=...), "openai"),
        (chat(GO, calls(made()), answered(), tools=[]), "openai"),
    ],
    "tools_have_a_form": [
        (chat(GO, tools=[tool("a b")]), "openai"),
        (chat(GO, tools=[tool("x" * 65)]), "openai"),
        (chat(GO, tools=[tool(), tool()]), "openai"),
        (chat(GO, tools=[tool(parameters={"type": "string"})]), "openai"),
        (chat(GO, tools=[{"name": "f", "parameters": SCHEMA}]), "openai"),
    ],
    "tools_are_few_enough": [(chat(GO, tools=[tool(f"t{n}") for n in range(129)]), "openai")],
    "choice_has_tools": [
        (chat(GO, tools=..., tool_choice="none"), "openai"),
        (chat(GO, tool_choice="never"), "openai"),
    ],
    "options_have_a_form": [
        (chat(GO, max_tokens=0), "openai"),
        (chat(GO, max_completion_tokens=1.5), "openai"),
        (chat(GO, temperature=2.1), "openai"),
        (chat(GO, stream_options={}), "openai"),
    ],
    "reasoning_goes_back": [
        (chat(GO, calls(made()), answered()), "deepseek"),
        (chat(GO, calls(made(), reasoning_content=None), answered()), "deepseek"),
        (chat(GO, {**YES, "reasoning_content": "x"}, GO), "deepseek-reasoner"),
    ],
    "signatures_go_back": [
        (chat(GO, calls(made()), answered()), "gemini"),
        (
            chat(GO, calls(made(), made("b", extra_content={"google": {"thought_signature": "s"}})),
                 answered(), answered("b")),
            "gemini",
        ),
    ],
    "text_is_encodable": [
        (chat({"role": "user", "content": "\ud800"}), "openai"),
        (chat(GO, seed=float("nan")), "openai"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("payload", SOUND_CHATS)
def test_a_sound_chat_passes(payload: Json):
    assert problems_openai(payload) == []


@pytest.mark.parametrize("rule", RULES_OPENAI, ids=lambda r: r.__name__)
def test_each_chat_rule_alone_refuses_its_payloads(rule: check_openai.Rule):
    for payload, dialect in BROKEN_CHATS[rule.__name__]:
        refusing = [r.__name__ for r in RULES_OPENAI if list(r(payload, dialect))]
        assert refusing == [rule.__name__], payload


# Messages API ---------------------------------------------------------------------------------


def text(words: str = "x", **more: Json) -> Json:
    return {"type": "text", "text": words, **more}


def use(use_id: str = "a", name: str = "f", **more: Json) -> Json:
    return {"type": "tool_use", "id": use_id, "name": name, "input": {}, **more}


def back(use_id: str = "a", **more: Json) -> Json:
    return {"type": "tool_result", "tool_use_id": use_id, "content": "x", **more}


def human(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks) or "go"}


def claude(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks) or "yes"}


def talk(*messages: Json, **fields: Json) -> Json:
    tools = [{"name": "f", "input_schema": SCHEMA}]
    payload = {
        "model": "m",
        "max_tokens": 9000,
        "messages": list(messages),
        "tools": tools,
        **fields,
    }
    return {k: v for k, v in payload.items() if v is not ...}


THOUGHT = {"type": "thinking", "thinking": "", "signature": "s"}
MARK = {"cache_control": {"type": "ephemeral"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
ON = {"type": "enabled", "budget_tokens": 1024}

SOUND_TALKS = [
    talk(human(), tools=...),
    talk(human(), claude(use("a"), use("b")), human(back("b"), back("a"), text()), system="s"),
    talk(human(), claude(THOUGHT, use()), human(back()), thinking=ON, system=[text()]),
    talk(human(), claude(use()), human(back()), claude(), human(), thinking={"type": "adaptive"}),
    talk(human({"type": "image", "source": PNG}), temperature=1, tool_choice={"type": "none"}),
]

BROKEN_TALKS: dict[str, list[Json]] = {
    "model_is_named": [talk(human(), model=...), talk(human(), model="")],
    "output_is_limited": [talk(human(), max_tokens=v) for v in (..., 0, 1.5, True, None)],
    "messages_are_listed": [talk(), talk(human(), 5), talk(messages="x")],
    "roles_are_known": [talk(human(), {"role": "system", "content": "x"}, human())],
    "roles_alternate": [talk(human(), human()), talk(human(), claude(), claude(), human())],
    "user_opens": [talk(claude(), human())],
    "no_prefill": [talk(human(), claude())],
    "content_has_a_form": [
        talk({"role": "user", "content": c}) for c in ("", " ", [], None, 5)
    ],
    "blocks_suit_roles": [
        talk(human(), claude({"type": "image", "source": PNG}), human()),
        talk(human(THOUGHT, text())),
        talk(human({"type": "video"})),
    ],
    "texts_are_not_empty": [
        talk(human(text(""))),
        talk(human(text("\n"))),
        talk(human({"type": "text"})),
        talk(human(), claude(use()), human(back(content=[text("")]))),
    ],
    "uses_have_a_form": [
        talk(human(), claude(use(input="{}")), human(back())),
        talk(human(), claude(use("a.b")), human(back("a.b"))),
        talk(human(), claude(use(name="a b")), human(back())),
    ],
    "use_ids_are_unique": [
        talk(human(), claude(use()), human(back()), claude(use()), human(back()))
    ],
    "uses_are_answered": [
        talk(human(), claude(use()), human()),
        talk(human(), claude(use("a"), use("b")), human(back("a"))),
        talk(human(), claude(use()), human(back(), back())),
    ],
    "results_have_uses": [
        talk(human(back())),
        talk(human(), claude(use()), human(back()), claude(), human(back("a"))),
    ],
    "results_come_first": [talk(human(), claude(use()), human(text(), back()))],
    "results_have_a_form": [
        talk(human(), claude(use()), human(back(content=5))),
        talk(human(), claude(use()), human(back(content=[use("b")]))),
        talk(human(), claude(use()), human(back(is_error="yes"))),
    ],
    "sources_have_a_form": [
        talk(human({"type": "image", "source": {**PNG, "media_type": "image/tiff"}})),
        talk(human({"type": "image", "source": {**PNG, "data": "no base64"}})),
        talk(human({"type": "image", "source": {"type": "url", "url": "file:///x"}})),
        talk(human({"type": "document", "source": PNG})),
    ],
    "thinking_has_a_form": [
        talk(human(), claude({**THOUGHT, "signature": ""}, text()), human()),
        talk(human(), claude({"type": "thinking", "signature": "s"}, text()), human()),
        talk(human(), claude({"type": "redacted_thinking"}, text()), human()),
    ],
    "thinking_is_not_last": [talk(human(), claude(text(), THOUGHT), human())],
    "thinking_leaves_room": [
        talk(human(), thinking={"type": "enabled", "budget_tokens": 1023}),
        talk(human(), thinking={"type": "enabled", "budget_tokens": 9000}),
        talk(human(), thinking={"type": "on"}),
    ],
    "thinking_goes_on": [
        talk(human(), claude(use()), human(back()), thinking=ON),
        talk(human(), claude(text(), THOUGHT, use()), human(back(), text()), thinking=ON),
        talk(human(), claude(use()), human(back()), claude(THOUGHT, use("b")), human(back("b")),
             thinking={"type": "adaptive"}),
    ],
    "temperature_suits": [
        talk(human(), temperature=1.1),
        talk(human(), temperature=0.5, thinking=ON),
    ],
    "system_has_a_form": [
        talk(human(), system=s) for s in ("", [], [text("")], [{"type": "image"}], 5)
    ],
    "tools_have_a_form": [
        talk(human(), tools=[{"name": "a b", "input_schema": SCHEMA}]),
        talk(human(), tools=[{"name": "f", "input_schema": SCHEMA}] * 2),
        talk(human(), tools=[{"name": "f", "parameters": SCHEMA}]),
    ],
    "tools_are_few_enough": [
        talk(human(), tools=[{"name": f"t{n}", "input_schema": SCHEMA} for n in range(129)])
    ],
    "tools_are_offered": [talk(human(), claude(use()), human(back()), tools=...)],
    "choice_has_tools": [
        talk(human(), tools=..., tool_choice={"type": "none"}),
        talk(human(), tool_choice="none"),
    ],
    "marks_are_few": [
        talk(human(*(text(**MARK) for _ in range(4))), system=[text(**MARK)]),
        talk(human(), claude({**THOUGHT, **MARK}, text()), human()),
    ],
    "text_is_encodable": [talk(human(text("\ud800"))), talk(human(), top_p=float("inf"))],
}  # fmt: skip


@pytest.mark.parametrize("payload", SOUND_TALKS)
def test_a_sound_talk_passes(payload: Json):
    assert problems_anthropic(payload) == []


@pytest.mark.parametrize("rule", RULES_ANTHROPIC, ids=lambda r: r.__name__)
def test_each_messages_rule_alone_refuses_its_payloads(rule: check_anthropic.Rule):
    for payload in BROKEN_TALKS[rule.__name__]:
        refusing = [r.__name__ for r in RULES_ANTHROPIC if list(r(payload))]
        assert refusing == [rule.__name__], payload


# Nonsense -------------------------------------------------------------------------------------

_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]),
    st.just({}), st.just([[]]), st.just({"type": {}}), st.just(["text"]),
)  # fmt: skip
_kinds = st.sampled_from(
    ["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "function",
     "image_url", "file", "enabled", "adaptive", "base64", "url"]
)  # fmt: skip
_roles = st.sampled_from(["user", "assistant", "tool", "system"])


def some(*names: str, **known: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Objects with some of these fields, whose values are of the known kind or of any other."""
    fields = dict.fromkeys(names, _leaves)
    fields |= {name: st.one_of(values, _leaves) for name, values in known.items()}
    return st.one_of(st.fixed_dictionaries({}, optional=fields), _leaves)


def lists(of: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.one_of(st.lists(of, max_size=3), of)


_function = some("name", "arguments", "parameters")
_block = some(
    "text", "id", "tool_use_id", "input", "name", "signature", "thinking", "data", "is_error",
    type=_kinds, content=lists(some("text", type=_kinds)),
    source=some("url", "data", "media_type", type=_kinds),
    image_url=some("url"), file=some("file_data"),
)  # fmt: skip
_message = some(
    "tool_call_id", "reasoning_content", role=_roles, content=lists(_block),
    tool_calls=lists(some("id", "extra_content", type=_kinds, function=_function)),
)  # fmt: skip
_payload = st.fixed_dictionaries(
    {},
    optional={
        "messages": lists(_message),
        "tools": lists(some("name", "input_schema", type=_kinds, function=_function)),
        "system": lists(_block),
        "thinking": some("budget_tokens", type=_kinds),
        **dict.fromkeys(("model", "max_tokens", "temperature", "tool_choice"), _leaves),
    },
)


@examples(500)
@given(_payload, st.sampled_from(["openai", "deepseek", "gemini"]))
def test_a_checker_never_fails_over_nonsense(payload: Json, dialect: str):
    for problems in (problems_openai(payload, dialect), problems_anthropic(payload)):
        assert all(isinstance(p, str) for p in problems)
