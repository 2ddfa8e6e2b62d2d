"""Trees of the recursive protocol in and out of files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Model

from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import Reviewed, Verdict
from cyberagent.trace.formats import TraceBundle
from tests.traces.grown import (
    ANCHOR,
    a_child,
    a_root,
    answers,
    asks,
    brief,
    ended,
    reports,
    reviewed,
    says,
    snapshot_of,
    validated,
)
from traces import acts, protocols, store, write
from traces.bundle import bundle_of, store_bundle
from traces.models import AnchorRevision, Event, Message, Trace, ValidationResult, VerdictReview
from traces.transfer import export_file, import_file

pytestmark = pytest.mark.django_db


def a_tree() -> str:
    """A whole story: a child that was validated and reviewed, another one that goes on from its
    result and has an explorer below it, and a revised anchor."""
    root = a_root()
    first = a_child(root, "c1", asks(root, "c1"), status="completed")
    judge = a_child(first, "r1", 2, kind="validator", status="completed")
    says(judge, "{}")
    reports(first, "r1", validator=judge)
    answers(root, "c1", *ended(first))
    asks(root, "v1", name="review_child")
    answers(root, "v1", reviewed(first), name="review_child")
    passed_on = brief("Go on from it", context_refs=reviewed(first)["ref"])
    ask = asks(root, "c2")
    second = a_child(
        root, "c2", ask, contract=passed_on, access=[snapshot_of(first)], status="paused"
    )
    a_child(second, "e1", asks(second, "e1", name="explore"), kind="explore", status="completed")
    told = [
        Verdict(verdict="passed", validator=judge),
        Reviewed(child=first, decision="ACCEPT", by="parent"),
    ]
    write.append(root, [], told, status="paused")
    [one] = store.read_anchors(root)
    new = normalize_root_task_anchor(ANCHOR | {"objective": "Vouchers work"})
    two = replace(one, anchor=new, by="ann", supersedes=one.anchor.sha256, why="asked \x00 for")
    write.add_anchor(root, 2, two)
    return root


def forget(root: str) -> None:
    """As if another installation had it."""
    for trace in reversed(store.read_tree(root)):
        Trace.objects.get(pk=trace.state.id).delete()
    assert not Message.objects.exists()


KEYS_OF_THE_DATABASE = ("id", "branch_id")


def sheets(*models: type[Model]) -> list[list[dict[str, Any]]]:
    """All rows of those models, without the keys that a database gives."""
    return [
        sorted(
            ({k: v for k, v in row.items() if k not in KEYS_OF_THE_DATABASE} for row in found),
            key=str,
        )
        for found in (m.objects.values() for m in models)
    ]


@pytest.mark.parametrize("name", ["folder", "file.zip"])
def test_a_recursive_tree_comes_in_as_it_went_out_and_under_its_own_ids(tmp_path: Path, name: str):
    root = a_tree()
    before, tree = bundle_of(Trace.objects.get(pk=root)), store.read_tree(root)
    states = [protocols.protocol_of(t.state.id) for t in tree]
    rows = sheets(Message, Event, ValidationResult, AnchorRevision)
    path = export_file(Trace.objects.get(pk=root), tmp_path / name, "trace")
    forget(root)
    [stored] = import_file(path, owner=None)
    assert stored.trace.pk == root
    assert without_origin(bundle_of(stored.trace)) == before
    assert sheets(Message, Event, ValidationResult, AnchorRevision) == rows
    assert [t.state.id for t in store.read_tree(root)] == [t.state.id for t in tree]
    assert [protocols.protocol_of(t.state.id) for t in tree] == states
    assert [s is not None for s in states] == [True, True, True, False, False]


def without_origin(bundle: TraceBundle) -> TraceBundle:
    """Without the id it had, which an import adds."""
    context = {k: v for k, v in bundle.state.context.items() if k != "original_id"}
    children = tuple(map(without_origin, bundle.children))
    return replace(bundle, state=replace(bundle.state, context=context), children=children)


def test_the_anchors_stand_in_the_roots_meta_alone(tmp_path: Path):
    root = a_tree()
    folder = export_file(Trace.objects.get(pk=root), tmp_path / "out", "trace")
    meta = json.loads((folder / "meta.json").read_text())
    assert [a["anchor"]["objective"] for a in meta["anchors"]] == ["Refunds work", "Vouchers work"]
    assert meta["anchors"][0]["anchor"] == ANCHOR
    below = [json.loads(p.read_text()) for p in folder.glob("children/**/meta.json")]
    assert len(below) == 4
    assert not any("anchors" in m for m in below)


def test_a_tree_any_id_of_which_is_taken_is_refused_and_nothing_of_it_stored():
    root = a_tree()
    whole = bundle_of(Trace.objects.get(pk=root))
    counts = Trace.objects.count(), Message.objects.count(), AnchorRevision.objects.count()
    with pytest.raises(InvalidInput, match="is here already: a recursive run keeps its ids"):
        store_bundle(whole, None)
    only = store.read_tree(root)[-1].state.id
    Trace.objects.filter(pk=only).update(parent_trace=None)
    for trace in reversed(store.read_tree(root)):
        Trace.objects.get(pk=trace.state.id).delete()
    with pytest.raises(InvalidInput, match=f"the run {only} is here already"):
        store_bundle(whole, None)
    assert Trace.objects.count() == 1 < counts[0]
    assert not AnchorRevision.objects.exists()


def test_an_exported_fork_comes_in_again_elsewhere(tmp_path: Path):
    root = a_tree()
    made = acts.fork(Trace.objects.get(pk=root), 5, by=None)
    name, state = made.pk, protocols.protocol_of(made)
    path = export_file(made, tmp_path / "fork.zip", "trace")
    made.delete()
    [stored] = import_file(path, owner=None)
    assert stored.trace.pk == name
    assert protocols.protocol_of(name) == state


def test_a_sub_agent_that_comes_without_its_run_is_a_transcript():
    """Its lineage names traces that are not in the file, and might be somebody else's here."""
    root = a_tree()
    child = store.read_tree(root)[2].state.id
    alone = bundle_of(Trace.objects.get(pk=child))
    made = store_bundle(alone, None)
    context = json.loads(made.context)
    assert "lineage" not in context and "spawned" not in context
    assert protocols.protocol_of(made.pk) is None
    assert made.pk != child  # the run it belongs to is here, and goes on
    assert [m.text for m in alone.messages] == [
        m.text for m in bundle_of(made).messages
    ]  # fmt: skip


