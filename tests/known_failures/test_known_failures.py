"""What broke in other agents and must not break here, where no other test is that test already.
``docs/known-failures.md`` has the whole list and says which test stands for which."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.control import ManualControl
from cyberagent.core.events import Compacted
from cyberagent.core.rebuild import difference, rebuilt
from cyberagent.core.types import CallRecord
from cyberagent.presets import build_runner
from cyberagent.providers.projections import PROJECTIONS
from tests.compaction.test_stage import GOALS, READS, SUMMARY, passes, read, run_of
from tests.core.test_runner import MISSION, Run, cut
from tests.model_based.world import Call, Go, Rewind, Turn, Undo, World


async def calls_of(run: Run) -> list[CallRecord]:
    trace = await run.store.trace(run.done.trace)
    return list((await run.store.calls(trace.id, range(1, trace.last_call + 1))).values())


async def main_windows(run: Run) -> list[Any]:
    numbers = [c.number for c in await calls_of(run) if not c.branch_id]
    return [await rebuilt(run.store, run.done.trace, n, PROJECTIONS) for n in numbers]


async def test_a_run_that_reads_the_same_again_and_again_is_paused(tmp_path: Path):
    """3. Compact, read the same files, compact: for hours, with the plan unchanged."""
    again = [read(f"f{n % 3}.txt") for n in range(80)]
    run = await run_of(tmp_path, again, compression=[SUMMARY]).go()
    assert run.done.status == "paused" and "circles" in run.done.why
    assert sum(p.success for p in passes(run)) == 3
    # A person who knows better may let it go on.
    await run.go([], trace_id=run.done.trace)
    assert len(passes(run)) > 3


async def test_a_run_that_finds_new_things_is_not_paused(tmp_path: Path):
    """3, the other side: a long reading compacts often, and is no circle."""
    new = [
        {"calls": [{"read_file": {"path": f"f{n % 9}.txt", "offset": 1 + n}}]} for n in range(30)
    ]
    run = await run_of(tmp_path, [*new, {"say": "End."}], compression=[SUMMARY]).go()
    assert run.done.answer == "End." and len(passes(run)) > 4


async def test_nothing_is_injected_on_the_turn_after_a_compaction(tmp_path: Path):
    """4. What is injected right after a compaction pushes the window over its limit again."""
    tools = ("goal", "read_file", "get_current_context")
    run = run_of(tmp_path, READS, {"tools": tools, "context_window": 8_800}, compression=[SUMMARY])
    await run.go()
    [summary] = [m for m in await run.path() if m.source == "summary"]
    after = next(m for m in await run.path() if m.sequence > summary.sequence)
    assert all(c.made_by == "model" for c in after.tool_calls)


async def test_injections_are_part_of_what_is_measured(tmp_path: Path):
    """4. They count like all else in the window."""
    turns = [read("f0.txt"), read("f1.txt"), read("f2.txt"), read("f3.txt"), read("f4.txt")]
    config = {"tools": ("read_file", "get_current_context"), "context_window": 100_000}
    run = await run_of(tmp_path, [*turns, {"say": "End."}], config).go()
    last = (await calls_of(run))[-1]
    assert last.composition["injected"] > 0
    assert sum(last.composition.values()) == last.estimated_tokens


async def test_passes_that_find_nothing_to_remove_open_the_breaker(tmp_path: Path):
    """5. Condensing is asked for with nothing to forget, for ever."""
    turns = [*(read(f"f{n}.txt") for n in range(7)), {"say": "End."}]
    config = {"policy": "micro", "context_window": 12_000}
    run = await run_of(tmp_path, turns, config).go()
    found = passes(run)
    assert [p.success for p in found] == [False] * 3
    assert found[-1].breaker == "open" and found[-1].edits == ()


async def test_a_switch_that_is_off_for_one_run_is_off_for_no_other(tmp_path: Path):
    """6. One session's "off" was saved for all."""
    control = ManualControl()
    control.request("policy", policy="off")
    first = run_of(tmp_path, READS, compression=[SUMMARY])
    await first.go(control=control)
    assert passes(first) == [] and max(c.estimated_tokens for c in await calls_of(first)) > 4_200
    second = run_of(tmp_path, READS, compression=[SUMMARY])
    second.store = first.store
    await second.go()
    assert [p.success for p in passes(second)] == [True]


