"""Validators in a run: whatever one says or meets, its verdict is never passed by mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import Limits
from cyberagent.core.control import ManualControl
from cyberagent.core.events import Verdict
from cyberagent.core.lineage import open_protocol, spawned
from cyberagent.core.ports import Control
from cyberagent.core.verdicts import ValidationResult
from tests.core.trees import Tree, agent, brief, calls, report, say, verdict
from tests.core.watching import WatchedTree
from tests.peers.provider_server import ProviderServer, Turn

CRITERION = "Count a.md: done"
CHILD = "Child {} ended"
REPORT = calls({"submit_report": {"report": report(CRITERION)}})
TURNS = [
    calls({"agent": {"task_brief": brief("Count a.md")}}),
    calls({"review_child": {"child": "{id}", "decision": "ACCEPT"}}, id=CHILD),
    calls(
        {"review_child": {"child": "{id}", "decision": "ACCEPT", "reason": "I saw it"}}, id=CHILD
    ),
    say("a.md has 2 lines."),
]
PASSED = agent("# TaskBrief\nnull", "validator", {
    "find": {"seq": '# CandidateAnswer\n{"sequence":{},'},
    "say": verdict("passed", "R1", evidence=0).replace("[0]", "[{seq}]"),
})  # fmt: skip
WORKER = agent("Count a.md", "agent", calls({"read_file": {"path": "a.md"}}), REPORT)


def judged_by(*turns: Any) -> list[Any]:
    """The child, a validator of it that says ``turns``, and one of the root that is content."""
    return [WORKER, PASSED, agent("# TaskReport", "validator", *turns)]


def tree_of(folder: Path, agents: list[Any], speed: float = 0, **config: Any) -> WatchedTree:
    tree = WatchedTree(folder, TURNS, agents, **config)
    options = {**tree.config.provider_options, "speed": speed}
    tree.config = tree.config.with_(provider_options=options)
    return tree


async def result_of(tree: Tree, trace: str) -> ValidationResult:
    state = await open_protocol(
        tree.store, await tree.store.trace(trace), await tree.store.path(trace)
    )
    assert state is not None and state.result is not None
    return state.result


def verdicts(tree: Tree) -> list[str]:
    told = [e for e in tree.events if isinstance(e, Verdict)]
    told += [e for _, e in tree.heard if isinstance(e, Verdict)]
    return [e.verdict for e in told]


async def assert_unknown(tree: Tree, why: str) -> ValidationResult:
    """The child's verdict is unknown, for this reason, everywhere where it is told."""
    [child] = await tree.traces("agent")
    result = await result_of(tree, child.id)
    assert result.verdict == "unknown" and why in result.reason, result.reason
    assert [c.verdict for c in result.criteria if c.id == "B1"] == ["unknown"]
    results = [m for m in await tree.store.path(tree.done.trace) if m.role == "tool"]
    assert "Verdict: unknown — " in results[0].text and why in results[0].text
    # To accept it all the same needs a reason, and is marked.
    assert results[1].is_error and "reason" in results[1].text
    assert not results[2].is_error
    root = await open_protocol(
        tree.store, await tree.store.trace(tree.done.trace), await tree.store.path(tree.done.trace)
    )
    assert root is not None
    review = root.children[child.id].review
    assert review is not None and review.against_verdict == "unknown"
    return result


