"""What compaction leaves of the protocol in the windows of a tree's agents, and how they are told
that operators revised the anchor.

The rules are those of docs/protocol.md, "In a run".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.control import ManualControl
from cyberagent.core.events import Compacted
from cyberagent.core.lineage import open_protocol
from cyberagent.core.protocol import replay_protocol
from cyberagent.core.rebuild import recorded_window
from cyberagent.core.types import Message
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
    revise,
    slow,
    submit,
    works_as,
)
from tests.core.trees import ANCHOR, agent, calls, say, verdict
from tests.core.watching import WatchedTree

JUDGES = [
    agent(
        "# TaskBrief\nnull",
        "validator",
        {
            **say(verdict("passed", "R1", evidence="SEQ").replace('"SEQ"', "{seq}")),
            "find": {"seq": '# CandidateAnswer\n{"sequence":{},'},
        },
    ),
    PASSING[1],
]
SUMMARY = {"compression": [say("1. **Findings**: much was read.")]}
CONTEXT = "# Current context"
CONTRACT = "# Your contract, version "
DUE = "- {}: Count a.md (ended"
REF = {
    "id": {"text": "- reviewed_task_result:{} version"},
    "v": {"text": "- reviewed_task_result:{id} version {} "},
}
POLICIES = [("cyber", 40_000), ("cyber", 14_000), ("layered", 14_000), ("opencode", 16_000)]
"""With 40,000 tokens the closed goal alone is cleared, with fewer the history is summarised."""


def reads(*numbers: int) -> list[dict[str, Any]]:
    return [calls({"read_file": {"path": f"f{n}.md"}}) for n in numbers]


def fill(folder: Path) -> None:
    for n in range(8):
        lines = "\n".join(f"file {n} line {i} holds a fact" for i in range(150))
        (folder / f"f{n}.md").write_text(lines)


def texts(payload: str) -> list[str]:
    """The texts of a payload's messages but the system's. Neighbours of one role may be one."""
    found = [m for m in json.loads(payload)["messages"] if m["role"] != "system"]
    return [m["content"] if isinstance(m["content"], str) else str(m["content"]) for m in found]


def tellings(payload: str, value: dict[str, Any]) -> tuple[int, int]:
    """How often a window tells this anchor: by itself, and in results of the context tool."""
    anchor = normalize_root_task_anchor(value)
    told = [(t.startswith(CONTEXT), t.count(told_as(anchor))) for t in texts(payload)]
    by_itself = sum(n for is_context, n in told if not is_context)
    return by_itself, sum(n for is_context, n in told if is_context)


def told_as(anchor: RootTaskAnchor) -> str:
    return f"{anchor.text}\nSHA-256 {anchor.sha256}"


async def passes(tree: WatchedTree, trace: str) -> list[Compacted]:
    events = await tree.store.events(trace, 0, 100_000)
    return [e for e in events if isinstance(e, Compacted)]


async def path_before(tree: WatchedTree, trace: str, summary: Message) -> list[Message]:
    """The main path as it was when ``summary`` was made."""
    older = await tree.store.messages(trace, list(range(1, summary.sequence)))
    return await tree.store.path(trace, head=max(n for n, m in older.items() if not m.branch_id))


@pytest.mark.parametrize(("policy", "window"), POLICIES)
async def test_a_root_that_was_compacted_still_has_all_of_the_protocol(
    tmp_path: Path, policy: str, window: int
):
    fill(tmp_path)
    turns = [
        calls({"goal": {"add": "Read, Share, Report", "focus": "1"}}),
        *reads(0, 1),
        calls({"goal": {"done": "1", "summary": "read", "focus": "2"}}),
        calls({"agent": {"task_brief": BOTH}}),
        ACCEPT,
        calls({"agent": {"task_brief": ONE}}),
        *reads(2, 3, 4, 5, 6, 7),
        # The review of the second child is still due, and the ref of the first still held.
        calls({"get_current_context": {}}),
        {
            **calls({"review_child": {"child": "{id}", "decision": "ACCEPT"}}),
            "find": {"id": DUE},
        },
        calls({"get_current_context": {}}),
        {
            **calls(
                {"read_context_ref": {"ref_id": "reviewed_task_result:{id}", "version": "{v}"}}
            ),
            "find": REF,
        },
        ANSWER,
    ]
    agents = [
        works_as("Count both", READ, submit("Count both")),
        works_as("Count a.md", READ, submit("Count a.md")),
        *JUDGES,
    ]
    tree = WatchedTree(
        tmp_path,
        turns,
        agents,
        branches=SUMMARY,
        policy=policy,
        context_window=window,
        validator={"model": "of its own"},
    )
    await tree.go()
    assert (tree.done.status, tree.done.why) == (
        "completed",
        "the validator found the answer passed",
    )
    root = tree.done.trace
    found = await passes(tree, root)
    assert found and all(p.success for p in found)
    # The anchor stands in every window exactly once, and once more in each context result.
    for payload in tree.payloads([root], side=False):
        shown = sum(t.startswith(CONTEXT) for t in texts(payload))
        assert tellings(payload, ANCHOR) == (1, shown)
    # A summary changes nothing of the protocol.
    every = await tree.store.messages(root, list(range(1, 200)))
    summaries = [m for m in every.values() if m.source == "summary"]
    assert bool(summaries) is (window < 40_000)
    anchor = normalize_root_task_anchor(ANCHOR)
    for summary in summaries:
        before = await path_before(tree, root, summary)
        was = replay_protocol(before, trace_id=root, anchor=anchor)
        assert replay_protocol([summary], trace_id=root, anchor=anchor).entries == was.entries
    path = await tree.store.path(root)
    state = await open_protocol(tree.store, await tree.store.trace(root), path)
    assert state is not None and not state.reviews_due
    assert [c.brief.objective for c in state.children.values()] == ["Count both", "Count a.md"]
    assert len(state.catalogue.grants) == 2
    read = next(m for m in every.values() if m.name == "read_context_ref")
    assert not read.is_error and '"Count a.md: done"' in read.text


@pytest.mark.parametrize("policy", ["cyber", "layered", "opencode"])
async def test_a_child_that_was_compacted_still_has_its_contract_and_hands_in(
    tmp_path: Path, policy: str
):
    fill(tmp_path)
    turns = [calls({"agent": {"task_brief": BOTH}}), *revise(AGAIN), ACCEPT, ANSWER]
    child = works_as(
        "Count both",
        *reads(0, 1, 2, 3, 4, 5, 6),
        submit("Count both"),
        *reads(7, 0, 1, 2, 3, 4, 5),
        submit("Count again"),
    )
    tree = WatchedTree(
        tmp_path,
        turns,
        [{**child, "branches": SUMMARY}, *JUDGES],
        policy=policy,
        context_window=14_000,
        validator={"model": "of its own"},
    )
    await tree.go()
    assert (tree.done.status, tree.done.why) == (
        "completed",
        "the validator found the answer passed",
    )
    (trace,) = await tree.traces("agent")
    found = await passes(tree, trace.id)
    assert found and all(p.success for p in found)
    every = (await tree.store.messages(trace.id, list(range(1, 200)))).values()
    _, second = [m.sequence for m in every if m.text.startswith(CONTRACT)]
    made = await tree.store.calls(trace.id, list(range(1, trace.last_call + 1)))
    for sent in tree.sent:
        if sent.trace == trace.id and not sent.branch:
            window = "".join(texts(sent.payload.decode()))
            contracts = [rest[0] for rest in window.split(CONTRACT)[1:]]
            has_both = made[sent.call].after_sequence >= second
            assert contracts == (["1", "2"] if has_both else ["1"])
            # The anchor stands in the message that brings a contract, and nowhere else.
            assert tellings(sent.payload.decode(), ANCHOR)[0] == len(contracts)


# A revision of the anchor ----------------------------------------------------------------------

REVISED: dict[str, Any] = {**ANCHOR, "constraints": ["Change no note", "Count blank lines"]}


async def revise_when(flow: Flow, kind: str, mission: str, **config: Any) -> None:
    run = flow.started(**config)
    await flow.when(kind, mission)
    flow.store.revise_anchor(flow.root, REVISED, by="ann", why="Blank lines count too")
    await run


def superseding(path: list[Message]) -> list[Message]:
    sha = normalize_root_task_anchor(REVISED).sha256
    return [m for m in path if m.metadata.get("anchor") == sha and m.source == "framework"]


async def test_a_revision_is_told_once_to_each_agent_at_work_and_holds_at_once(tmp_path: Path):
    grand = works_as("Count a.md", slow(READ, 0.2), READ, submit("Count a.md"))
    child = works_as(
        "Count both", calls({"agent": {"task_brief": ONE}}), ACCEPT, submit("Count both")
    )
    late = works_as("Count again", READ, submit("Count again"))
    turns = [
        calls({"agent": {"task_brief": BOTH}}),
        ACCEPT,
        calls({"agent": {"task_brief": AGAIN}}),
        ACCEPT,
        ANSWER,
    ]
    flow = Flow(tmp_path, turns, [grand, child, late, *PASSING])
    await revise_when(flow, "CallStarted", "Count a.md")
    assert flow.why == ("completed", "the validator found the answer passed")
    for mission in ("Count the notes.", "Count both", "Count a.md"):
        (told,) = superseding(await flow.path(mission))
        assert told.text.startswith("[") and "Blank lines count too" in told.text
        assert told.metadata["pinned"]
    # The grandchild hears it at its next safe point: after the call that it was at.
    path = await flow.path("Count a.md")
    assert [m.role for m in path[:4]] == ["user", "assistant", "tool", "user"]
    # A contract that was there gets the new constraint added; the next one carries it.
    for mission in ("Count both", "Count a.md", "Count again"):
        trace = await flow.store.trace(await flow.id_of(mission))
        state = await open_protocol(flow.store, trace, await flow.path(mission))
        assert state is not None and state.brief is not None
        assert "Count blank lines" in state.brief.constraints
    (contract,) = superseding(await flow.path("Count again"))
    assert contract.text.startswith("# Your contract, version 1")
    assert '"constraints":["Change no note","Count blank lines"]' in contract.text
    await check_whole(flow.store, flow.root)


async def test_a_revision_while_the_run_rests_is_told_when_it_goes_on(tmp_path: Path):
    flow = Flow(
        tmp_path,
        [calls({"agent": {"task_brief": BOTH}}), ACCEPT, ANSWER],
        [works_as("Count both", slow(READ, 0.2), submit("Count both")), *PASSING],
    )
    control = ManualControl()
    run = flow.started(control=control)
    await flow.when("CallStarted", "Count both")
    control.request("pause")
    await run
    flow.store.revise_anchor(flow.root, REVISED, by="ann", why="Blank lines count too")
    await flow.go_on(control=control)
    assert flow.why[0] == "completed"
    for mission in ("Count the notes.", "Count both"):
        assert len(superseding(await flow.path(mission))) == 1
    await check_whole(flow.store, flow.root)


@pytest.mark.parametrize("policy", ["cyber", "layered", "opencode"])
async def test_a_superseding_anchor_outlives_every_compaction(tmp_path: Path, policy: str):
    fill(tmp_path)
    turns = [slow(reads(0)[0], 0.2), *reads(1, 2, 3, 4, 5, 6, 7, 0, 1), ANSWER]
    flow = Flow(
        tmp_path,
        turns,
        JUDGES,
        policy=policy,
        context_window=14_000,
        validator={"model": "of its own"},
    )
    script = {**flow.config.provider_options["script"], "branches": SUMMARY}
    options = {**flow.config.provider_options, "script": script}
    flow.config = flow.config.with_(provider_options=options)
    await revise_when(flow, "CallStarted", "Count the notes.")
    assert flow.why == ("completed", "the validator found the answer passed")
    assert [e for e in await flow.told() if isinstance(e, Compacted)]
    await check_whole(flow.store, flow.root)
    root = await flow.store.trace(flow.root)
    for number in range(2, root.last_call + 1):
        record, window = await recorded_window(flow.store, flow.root, number)
        if not record.branch_id:
            assert len(superseding([i.message for i in window.items])) == 1
