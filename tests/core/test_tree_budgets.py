"""What a tree may use, and what agents owe: limits over the whole of it, its depth and width, a
child without a report, reviews that are due, answers that are sent back.

The rules are those of docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import Limits
from cyberagent.core.control import ManualControl
from cyberagent.core.events import Nudge, Verdict
from cyberagent.core.parts import Parts
from cyberagent.core.ports import Provider
from cyberagent.core.types import Usage
from tests.core.flows import (
    ACCEPT,
    AGAIN,
    ANSWER,
    BOTH,
    ONE,
    PASSING,
    READ,
    Flow,
    check_whole,
    records,
    revise,
    submit,
    works_as,
)
from tests.core.trees import agent, brief, calls, say, verdict
from tests.core.watching import WatchedSpawner, WatchedTree, Watching

ROOT = [calls({"agent": {"task_brief": BOTH}}), ACCEPT, ANSWER]
CHILD = [calls({"agent": {"task_brief": ONE}}), ACCEPT, submit("Count both")]
AGENTS = [
    works_as("Count both", *CHILD),
    works_as("Count a.md", READ, submit("Count a.md")),
    *PASSING,
]
CALLS = 3 + 3 + 2 + 3
"""Of the models of ROOT and AGENTS: root, child, grandchild, three validators."""


async def made(flow: Flow) -> int:
    return sum(t.steps for t in await flow.store.tree(flow.root))


# Steps and money -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", range(1, CALLS))
async def test_a_tree_makes_no_more_calls_than_it_may(tmp_path: Path, limit: int):
    flow = Flow(tmp_path, ROOT, AGENTS, limits=Limits(max_tree_steps=limit))
    await flow.begin()
    said = f"the run and its sub-agents have made {limit} model calls; the limit is {limit}"
    assert flow.why == ("failed", said)
    assert await made(flow) == limit
    assert flow.root and not [s for _, s in await flow.statuses() if s in ("running", "queued")]
    await check_whole(flow.store, flow.root)


async def test_a_tree_that_uses_all_it_may_completes(tmp_path: Path):
    flow = Flow(tmp_path, ROOT, AGENTS, limits=Limits(max_tree_steps=CALLS))
    await flow.begin()
    assert (flow.why[0], await made(flow)) == ("completed", CALLS)


async def test_an_answer_that_could_not_be_judged_any_more_is_judged_with_more_to_spend(
    tmp_path: Path,
):
    flow = Flow(tmp_path, ROOT, AGENTS, limits=Limits(max_tree_steps=CALLS - 1))
    await flow.begin()
    assert flow.why[0] == "failed"
    flow.config = flow.config.with_(limits=Limits())
    await flow.go_on()
    assert flow.why == ("completed", "the validator found the answer passed")
    assert await made(flow) == CALLS
    await check_whole(flow.store, flow.root)


class Priced(Watching):
    """The same provider at a cent a call."""

    def __init__(self, behind: Provider) -> None:
        super().__init__(behind, [])
        self.cost = self._a_cent

    def _a_cent(self, usage: Usage) -> float | None:
        return 0.01


class PricedTree(WatchedTree):
    def watch(self, parts: Parts) -> Parts:
        assert parts.spawner is not None
        spawner = WatchedSpawner(parts.spawner, self.watch)
        return replace(parts, provider=Priced(parts.provider), spawner=spawner)


@pytest.mark.parametrize("cents", [1, 3, 5, 8, 10])
async def test_the_cost_of_all_agents_counts(tmp_path: Path, cents: int):
    tree = PricedTree(tmp_path, ROOT, AGENTS, limits=Limits(max_cost=cents / 100 - 0.001))
    await tree.go()
    assert tree.done.status == "failed"
    assert tree.done.why == (
        f"the run has cost ${cents / 100:.4f}, sub-agents included; its limit is "
        f"${cents / 100 - 0.001:g}"
    )
    costs = [t.cost or 0 for t in await tree.store.tree(tree.done.trace)]
    assert round(sum(costs) * 100) == cents


# Depth and width -----------------------------------------------------------------------------


async def test_at_depth_four_the_model_is_told_to_do_it_itself(tmp_path: Path):
    goes_down = [calls({"agent": {"task_brief": brief(f"Level {n}")}}) for n in range(1, 6)]
    agents = [
        works_as(f"Level {n}", goes_down[n], ACCEPT, submit(f"Level {n}")) for n in range(1, 4)
    ]
    deepest = works_as("Level 4", goes_down[4], submit("Level 4"))
    flow = Flow(tmp_path, [goes_down[0], ACCEPT, ANSWER], [*agents, deepest, *PASSING])
    await flow.begin()
    assert flow.why[0] == "completed"
    refused = next(m for m in await flow.path("Level 4") if m.name == "agent")
    assert refused.is_error
    assert "depth 5; max_depth is 4: do this part of the work yourself" in refused.text
    assert "Level 5" not in dict(await flow.statuses())
    await check_whole(flow.store, flow.root)


@pytest.mark.parametrize("children", ["serial", "parallel"])
async def test_trace_number_65_is_refused_and_none_is_half_made(tmp_path: Path, children: str):
    asks = calls({"explore": {"branches": [f"Q{n}?" for n in range(8)], "background": "Files."}})
    turns = [asks] * 8 + [calls(*({"delegate_research": {"task": f"R{n}?"}} for n in range(9)))]
    agents = [
        agent("Q", "explore", say("Seen.")),
        agent("R", "research", say("Seen.")),
        *PASSING,
    ]
    flow = Flow(tmp_path, [*turns, ANSWER], agents, children=children)
    await flow.begin()
    assert flow.why[0] == "completed"
    results = [m for m in await flow.path("Count the notes.") if m.name == "explore"]
    # The root and seven times eight make 57: the eighth eight do not fit, seven single ones do.
    assert [m.is_error for m in results] == [False] * 7 + [True]
    assert "trace number 65 of this run's tree; at most 64 are allowed" in results[-1].text
    single = [m for m in await flow.path("Count the notes.") if m.name == "delegate_research"]
    assert sum(not m.is_error for m in single) == 7
    workers = [name for name, _ in await flow.statuses() if name != "validator"]
    assert len(workers) == 64
    await check_whole(flow.store, flow.root, windows=False)


# A child that hands in nothing -----------------------------------------------------------------


async def test_a_child_at_its_step_limit_answers_and_its_verdict_is_unknown(tmp_path: Path):
    child = works_as("Count both", READ, READ, say("I ran out of steps."), submit("Count both"))
    flow = Flow(tmp_path, ROOT, [child, *PASSING], limits=Limits(max_steps=2))
    await flow.begin()
    path = await flow.path("Count both")
    assert path[-1].text == "I ran out of steps."
    result = next(m for m in await flow.path("Count the notes.") if m.name == "agent")
    assert "Verdict: unknown" in result.text
    assert "it ended without handing in a report, at its limit of 2 steps" in result.text


async def test_a_revised_child_has_all_its_steps_again(tmp_path: Path):
    turns = [ROOT[0], *revise(AGAIN), ACCEPT, ANSWER]
    child = works_as("Count both", *[READ] * 5, say("No more."), *[READ] * 4, submit("Count again"))
    flow = Flow(tmp_path, turns, [child, *PASSING], limits=Limits(max_steps=5))
    await flow.begin()
    results = [m for m in await flow.path("Count the notes.") if m.name == "agent"]
    assert ["Verdict: unknown" in r.text for r in results] == [True, False]
    assert "Verdict: passed" in results[1].text


async def test_a_child_without_a_report_is_reminded_twice_and_then_ends(tmp_path: Path):
    child = works_as("Count both", *(say(f"Done {n}.") for n in range(1, 5)))
    flow = Flow(tmp_path, ROOT, [child, *PASSING])
    await flow.begin()
    assert [m.text for m in await flow.path("Count both") if m.source == "model"] == [
        *("Done 1.", "Done 2.", "Done 3.")
    ]
    told = [e.what for e in await flow.told("Count both") if isinstance(e, Nudge)]
    assert told == ["report_reminder", "report_reminder"]
    result = next(m for m in await flow.path("Count the notes.") if m.name == "agent")
    assert "completed: it ended without handing in a report" in result.text
    assert records(await flow.path("Count both")) == ["briefed"]
    await check_whole(flow.store, flow.root)


async def test_a_reminder_can_be_followed(tmp_path: Path):
    child = works_as("Count both", say("Done."), submit("Count both"))
    flow = Flow(tmp_path, ROOT, [child, *PASSING])
    await flow.begin()
    result = next(m for m in await flow.path("Count the notes.") if m.name == "agent")
    assert "Verdict: passed" in result.text


async def test_a_report_is_refused_while_reviews_are_due(tmp_path: Path):
    child = works_as("Count both", CHILD[0], submit("Count both"), ACCEPT, submit("Count both"))
    flow = Flow(tmp_path, ROOT, [child, *AGENTS[1:]])
    await flow.begin()
    first, second = [m for m in await flow.path("Count both") if m.name == "submit_report"]
    assert first.is_error
    assert first.text == f"review your sub-agents first: {await flow.id_of('Count a.md')}"
    assert not second.is_error
    # No validator was asked about the first one.
    assert [name for name, _ in await flow.statuses()].count("validator") == 3
    await check_whole(flow.store, flow.root)


async def test_a_root_is_reminded_of_reviews_that_are_due(tmp_path: Path):
    turns = [ROOT[0], say("Here."), ACCEPT, ANSWER]
    flow = Flow(tmp_path, turns, AGENTS)
    await flow.begin()
    told = [e.what for e in await flow.told() if isinstance(e, Nudge)]
    assert (told, flow.why[0]) == (["reviews_due"], "completed")


# The root's answer -----------------------------------------------------------------------------


def judges(*words: str) -> list[Any]:
    """Validators of the root's answers "Try 1.", "Try 2." … The packet has those before too."""
    return [
        agent(f'"text":"Try {n}."', "validator", say(verdict(word, "R1", evidence=1)))
        for n, word in reversed(list(enumerate(words, start=1)))
    ]


