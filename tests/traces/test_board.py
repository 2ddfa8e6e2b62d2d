"""The board of sub-agents as values: what each has come to, and what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.refs import ContextRef
from cyberagent.core.reports import TaskReport
from cyberagent.core.verdicts import Word
from tests.core.protocol_values import anchor, brief, report, result, review
from traces.board import Board, BoardRow, Member, Read, board
from traces.contracts import changes, constraints, refs, revisions, rounds

ANCHOR = anchor()
ROOT = ProtocolState(trace_id="root", anchor=ANCHOR)
BRIEF = brief(ANCHOR)


def given_to(
    parent: ProtocolState, child: str, at: int, **fields: Any
) -> tuple[ProtocolState, ProtocolState]:
    """The states of parent and child once the result of message ``at`` has come, and before
    anything came back: the child's contract is its message 1."""
    contract = brief(parent.anchor, parent.brief, **fields)
    above, access = parent.delegated(at, child, contract)
    own = ProtocolState(trace_id=child, anchor=parent.anchor)
    return above, own.briefed(1, contract, access, parent=parent.trace_id).under_parent(above)


def handed_in(own: ProtocolState, verdict: Word = "passed", **fields: Any) -> ProtocolState:
    """The report in message 6 of the child, with its verdict."""
    return own.reported(6, report(**fields)).validated(6, result(verdict))


def ended(above: ProtocolState, own: ProtocolState, at: int) -> ProtocolState:
    assert own.result is not None
    return above.child_ended(at, own.trace_id, own.report, own.result)


def tree(above: ProtocolState, own: ProtocolState | None, **fields: Any) -> Board:
    """A live root with one sub-agent, which has come to its end unless ``fields`` say else."""
    told = {"kind": "agent", "status": "completed", "waited": False} | fields
    root = Member(id="root", status="running", protocol=above)
    kid = Member(id="kid", parent="root", asked_at=4, level=1, protocol=own, **told)
    return board([root, kid])


def only(found: Board) -> BoardRow:
    (row,) = found.rows
    return row


# How far it has come -------------------------------------------------------------------------


def test_at_work_it_has_a_contract_and_nothing_else() -> None:
    _, own = given_to(ROOT, "kid", 5)
    # Its parent's record comes with the result: until then it knows of nobody.
    row = only(tree(ROOT, own, status="running", waited=True))
    assert (row.brief, row.brief_at, row.brief_sha256) == (1, 1, BRIEF.sha256)
    assert (row.report, row.verdict, row.review, row.delivered) == (None, None, None, 0)
    assert row.alarms == ()


def test_a_result_that_came_waits_for_its_review() -> None:
    above, own = given_to(ROOT, "kid", 5)
    claims = [
        {"criterion": "A refund reaches the bank", "met": True, "evidence": [3]},
        {"criterion": "It is fast", "met": False},
    ]
    own = handed_in(own, status="partial", criteria=claims)
    root = Member(id="root", status="running", protocol=ended(above, own, 5))
    kid = Member(
        id="kid", parent="root", level=1, kind="agent", status="completed", waited=False,
        protocol=own,
    )  # fmt: skip
    row = only(board([root, kid], verdicts={("kid", 6): 77}))
    assert isinstance(row.report, TaskReport)
    assert (row.report.status, row.met, row.report_at) == ("partial", 1, 6)
    assert row.verdict is not None
    assert (row.verdict.verdict, row.verdict_at, row.verdict_id) == ("passed", 6, 77)
    assert (row.delivered, row.acknowledged) == (5, 0)
    assert row.alarms == ("review_due",)


def test_a_review_is_the_parents_word_that_it_has_the_result() -> None:
    above, own = given_to(ROOT, "kid", 5)
    own = handed_in(own)
    above, _ = ended(above, own, 5).reviewed(7, "kid", review("ACCEPT", ANCHOR))
    row = only(tree(above, own))
    assert row.review is not None
    assert (row.review.decision, row.delivered, row.acknowledged) == ("ACCEPT", 5, 7)
    assert row.alarms == ()


