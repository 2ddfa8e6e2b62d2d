"""Whole traces in and out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import ChildEnded, ChildStarted, Done, Rewound
from cyberagent.core.ports import CallEnd, NewTrace
from cyberagent.core.types import CallRecord, Message, Text, ToolCall, Usage, sha256, text_message
from cyberagent.trace.formats.values import Imported, TraceBundle
from traces import bundle, lease, paths, write
from traces.models import Event, ModelCall, Trace
from traces.models import Message as MessageRow
from traces.transfer import export_file, import_file

pytestmark = pytest.mark.django_db

BLOB = b'{"system":"Be brief."}'


def said(text: str, **fields: object) -> Message:
    return text_message("user", text, source="user", tokens=2, **fields)


def a_run() -> Trace:
    """A run with a plan, a rewind, a side branch, a model call and a child."""
    made = write.create_trace(
        NewTrace(mission="Add a login", config={"provider": "openai", "model": "m"})
    ).id
    write.append(made, [said("Add a login")], turn=1)
    record = CallRecord(
        number=1,
        provider="openai",
        model="m",
        projection="openai/1",
        manifest={"s": sha256(BLOB), "t": sha256(BLOB), "p": sha256(BLOB), "i": [["w", 1, 1]]},
        sha256="b" * 64,
        estimated_tokens=9,
        exact=True,
        after_sequence=1,
    )
    write.start_call(made, record, {sha256(BLOB): BLOB})
    plan = Message(
        role="assistant",
        source="model",
        parts=(ToolCall("c1", "goal", '{"add": "Read, Write", "focus": "1"}'),),
        tokens=11,
    )
    result = Message(
        role="tool", source="tool", parts=(Text("## Updated"),), tool_call_id="c1", name="goal",
        tokens=3,
    )  # fmt: skip
    usage = Usage(prompt=9, completion=4)
    end = CallEnd(number=1, status="ok", message=-1, usage=usage, cost=0.25)
    write.append(made, [plan, result], call=end)
    write.append(made, [said("left behind", goal_id="1")])
    rewound = Rewound(to_sequence=3, from_sequence=4, by="ann")
    write.move_head(made, 3, [rewound], expected_head=4)
    side = {"branch_type": "reflection", "branch_id": "r1"}
    write.append(made, [said("think", **side)], move_head=False)
    write.append(made, [said("go on", goal_id="1")])
    child = write.create_trace(
        NewTrace(mission="look", parent_trace=made, parent_message=2, status="completed")
    ).id
    write.append(child, [said("look")], [Done(trace=child, status="completed")])
    write.append(made, [], [ChildStarted(child=child), ChildEnded(child=child)])
    write.append(made, [], [Done(trace=made, status="completed")], status="completed")
    return Trace.objects.get(pk=made)


def without_names(one: TraceBundle) -> TraceBundle:
    """A bundle without what a copy cannot share: ids, and events that name them."""
    context = {k: v for k, v in one.state.context.items() if k != "original_id"}
    state = replace(one.state, id="", parent_trace=None, context=context)
    events = tuple(e for e in one.events if not isinstance(e, Done | ChildStarted | ChildEnded))
    children = tuple(map(without_names, one.children))
    return replace(one, state=state, events=events, children=children)


def test_a_trace_comes_in_again_as_it_went_out():
    original = bundle.bundle_of(a_run())
    copy = bundle.store_bundle(original, None)
    again = bundle.bundle_of(copy)
    assert copy.pk != original.state.id
    assert without_names(again) == without_names(original)
    assert again.children[0].state.parent_trace == copy.pk


def test_through_a_folder_nothing_is_lost(tmp_path: Path):
    trace = a_run()
    original = bundle.bundle_of(trace)
    folder = export_file(trace, tmp_path / "out", "trace")
    [stored] = import_file(folder, owner=None)
    assert without_names(bundle.bundle_of(stored.trace)) == without_names(original)


def test_an_id_that_is_free_is_kept():
    original = bundle.bundle_of(a_run())
    Trace.objects.filter(parent_trace=original.state.id).delete()
    Trace.objects.filter(pk=original.state.id).delete()
    assert bundle.store_bundle(original, None).pk == original.state.id


@pytest.mark.parametrize("through_a_folder", [False, True])
def test_events_name_the_copies_not_the_originals(through_a_folder: bool, tmp_path: Path):
    trace = a_run()
    if through_a_folder:
        copy = import_file(export_file(trace, tmp_path / "out", "trace"), owner=None)[0].trace
    else:
        copy = bundle.store_bundle(bundle.bundle_of(trace), None)
    child = Trace.objects.get(parent_trace=copy)
    named = {e.kind: json.loads(e.data) for e in Event.objects.filter(trace__in=[copy, child])}
    assert named["Done"]["trace"] in (copy.pk, child.pk)
    assert named["ChildStarted"]["child"] == named["ChildEnded"]["child"] == child.pk


def test_an_imported_trace_has_its_totals_its_goals_and_its_owner():
    ann = User.objects.create_user("ann")
    copy = bundle.store_bundle(bundle.bundle_of(a_run()), ann)
    assert (copy.owner, copy.steps, copy.head_depth) == (ann, 1, 4)
    assert (copy.prompt_tokens, copy.completion_tokens, copy.cost) == (9, 4, 0.25)
    assert (copy.goals_total, copy.current_goal) == (2, "1 Read")
    assert [g.goal_id for g in copy.goals.all()] == ["1", "2"]
    assert paths.goal_totals(copy, ["1"])["1"].goal_rows == 1
    [ghost] = paths.ghosts(copy)
    assert (ghost.fork_sequence, ghost.count) == (3, 1)
    write.append(copy.pk, [said("and on", goal_id="1")], expected_head=6)
    copy.refresh_from_db()
    assert paths.goal_totals(copy, ["1"])["1"].goal_rows == 2


def test_a_run_that_was_live_is_interrupted_and_nobody_drives_it():
    trace = a_run()
    original = bundle.bundle_of(trace)
    live = replace(original, state=replace(original.state, status="running"))
    copy = bundle.store_bundle(live, None)
    assert copy.status == "interrupted"
    assert lease.due() == []


def test_settings_that_reach_out_do_not_come_with_a_file():
    original = bundle.bundle_of(a_run())
    config = {"model": "m", "workspace": "/", "provider_options": {"base_url": "http://x"}}
    copy = bundle.store_bundle(
        replace(original, state=replace(original.state, config=config)), None
    )
    assert json.loads(copy.config) == {"model": "m"}


def counts() -> tuple[int, ...]:
    return tuple(m.objects.count() for m in (Trace, MessageRow, Event, ModelCall))


def test_of_a_broken_bundle_nothing_is_stored():
    original = bundle.bundle_of(a_run())
    before = counts()
    [child] = original.children
    false = replace(child, blobs={"0" * 64: b"not what the name says"})
    gap = replace(child, events=child.events[1:])
    orphan = replace(child.messages[0], parent_sequence=7, depth=2)
    tree = replace(child, messages=(orphan,))
    for broken in (false, gap, tree):
        with pytest.raises(InvalidInput):
            bundle.store_bundle(replace(original, children=(broken,)), None)
    assert counts() == before


def test_a_transcript_says_that_it_was_imported(tmp_path: Path):
    file = tmp_path / "chat.json"
    file.write_text(
        json.dumps(
            [
                {"role": "user", "content": "Read it.\x00\ud800"},
                {"role": "assistant", "content": "Done."},
            ]
        )
    )
    [stored] = import_file(file, owner=None)
    trace = stored.trace
    [event] = Event.objects.filter(trace=trace)
    assert (event.kind, json.loads(event.data)["how"]) == ("Session", "imported")
    assert trace.last_event == 1
    first, second = paths.page(trace)
    assert (first.text, second.text) == ("Read it.\x00\ud800", "Done.")
    assert second.tokens > 0


def test_a_result_that_answers_no_call_is_a_row_of_its_own():
    result = Message(
        role="tool", source="import", parts=(Text("found"),), tool_call_id="lost",
        sequence=2, parent_sequence=1, depth=2,
    )  # fmt: skip
    first = said("look", sequence=1, depth=1)
    made = write.create_trace(NewTrace(mission="m"))
    state = replace(made, id="x", head_sequence=2, last_sequence=2, status="completed")
    one = TraceBundle(state=state, messages=(first, result))
    trace = bundle.store_import(Imported(format="openai_chat", trace=one), None)
    found = paths.rows_page(trace, 0, 10)
    assert [m.sequence for m in found.messages] == [1, 2]