async def test_a_failed_answer_is_sent_back_twice_and_then_the_run_has_failed(tmp_path: Path):
    turns = [say(f"Try {n}.") for n in range(1, 6)]
    flow = Flow(tmp_path, turns, judges("failed", "failed", "failed", "passed"))
    await flow.begin()
    assert flow.why == (
        "failed",
        "the validator found the answer failed: A count for each note is given: seen",
    )
    path = await flow.path("Count the notes.")
    assert [m.text for m in path if m.source == "model"] == ["Try 1.", "Try 2.", "Try 3."]
    assert [e.verdict for e in await flow.told() if isinstance(e, Verdict)] == ["failed"] * 3
    assert records(path) == ["validated"] * 3
    await check_whole(flow.store, flow.root)

    # A person's word begins a new turn, in which it may try again.
    control = ManualControl("ann")
    control.request("say", text="Look once more.")
    await flow.go_on(control=control)
    assert flow.why == ("completed", "the validator found the answer passed")
    await check_whole(flow.store, flow.root)


async def test_an_answer_that_nobody_can_judge_completes_and_says_so(tmp_path: Path):
    flow = Flow(tmp_path, [say("Try 1.")], [agent("# Task", "validator", say("Looks fine to me!"))])
    await flow.begin()
    status, why = flow.why
    assert status == "completed" and why.startswith("the validator could not tell: ")
    last = (await flow.path("Count the notes."))[-1]
    assert last.metadata["verdict"] == "unknown" and "unknown" in last.text
    await check_whole(flow.store, flow.root)


async def test_a_validator_that_takes_too_long_leaves_it_unknown(tmp_path: Path):
    judging = agent("# Task", "validator", {**say("Late."), "delay": 60})
    flow = Flow(tmp_path, [say("Try 1.")], [judging], limits=Limits(validator_timeout_seconds=0.2))
    await flow.begin()
    assert flow.why == (
        "completed",
        "the validator could not tell: the validator stopped: it took more than 0.2 seconds",
    )
    assert dict(await flow.statuses())["validator"] == "stopped"
    await check_whole(flow.store, flow.root)


async def test_a_child_that_cannot_begin_has_failed_with_the_reason(tmp_path: Path):
    flow = Flow(tmp_path, ROOT, AGENTS, validator={"provider": "openai", "model": "gpt-5"})
    await flow.begin()
    report_of_child = next(m for m in await flow.path("Count a.md") if m.name == "submit_report")
    assert "Verdict of the validator: unknown" in report_of_child.text
    assert dict(await flow.statuses())["validator"] == "failed"
    assert flow.why[0] == "completed" and "the validator failed" in flow.why[1]
    await check_whole(flow.store, flow.root)
