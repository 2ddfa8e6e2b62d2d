"""Compaction in a run: the scripted model, real tools, real files, every window rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.control import ManualControl
from cyberagent.core.events import Compacted, Event
from cyberagent.core.rebuild import rebuilt
from cyberagent.presets import build_runner
from cyberagent.providers.projections import PROJECTIONS
from cyberagent.trace.tree import branches
from tests.core.test_runner import MISSION, Run, assert_every_window_holds

TOOLS = ("goal", "read_file", "compress_context")
WINDOW = 8_400
"""Half of it, 4,200 tokens, is the threshold; system prompt and schemas take some 1,700."""


def script(turns: list[Any], **branches: list[Any]) -> dict[str, Any]:
    return {"script": {"turns": turns, "branches": branches}, "speed": 0}


def read(name: str) -> dict[str, Any]:
    return {"calls": [{"read_file": {"path": name}}]}


def run_of(tmp_path: Path, turns: list[Any], config: Any = None, **branches: list[Any]) -> Run:
    for n in range(9):
        lines = "\n".join(f"file {n} line {i} holds a fact" for i in range(75))
        (tmp_path / f"f{n}.txt").write_text(lines)
    given = {"context_window": WINDOW, "tools": TOOLS, **(config or {})}
    return Run(tmp_path, turns, provider_options=script(turns, **branches), **given)


def passes(run: Run) -> list[Compacted]:
    return [e for e in run.events if isinstance(e, Compacted)]


def kinds(events: list[Event], *wanted: str) -> list[str]:
    return [e.kind for e in events if e.kind in wanted]


GOALS = [
    {"calls": [{"goal": {"add": "Read, Report", "focus": "1"}}]},
    read("f0.txt"),
    read("f1.txt"),
    {"calls": [{"goal": {"done": "1", "summary": "facts are in f0 and f1"}}]},
    {"calls": [{"goal": {"focus": "2"}}]},
    read("f2.txt"),
    {"say": "The report."},
]


async def test_closed_goals_go_first_and_no_model_is_asked(tmp_path: Path):
    run = await run_of(tmp_path, GOALS).go()
    [done] = passes(run)
    assert (done.level, done.strategy, done.trigger, done.success) == (1, "goal", "overflow", True)
    assert done.tokens_after < done.tokens_before * 0.95
    assert "BranchStarted" not in [e.kind for e in run.events]
    last = await rebuilt(run.store, run.done.trace, 7, PROJECTIONS)
    shown = last.body.decode()
    assert "file 0 line" not in shown and "file 2 line 1 " in shown
    assert "Execution details were cleared" in shown
    # In memory only: the store has all of it, and the path is whole.
    path = await run.path()
    assert "file 0 line 74" in path[4].text + str(path[4].full_output)
    assert [m.sequence for m in path] == list(range(1, len(path) + 1))
    await assert_every_window_holds(run)


async def test_on_complete_clears_a_goal_before_the_next_call(tmp_path: Path):
    config = {"goal_compression": "on_complete", "context_window": 100_000}
    run = await run_of(tmp_path, GOALS, config).go()
    assert {(p.level, p.trigger) for p in passes(run)} == {(1, "on_complete")}
    before = await rebuilt(run.store, run.done.trace, 4, PROJECTIONS)
    after = await rebuilt(run.store, run.done.trace, 5, PROJECTIONS)
    assert "file 0 line" in before.body.decode()
    assert "file 0 line" not in after.body.decode()


READS = [read(f"f{n}.txt") for n in range(4)] + [{"say": "End."}]
SUMMARY = {"say": "1. **Findings**: [2-7] f0 to f2 hold facts in numbered lines."}


async def test_without_closed_goals_a_summary_stands_for_the_history(tmp_path: Path):
    run = await run_of(tmp_path, READS, compression=[SUMMARY]).go()
    done = passes(run)[0]
    assert (done.level, done.strategy, done.success) == (2, "summary", True)
    path = await run.path()
    user, summary = path[:2]
    assert user.sequence == 1 and summary.source == "summary"
    assert summary.parent_sequence == 1 and summary.sequence == done.message
    assert "numbered lines" in summary.text
    stood = summary.metadata["stands_for"]
    assert stood["messages"] == stood["last"] - 1
    # The side branch is stored beside the path, and in no later window.
    trace = await run.store.trace(run.done.trace)
    everything = await run.store.messages(trace.id, range(1, trace.last_sequence + 1))
    [side] = branches(everything)
    assert side.branch_type == "compression" and not set(side.sequences) & {
        m.sequence for m in path
    }
    number = next(
        n for n, c in (await run.store.calls(trace.id, range(1, 9))).items() if c.branch_id
    )
    asked = await rebuilt(run.store, trace.id, number, PROJECTIONS)
    assert asked.payload["tool_choice"] == "none" and asked.payload["tools"]
    later = await rebuilt(run.store, trace.id, number + 1, PROJECTIONS)
    assert "is about to be replaced by a summary" not in later.body.decode()
    assert "file 0 line" not in later.body.decode()
    await assert_every_window_holds(run)


async def test_a_run_cut_after_a_summary_goes_on_with_the_very_same_window(tmp_path: Path):
    """The same script, cut or not, sends the same bytes with each later call."""
    whole = await run_of(tmp_path, READS, compression=[SUMMARY]).go()
    cut = run_of(tmp_path, READS, compression=[SUMMARY])
    runner = await build_runner(cut.config, store=cut.store, environment={})
    stream = runner.run(MISSION, cut.config)
    async for event in stream:
        cut.events.append(event)
        if isinstance(event, Compacted):
            break
    await stream.aclose()
    trace_id = next(iter(cut.store._traces))
    await cut.go([], trace_id=trace_id)
    assert cut.done.answer == whole.done.answer == "End."
    last = (await whole.store.trace(whole.done.trace)).last_call
    theirs = await whole.store.calls(whole.done.trace, range(1, last + 1))
    ours = await cut.store.calls(trace_id, range(1, last + 1))
    assert [c.sha256 for c in ours.values()] == [c.sha256 for c in theirs.values()]
    await assert_every_window_holds(cut)


async def test_going_back_into_a_summary_brings_the_originals_back(tmp_path: Path):
    run = await run_of(tmp_path, READS, compression=[SUMMARY]).go()
    trace = await run.store.trace(run.done.trace)
    await run.store.move_head(trace.id, 5, expected_head=trace.head_sequence)
    assert [m.sequence for m in await run.path()] == [1, 2, 3, 4, 5]
    again = await run.go([], trace_id=trace.id)
    calls = await again.store.calls(trace.id, [3, trace.last_call + 1])
    assert calls[trace.last_call + 1].sha256 == calls[3].sha256


@pytest.mark.parametrize(
    "bad",
    [read("f0.txt"), {"say": "Error: 503"}, {"say": "Let me continue with the next file."}],
    ids=["a call", "an error", "going on"],
)
async def test_a_bad_summary_changes_nothing_and_three_open_the_breaker(tmp_path: Path, bad: Any):
    turns = [read(f"f{n}.txt") for n in range(3)] + [{"say": "a"}] * 6
    run = run_of(tmp_path, turns, compression=[bad])
    await run.go()
    for _ in range(4):
        more = [{"role": "user", "content": "Go on."}]
        await run.go(more, trace_id=run.done.trace)
    found = passes(run)
    assert len(found) == 3 and not any(p.success for p in found)
    assert all(p.tokens_before == p.tokens_after for p in found)
    assert found[-1].breaker == "open"
    assert [m.source for m in await run.path()].count("summary") == 0
    await assert_every_window_holds(run)


async def test_reflection_comes_before_the_summary_and_its_entries_are_judged_later(
    tmp_path: Path,
):
    turns = [read(f"f{n % 9}.txt") for n in range(8)] + [{"say": "End."}]
    run = run_of(
        tmp_path,
        turns,
        {"enable_extraction": True},
        reflection=[{"say": "Files f0 to f2 hold numbered lines. [3-7]\n\nUse f1 for tests. [5]"}],
        knowledge_eval=[{"say": "k7.1: accepted - seen in three files\nk7.2: rejected - a guess"}],
        compression=[SUMMARY],
    )
    await run.go()
    order = [e.branch_type for e in run.events if e.kind == "BranchStarted"]  # type: ignore[attr-defined]
    assert order[:3] == ["reflection", "knowledge_eval", "compression"]
    found = [e for e in run.events if e.kind == "Knowledge"]
    assert [(e.entry, e.status) for e in found[:4]] == [  # type: ignore[attr-defined]
        ("k7.1", "pending"),
        ("k7.2", "pending"),
        ("k7.1", "accepted"),
        ("k7.2", "rejected"),
    ]
    assert found[0].sources == (3, 7)  # type: ignore[attr-defined]
    await assert_every_window_holds(run)


async def test_an_operator_and_the_model_can_ask_for_a_compaction(tmp_path: Path):
    control = ManualControl(by="ada")
    run = run_of(tmp_path, GOALS, {"context_window": 100_000})
    runner = await build_runner(run.config, store=run.store, environment={}, control=control)
    first = runner.run(MISSION, run.config)
    async for event in first:
        run.events.append(event)
        if event.kind == "GoalChanged" and event.done == 1:  # type: ignore[attr-defined]
            control.request("compact")
            break
    await first.aclose()
    async for event in runner.run([], run.config, trace_id=next(iter(run.store._traces))):
        run.events.append(event)
    [done] = passes(run)
    assert (done.trigger, done.by, done.strategy) == ("manual", "ada", "goal")

    asks = [*GOALS[:4], {"calls": [{"compress_context": {}}]}, {"say": "End."}]
    run = await run_of(tmp_path, asks, {"context_window": 100_000}).go()
    [done] = passes(run)
    assert (done.trigger, done.by) == ("manual", "model")


async def test_off_never_compacts_and_says_when_the_window_is_full(tmp_path: Path):
    run = await run_of(tmp_path, READS, {"policy": "off", "context_window": 4_000}).go()
    assert run.done.status == "failed" and "tokens" in run.done.why
    assert passes(run) == []


async def test_what_was_cleared_in_memory_stays_cleared_when_the_run_goes_on(tmp_path: Path):
    """The next process goes on from the newest recorded window, edits included."""
    run = await run_of(tmp_path, [*GOALS, {"say": "More."}]).go()
    last = (await run.store.trace(run.done.trace)).last_call
    await run.go([{"role": "user", "content": "And?"}], trace_id=run.done.trace)
    before = await rebuilt(run.store, run.done.trace, last, PROJECTIONS)
    after = await rebuilt(run.store, run.done.trace, last + 1, PROJECTIONS)
    assert after.window.items[: len(before.window.items)] == before.window.items
    assert len(passes(run)) == 1


async def test_a_file_that_did_not_change_is_not_shown_twice(tmp_path: Path):
    turns = [read("f0.txt"), read("f0.txt"), {"say": "End."}]
    run = await run_of(tmp_path, turns, {"context_window": 100_000}).go()
    _, _, first, _, second, _ = await run.path()
    assert "file 0 line 9" in first.text and "file 0 line 9" not in second.text
    assert "f0.txt" in second.text and not second.is_error


async def test_a_file_that_changed_or_left_the_window_is_shown_again(tmp_path: Path):
    again = [*READS[:4], read("f0.txt"), {"say": "End."}]
    run = await run_of(tmp_path, again, compression=[SUMMARY]).go()
    assert passes(run)
    trace = await run.store.trace(run.done.trace)
    stored = await run.store.messages(trace.id, range(1, trace.last_sequence + 1))
    reads = [m for m in stored.values() if m.name == "read_file"]
    assert len(reads) == 5 and "file 0 line 9" in reads[-1].text


async def test_files_that_were_read_come_back_after_a_summary(tmp_path: Path):
    config = {"context_window": 16_000}
    reads = [read(f"f{n}.txt") for n in range(8)] + [{"say": "End."}]
    run = await run_of(tmp_path, reads, config, compression=[SUMMARY]).go()
    done = passes(run)[0]
    number = next(
        n for n, after in await run.store.main_calls(run.done.trace) if after == done.message
    )
    window = (await rebuilt(run.store, run.done.trace, number, PROJECTIONS)).window
    back = [i for i in window.items if i.strategy == "file cache"]
    assert 1 <= len(back) <= 5
    newest = max(m.sequence for m in window.messages if m.source == "summary") - 3
    assert f"was read as message {newest}" in back[0].why
    assert back[0].message.text.startswith("[Restored after compaction: f")
    assert all(len(i.message.text) < 4_200 for i in back)
    await assert_every_window_holds(run)


async def test_cyber_recent_keeps_the_newest_turns_word_for_word(tmp_path: Path):
    config = {"context_window": 16_000, "policy": "cyber_recent"}
    reads = [read(f"f{n}.txt") for n in range(8)] + [{"say": "End."}]
    summary = {"say": "1. **Findings**: [2-7] the first files hold facts."}
    run = await run_of(tmp_path, reads, config, compression=[summary]).go()
    done = passes(run)[0]
    assert done.strategy == "recent"
    number = next(
        n for n, after in await run.store.main_calls(run.done.trace) if after == done.message
    )
    window = (await rebuilt(run.store, run.done.trace, number, PROJECTIONS)).window
    newest = [i for i in window.items if i.kind == "whole" and i.message.name == "read_file"]
    stored = [i for i in window.items if i.kind == "whole"]
    assert newest and newest[-1] == stored[-1]
    assert done.tokens_after <= 16_000 * 0.35
    # What it stands for is off the path, the kept turns too; the summary knows where they are.
    stood = (await run.path())[1].metadata["stands_for"]
    assert stood["last"] >= newest[-1].message.sequence or len(passes(run)) > 1
    await assert_every_window_holds(run)
