"""Known failure 40: what a sub-agent wrote floods its parent; the summary of it is all there is and
the whole cannot be reached; a parent's context is pushed into its children.

Right is an envelope of a bounded size, the whole behind it in slices, and a list of what a child
gets instead of all that its parent has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import Limits
from cyberagent.core.lineage import open_protocol
from cyberagent.core.ports import ToolContext
from cyberagent.tools.builtin.context import read_context_ref
from cyberagent.tools.builtin.explore import read_conclusion
from tests.core.trees import agent, brief, calls, report, say, verdict
from tests.core.watching import WatchedTree, at_work
from tests.tools.helpers import ok

CRITERION = "Write it all: done"
CALL = calls({"agent": {"task_brief": brief("Write it all")}})
ACCEPT = calls({"review_child": {"child": "{id}", "decision": "ACCEPT", "reason": "I read it"}},
    id="Child {} ended")  # fmt: skip
MOST = 32_000
"""Characters of an envelope: a report of 16,000, a verdict of 12,000 and its reason, and some
lines around them."""


def long_text(characters: int) -> str:
    """A text of which every part tells its place."""
    return "".join(f"{n:08d} " for n in range(0, characters, 9))[:characters]


async def reported(folder: Path, told: Any, *judging: Any) -> tuple[WatchedTree, ToolContext]:
    """A tree whose one child hands in ``told``, and what its root may do at the end."""
    children = [agent("Write it all", "agent", calls({"submit_report": {"report": told}}))]
    children += [agent("# TaskReport\n{", "validator", *judging)] if judging else []
    tree = await WatchedTree(folder, [CALL, ACCEPT, say("It is there.")], children).go()
    return tree, await at_work(tree, tree.done.trace)


async def envelope(tree: WatchedTree, name: str = "agent") -> str:
    return next(m.text for m in await tree.store.path(tree.done.trace) if m.name == name)


async def in_slices(context: ToolContext, child: str, size: int) -> str:
    """All that ``read_conclusion`` gives, slice by slice, without what it says of the rest."""
    found = ""
    while True:
        text = await ok(read_conclusion, context, child=child, offset=len(found), limit=size)
        assert len(text) <= size + 100
        found += text[:size]
        if len(text) <= size:
            return found


@pytest.mark.parametrize("characters", [15_000, 40_000, 1_000_000])
async def test_a_childs_huge_report_comes_in_a_bounded_envelope_and_is_read_in_slices(
    tmp_path: Path, characters: int
):
    text = long_text(characters)
    told = report(CRITERION, summary=text)
    tree, context = await reported(tmp_path, told, say(verdict("passed", "B1")))
    shown = await envelope(tree)
    assert len(shown) < MOST
    largest = max(len(p) for p in tree.payloads([tree.done.trace]))
    assert largest < 60_000, "the parent's windows, tools and instructions included"
    [child] = await tree.traces("agent")
    for size in (16_000, 12_345):
        whole = await in_slices(context, child.id, size)
        assert json.loads(whole)["summary"] == text.strip()
    if characters > 16_000:
        assert f'read_conclusion(child="{child.id}"' in shown


async def test_a_reviewed_result_that_fits_is_a_ref_in_slices(tmp_path: Path):
    text = long_text(14_000)
    told = report(CRITERION, summary=text)
    _, context = await reported(tmp_path, told, say(verdict("passed", "B1")))
    [grant] = context.state.protocol.catalogue.grants
    pair, found = grant.snapshot.ref.to_json(), ""
    while len(found) < len(grant.snapshot.text):
        slice_ = await ok(read_context_ref, context, **pair, offset=len(found), limit=5_000)
        head, _, body = slice_.partition("\n")
        assert json.loads(head)["from"] == len(found) and len(body) <= 5_000
        found += body
    assert json.loads(found)["report"]["summary"] == text.strip()


async def test_a_validator_cannot_flood_a_parent_either(tmp_path: Path):
    answer = json.loads(verdict("passed", "B1"))
    answer["reason"] = long_text(200_000)
    answer["criteria"][0]["reason"] = long_text(300_000)
    told = report(CRITERION, outputs=[{"name": "count", "text": "2"}])
    tree, _ = await reported(tmp_path, told, say(json.dumps(answer)))
    assert len(await envelope(tree)) < MOST
    [child] = await tree.traces("agent")
    assert len((await tree.store.path(child.id))[-1].text) < 3_000, "what the child is told of it"
    # The record has all of it.
    state = await open_protocol(tree.store, child, await tree.store.path(child.id))
    assert state is not None and state.result is not None and len(state.result.reason) > 199_000


async def test_many_criteria_make_no_flood(tmp_path: Path):
    criteria = [f"criterion {n}" for n in range(400)]
    wide = {**brief("Write it all"), "completion_criteria": criteria}
    ids = [f"B{n}" for n in range(1, 401)]
    answer = json.loads(verdict("passed", *ids))
    for one in answer["criteria"]:
        one["reason"] = long_text(5_000)
    turns = [calls({"agent": {"task_brief": wide}}), ACCEPT, say("It is there.")]
    children = [
        agent("Write it all", "agent", calls({"submit_report": {"report": report("criterion 7")}})),
        agent("# TaskReport\n{", "validator", say(json.dumps(answer))),
    ]
    tree = await WatchedTree(tmp_path, turns, children).go()
    shown = await envelope(tree)
    assert "Verdict: passed" in shown and len(shown) < MOST


async def test_names_that_a_child_made_up_are_no_way_to_write_to_its_parent(tmp_path: Path):
    made_up = [{f"tool_{n:03d}_{long_text(2_000).replace(' ', '_')}": {}} for n in range(300)]
    children = [
        agent(
            "Write it all",
            "agent",
            calls(*made_up),
            calls({"submit_report": {"report": report(CRITERION)}}),
        )
    ]
    tree = await WatchedTree(tmp_path, [CALL, ACCEPT, say("It is there.")], children).go()
    assert len(await envelope(tree)) < 4_000


async def test_a_huge_conclusion_comes_in_a_bounded_envelope_and_is_read_in_slices(tmp_path: Path):
    texts = [long_text(50_000), long_text(300)]
    tree = WatchedTree(
        tmp_path,
        [calls({"explore": {"branches": ["Question one", "Question two"]}}), say("End.")],
        [agent("Question one", "explore", say(texts[0])),
         agent("Question two", "explore", say(texts[1]))],
        preset="cyber",
    )  # fmt: skip
    tree.config = tree.config.with_(limits=Limits(max_tool_output_chars=0))
    await tree.go()
    shown = await envelope(tree, "explore")
    assert len(shown) < 8_000 and texts[1].strip() in shown
    context = await at_work(tree, tree.done.trace)
    for child, text in zip(await tree.traces("explore"), texts, strict=True):
        assert await in_slices(context, child.id, 7_000) == text


async def test_what_a_child_is_sent_does_not_grow_with_its_parents_context(tmp_path: Path):
    """40 KB of the parent's context are 0 bytes of the child's."""
    sizes: list[int] = []
    for name, kilobytes in (("small", 0), ("large", 40)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "notes.md").write_text(long_text(1_024 * kilobytes) or "-")
        turns = [calls({"read_file": {"path": "notes.md"}}), CALL, ACCEPT, say("It is there.")]
        child = agent(
            "Write it all", "agent", calls({"submit_report": {"report": report(CRITERION)}})
        )
        tree = WatchedTree(folder, turns, [child], limits=Limits(max_tool_output_chars=0))
        await tree.go([{"role": "user", "content": long_text(1_024 * kilobytes) or "-"}])
        [made] = await tree.traces("agent")
        [payload] = tree.payloads([made.id])
        sizes.append(len(payload))
        assert max(len(p) for p in tree.payloads([tree.done.trace])) > 1_024 * kilobytes
    assert sizes[0] == sizes[1]