def test_of_an_earlier_contract_nothing_is_shown_once_there_is_a_new_one() -> None:
    above, own = given_to(ROOT, "kid", 5)
    own = handed_in(own, "failed")
    better = brief(ANCHOR, objective="Write the refund call again")
    asked = review("REVISE_CHILD", ANCHOR, verdict="failed", next_brief=better.to_json())
    above, _ = ended(above, own, 5).reviewed(7, "kid", asked)
    row = only(tree(above, own))
    assert row.review is not None
    assert (row.brief, row.review.decision, row.acknowledged) == (1, "REVISE_CHILD", 7)
    # It has the new contract and works; its parent still knows the old round only.
    own = own.briefed(9, better, (), parent="root")
    row = only(tree(above, own, status="running", waited=True))
    assert (row.brief, row.brief_at, row.brief_sha256) == (2, 9, better.sha256)
    assert (row.report, row.verdict, row.review, row.delivered) == (None, None, None, 0)
    assert row.alarms == ()


def test_a_sub_agent_that_broke_down_is_known_by_what_its_parent_was_told() -> None:
    above, own = given_to(ROOT, "kid", 5)
    above = above.child_ended(5, "kid", None, result("unknown", "it broke down"))
    row = only(tree(above, own, status="failed"))
    assert row.report is None
    assert row.verdict is not None
    assert (row.verdict.verdict, row.verdict_at, row.delivered) == ("unknown", 0, 5)
    assert row.alarms == ("review_due",)


def test_validators_stand_with_whom_they_judged() -> None:
    above, own = given_to(ROOT, "kid", 5)
    members = [
        Member(id="root", status="running", protocol=above),
        Member(id="v0", parent="root", level=1, kind="validator", status="running"),
        Member(id="kid", parent="root", level=1, kind="agent", status="running", protocol=own),
        Member(id="v1", parent="kid", level=2, kind="validator", status="completed"),
        Member(id="v2", parent="kid", level=2, kind="validator", status="completed"),
    ]
    found = board(members)
    assert [m.id for m in found.top.validators] == ["v0"]
    row = only(found)
    assert (row.member.id, [m.id for m in row.validators]) == ("kid", ["v1", "v2"])


def test_an_explorer_has_no_contract_and_is_delivered_by_its_calls_answer() -> None:
    row = only(tree(ROOT, None, kind="explore", answered=9))
    assert (row.brief, row.refs, row.delivered, row.alarms) == (0, (), 9, ())


# Refs ------------------------------------------------------------------------------------------


def reviewed_result() -> tuple[ProtocolState, ContextRef]:
    """A root that holds the reviewed result of a first sub-agent."""
    above, own = given_to(ROOT, "first", 5)
    above = ended(above, handed_in(own), 5)
    above, _ = above.reviewed(7, "first", review("ACCEPT", ANCHOR))
    (ref,) = above.catalogue.refs
    return above, ref


def test_what_it_was_given_and_what_it_really_read_are_told_apart() -> None:
    above, ref = reviewed_result()
    above, own = given_to(above, "kid", 9, context_refs=[ref.to_json()])
    other = ContextRef("task_brief:somebody", "0" * 64)
    reads = (
        Read(ref=ref, sequence=3, start=0, end=100),
        Read(ref=ref, sequence=5, start=100, end=150),
        Read(ref=other, sequence=7),
    )
    row = only(tree(above, own, status="running", waited=True, reads=reads))
    (given_ref,) = row.refs
    assert (given_ref.ref, given_ref.kind) == (ref, "reviewed_task_result")
    assert [r.sequence for r in given_ref.reads] == [3, 5]
    assert (given_ref.withheld, row.reads) == (False, 1)
    assert [r.sequence for r in row.other_reads] == [7]


def test_a_ref_that_its_parent_lost_is_withheld() -> None:
    above, ref = reviewed_result()
    above, own = given_to(above, "kid", 9, context_refs=[ref.to_json()])
    # The parent goes back to before its review, and asks for the same work from there.
    back = replace(above, entries=tuple(n for n in above.entries if n.sequence != 7))
    row = only(tree(back, own.under_parent(back), status="running", waited=True))
    assert [(r.ref, r.withheld) for r in row.refs] == [(ref, True)]


