"""``explore``, ``delegate_research`` and ``read_conclusion``: questions that sub-agents answer.

The rules are those of docs/tools.md, "Sub-agents".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import RunConfig
from cyberagent.core.control import ManualControl
from cyberagent.core.events import ChildStarted
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.types import Message
from cyberagent.presets import Spawning
from tests.core.flows import ANSWER, PASSING, READ, Flow, check_whole, in_order, slow
from tests.core.trees import agent, calls, say

QUESTIONS = ("First?", "Second?", "Third?")


def explore(*branches: str, **more: Any) -> dict[str, Any]:
    return calls({"explore": {"branches": list(branches), **more}})


def answers(question: str, *turns: Any, kind: str = "explore") -> dict[str, Any]:
    return agent(question, kind, *(turns or (say(f"Answer to {question}"),)))


def cyber(folder: Path, turns: list[Any], agents: list[Any], **config: Any) -> Flow:
    return Flow(folder, turns, agents, preset="cyber", **config)


async def results(flow: Flow, name: str = "explore") -> list[Message]:
    return [m for m in await flow.path("Count the notes.") if m.name == name]


async def test_what_comes_back_is_what_they_did_and_what_they_concluded(tmp_path: Path):
    agents = [answers("First?", READ, READ, say("It has two lines.")), answers("Second?")]
    flow = cyber(tmp_path, [explore("First?", "Second?"), ANSWER], agents)
    await flow.begin()
    (result,) = await results(flow)
    first, second = [await flow.id_of(q) for q in ("First?", "Second?")]
    assert result.text.split("\n") == [
        "[sub-agent activity]",
        f"1. {first}: It made 3 model calls; tools used: read_file ×2.",
        f"2. {second}: It made 1 model calls; tools used: none.",
        "",
        "[sub-agent conclusion]",
        "1. First?",
        "It has two lines.",
        "2. Second?",
        "Answer to Second?",
    ]
    assert flow.why[0] == "completed"
    await check_whole(flow.store, flow.root)


async def test_without_background_they_begin_with_the_conversation_and_without_its_reasoning(
    tmp_path: Path,
):
    turns = [{**READ, "think": "I wonder."}, {**explore("First?"), "say": "Ask."}, ANSWER]
    flow = cyber(tmp_path, turns, [answers("First?")])
    await flow.begin()
    first = await flow.path("First?")
    assert [m.role for m in first] == ["user", "assistant", "tool", "user", "assistant"]
    assert first[0].text == "Count the notes."
    assert first[3].text == "Your task: First?"
    assert not first[1].reasoning
    await check_whole(flow.store, flow.root)


async def test_with_background_they_know_nothing_else(tmp_path: Path):
    turns = [READ, explore("First?", background="Notes are files."), ANSWER]
    flow = cyber(tmp_path, turns, [answers("First?")])
    await flow.begin()
    assert [m.text for m in await flow.path("First?")] == [
        "Background: Notes are files.\n\nYour task: First?",
        "Answer to First?",
    ]


async def test_research_sees_nothing_of_the_conversation(tmp_path: Path):
    turns = [READ, calls({"delegate_research": {"task": "Who?", "context": "Files."}}), ANSWER]
    flow = cyber(tmp_path, turns, [answers("Who?", kind="research")])
    await flow.begin()
    assert [m.text for m in await flow.path("Who?")] == [
        "Background: Files.\n\nYour task: Who?",
        "Answer to Who?",
    ]
    (result,) = await results(flow, "delegate_research")
    assert result.text.endswith("[sub-agent conclusion]\n1. Who?\nAnswer to Who?")


async def test_they_only_read_and_ask_nobody_else(tmp_path: Path):
    tries = calls(
        {"write_file": {"path": "b.md", "content": "x"}}, {"explore": {"branches": ["Deeper?"]}}
    )
    flow = cyber(tmp_path, [explore("First?"), ANSWER], [answers("First?", tries, say("No."))])
    await flow.begin()
    refused = [m for m in await flow.path("First?") if m.role == "tool"]
    assert [m.is_error for m in refused] == [True, True]
    assert all("there is no tool" in m.text for m in refused)
    assert not (tmp_path / "b.md").exists()


async def test_in_a_recursive_run_no_conversation_is_inherited(tmp_path: Path):
    turns = [explore("First?"), explore("First?", background="Files."), ANSWER]
    flow = Flow(tmp_path, turns, [answers("First?"), *PASSING])
    await flow.begin()
    refused, answered = await results(flow)
    assert refused.is_error and "background is needed" in refused.text
    assert "Answer to First?" in answered.text
    assert [name for name, _ in await flow.statuses()].count("First?") == 1


# Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"branches": []}, "branches: from 1 to 8 are needed, not 0"),
        ({"branches": [" ", ""]}, "branches: from 1 to 8 are needed, not 0"),
        ({"branches": [f"{n}?" for n in range(9)]}, "branches: from 1 to 8 are needed, not 9"),
        ({"branches": ["x" * 16_001]}, "branches: 16,001 characters; 16,000 fit"),
        (
            {"branches": ["a?"], "background": "x" * 16_001},
            "background: 16,001 characters; 16,000 fit",
        ),
        ({"branches": "a?"}, "branches"),
    ],
)
async def test_what_cannot_be_asked_is_an_error_and_nobody_is_made(
    tmp_path: Path, asked: dict[str, Any], told: str
):
    flow = cyber(tmp_path, [calls({"explore": asked}), ANSWER], [answers("a?")])
    await flow.begin()
    (result,) = await results(flow)
    assert result.is_error and told in result.text
    assert len(await flow.statuses()) == 1


async def test_research_needs_a_task(tmp_path: Path):
    flow = cyber(tmp_path, [calls({"delegate_research": {"task": " "}}), ANSWER], [answers("a?")])
    await flow.begin()
    (result,) = await results(flow, "delegate_research")
    assert result.is_error and "task is empty" in result.text


# Long conclusions ----------------------------------------------------------------------------


async def test_a_long_conclusion_is_read_on_in_slices(tmp_path: Path):
    conclusion = "\n".join(f"{n:06d}" for n in range(1, 1_501))  # 10,499 characters
    read = [{"read_conclusion": {"child": "{id}", "offset": o}} for o in (6_000, 10_499)]
    turns = [
        explore("First?"),
        {"calls": read, "find": {"id": 'read_conclusion(child="{}"'}},
        ANSWER,
    ]
    flow = cyber(tmp_path, turns, [answers("First?", say(conclusion))])
    await flow.begin()
    (shown,) = await results(flow)
    name = await flow.id_of("First?")
    cut = f' [4499 characters more: read_conclusion(child="{name}", offset=…)]'
    assert shown.text.endswith(conclusion[:6_000] + cut)
    rest, beyond = await results(flow, "read_conclusion")
    assert rest.text == conclusion[6_000:]
    assert beyond.is_error and "offset must be from 0 to 10498" in beyond.text


async def test_only_conclusions_of_ones_own_sub_agents_are_read(tmp_path: Path):
    read = [
        {"read_conclusion": {"child": "nobody"}},
        {"read_conclusion": {"child": "{id}", "offset": 99}},
        {"read_conclusion": {"child": "{id}", "limit": 0}},
    ]
    turns = [explore("First?"), {"calls": read, "find": {"id": "1. {}: It made"}}, ANSWER]
    flow = cyber(tmp_path, turns, [answers("First?")])
    await flow.begin()
    found = await results(flow, "read_conclusion")
    assert [m.is_error for m in found] == [True] * 3
    assert "no sub-agent 'nobody'" in found[0].text
    assert "offset must be from 0 to 15" in found[1].text
    assert "limit must be from 1 to 16000" in found[2].text


# In time -------------------------------------------------------------------------------------


async def test_side_by_side_the_conclusions_keep_the_order_of_the_branches(tmp_path: Path):
    agents = [
        answers(q, slow(say(f"Answer to {q}"), seconds))
        for q, seconds in zip(QUESTIONS, (0.4, 0.2, 0), strict=True)
    ]
    flow = cyber(tmp_path, [explore(*QUESTIONS), ANSWER], agents, children="parallel")
    await flow.begin()
    (result,) = await results(flow)
    told = result.text.partition("[sub-agent conclusion]\n")[2]
    assert told.split("\n") == [
        *("1. First?", "Answer to First?"),
        *("2. Second?", "Answer to Second?"),
        *("3. Third?", "Answer to Third?"),
    ]
    ended = [e.child for e in await flow.told() if e.kind == "ChildEnded"]  # type: ignore[attr-defined]
    assert ended == [await flow.id_of(q) for q in reversed(QUESTIONS)]
    assert in_order(flow.events)
    await check_whole(flow.store, flow.root)


@pytest.mark.parametrize("preset", ["cyber", "recursive"])
async def test_branches_that_ended_before_a_pause_are_not_run_again(tmp_path: Path, preset: str):
    agents = [
        answers("First?"),
        answers("Second?", slow(READ, 0.2), say("Two.")),
        answers("Third?"),
    ]
    turns = [explore(*QUESTIONS, background="Files."), ANSWER]
    flow = Flow(tmp_path, turns, [*agents, *PASSING], preset=preset)
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("CallStarted", "Second?")
    control.request("pause")
    await run
    assert flow.why == ("paused", "paused by ann")
    assert (await flow.statuses())[1:] == [("First?", "completed"), ("Second?", "paused")]
    await check_whole(flow.store, flow.root)

    await flow.go_on(control=control)
    assert flow.why[0] == "completed"
    started = [e for e in await flow.told() if isinstance(e, ChildStarted)]
    assert [(e.mission, e.resumed) for e in started if e.agent == "explore"] == [
        *(("First?", False), ("Second?", False), ("Second?", True), ("Third?", False))
    ]
    (result,) = await results(flow)
    assert result.text.partition("[sub-agent conclusion]\n")[2].split("\n") == [
        *("1. First?", "Answer to First?", "2. Second?", "Two.", "3. Third?", "Answer to Third?")
    ]
    await check_whole(flow.store, flow.root)


@pytest.mark.parametrize("children", ["serial", "parallel"])
async def test_a_stop_keeps_what_was_found_and_begins_nothing_more(tmp_path: Path, children: str):
    names = [f"Q{n}?" for n in range(6)]
    agents = [answers(names[0]), *(answers(q, slow(say("Late."))) for q in names[1:])]
    flow = cyber(tmp_path, [explore(*names), ANSWER], agents, children=children)
    control = ManualControl("ann")
    run = flow.started(control=control)
    await flow.when("CallStarted", "Q", times=2 if children == "serial" else 5)
    control.request("stop")
    await run
    assert flow.why == ("stopped", "stopped by ann")
    (result,) = await results(flow)
    assert "Answer to Q0?" in result.text and "the run above it was stopped" in result.text
    begun = 2 if children == "serial" else 5
    assert result.text.count("not begun") == 6 - begun
    assert len(await flow.statuses()) == 1 + begun
    await check_whole(flow.store, flow.root)


async def test_one_that_breaks_down_does_not_take_the_others_with_it(tmp_path: Path):
    flow = cyber(
        tmp_path, [explore("First?", "Second?"), ANSWER], [answers("First?"), answers("Second?")]
    )
    flow.hand_on("First?").request("stop")
    await flow.begin()
    (result,) = await results(flow)
    assert "(stopped: stopped by ann)" in result.text
    assert "1. First?\n(it gave no answer)" in result.text
    assert "2. Second?\nAnswer to Second?" in result.text


def test_an_explorer_is_given_no_tool_that_its_run_has_not(tmp_path: Path) -> None:
    parent = RunConfig(provider="scripted", tools=("goal", "explore", "read_file"))
    spawning = Spawning(InMemoryStore(), {}, {}, "", None, None)
    assert spawning.settings("explore", parent).tools is not None
    assert set(spawning.settings("explore", parent).tools or ()) & {
        "read_file", "glob_files", "search_files", "terminal",
    } == {"read_file"}  # fmt: skip