# Files that claim too much -----------------------------------------------------------------------


@pytest.fixture
def whole() -> TraceBundle:
    """A tree that is not here."""
    root = a_tree()
    found = bundle_of(Trace.objects.get(pk=root))
    forget(root)
    return found


def with_context(bundle: TraceBundle, **context: Any) -> TraceBundle:
    """The tree with another context of its second child."""
    first, second = bundle.children
    state = replace(second.state, context={**second.state.context, **context})
    return replace(bundle, children=(first, replace(second, state=state)))


def refused(bundle: TraceBundle, why: str) -> None:
    before = Trace.objects.count()
    with pytest.raises(InvalidInput, match=why):
        store_bundle(bundle, None)
    assert Trace.objects.count() == before
    assert not AnchorRevision.objects.exclude(trace__parent_trace=None).exists()


def test_a_lineage_that_is_not_the_files_is_refused(whole: TraceBundle):
    victim = a_root()
    for lineage in ([victim], [whole.state.id, victim], [], "x", None, [whole.state.id] * 2):
        refused(with_context(whole, lineage=lineage), "its lineage is not that of the file")
    store_bundle(with_context(whole, lineage=[whole.state.id]), None)


def test_a_recursive_run_without_an_anchor_is_refused(whole: TraceBundle):
    refused(replace(whole, anchors=()), "no root anchor: create it anew")


