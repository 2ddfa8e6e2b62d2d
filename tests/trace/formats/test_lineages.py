"""Recursive trees in files: what comes back, what a file cannot claim, what redaction leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import AnchorRevised, Verdict
from cyberagent.core.types import Message, TraceState, text_message
from cyberagent.trace.formats import TraceBundle, read_transcript, redacted, write_export
from cyberagent.trace.formats.lineages import (
    RESERVED,
    checked_tree,
    foreign,
    is_recursive,
    transcript,
)

ROOT, CHILD, BELOW = "0123456789ab", "ba9876543210", "00ff00ff00ff"
ANCHOR = normalize_root_task_anchor(
    {"objective": "Refunds", "completion_criteria": ["paid out"], "constraints": []}
)
BRIEF: dict[str, Any] = {
    "objective": "Find it",
    "reason": "",
    "completion_criteria": ["found"],
    "expected_outputs": ["a name"],
    "parent_findings": [],
    "context": "",
    "constraints": [],
    "context_refs": [],
}


def briefed(parent: str, secret: str = "") -> dict[str, Any]:
    return {"entry": "briefed", "brief": BRIEF | {"reason": secret}, "parent": parent, "access": []}


def a_trace(
    name: str, lineage: list[str] | None, *children: TraceBundle, **metadata: Any
) -> TraceBundle:
    context: dict[str, Any] = {} if lineage is None else {"lineage": lineage}
    if lineage:
        context["spawned"] = {"kind": "agent", "call": "c1", "index": 0}
    message = text_message("user", "go", source="framework", sequence=1, depth=1, metadata=metadata)
    state = TraceState(
        id=name,
        mission="m",
        status="completed",
        context=context,
        head_sequence=1,
        last_sequence=1,
        parent_trace=lineage[-1] if lineage else None,
        parent_message=1 if lineage else None,
    )
    return TraceBundle(state=state, messages=(message,), children=children)


def a_tree(secret: str = "") -> TraceBundle:
    below = a_trace(BELOW, [ROOT, CHILD], protocol=[briefed(CHILD)])
    child = a_trace(CHILD, [ROOT], below, protocol=[briefed(ROOT, secret)], call="c1")
    revision = AnchorRevision(anchor=ANCHOR, by="ann", at="2026-01-02T03:04:05.678Z")
    return replace(a_trace(ROOT, [], child, anchor=ANCHOR.sha256), anchors=(revision,))


def without_origin(bundle: TraceBundle) -> TraceBundle:
    context = {k: v for k, v in bundle.state.context.items() if k != "original_id"}
    children = tuple(map(without_origin, bundle.children))
    return replace(bundle, state=replace(bundle.state, context=context), children=children)


def contexts(bundle: TraceBundle) -> set[str]:
    return {key for one in bundle.walk() for key in one.state.context}


# Out and in --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["trace", "trace_zip"])
def test_a_recursive_tree_comes_back_with_its_anchors_and_lineages(tmp_path: Path, format: str):
    path = write_export(a_tree(), tmp_path / "out", format)
    [one] = read_transcript(path)
    back = without_origin(one.trace)
    assert replace(back, goals=None) == replace(a_tree(), goals=None)
    assert checked_tree(one.trace) == one.trace


def test_a_tree_that_holds_is_left_as_it_is():
    assert checked_tree(a_tree()) == a_tree()
    plain = a_trace("any", None)
    assert checked_tree(plain) is plain


def test_a_sub_agent_alone_is_a_transcript():
    [child] = a_tree().children
    made = checked_tree(child)
    assert not any(map(is_recursive, made.walk()))
    assert "spawned" not in made.state.context
    assert [m for one in made.walk() for m in one.messages] == [
        m for one in child.walk() for m in one.messages
    ]  # fmt: skip


NAMES = st.sampled_from([ROOT, CHILD, BELOW, "ffffffffffff", "", "x"])


@given(above=st.lists(NAMES, max_size=4), below=st.lists(NAMES, max_size=4))
def test_no_lineage_but_the_files_own_is_taken(above: list[str], below: list[str]):
    """Whatever a file says of its sub-agents: they come in under the traces that they stand
    under there, or not at all."""
    tree = a_tree()
    [child] = tree.children
    [grandchild] = child.children

    def saying(one: TraceBundle, lineage: list[str]) -> TraceBundle:
        return replace(one, state=replace(one.state, context={"lineage": lineage}))

    child = replace(saying(child, above), children=(saying(grandchild, below),))
    claimed = replace(tree, children=(child,))
    if (above, below) == ([ROOT], [ROOT, CHILD]):
        assert checked_tree(claimed) == claimed
    else:
        with pytest.raises(InvalidInput):
            checked_tree(claimed)


# Other programs' ---------------------------------------------------------------------------------


KEYS = st.sampled_from([*sorted(RESERVED), "name", "snapshot", "uuid"])
VALUES = st.one_of(
    st.text(max_size=5), st.booleans(), st.dictionaries(KEYS, st.integers(), max_size=4)
)


@given(metadata=st.dictionaries(KEYS, VALUES, max_size=8))
def test_what_only_the_framework_says_does_not_come_from_elsewhere(metadata: dict[str, Any]):
    claimed = replace(a_tree(), messages=(replace(a_tree().messages[0], metadata=dict(metadata)),))
    for one in foreign(claimed).walk():
        assert one.anchors == ()
        assert not {"lineage", "spawned"} & one.state.context.keys()
        for message in one.messages:
            assert not RESERVED & message.metadata.keys()
            inner = message.metadata.get("snapshot")
            assert not isinstance(inner, dict) or not RESERVED & inner.keys()
    kept = foreign(claimed).messages[0].metadata
    assert {k: v for k, v in kept.items() if k != "snapshot"} == {
        k: v for k, v in metadata.items() if k in ("name", "uuid")
    }


def test_a_foreign_message_that_claims_nothing_is_the_same_object():
    message = Message(role="user", source="user", metadata={"uuid": "u"})
    one = replace(a_trace("x", None), messages=(message,))
    assert foreign(one).messages[0] is message


# Redaction ---------------------------------------------------------------------------------------


def clean(text: str) -> str:
    return text.replace("sk-123", "[redacted]")


def test_records_that_hold_no_secret_stay_whole():
    tree = a_tree()
    told = (Verdict(number=1, verdict="passed", validator="sk-123"), AnchorRevised(
        number=2, sha256="sk-123", supersedes="", by="ann"))  # fmt: skip
    tree = replace(tree, events=told)
    assert redacted(tree, clean) == tree


@pytest.mark.parametrize("place", ["a contract", "the anchor", "a summary's snapshot"])
def test_a_tree_whose_records_hold_a_secret_becomes_a_transcript(place: str):
    """Its hashes would not hold any more, and what they bind could not be told from a fake."""
    tree = a_tree("sk-123" if place == "a contract" else "")
    if place == "the anchor":
        secret = normalize_root_task_anchor(ANCHOR.to_json() | {"objective": "sk-123"})
        tree = replace(tree, anchors=(AnchorRevision(anchor=secret),))
    if place == "a summary's snapshot":
        entry = {"sequence": 1, **briefed(ROOT, "sk-123")}
        summary = replace(
            tree.messages[0], metadata={"snapshot": {"protocol": {"entries": [entry]}}}
        )
        tree = replace(tree, messages=(summary,))
    made = redacted(tree, clean)
    assert contexts(made) == set() and made.anchors == ()
    assert "sk-123" not in str(made)
    assert checked_tree(made) == made
    assert transcript(made) == made


@pytest.mark.parametrize(
    ("key", "value"), [("call", ["c1"]), ("call", 7), ("message", "1"), ("validator", {"a": 1})]
)
def test_what_the_framework_notes_beside_a_record_has_its_type(key: str, value: Any):
    child = a_trace(CHILD, [ROOT], **{"protocol": [briefed(ROOT)], "call": "c1", key: value})
    revision = AnchorRevision(anchor=ANCHOR, by="ann", at="2026-01-02T03:04:05.678Z")
    tree = replace(a_trace(ROOT, [], child), anchors=(revision,))
    with pytest.raises(InvalidInput, match=f"message 1: {key} is malformed"):
        checked_tree(tree)