NONSENSE: dict[str, tuple[str, str]] = {
    "praise": ("Excellent work! Everything is done, all criteria passed.", "JSON"),
    "praise around it": (f"Great work!\n{verdict('passed', 'B1')}", "JSON"),
    "a bare word": ('"passed"', "object"),
    "no criteria": ('{"verdict": "passed"}', "lacks B1"),
    "other words": ('{"verdict": "PASSED", "criteria": []}', "verdict"),
    "another plan's criterion": (verdict("passed", "B2"), "not in the plan"),
    "without evidence": (verdict("passed", "B1").replace('["count"]', "[]"), "evidence"),
    "with evidence of its own": (verdict("passed", "B1", evidence="proof"), "not in the packet"),
    "a message that there is not": (verdict("passed", "B1", evidence=999), "not in the packet"),
    "passed and failed": (verdict("failed", "B1").replace("failed", "passed", 1), "follows"),
    "an order of the packet": (
        '{"verdict": "passed", "criteria": [], "also": "I was told"}',
        "also",
    ),
    "two answers": (verdict("passed", "B1") * 2, "JSON"),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_a_validator_that_answers_with_anything_else_is_unknown(tmp_path: Path, name: str):
    text, why = NONSENSE[name]
    tree = await tree_of(tmp_path, judged_by(say(text))).go()
    assert tree.done.status == "completed"
    await assert_unknown(tree, why)


async def test_a_validator_that_calls_tools_has_none_and_sees_nothing_more(tmp_path: Path):
    asked = calls({"read_file": {"path": "b.md"}}, {"terminal": {"command": "cat b.md"}})
    (tmp_path / "b.md").write_text("nothing that a judge was shown")
    tree = await tree_of(tmp_path, judged_by(asked, asked, say("It looks good."))).go()
    result = await assert_unknown(tree, "the validator's answer cannot be used")
    assert result.model == "scripted"
    [first, *_] = await tree.traces("validator")
    told = [m for m in await tree.store.path(first.id) if m.role == "tool"]
    assert len(told) == 4 and all(m.is_error and "there is no tool" in m.text for m in told)
    assert "nothing that a judge" not in "".join(tree.payloads([first.id]))


async def test_a_validator_that_takes_too_long_is_stopped_and_unknown(tmp_path: Path):
    slow = {**say(verdict("passed", "B1")), "delay": 600}
    limits = Limits(validator_timeout_seconds=0.2)
    tree = await tree_of(tmp_path, judged_by(slow), speed=1_000_000, limits=limits).go()
    result = await assert_unknown(tree, "it took more than 0.2 seconds")
    [stopped] = [v for v in await tree.traces("validator") if v.status == "stopped"]
    assert result.reason.startswith("the validator stopped") and result.packet_sha256
    assert tree.done.status == "completed" and verdicts(tree) == ["passed", "unknown"]
    assert stopped.parent_trace != tree.done.trace


async def test_a_validator_that_an_operator_stops_is_unknown_and_the_run_goes_on(tmp_path: Path):
    tree = tree_of(tmp_path, judged_by(say(verdict("passed", "B1"))))

    def control_for(trace: str) -> Control:
        control = ManualControl(by="ann")
        state = tree.store._traces[trace].state
        above = tree.store._traces[str(state.parent_trace)].state
        if spawned(state).get("kind") == "validator" and above.parent_trace:
            control.request("stop")
        return control

    await tree.go(control_for=control_for)
    await assert_unknown(tree, "stopped by ann")
    assert tree.done.status == "completed"


def with_model(server: ProviderServer, folder: Path, **config: Any) -> WatchedTree:
    chosen = {
        "provider": "openai",
        "model": "judge-1",
        "provider_options": {"base_url": server.url},
    }
    return tree_of(folder, [WORKER], validator=chosen, **config)


def judging(payload: Any) -> Turn:
    """A model's verdict: passed, on the report's output or on the candidate answer."""
    packet = payload["messages"][-1]["content"]
    if "# TaskBrief\nnull" not in packet:
        return Turn(text=verdict("passed", "B1"))
    sequence = json.loads(packet.split("# CandidateAnswer\n")[1].split("\n")[0])["sequence"]
    return Turn(text=verdict("passed", "R1", evidence=sequence))


async def test_the_model_that_the_settings_name_validates(tmp_path: Path):
    async with ProviderServer([judging, judging]) as server:
        tree = await with_model(server, tmp_path).go()
    assert (tree.done.status, verdicts(tree)) == ("completed", ["passed", "passed"])
    assert len(server.requests) == 2, "the children and the root ask the scripted model"
    for request in server.requests:
        payload = request.payload
        assert payload["model"] == "judge-1" and "tools" not in payload
        assert [m["role"] for m in payload["messages"]] == ["system", "user"]
        assert '"model":"judge-1"' in payload["messages"][1]["content"], "as its plan says"
    [child] = await tree.traces("agent")
    for trace in (child.id, tree.done.trace):
        result = await result_of(tree, trace)
        assert (result.verdict, result.model) == ("passed", "judge-1")
        assert result.usage is not None and result.usage.prompt == 100


@pytest.mark.parametrize("status", [400, 401, 413])
async def test_a_validator_whose_model_fails_is_unknown_with_the_providers_words(
    tmp_path: Path, status: int
):
    broken = Turn(status=status, body='{"error": {"message": "the judge is ill"}}')
    async with ProviderServer([broken, broken]) as server:
        tree = await with_model(server, tmp_path).go()
    result = await assert_unknown(tree, "the judge is ill")
    assert result.model == "judge-1" and result.usage is None
    assert tree.done.status == "completed" and "could not tell" in tree.done.why
    assert verdicts(tree) == ["unknown", "unknown"] and len(server.requests) == 2


async def test_a_packet_that_does_not_fit_is_unknown_and_nobody_is_asked(tmp_path: Path):
    """Over 50,000 characters in the fixed part: nothing of it is shortened to make it pass."""
    long = report(CRITERION, outputs=[{"name": "count", "text": "x" * 50_000}])
    worker = agent("Count a.md", "agent", calls({"submit_report": {"report": long}}))
    tree = await tree_of(tmp_path, [worker, PASSED]).go()
    result = await assert_unknown(tree, "50,000 fit")
    assert result.packet_sha256 == "" and len(await tree.traces("validator")) == 1


# Stop and pause of the run ---------------------------------------------------------------------


async def test_a_run_stopped_while_its_answer_is_validated_has_it_validated_later(tmp_path: Path):
    control = ManualControl(by="ann")

    def stopping(payload: Any) -> Turn:
        control.request("stop")
        return Turn(hang_after=0)

    async with ProviderServer([judging, stopping, judging]) as server:
        tree = with_model(server, tmp_path)
        await tree.go(control=control)
        assert (tree.done.status, verdicts(tree)) == ("stopped", ["passed"])
        await tree.go([], trace_id=tree.done.trace)
    assert (tree.done.status, verdicts(tree)) == ("completed", ["passed", "passed"])
    assert (await result_of(tree, tree.done.trace)).verdict == "passed"


async def test_a_run_paused_while_a_report_is_validated_keeps_the_verdict(tmp_path: Path):
    control = ManualControl(by="ann")

    def pausing(payload: Any) -> Turn:
        control.request("pause")
        return judging(payload)

    async with ProviderServer([pausing, judging]) as server:
        tree = with_model(server, tmp_path)
        await tree.go(control=control)
        assert (tree.done.status, verdicts(tree)) == ("paused", ["passed"])
        [before] = await tree.traces("validator")
        await tree.go([], trace_id=tree.done.trace)
    assert (tree.done.status, verdicts(tree)) == ("completed", ["passed", "passed"])
    assert [v.id for v in await tree.traces("validator")][:-1] == [before.id], "asked once"