async def test_a_batch_that_a_dead_process_left_is_answered_before_new_words(tmp_path: Path):
    """11, 12. An interrupted call has no result: every later call is refused, no compaction
    works, and nobody says why."""
    run = Run(tmp_path, [{"calls": [{"read_file": {"path": "notes.md"}}] * 2}, {"say": "End."}])
    trace = await cut(run, "ToolCall")
    before = await run.store.path(trace)
    assert before[-1].tool_calls
    await run.go([{"role": "user", "content": "Are you there?"}], trace_id=trace)
    roles = [m.role for m in await run.path()]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant"]
    answers = [m for m in await run.path() if m.role == "tool"]
    assert [m.tool_call_id for m in answers] == [c.id for c in before[-1].tool_calls]
    assert all(m.is_error and m.is_placeholder for m in answers)
    logged = [e for e in run.events if e.kind == "Recovery"]
    assert len(logged) == 1


async def test_what_is_about_to_be_sent_is_measured_not_what_was_sent(tmp_path: Path):
    """15. Only the usage of the turn before is looked at, and a huge result goes out unseen."""
    (tmp_path / "huge.txt").write_text("\n".join(f"line {n} of a huge file" for n in range(600)))
    turns = [read("f0.txt"), read("huge.txt"), {"say": "End."}]
    config = {"limits": Limits(max_tool_output_chars=0)}
    run = await run_of(tmp_path, turns, config, compression=[SUMMARY]).go()
    limit = 8_400 - 8_400 // 8
    before, *_ = passes(run)
    assert before.tokens_before > limit, "what was read would not have fitted"
    last_sent = (await calls_of(run))[1].estimated_tokens
    assert last_sent < 4_200, "and nothing that was sent before told so"
    assert before.success and run.done.answer == "End."
    assert all(c.estimated_tokens <= limit for c in await calls_of(run))


def test_a_provider_that_says_too_long_is_answered_with_a_compaction():
    """19. The window was thought to be larger than it is, and the refusal was not understood."""
    reading = Turn((Call("read_file", {"path": "f3"}),))
    world = World(RunConfig())
    world.do(Go(3, (reading, reading, Turn(kind="too_long"), Turn())))
    kinds = [e.kind for e in world.events]
    place = kinds.index("Recovery")
    assert any(isinstance(e, Compacted) and e.success for e in world.events[place:])
    assert kinds.count("Done") == 1 and world.events[-1].status == "completed"  # type: ignore[attr-defined]


def test_a_window_that_cannot_change_is_not_sent_again():
    """19. The same refused window, over and over."""
    world = World(RunConfig(policy="off"))
    world.do(Go(3, (Turn(kind="too_long"), Turn())))
    assert world.events[-1].status == "failed"  # type: ignore[attr-defined]
    assert [e.kind for e in world.events].count("CallStarted") == 1


async def test_a_smaller_window_is_measured_before_the_first_call(tmp_path: Path):
    """20. The model is changed for one with a smaller window, which is sent the old one's."""
    run = await run_of(tmp_path, READS, {"context_window": 100_000}, compression=[SUMMARY]).go()
    before = await calls_of(run)
    assert before[-1].estimated_tokens > 4_200
    run.config = run.config.with_(context_window=8_400)
    await run.go([{"role": "user", "content": "Go on."}], trace_id=run.done.trace)
    later = [c for c in (await calls_of(run))[len(before) :] if not c.branch_id]
    assert later[0].estimated_tokens <= 4_200
    assert passes(run)[0].success


def test_a_summary_is_not_made_of_a_thousand_scraps():
    """2, 3. A summariser with hardly any room is asked for a piece of a few tokens at a time:
    thousands of calls for nothing."""
    world = World(RunConfig(context_window=2_600, policy="layered"))
    reading = Turn((Call("read_file", {"path": "f3"}),), words=200)
    world.do(Go(150, (reading,) * 6, sides=("long",) * 50))
    assert [e.kind for e in world.events].count("CallStarted") < 60


async def test_the_index_of_skills_and_the_rules_are_in_every_window(tmp_path: Path):
    """28, 30, 39. Rules or the index of skills are gone after a compaction, or change from call
    to call, and no cache ever hits."""
    tools = ("goal", "read_file", "skill")
    run = await run_of(tmp_path, READS, {"tools": tools}, compression=[SUMMARY]).go()
    windows = [w.window for w in await main_windows(run)]
    assert len(windows) == 5 and passes(run)[0].success
    assert len({w.system for w in windows}) == 1 and "plan-well" in windows[0].system
    assert all(w.tools == windows[0].tools for w in windows)


