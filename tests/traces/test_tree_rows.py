"""Trees of traces as rows: order, anchors, verdicts, and the protocol state that follows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidInput, InvalidTaskValue, LeaseLost, NotFound
from cyberagent.core.lineage import open_protocol
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import text_message
from tests.traces.grown import (
    ANCHOR,
    a_child,
    a_root,
    answers,
    asks,
    brief,
    briefed,
    canonical,
    contracts,
    ended,
    hashed,
    reports,
    result,
    reviewed,
    says,
    snapshot_of,
    validated,
)
from traces import protocols, records, store, trees, verdict_rows, write
from traces.models import AnchorRevision, Trace, ValidationResult, VerdictReview

pytestmark = pytest.mark.django_db


def a_validator(judged: str, message: int = 1) -> str:
    return a_child(judged, "v1", message, kind="validator", status="completed")


# Anchors -------------------------------------------------------------------------------------


def test_a_root_keeps_its_anchor_as_the_first_revision_by_its_owner():
    ann = User.objects.create_user("ann")
    root = a_root(owner_id=ann.pk)
    row = AnchorRevision.objects.get(trace=root)
    assert (row.number, row.supersedes, row.by, row.by_name, row.why) == (1, "", ann, "ann", "")
    assert (row.text, row.sha256) == (canonical(ANCHOR), hashed(ANCHOR))
    [read] = store.read_anchors(root)
    assert read.anchor.to_json() == ANCHOR
    assert (read.by, read.supersedes, read.at) == ("ann", "", store.read_trace(root).created_at)


def test_a_run_of_a_program_without_users_has_an_anchor_by_nobody():
    [read] = store.read_anchors(a_root())
    assert read.by == ""
    assert store.read_anchors(write.create_trace(NewTrace(mission="m")).id) == ()


def test_a_sub_agent_has_no_anchor_of_its_own():
    anchor = normalize_root_task_anchor(ANCHOR)
    with pytest.raises(InvalidInput, match="no anchor of its own"):
        write.create_trace(NewTrace(mission="m", parent_trace=a_root(), anchor=anchor))
    assert Trace.objects.count() == AnchorRevision.objects.count() == 1


# Trees ---------------------------------------------------------------------------------------


def test_a_tree_is_told_from_any_of_its_traces_in_order_and_with_what_each_used():
    root = a_root()
    first = a_child(root, "c1", asks(root, "c1", "c2"))
    second = a_child(root, "c2", 2)
    below = a_child(first, "c3", asks(first, "c3"))
    a_root()  # another tree
    Trace.objects.filter(pk=first).update(cost=0.5)
    for trace in (root, first, second, below):
        found = store.read_tree(trace)
        assert [t.state.id for t in found] == [root, first, second, below]
        assert [t.steps for t in found] == [1, 1, 0, 0]
        assert [t.cost for t in found] == [None, 0.5, None, None]
    assert found[3].state.context["lineage"] == [root, first]
    assert (found[3].state.parent_trace, found[3].state.parent_message) == (first, 2)
    assert [t.pk for t in protocols.tree_of(Trace.objects.get(pk=below))] == [
        root, first, second, below,
    ]  # fmt: skip
    assert protocols.root_of(Trace.objects.get(pk=below)).pk == root
    assert protocols.root_of(Trace.objects.get(pk=root)).pk == root
    with pytest.raises(NotFound):
        store.read_tree("nowhere")


def test_a_tree_of_64_is_one_query():
    root = a_root()
    for n in range(63):
        a_child(root, f"c{n}", 1, kind="explore")
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert len(store.read_tree(root)) == 64
    assert len(asked) == 1


@pytest.mark.parametrize("owner", ["", "worker"])
def test_children_that_are_made_at_one_moment_keep_their_order(owner: str):
    root = a_root(owner=owner)
    made = [
        write.create_trace(NewTrace(mission=str(n), parent_trace=root), driver=owner).id
        for n in range(20)
    ]
    ahead = Trace.objects.get(pk=made[-1]).created_at + timedelta(seconds=5)
    Trace.objects.filter(pk=made[-1]).update(created_at=ahead)
    made.append(write.create_trace(NewTrace(mission="last", parent_trace=root)).id)
    assert [t.state.id for t in store.read_tree(root)][1:] == made
    assert set(Trace.objects.filter(parent_trace=root, pk__in=made[:-1]).values_list(
        "lease_owner", flat=True)) == {owner}  # fmt: skip


def test_a_child_is_only_made_by_who_drives_its_parent():
    root = a_root(owner="new")
    with pytest.raises(LeaseLost):
        write.create_trace(NewTrace(mission="m", parent_trace=root), driver="old")
    assert not Trace.objects.filter(parent_trace=root).exists()
    with pytest.raises(NotFound):
        write.create_trace(NewTrace(mission="m", parent_trace="nowhere"))


@given(shape=st.lists(st.integers(0, 30), max_size=15), data=st.data())
def test_parents_come_before_their_children_whatever_the_tree_is(
    shape: list[int], data: st.DataObject
):
    ids, above = [write.create_trace(NewTrace(mission="m")).id], [0]
    for pick in shape:
        above.append(pick % len(ids))
        ids.append(write.create_trace(NewTrace(mission="m", parent_trace=ids[above[-1]])).id)
    found = [t.state.id for t in store.read_tree(data.draw(st.sampled_from(ids)))]
    assert sorted(found) == sorted(ids)
    for child in range(1, len(ids)):
        assert found.index(ids[above[child]]) < found.index(ids[child])
        for younger in range(child + 1, len(ids)):
            if above[younger] == above[child]:
                assert found.index(ids[child]) < found.index(ids[younger])


# Verdicts ------------------------------------------------------------------------------------


def the_verdict(trace: str) -> ValidationResult:
    return ValidationResult.objects.get(trace=trace)


def test_a_verdict_on_a_report_is_a_row_as_soon_as_its_message_is_stored():
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    validator = a_validator(child)
    at = reports(child, validator=validator, verdict="failed", reason="it is elsewhere")
    row = the_verdict(child)
    assert (row.sequence, row.verdict, row.is_root) == (at, "failed", False)
    assert row.reason == "it is elsewhere"
    assert (row.task, row.validator_id) == ("Find the refund code", validator)
    assert (row.packet_sha256, row.model, row.cost) == ("a" * 64, "judge-1", 0.25)
    assert json.loads(row.criteria) == result("failed")["criteria"]
    assert row.created_at.isoformat() == "2026-01-02T03:04:05.678000+00:00"


def test_a_verdict_on_a_roots_answer_names_the_anchor_that_held():
    root = a_root()
    [first] = store.read_anchors(root)
    new = normalize_root_task_anchor(ANCHOR | {"objective": "Vouchers work"})
    old = first.anchor.sha256
    later = replace(first, anchor=new, at="2100-01-02T00:00:00.000Z", supersedes=old)
    for day, objective in ((1, "Refunds work"), (3, "Vouchers work")):
        message = text_message(
            "user",
            "verdict",
            source="framework",
            created_at=f"2100-01-0{day}T00:00:00.000Z",
            metadata={"protocol": [validated()]},
        )
        write.append(root, [message])
        row = ValidationResult.objects.latest("sequence")
        assert (row.task, row.is_root) == (objective, True)
        if day == 1:
            write.add_anchor(root, 2, later)
    verdict_rows.rebuild(root)
    tasks = ValidationResult.objects.order_by("sequence").values_list("task", flat=True)
    assert list(tasks) == ["Refunds work", "Vouchers work"]


def test_the_task_is_that_of_the_contract_in_force():
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    reports(child, "r1")
    contracts(child, "c2", brief("Look again"), root)
    reports(child, "r2")
    tasks = ValidationResult.objects.order_by("sequence").values_list("task", flat=True)
    assert list(tasks) == ["Find the refund code", "Look again"]


def fill(trace: str, count: int) -> None:
    says = text_message("assistant", "On it.", source="model", tokens=1)
    write.append(trace, [says] * count)


def test_the_task_is_found_however_long_ago_the_contract_came():
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    contracts(child, "c2", brief("Look again"), root)
    fill(child, 2_600)
    reports(child)
    assert the_verdict(child).task == "Look again"


def test_the_task_is_that_of_the_newest_summary_where_one_stands_for_the_contract():
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    kept = {"entries": [{"sequence": 1, **briefed(brief("Kept in the summary"), root)}]}
    summary = text_message(
        "user", "so far", source="summary", metadata={"snapshot": {"protocol": kept}}
    )
    write.append(child, [summary])
    reports(child)
    assert the_verdict(child).task == "Kept in the summary"


def test_the_task_is_that_of_the_packet_that_was_judged():
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    packet = f"# TaskBrief\n{canonical(brief('As judged'))}\n"
    sha256 = hashlib.sha256(packet.encode()).hexdigest()
    for call, told, task in (
        ("p1", sha256, "As judged"),
        ("p2", "b" * 64, "Find the refund code"),  # another text than the verdict names
    ):
        new = NewTrace(mission="Judge", parent_trace=child, parent_message=1)
        validator = write.create_trace(new).id
        write.append(validator, [text_message("user", packet, source="framework")])
        sequence = reports(child, call, validator=validator, packet_sha256=told)
        assert ValidationResult.objects.get(trace=child, sequence=sequence).task == task


def test_a_verdict_with_a_packet_reads_nothing_of_the_path():
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    packet = f"# TaskBrief\n{canonical(brief('As judged'))}\n"
    validator = write.create_trace(NewTrace(mission="J", parent_trace=child, parent_message=1)).id
    write.append(validator, [text_message("user", packet, source="framework")])
    sha256 = hashlib.sha256(packet.encode()).hexdigest()
    with CaptureQueriesContext(connection) as asked:
        reports(child, validator=validator, packet_sha256=sha256)
    assert not [q["sql"] for q in asked if "LIKE" in q["sql"]]


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "assistant", "source": "model"},
        {"role": "tool", "source": "tool", "name": "read_file", "tool_call_id": "c9"},
        {"role": "user", "source": "framework", "branch_type": "reflection", "branch_id": "b1"},
    ],
    ids=["a model's message", "another tool's result", "a side branch"],
)
def test_what_does_not_count_in_a_replay_makes_no_row(fields: dict[str, Any]):
    root = a_root()
    message = text_message(fields.pop("role"), "x", metadata={"protocol": [validated()]}, **fields)
    write.append(root, [message], move_head=not message.branch_type)
    verdict_rows.rebuild(root)
    assert not ValidationResult.objects.exists()


def test_a_run_that_is_not_recursive_has_no_verdicts():
    plain = write.create_trace(NewTrace(mission="m")).id
    message = text_message("user", "x", source="user", metadata={"protocol": [validated()]})
    write.append(plain, [message])
    verdict_rows.rebuild(plain)
    assert not ValidationResult.objects.exists()


def test_a_validator_is_only_named_where_it_is_a_sub_agent_of_the_judged_trace():
    somebody_elses = a_validator(a_root())
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    reports(child, validator=somebody_elses)
    assert the_verdict(child).validator is None


def test_a_damaged_record_is_refused_with_its_message():
    root = a_root()
    broken = validated(result("perhaps"))
    with pytest.raises(InvalidTaskValue, match="verdict"):
        answers(root, "c1", broken, name="submit_report")
    assert Trace.objects.get(pk=root).last_sequence == 1


def test_an_append_without_records_asks_nothing_more():
    root = a_root()

    def cost(**fields: Any) -> int:
        message = text_message("user", "x", source="framework", **fields)
        with CaptureQueriesContext(connection) as asked:
            write.append(root, [message])
        return len(asked)

    plain = write.create_trace(NewTrace(mission="m")).id
    write.append(plain, [text_message("user", "m", source="user")])
    with CaptureQueriesContext(connection) as asked:
        write.append(plain, [text_message("user", "x", source="framework")])
    assert cost() == len(asked)
    assert cost(metadata={"protocol": [validated()]}) > cost()


def test_rows_of_verdicts_are_made_anew_and_peoples_words_stay():
    ann = User.objects.create_user("ann")
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    validator = a_validator(child)
    reports(child, "r1", validator=validator)
    contracts(child, "c2", brief("Look again"), root)
    reports(child, "r2")
    before = list(ValidationResult.objects.order_by("pk").values())
    said = VerdictReview.objects.create(
        result=ValidationResult.objects.earliest("pk"), by=ann, word="failed", confirms=False
    )
    ValidationResult.objects.update(task="?", verdict="unknown", validator=None, cost=None)
    ValidationResult.objects.create(trace_id=child, sequence=1, verdict="passed")
    verdict_rows.rebuild(child)
    assert list(ValidationResult.objects.order_by("pk").values()) == before
    ValidationResult.objects.latest("pk").delete()
    verdict_rows.rebuild(child)
    again = list(ValidationResult.objects.order_by("pk").values())
    assert [{**row, "id": 0} for row in again] == [{**row, "id": 0} for row in before]
    assert VerdictReview.objects.get() == said


# The state -----------------------------------------------------------------------------------


def test_several_states_of_a_tree_in_one_look_read_each_trace_once():
    names = [a_root()]
    for _ in range(3):
        names.append(a_child(names[-1], "c1", asks(names[-1], "c1")))
    look = protocols.Look()
    for name in names:
        assert protocols.protocol_of(name, look=look) == protocols.protocol_of(name)
    with CaptureQueriesContext(connection) as asked:
        for name in names:
            protocols.protocol_of(name, look=look)
    assert not list(asked)


def test_a_state_is_opened_under_the_traces_above_it():
    root = a_root()
    first = a_child(root, "c1", asks(root, "c1"))
    answers(root, "c1", *ended(first))
    grown_review(root, first)
    passed_on = brief("Go on from it", context_refs=reviewed(first)["ref"])
    second = a_child(root, "c2", asks(root, "c2"), contract=passed_on, access=[snapshot_of(first)])
    state = protocols.protocol_of(root)
    assert state is not None
    assert [g.snapshot.ref_id for g in state.catalogue.grants] == [f"reviewed_task_result:{first}"]
    own = protocols.protocol_of(second)
    assert own is not None and own.brief is not None
    assert own.brief.objective == "Go on from it"
    assert {r.ref_id for r in own.catalogue.refs} == {f"reviewed_task_result:{first}"}
    assert protocols.protocol_of(Trace.objects.get(pk=second)) == own
    assert protocols.protocol_of(write.create_trace(NewTrace(mission="m")).id) is None
    before = protocols.protocol_of(root, head=3)
    assert before is not None and [c.id for c in before.reviews_due] == [first]


def grown_review(trace: str, child: str) -> int:
    message = text_message(
        "user", "reviewed", source="framework", metadata={"protocol": [reviewed(child)]}
    )
    return write.append(trace, [message]).messages[0].sequence


def test_a_root_without_an_anchor_says_so():
    bare = write.create_trace(NewTrace(mission="m", context={"lineage": []})).id
    with pytest.raises(InvalidInput, match="no anchor"):
        protocols.protocol_of(bare)


def test_only_messages_with_records_and_the_newest_batch_are_read():
    root = a_root()
    for _ in range(30):
        says(root)
    child = a_child(root, "c1", asks(root, "c1"))
    answers(root, "c1", *ended(child))
    for _ in range(30):
        says(root)
    asks(root, "c2", "c3")
    answers(root, "c2")
    found = records.protocol_path(root)
    assert [m.sequence for m in found] == [33, 64, 65]
    assert [m.sequence for m in records.recorded(root)] == [33]
    assert records.newest_batch(root, head=1) == []


@pytest.mark.usefixtures("threads")
async def test_the_state_is_the_one_that_a_run_opens():
    """The whole path through the store, against the short way through the rows."""

    def grow() -> list[str]:
        root = a_root()
        child = a_child(root, "c1", asks(root, "c1"))
        below = a_child(child, "c2", asks(child, "c2"))
        answers(child, "c2", *ended(below))
        reports(child)
        answers(root, "c1", *ended(child))
        at = asks(root, "c3")
        contracts(child, "c3", brief("Look again"), root, message=at)
        return [root, child, below]

    ids = await sync_to_async(grow)()
    rows = store.OrmStore()
    for name in ids:
        opened = await open_protocol(rows, await rows.trace(name), await rows.path(name))
        assert opened == await sync_to_async(protocols.protocol_of)(name)
    assert [t.state.id for t in await rows.tree(ids[2])] == ids
    assert (await rows.anchors(ids[0]))[0].anchor.to_json() == ANCHOR


def test_a_call_is_open_until_it_has_its_result_on_the_main_path():
    root = a_root()
    first = a_child(root, "c1", asks(root, "c1", "c2"))
    second = a_child(root, "c2", 2, kind="explore")

    def asked() -> list[bool]:
        return [trees.is_asked(Trace.objects.get(pk=t)) for t in (root, first, second)]

    assert asked() == [False, True, True]
    answers(root, "c1", *ended(first))
    assert asked() == [False, False, True]
    answers(root, "c2")
    assert asked() == [False, False, False]
    again = asks(root, "c1")  # an id that is used once more is another call
    assert asked() == [False, False, False]
    contracts(first, "c1", brief("Look again"), root, message=again)
    assert asked() == [False, True, False]
    at = says(root)
    judge = a_child(root, f"answer {at}", at, kind="validator")
    assert trees.is_asked(Trace.objects.get(pk=judge))
    says(root)
    assert not trees.is_asked(Trace.objects.get(pk=judge))