# Alarms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["queued", "running"])
@pytest.mark.parametrize(
    ("root_is_live", "on_path", "waited"),
    [(False, True, True), (True, False, True), (True, True, False)],
)
def test_who_works_without_anybody_waiting_is_an_orphan(
    status: str, root_is_live: bool, on_path: bool, waited: bool
) -> None:
    _, own = given_to(ROOT, "kid", 5)
    root = Member(id="root", status="running" if root_is_live else "stopped", protocol=ROOT)
    kid = Member(
        id="kid", parent="root", level=1, kind="agent", status=status, protocol=own,
        on_path=on_path, waited=waited,
    )  # fmt: skip
    assert only(board([root, kid], root_is_live=root_is_live)).alarms == ("orphan",)


def test_who_is_at_rest_with_its_run_is_none() -> None:
    _, own = given_to(ROOT, "kid", 5)
    root = Member(id="root", status="paused", protocol=ROOT)
    kid = Member(id="kid", parent="root", level=1, kind="agent", status="paused", protocol=own)
    assert only(board([root, kid], root_is_live=False)).alarms == ()


@pytest.mark.parametrize("status", ["completed", "failed", "stopped", "interrupted"])
def test_an_end_that_its_parent_passed_over_is_undelivered(status: str) -> None:
    _, own = given_to(ROOT, "kid", 5)
    assert only(tree(ROOT, own, status=status)).alarms == ("undelivered",)
    # The call still waits: the result is on its way.
    assert only(tree(ROOT, own, status=status, waited=True)).alarms == ()
    # A rewind left the call: nobody wants it any more.
    assert only(tree(ROOT, own, status=status, on_path=False)).alarms == ()


def test_an_explorer_without_an_answer_is_undelivered_too() -> None:
    assert only(tree(ROOT, None, kind="explore")).alarms == ("undelivered",)


@pytest.mark.parametrize("verdict", ["failed", "unknown"])
def test_what_was_accepted_against_its_verdict_is_marked(verdict: Word) -> None:
    above, own = given_to(ROOT, "kid", 5)
    own = handed_in(own, verdict)
    accepted = review("ACCEPT", ANCHOR, verdict=verdict, reason="I saw it myself")
    above, _ = ended(above, own, 5).reviewed(7, "kid", accepted)
    assert only(tree(above, own)).alarms == ("against_verdict",)


def test_a_result_over_the_limit_is_there_without_a_ref() -> None:
    above, own = given_to(ROOT, "kid", 5)
    own = handed_in(own, summary="x" * 16_000)  # With all around it more than 16,000.
    above, warning = ended(above, own, 5).reviewed(7, "kid", review("ACCEPT", ANCHOR))
    assert warning
    row = only(tree(above, own))
    assert row.review is not None
    assert row.alarms == ("no_ref",)


def test_without_a_report_there_is_nothing_that_a_ref_could_stand_for() -> None:
    above, own = given_to(ROOT, "kid", 5)
    above = above.child_ended(5, "kid", None, result("unknown"))
    above, _ = above.reviewed(7, "kid", review("ABANDON", ANCHOR, verdict="unknown"))
    assert only(tree(above, own, status="failed")).alarms == ()


@pytest.mark.parametrize("status", ["paused", "waiting"])
def test_who_waits_while_its_parent_is_live_is_told(status: str) -> None:
    _, own = given_to(ROOT, "kid", 5)
    assert only(tree(ROOT, own, status=status, waited=True)).alarms == ("waits",)


STATUSES = ("queued", "running", "paused", "waiting", "completed", "failed", "stopped",
            "interrupted")  # fmt: skip
KINDS = ("agent", "validator", "explore", "research", "")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 7), st.sampled_from(KINDS), st.sampled_from(STATUSES), st.booleans(),
            st.booleans(), st.integers(0, 2),
        ),
        max_size=8,
    ),
    st.sampled_from(STATUSES),
    st.booleans(),
)  # fmt: skip
def test_every_trace_is_told_of_once_whatever_the_tree(
    below: list[tuple[int, str, str, bool, bool, int]], status: str, root_is_live: bool
) -> None:
    members = [Member(id="0", status=status)]
    for number, (above, kind, own, on_path, waited, answered) in enumerate(below, 1):
        # A validator has nobody below it.
        parents = [m for m in members if m.kind != "validator"]
        parent = parents[above % len(parents)]
        members.append(
            Member(
                id=str(number), parent=parent.id, level=parent.level + 1, kind=kind, status=own,
                on_path=on_path, waited=waited, answered=answered,
            )
        )  # fmt: skip
    found = board(members, root_is_live=root_is_live)
    rows = [row.member.id for row in found.rows]
    judges = [m.id for row in (found.top, *found.rows) for m in row.validators]
    assert sorted([found.top.member.id, *rows, *judges]) == sorted(m.id for m in members)
    for row in found.rows:
        m = row.member
        lives, over = m.status in STATUSES[:2], m.status in STATUSES[4:]
        parent_lives = next(p for p in members if p.id == m.parent).status in STATUSES[:2]
        expected = {
            "orphan": lives and not (root_is_live and m.on_path and m.waited),
            "undelivered": over and m.on_path and not m.waited and not m.answered,
            "waits": m.status in STATUSES[2:4] and parent_lives,
        }
        assert set(row.alarms) == {name for name, holds in expected.items() if holds}
        assert row.to_json()["alarms"] == list(row.alarms)