async def test_a_limit_that_was_set_comes_back_with_the_plan_it_limits(tmp_path: Path):
    """31. The todos come back, the words that forbid one of them do not."""
    control = ManualControl()
    control.request("say", text="Never touch f8.txt.")
    turns = [{"calls": [{"goal": {"add": "Change the files", "focus": "1"}}]}, *READS]
    run = run_of(tmp_path, turns, compression=[SUMMARY])
    await run.go(control=control)
    last = (await main_windows(run))[-1].body.decode()
    assert passes(run)[-1].success
    assert "Change the files" in last and "Never touch f8.txt." in last


async def test_a_pass_of_two_strategies_breaks_the_cached_prefix_once(tmp_path: Path):
    """38. First pruned, then summarised: the provider's cache is lost twice."""
    turns = [*GOALS[:-1], *READS]
    run = await run_of(tmp_path, turns, compression=[SUMMARY] * 3).go()
    windows = [w.window for w in await main_windows(run)]
    broken = sum(difference(a, b).same < len(a.items) for a, b in pairwise(windows))
    done = [p for p in passes(run) if p.success]
    assert any("," in p.strategy for p in done) or len(done) > 1
    assert broken == len(done)


def test_an_undone_rewind_gives_the_old_window_though_a_run_went_on_elsewhere():
    """35, 36. What was sent from an earlier message, after a rewind that was then undone, must
    not be taken for the way to the newer one."""
    reading = Turn((Call("read_file", {"path": "f3"}),), words=60)
    world = World(RunConfig(goal_compression="on_complete"))
    plan = [Call("goal", {"add": "read"}), Call("goal", {"focus": "1"})]
    done = Turn((Call("goal", {"done": "1", "summary": ""}),))
    world.do(Go(3, (Turn(tuple(plan)), reading, reading, done, Turn())))
    assert any(isinstance(e, Compacted) and e.success for e in world.events)
    world.do(Rewind(back=len(world.naive.path()) - 3))
    world.do(Go(None, (Turn((Call("read_file", {"path": "f0"}),)), Turn())))
    world.do(Undo())  # compares byte for byte
    world.check_all()


def test_of_two_calls_at_one_message_each_path_goes_on_from_its_own():
    """35, 36. The model is asked again at the last message, after a compaction that only that
    path has seen."""
    reading = Turn((Call("read_file", {"path": "f3"}),), words=60)
    plan = [Call("goal", {"add": "read"}), Call("goal", {"focus": "1"})]
    done = Turn((Call("goal", {"done": "1", "summary": ""}),))
    world = World(RunConfig(policy="goal"))
    world.do(Go(3, (Turn(tuple(plan)), reading, done, Turn())))
    world.do(Rewind(back=1))
    world.do(Go(None, (Turn(),), commands=((1, "compact", ""),)))
    assert any(isinstance(e, Compacted) and e.success for e in world.events)
    world.do(Undo())  # compares byte for byte
    world.check_all()


async def test_the_live_run_and_one_that_is_opened_anew_agree_on_the_next_window(tmp_path: Path):
    """35. What a dry run shows and what is then done are one."""
    run = run_of(tmp_path, GOALS)
    await run.go()
    windows = await main_windows(run)
    again = run_of(tmp_path, [*GOALS, {"say": "More."}])
    again.store = run.store
    runner = await build_runner(again.config, store=run.store, environment={})
    assert runner.parts.compaction is not None
    await again.go([{"role": "user", "content": "And?"}], trace_id=run.done.trace)
    later = (await main_windows(again))[-1].window
    assert later.items[: len(windows[-1].window.items)] == windows[-1].window.items
    assert MISSION[0]["content"] in later.items[0].message.text


def test_every_test_that_the_list_names_is_there():
    """The list in the docs is worth no more than the tests it points to."""
    root = Path(__file__).resolve().parents[2]
    listed = (root / "docs" / "known-failures.md").read_text("utf-8")
    named = set(re.findall(r"\btest_\w{12,}(?=[,;| ])", listed))
    written = "\n".join(p.read_text("utf-8") for p in (root / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", written))
    assert len(named) > 30 and named <= there, named - there
    lines = {int(n) for n in re.findall(r"^\| (\d+) \|", listed, re.M)}
    assert lines == set(range(1, 43))