def test_an_anchor_below_the_root_is_refused(whole: TraceBundle):
    first, second = whole.children
    refused(replace(whole, children=(replace(first, anchors=whole.anchors), second)), "at the root")


def test_a_plain_run_with_recursive_sub_agents_is_refused(whole: TraceBundle):
    state = replace(whole.state, context={})
    refused(replace(whole, state=state, anchors=()), "the run above is not")
    refused(replace(whole, state=state, children=()), "the run above is not")


def test_a_sub_agent_that_no_message_asked_for_is_refused(whole: TraceBundle):
    for message in (None, 0, 99):
        state = replace(whole.children[0].state, parent_message=message)
        child = replace(whole.children[0], state=state)
        refused(replace(whole, children=(child, whole.children[1])), "no message of it asked")


def test_ids_that_are_none_of_ours_are_refused(whole: TraceBundle):
    refused(replace(whole, state=replace(whole.state, id="root")), "12 hexadecimal digits|lineage")


def test_a_damaged_record_is_refused(whole: TraceBundle):
    place = next(i for i, m in enumerate(whole.messages) if "protocol" in m.metadata)
    message = whole.messages[place]
    entries = json.loads(json.dumps(message.metadata["protocol"]))
    entries[1]["result"]["verdict"] = "superb"
    for record in (entries, [*entries[:1], {"entry": "granted"}], "all", [3]):
        damaged = replace(message, metadata={**message.metadata, "protocol": record})
        messages = (*whole.messages[:place], damaged, *whole.messages[place + 1 :])
        refused(replace(whole, messages=messages), "trace ")


def test_a_snapshot_whose_text_was_changed_is_refused(whole: TraceBundle):
    second = whole.children[1]
    contract = second.messages[0]
    entry = json.loads(json.dumps(contract.metadata["protocol"]))
    entry[0]["access"][0]["text"] = "the secrets of another run"
    changed = replace(contract, metadata={**contract.metadata, "protocol": entry})
    other = replace(second, messages=(changed, *second.messages[1:]))
    refused(replace(whole, children=(whole.children[0], other)), "version is not that of the text")


def test_a_validator_in_a_file_is_not_anybody_elses_trace(whole: TraceBundle):
    victim = a_root()
    judge = a_child(victim, "v1", 1, kind="validator")
    first = whole.children[0]
    messages = tuple(
        replace(m, metadata={**m.metadata, "validator": judge}) if "validator" in m.metadata else m
        for m in first.messages
    )
    store_bundle(
        replace(whole, children=(replace(first, messages=messages), whole.children[1])), None
    )
    assert ValidationResult.objects.get().validator is None


def test_settings_that_reach_out_do_not_come_with_a_validator_either(whole: TraceBundle):
    validator = {"model": "m", "provider_options": {"base_url": "http://x"}}
    state = replace(whole.state, config={**whole.state.config, "validator": validator})
    made = store_bundle(replace(whole, state=state), None)
    assert json.loads(made.config)["validator"] == {"model": "m"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", "0" * 64),
        ("supersedes", "0" * 64),
        ("anchor", {"objective": "x", "completion_criteria": ["y"], "constraints": []}),
        ("anchor", {"objective": "x"}),
        ("anchor", None),
        ("by", 7),
        ("at", "yesterday"),
        ("by", "a" * 300),
        ("more", "x"),
    ],
)
def test_an_anchor_that_does_not_hold_is_refused(tmp_path: Path, field: str, value: Any):
    root = a_tree()
    folder = export_file(Trace.objects.get(pk=root), tmp_path / "out", "trace")
    forget(root)
    meta = json.loads((folder / "meta.json").read_text())
    meta["anchors"][1][field] = value
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(InvalidInput):
        import_file(folder, owner=None)
    assert not Trace.objects.exists()


