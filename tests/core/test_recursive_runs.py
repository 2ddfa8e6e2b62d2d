"""The recursive task protocol in a run, in its plainest form: one child, one review, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.errors import InvalidInput
from cyberagent.core.lineage import open_protocol
from tests.core.trees import ANCHOR, MISSION, Tree, agent, brief, calls, report, say, verdict

CRITERION = "Count a.md: done"

ROOT = [
    calls({"agent": {"task_brief": brief("Count a.md")}}),
    calls({"review_child": {"child": "{id}", "decision": "ACCEPT"}}, id="Child {} ended"),
    say("a.md has 2 lines."),
]
AGENTS = [
    agent(
        "Count a.md",
        "agent",
        calls({"read_file": {"path": "a.md"}}),
        calls({"submit_report": {"report": report(CRITERION)}}),
    ),
    # The root's answer is message 7: mission, anchor, call, result, review, its result, answer.
    agent("a.md has 2 lines.", "validator", say(verdict("passed", "R1", evidence=7))),
    agent("# TaskReport", "validator", say(verdict("passed", "B1"))),
]


async def test_a_child_reports_is_validated_and_reviewed_and_then_the_root_is(tmp_path: Path):
    tree = await Tree(tmp_path, ROOT, AGENTS).go()
    assert (tree.done.status, tree.done.answer) == ("completed", "a.md has 2 lines.")
    assert [t.status for t in await tree.traces("agent")] == ["completed"]
    assert len(await tree.traces("validator")) == 2
    told = [e for e in tree.events if e.kind in ("ChildStarted", "ChildEnded", "Reviewed")]
    assert [e.kind for e in told] == [
        *("ChildStarted", "ChildEnded", "Reviewed"),  # the child
        *("ChildStarted", "ChildEnded"),  # the validator of the answer
    ]
    (root,) = await tree.traces()
    protocol = await open_protocol(tree.store, root, await tree.store.path(root.id))
    assert protocol is not None and protocol.result is not None
    assert protocol.result.verdict == "passed"
    assert [r.kind for r in [g.snapshot for g in protocol.catalogue.grants]] == [
        "reviewed_task_result"
    ]


async def test_a_recursive_run_needs_an_anchor_and_no_other_takes_one(tmp_path: Path):
    tree = Tree(tmp_path, ROOT, AGENTS)
    with pytest.raises(InvalidInput, match="root_task_anchor"):
        await tree.go(root_task_anchor=None)
    plain = Tree(tmp_path, [say("Two.")], [], preset="cyber")
    with pytest.raises(InvalidInput, match="not recursive"):
        await plain.go(MISSION, root_task_anchor=ANCHOR)


async def test_an_anchor_is_told_once_and_held_whole(tmp_path: Path):
    tree = await Tree(tmp_path, ROOT, AGENTS).go()
    (root,), (child,) = await tree.traces(), await tree.traces("agent")
    (revision,) = await tree.store.anchors(root.id)
    for trace in (root, child):
        texts = "\n".join(await tree.texts(trace.id))
        assert texts.count(revision.anchor.sha256) == 1
        assert texts.count(revision.anchor.text) == 1


@pytest.mark.parametrize(
    "late",
    [
        {"write_file": {"path": "b.md", "content": "changed after it was judged"}},
        {"agent": {"task_brief": brief("Count it again")}},
    ],
    ids=["write_file", "agent"],
)
async def test_nothing_behind_the_report_in_its_batch_is_run(tmp_path: Path, late: dict[str, Any]):
    handed_in = {"submit_report": {"report": report(CRITERION)}}
    made = {"write_file": {"path": "b.md", "content": "as it was judged"}}
    child = agent("Count a.md", "agent", calls(made), calls(handed_in, late))
    tree = await Tree(tmp_path, ROOT, [child, *AGENTS[1:]]).go()
    assert tree.done.status == "completed"
    assert (tmp_path / "b.md").read_text() == "as it was judged"
    assert len(await tree.traces("agent")) == 1
    (child_trace,) = await tree.traces("agent")
    assert (await tree.store.path(child_trace.id))[-1].is_error


async def test_a_root_that_will_not_review_has_failed_and_nothing_is_judged(tmp_path: Path):
    turns = [ROOT[0], *[say("a.md has 2 lines.")] * 3]
    tree = await Tree(tmp_path, turns, AGENTS).go()
    (child,) = await tree.traces("agent")
    assert tree.done.status == "failed"
    assert tree.done.why == f"it answered while reviews are due: {child.id}"
    assert len(await tree.traces("validator")) == 1  # of the child's report


async def test_each_turn_of_a_root_may_fail_three_times_anew(tmp_path: Path):
    wrong = [say(f"Wrong {n}.") for n in range(1, 6)]
    judge = agent("# CandidateAnswer", "validator", say(verdict("failed", "R1", evidence=1)))
    tree = Tree(tmp_path, [*wrong, say("Right.")], [judge])
    await tree.go()
    assert (tree.done.status, tree.done.answer) == ("failed", "Wrong 3.")
    again = [{"role": "user", "content": "Try again."}]
    await tree.go(again, trace_id=tree.done.trace)
    assert (tree.done.status, tree.done.answer) == ("failed", "Right.")
