"""The loop, with the scripted model and real tools on real files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.control import ManualControl
from cyberagent.core.errors import NotFound
from cyberagent.core.events import Done, Event, GoalChanged, TextDelta
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.ports import Control
from cyberagent.core.rebuild import rebuilt
from cyberagent.presets import build_runner
from cyberagent.providers.projections import PROJECTIONS

MISSION = [{"role": "user", "content": "Look at the notes."}]


class Run:
    """One scripted run in memory: its store, events and trace."""

    def __init__(self, tmp_path: Path, turns: list[Any], **config: Any) -> None:
        (tmp_path / "notes.md").write_text("one\ntwo\n")
        self.store = InMemoryStore()
        options: Mapping[str, Any] = {"script": {"turns": turns}, "speed": 0}
        self.config = RunConfig(
            provider="scripted",
            workspace=str(tmp_path),
            provider_options=config.pop("provider_options", options),
            **config,
        )
        self.events: list[Event] = []

    async def go(
        self, messages: Any = MISSION, control: Control | None = None, **arguments: Any
    ) -> Run:
        runner = await build_runner(self.config, store=self.store, environment={}, control=control)
        async for event in runner.run(messages, self.config, **arguments):
            self.events.append(event)
        return self

    @property
    def done(self) -> Done:
        last = self.events[-1]
        assert isinstance(last, Done)
        return last

    async def path(self) -> list[Any]:
        return await self.store.path(self.done.trace)

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events if e.stored]


async def assert_every_window_holds(run: Run) -> None:
    trace = await run.store.trace(run.done.trace)
    assert trace.last_call > 0
    for number in range(1, trace.last_call + 1):
        again = await rebuilt(run.store, trace.id, number, PROJECTIONS)
        assert again.holds, f"call {number} does not rebuild to what was sent"


async def test_a_run_reads_a_real_file_and_ends_with_its_answer(tmp_path: Path):
    run = Run(
        tmp_path,
        [
            {"say": "I read them.", "calls": [{"read_file": {"path": "notes.md"}}]},
            {"say": "Two lines: one, two."},
        ],
    )
    await run.go()
    user, asked, result, answer = await run.path()
    assert user.text == "Look at the notes."
    assert asked.tool_calls[0].name == "read_file"
    assert "one" in result.text and result.tool_call_id == asked.tool_calls[0].id
    assert answer.text == "Two lines: one, two."
    assert run.done.status == "completed" and run.done.answer == answer.text
    await assert_every_window_holds(run)


async def test_stored_events_are_numbered_without_gaps_and_deltas_are_not(tmp_path: Path):
    run = await Run(tmp_path, [{"say": "Done."}]).go()
    numbers = [e.number for e in run.events if e.stored]
    assert numbers == list(range(1, len(numbers) + 1))
    deltas = [e for e in run.events if isinstance(e, TextDelta)]
    assert "".join(d.text for d in deltas) == "Done."
    assert all(d.number == 0 for d in deltas)
    assert await run.store.events(run.done.trace) == [e for e in run.events if e.stored]


async def test_messages_carry_the_goal_in_focus_and_results_that_of_their_call(tmp_path: Path):
    run = Run(
        tmp_path,
        [
            {"calls": [{"goal": {"add": "Read, Report", "focus": "1"}}]},
            {"calls": [{"read_file": {"path": "notes.md"}}]},
            {"calls": [{"goal": {"done": "1", "summary": "two lines"}}]},
            {"say": "End."},
        ],
    )
    await run.go()
    path = await run.path()
    # user, goal call + result, read call + result, done call + result, answer
    assert [m.goal_id for m in path] == ["", "", "", "1", "1", "1", "1", ""]
    changed = [e for e in run.events if isinstance(e, GoalChanged)]
    assert len(changed) == 2 and "Focus moved to: 1" in changed[0].changes


async def test_the_plan_is_rebuilt_by_replay_when_a_run_goes_on(tmp_path: Path):
    run = Run(
        tmp_path,
        [
            {"calls": [{"goal": {"add": "Read, Report", "focus": "1"}}]},
            {"say": "First turn over."},
            {"calls": [{"goal": {"done": "1", "summary": "read"}}]},
            {"say": "Second turn over."},
        ],
    )
    await run.go()
    await run.go([{"role": "user", "content": "Go on."}], trace_id=run.done.trace)
    results = [m for m in await run.path() if m.name == "goal"]
    assert "[✓] 1. Read" in results[-1].text
    assert run.done.answer == "Second turn over."
    assert (await run.store.trace(run.done.trace)).turn == 2
    await assert_every_window_holds(run)


async def test_the_context_call_joins_each_fifth_batch(tmp_path: Path):
    reading = {"calls": [{"read_file": {"path": "notes.md"}}]}
    run = await Run(tmp_path, [reading] * 11 + [{"say": "End."}]).go()
    injected = [
        (i, m.tool_calls)
        for i, m in enumerate((m for m in await run.path() if m.source == "model"), 1)
        if any(c.made_by == "framework" for c in m.tool_calls)
    ]
    assert [i for i, _ in injected] == [5, 10]
    assert [c.name for c in injected[0][1]] == ["read_file", "get_current_context"]
    await assert_every_window_holds(run)


async def test_a_model_that_asked_for_its_context_is_not_given_it_twice(tmp_path: Path):
    turns: list[Any] = [{"calls": [{"read_file": {"path": "notes.md"}}]}] * 4
    turns += [{"calls": [{"get_current_context": {}}]}, {"say": "End."}]
    run = await Run(tmp_path, turns).go()
    assert "Injected" not in run.kinds()


async def test_a_declared_skill_comes_before_the_first_answer(tmp_path: Path):
    run = await Run(tmp_path, [{"say": "End."}]).go(inject_skills=["plan-well"])
    user, batch, loaded, _ = await run.path()
    assert (user.role, batch.source, loaded.name) == ("user", "framework", "skill")
    assert batch.tool_calls[0].made_by == "framework"
    trace = await run.store.trace(run.done.trace)
    assert trace.context["injected_skills"]["plan-well"]["sequence"] == loaded.sequence


async def test_a_recent_skill_is_held_back_and_an_old_one_comes_again(tmp_path: Path):
    run = Run(tmp_path, [{"say": "One."}, {"say": "Two."}, {"say": "Three."}])
    await run.go(inject_skills=["plan-well"])
    again = [{"role": "user", "content": "Again."}]
    await run.go(again, trace_id=run.done.trace, inject_skills=["plan-well"])
    assert [m.name for m in await run.path()].count("skill") == 1
    held = [e for e in run.events if e.kind == "Injected" and not e.fired]  # type: ignore[attr-defined]
    assert len(held) == 1
    await run.go(
        again, trace_id=run.done.trace, inject_skills=["plan-well"], skill_recency_threshold=2
    )
    assert [m.name for m in await run.path()].count("skill") == 2


async def test_a_missing_skill_is_an_error_before_anything_is_stored(tmp_path: Path):
    run = Run(tmp_path, [{"say": "End."}])
    with pytest.raises(NotFound, match="no_such_skill"):
        await run.go(inject_skills=["no_such_skill"])
    assert run.events == []


async def test_a_failing_tool_tells_the_model_and_the_run_goes_on(tmp_path: Path):
    run = Run(
        tmp_path,
        [{"calls": [{"read_file": {"path": "../../etc/passwd"}}]}, {"say": "I may not."}],
    )
    await run.go()
    result = (await run.path())[2]
    assert result.is_error and "root:" not in result.text
    assert run.done.status == "completed"


async def test_long_output_is_shortened_for_the_model_and_kept_whole(tmp_path: Path):
    (tmp_path / "long.txt").write_text("\n".join(str(n) for n in range(5000)))
    turns = [{"calls": [{"terminal": {"command": "cat long.txt"}}]}, {"say": "Long."}]
    run = await Run(tmp_path, turns).go()
    result = (await run.path())[2]
    assert len(result.text) < 4_200
    assert result.full_output is not None and "4999" in result.full_output
    assert result.full_output.count("\n") >= 4999


async def test_at_the_step_limit_the_model_is_told_to_answer_without_tools(tmp_path: Path):
    reading = {"calls": [{"read_file": {"path": "notes.md"}}]}
    run = Run(
        tmp_path, [reading, reading, {"say": "So far: two lines."}], limits=Limits(max_steps=2)
    )
    await run.go()
    assert run.done.status == "completed" and run.done.answer == "So far: two lines."
    assert run.kinds().count("Nudge") == 1
    last = await rebuilt(run.store, run.done.trace, 3, PROJECTIONS)
    assert last.payload["tool_choice"] == "none" and last.payload["tools"]


async def test_a_window_that_cannot_fit_ends_the_run_with_the_numbers(tmp_path: Path):
    run = await Run(tmp_path, [{"say": "Never."}], context_window=100).go()
    assert run.done.status == "failed"
    assert "tokens" in run.done.why and "CallStarted" not in run.kinds()


async def test_what_an_operator_says_is_the_next_thing_the_model_reads(tmp_path: Path):
    control = ManualControl()
    control.request("say", text="Be brief.")
    run = await Run(tmp_path, [{"say": "Yes."}]).go(control=control)
    _user, said, answer = await run.path()
    assert (said.role, said.source, said.text) == ("user", "operator", "Be brief.")
    assert answer.text == "Yes."
    assert await control.pending() == ()


async def test_what_is_said_during_the_last_answer_is_answered_too(tmp_path: Path):
    run = Run(tmp_path, [{"say": "First."}, {"say": "Second."}])
    control = ManualControl()
    runner = await build_runner(run.config, store=run.store, environment={}, control=control)
    async for event in runner.run(MISSION, run.config):
        run.events.append(event)
        if isinstance(event, TextDelta) and event.text.startswith("First"):
            control.request("say", text="And then?")
    assert [m.text for m in await run.path()] == [
        "Look at the notes.", "First.", "And then?", "Second.",
    ]  # fmt: skip


async def test_a_pause_ends_the_run_at_a_safe_point_and_it_can_go_on(tmp_path: Path):
    control = ManualControl()
    run = Run(tmp_path, [{"calls": [{"read_file": {"path": "notes.md"}}]}, {"say": "End."}])
    runner = await build_runner(run.config, store=run.store, environment={}, control=control)
    async for event in runner.run(MISSION, run.config):
        run.events.append(event)
        if event.kind == "ToolCall":
            control.request("pause")
    assert run.done.status == "paused"
    assert [m.role for m in await run.path()] == ["user", "assistant", "tool"]
    await run.go([], trace_id=run.done.trace)
    assert run.done.status == "completed" and run.done.answer == "End."
    await assert_every_window_holds(run)


async def test_a_stop_reaches_a_model_that_is_writing_and_keeps_nothing_half(tmp_path: Path):
    slow = {"script": {"turns": [{"say": "word " * 2000}]}, "speed": 50}
    run = Run(tmp_path, [], provider_options=slow)
    control = ManualControl()
    runner = await build_runner(run.config, store=run.store, environment={}, control=control)
    async with asyncio.timeout(10):
        async for event in runner.run(MISSION, run.config):
            run.events.append(event)
            if isinstance(event, TextDelta):
                control.request("stop") if not control.stop.is_set() else None
    assert run.done.status == "stopped"
    assert [m.role for m in await run.path()] == ["user"]
    call = (await run.store.calls(run.done.trace, [1]))[1]
    assert call.status == "cancelled"


async def test_a_stop_in_the_middle_of_a_tool_answers_its_call(tmp_path: Path):
    turns = [{"calls": [{"terminal": {"command": "find / -name never"}}]}, {"say": "End."}]
    run = Run(tmp_path, turns)
    (tmp_path / "pipe").mkdir()
    control = ManualControl()
    runner = await build_runner(run.config, store=run.store, environment={}, control=control)
    async for event in runner.run(MISSION, run.config):
        run.events.append(event)
        if event.kind == "ToolCall":
            control.request("stop")
    assert run.done.status == "stopped"
    _, asked, result = await run.path()
    assert result.tool_call_id == asked.tool_calls[0].id and result.is_error


async def cut(run: Run, kind: str) -> str:
    """Run until the first event of ``kind``, then go away as a killed process does."""
    runner = await build_runner(run.config, store=run.store, environment={})
    stream = runner.run(MISSION, run.config)
    async for event in stream:
        run.events.append(event)
        if event.kind == kind:
            break
    await stream.aclose()
    return next(iter(run.store._traces))


@pytest.mark.parametrize("kind", ["Session", "CallStarted", "Usage", "ToolCall", "ToolResult"])
async def test_a_run_that_was_cut_anywhere_goes_on_to_the_same_end(tmp_path: Path, kind: str):
    turns = [
        {"calls": [{"goal": {"add": "Read", "focus": "1"}}]},
        {"calls": [{"read_file": {"path": "notes.md"}}, {"glob_files": {"pattern": "*"}}]},
        {"calls": [{"goal": {"done": "1", "summary": "read"}}]},
        {"say": "End."},
    ]
    run = Run(tmp_path, turns)
    trace = await cut(run, kind)
    await run.go([], trace_id=trace)
    assert run.done.status == "completed" and run.done.answer == "End."
    path = await run.path()
    assert [m.sequence for m in path] == list(range(1, len(path) + 1))
    calls = [c.id for m in path for c in m.tool_calls]
    assert [m.tool_call_id for m in path if m.role == "tool"] == calls
    await assert_every_window_holds(run)


async def test_a_tool_that_is_not_idempotent_is_not_silently_run_twice(tmp_path: Path):
    edit = {"edit_file": {"path": "notes.md", "old": "one", "new": "one one"}}
    run = Run(tmp_path, [{"calls": [edit]}, {"say": "End."}])
    trace = await cut(run, "ToolCall")
    await run.go([], trace_id=trace)
    result = (await run.path())[2]
    assert result.is_error and "interrupted" in result.text.lower()
    assert (tmp_path / "notes.md").read_text() == "one\ntwo\n"