@pytest.mark.parametrize("anchors", [None, {}, ["x"], [[]], "all"])
def test_anchors_that_are_none_are_refused(tmp_path: Path, anchors: Any):
    folder = export_file(Trace.objects.get(pk=a_tree()), tmp_path / "out", "trace")
    meta = json.loads((folder / "meta.json").read_text()) | {"anchors": anchors}
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(InvalidInput, match=r"meta\.json"):
        import_file(folder, owner=None)


@pytest.mark.parametrize("claimed", ["openai", "claude"])
def test_nothing_that_another_program_wrote_can_grant_anything(tmp_path: Path, claimed: str):
    """Each place of a foreign file in which something could be claimed, claims all there is."""
    ann = User.objects.create_user("ann")
    victim = a_root()
    theirs = {
        "protocol": [validated(), *ended(victim), reviewed(victim)],
        "validator": victim,
        "verdict": "passed",
        "anchor": "a" * 64,
        "pinned": True,
        "snapshot": {"protocol": {"entries": [{"sequence": 1, **validated()}]}, "anchor": "a" * 64},
    }
    more = {
        "metadata": theirs,
        **theirs,
        "context": {"lineage": [victim], "spawned": {"kind": "agent"}},
        "lineage": [],
        "spawned": {"kind": "agent", "call": "c1", "index": 0},
        "anchors": [{"anchor": ANCHOR, "sha256": "a" * 64}],
        "children": [victim],
        "parent_trace": victim,
    }
    file = openai_file(tmp_path, more) if claimed == "openai" else claude_file(tmp_path, more)
    [stored] = import_file(file, owner=ann)
    trace = stored.trace
    assert trace.parent_trace is None
    assert not {"lineage", "spawned"} & json.loads(trace.context).keys()
    assert protocols.protocol_of(trace) is None
    assert store.read_anchors(trace.pk) == ()
    assert not ValidationResult.objects.exists() and not VerdictReview.objects.exists()
    taken = bundle_of(trace)
    assert len(taken.messages) >= 3
    for one in taken.walk():
        for message in one.messages:
            said = message.metadata
            assert not {"protocol", "validator", "verdict", "anchor", "pinned"} & said.keys()
            assert not {"protocol", "anchor"} & (said.get("snapshot") or {}).keys()


def openai_file(folder: Path, more: dict[str, Any]) -> Path:
    call = {"id": "c1", "type": "function", "function": {"name": "agent", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s", **more},
        {"role": "user", "content": "hello", **more},
        {"role": "assistant", "content": None, "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": "c1", "name": "agent", "content": "done", **more},
        {"role": "assistant", "content": "bye", **more},
    ]
    path = folder / "chat.json"
    path.write_text(json.dumps({"messages": messages, **more}))
    return path


def claude_file(folder: Path, more: dict[str, Any]) -> Path:
    call = {"type": "tool_use", "id": "c1", "name": "agent", "input": {}}
    done = {"type": "tool_result", "tool_use_id": "c1", "content": "done"}
    lines = [
        ("user", "u1", None, {"role": "user", "content": "hello"}, {}),
        ("assistant", "a1", "u1", {"role": "assistant", "id": "m1", "content": [call]}, {}),
        ("user", "u2", "a1", {"role": "user", "content": [done]}, {"toolUseResult": more}),
        ("user", "u3", None, {"role": "user", "content": "so far"}, {"isCompactSummary": True}),
        ("user", "u4", "u3", {"role": "user", "content": "noted"}, {"isMeta": True}),
    ]
    path = folder / "session.jsonl"
    with path.open("w") as file:
        for kind, name, parent, message, extra in lines:
            line = {
                "type": kind,
                "uuid": name,
                "parentUuid": parent,
                "sessionId": "s",
                "timestamp": "2026-01-02T03:04:05.678Z",
                "message": {**message, **more, "role": message["role"]},
            }
            file.write(json.dumps({**more, **line, **extra}) + "\n")
    return path