# The task --------------------------------------------------------------------------------------


def test_changes_name_what_only_one_of_two_versions_has() -> None:
    old = {"a": ["x", "y"], "b": "same", "c": "", "d": [1, {"k": 1}]}
    new = {"a": ["y", "z"], "b": "same", "c": "new", "d": [{"k": 1}, 1]}
    found = [(c.field, c.added, c.removed) for c in changes(old, new, ("a", "b", "c", "d"))]
    assert found == [
        ("a", ("z",), ("x",)),
        ("c", ("new",), ()),
        ("d", ('{"k":1}', "1"), ("1", '{"k":1}')),
    ]


def test_revisions_come_newest_first_with_what_each_changed() -> None:
    second = anchor(constraints=["No card number is logged", "No downtime"])
    told = [
        AnchorRevision(anchor=ANCHOR, at="2026-05-01T10:00:00Z"),
        AnchorRevision(anchor=second, by="ann", why="asked for", supersedes=ANCHOR.sha256),
    ]
    newest, first = revisions(told)
    assert (newest.number, newest.revision.by) == (2, "ann")
    assert [(c.field, c.added, c.removed) for c in newest.changes] == [
        ("constraints", ("No downtime",), ())
    ]
    assert (first.number, first.changes) == (1, ())


def test_each_constraint_says_who_set_it() -> None:
    above, parent = given_to(ROOT, "kid", 5, constraints=["Only in src/"])
    _, own = given_to(parent, "grandkid", 3, constraints=["No new library"])
    later = anchor(constraints=["No card number is logged", "No downtime"])
    anchors = [AnchorRevision(anchor=ANCHOR), AnchorRevision(anchor=later)]
    found = constraints(own.briefs[-1].brief, own.under(later), parent, anchors)
    assert [(c.text, c.origin, c.late) for c in found] == [
        ("No card number is logged", "anchor", False),
        ("Only in src/", "parent", False),
        ("No new library", "own", False),
        ("No downtime", "anchor", True),
    ]
    assert above.trace_id == "root"


def test_every_contract_has_its_own_report_verdict_and_review() -> None:
    above, own = given_to(ROOT, "kid", 5)
    own = handed_in(own, "failed")
    better = brief(ANCHOR, reason="The first one failed")
    asked = review("REVISE_CHILD", ANCHOR, verdict="failed", next_brief=better.to_json())
    above, _ = ended(above, own, 5).reviewed(7, "kid", asked)
    own = own.briefed(9, better, (), parent="root")
    second, first = rounds(own, above, [AnchorRevision(anchor=ANCHOR)])
    assert (second.number, second.given_at, second.report, second.review) == (2, 9, None, None)
    assert [(c.field, c.added) for c in second.changes] == [("reason", ("The first one failed",))]
    assert first.verdict is not None and first.review is not None
    assert (first.number, first.report_at, first.verdict.verdict) == (1, 6, "failed")
    assert (first.review.decision, first.reviewed_at) == ("REVISE_CHILD", 7)
    # A root has no contract, but an answer that is judged.
    (answer,) = rounds(ROOT.validated(12, result("passed")), None, [AnchorRevision(anchor=ANCHOR)])
    assert (answer.brief, answer.verdict_at) == (None, 12)


def test_refs_that_it_holds_come_with_where_it_read_them() -> None:
    above, ref = reviewed_result()
    (held,) = refs(above, [Read(ref=ref, sequence=11)])
    assert (held.grant.snapshot.ref, held.grant.granted_at_sequence) == (ref, 7)
    assert [r.sequence for r in held.reads] == [11]
