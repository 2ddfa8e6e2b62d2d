"""Whatever is stored, what is sent keeps the rules: any history, against the checkers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.types import Message, ToolCall, canonical_json
from cyberagent.core.window import Item, Window
from cyberagent.providers.anthropic import project_anthropic
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import DIALECTS, project_openai
from cyberagent.providers.project import repair
from cyberagent.providers.projections import PROJECTIONS
from tests.examples import examples
from tests.providers.windows import assistant, call, result, user, window, windows

ANY = examples(500)
COMMON = {
    "temperature": st.sampled_from([None, 0, 0.5, 2]),
    "max_output_tokens": st.sampled_from([None, 1, 100, 4096]),
    "tool_choice": st.sampled_from([None, "auto", "none"]),
    "reasoning_effort": st.sampled_from([None, "low"]),
}


@ANY
@given(windows(**COMMON, dialect=st.sampled_from([*DIALECTS, "unheard of"])))
def test_any_history_becomes_a_payload_that_chat_completions_take(asked: Window):
    payload = project_openai(asked)
    assert problems_openai(payload, asked.params.get("dialect", "openai")) == []
    assert canonical_json(payload) == canonical_json(project_openai(asked))


@ANY
@given(windows(**COMMON, thinking=st.sampled_from([None, "adaptive", 0, 1024, 2000, 99999])))
def test_any_history_becomes_a_payload_that_the_messages_api_takes(asked: Window):
    payload = project_anthropic(asked)
    assert problems_anthropic(payload) == []
    assert canonical_json(payload) == canonical_json(project_anthropic(asked))


@ANY
@given(windows())
def test_repair_keeps_every_call_and_answers_it_in_its_place(asked: Window):
    made = [
        c.name for i in asked.items if i.message.role == "assistant" for c in i.message.tool_calls
    ]
    messages = repair(asked.items)
    assert len([c for m in messages for c in m.tool_calls]) == len(made)
    due: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id == due.pop(0)
        else:
            assert due == []
            due = [c.id for c in message.tool_calls]
    assert due == []


@ANY
@given(windows())
def test_a_repaired_history_needs_no_further_repair(asked: Window):
    once = repair(asked.items)
    assert repair([Item(m) for m in once]) == once


@ANY
@given(st.lists(st.sampled_from("abc"), max_size=6, unique=True), st.data())
def test_a_sound_history_stays_as_it_is(ids: list[str], data: st.DataObject):
    history: list[Message] = [user("do it")]
    for n, call_id in enumerate(ids):
        history.append(assistant(f"step {n}", ToolCall(call_id, "read_file", '{"path":"a"}')))
        history.append(result(call_id, data.draw(st.sampled_from(["x", "y\nz"])), name="read_file"))
    history += [assistant("done"), user("thanks")]
    assert repair([Item(m) for m in history]) == history


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_long_history_of_one_repeated_id_is_projected_in_one_pass(name: str):
    """Ten thousand turns that all call their call "a": quadratic work would not come back."""
    turns = [m for _ in range(10_000) for m in (assistant(call("a")), result("a", "x"))]
    payload = PROJECTIONS[name](window(user("go"), *turns, dialect="openai"))
    check = problems_openai if name.startswith("openai") else problems_anthropic
    assert len(payload["messages"]) == 20_001
    assert check(payload) == []
