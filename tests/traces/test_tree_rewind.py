"""Going back in a tree of traces: what is undone, and what becomes of sub-agents."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import Conflict, InvalidInput
from cyberagent.core.types import text_message
from tests.traces.grown import (
    ANCHOR,
    a_child,
    a_root,
    answers,
    asks,
    becomes,
    brief,
    contracts,
    ended,
    reports,
    reviewed,
    says,
    snapshot_of,
    status_of,
)
from tests.traces.played import now, on_path, told
from traces import acts, commands, lease, protocols, rewind, store, write
from traces.models import Command, Trace, ValidationResult

pytestmark = pytest.mark.django_db


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def state(trace: str):
    found = protocols.protocol_of(trace)
    assert found is not None
    return found


def back(trace: str, to: int, by: User) -> None:
    acts.rewind(now(trace), to, by=by, expected_head=now(trace).head_sequence)


# What is undone ----------------------------------------------------------------------------------


class Worked:
    """A root whose first child was reviewed, and whose second got the result as a ref:
    1 the mission, 2 and 3 the first child's call and result, 4 the review, 5 the second's."""

    def __init__(self) -> None:
        self.root = a_root()
        self.first = a_child(self.root, "c1", asks(self.root, "c1"), status="completed")
        reports(self.first)
        answers(self.root, "c1", *ended(self.first))
        asks(self.root, "v1", name="review_child")
        self.reviewed = answers(self.root, "v1", reviewed(self.first), name="review_child")
        passed_on = brief("Go on from it", context_refs=reviewed(self.first)["ref"])
        self.second = a_child(
            self.root,
            "c2",
            asks(self.root, "c2"),
            contract=passed_on,
            access=[snapshot_of(self.first)],
        )
        becomes(self.root, "paused")
        becomes(self.second, "paused")


def test_a_rewound_review_is_open_again_and_what_it_granted_is_gone_everywhere(ann: User):
    worked = Worked()
    ref = f"reviewed_task_result:{worked.first}"
    assert state(worked.root).reviews_due == ()
    assert {r.ref_id for r in state(worked.root).catalogue.refs} == {ref}
    assert {r.ref_id for r in state(worked.second).catalogue.refs} == {ref}
    back(worked.root, 3, ann)
    assert [c.id for c in state(worked.root).reviews_due] == [worked.first]
    assert state(worked.root).catalogue.refs == frozenset()
    assert state(worked.second).catalogue.refs == frozenset()


def test_past_the_delegation_there_is_no_child(ann: User):
    worked = Worked()
    back(worked.root, 1, ann)
    assert state(worked.root).children == {}
    assert state(worked.root).reviews_due == ()
    assert ValidationResult.objects.filter(trace=worked.first).exists()  # it was said all the same


def test_an_undo_brings_the_review_and_its_grant_back(ann: User):
    worked = Worked()
    back(worked.root, worked.reviewed, ann)
    before = state(worked.root)
    back(worked.root, 3, ann)
    back(worked.root, worked.reviewed, ann)
    assert state(worked.root) == before
    assert [c.review_is_due for c in before.children.values()] == [False]


def test_a_verdict_of_a_sub_agent_that_was_taken_back_is_not_in_force(ann: User):
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"), status="paused")
    at = reports(child)
    becomes(root, "paused")
    assert state(child).result is not None
    back(child, at - 2, ann)
    assert (state(child).result, state(child).report) == (None, None)
    assert status_of(root) == "paused"


def test_an_anchor_is_not_rewound(ann: User):
    worked = Worked()
    [first] = store.read_anchors(worked.root)
    back(worked.root, 0, ann)
    assert store.read_anchors(worked.root) == (first,)


# What becomes of sub-agents ----------------------------------------------------------------------


def test_sub_agents_whose_call_was_left_end_and_say_why(ann: User):
    root = a_root()
    done = a_child(root, "c1", asks(root, "c1", "c2", "c3"), status="completed")
    answers(root, "c1", *ended(done))
    paused = a_child(root, "c2", 2, status="paused")
    left = a_child(root, "c3", 2, kind="explore", status="interrupted")
    below = a_child(paused, "d1", asks(paused, "d1"), status="paused")
    becomes(root, "paused")
    back(root, 3, ann)
    assert on_path(root) == [1]
    assert [status_of(t) for t in (done, paused, left, below)] == [
        "completed", "stopped", "stopped", "stopped",
    ]  # fmt: skip
    why = "message 2 of the run above was rewound"
    assert told(paused, "StatusChanged")[-1] == {"status": "stopped", "why": why}
    assert now(below).status_why == why


def test_a_revision_that_was_rewound_ends_the_sub_agent_though_it_was_asked_for_before(ann: User):
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"), status="paused")
    answers(root, "c1", *ended(child))
    again = asks(root, "c2")
    contracts(child, "c2", brief("Look again"), root, message=again)
    becomes(root, "paused")
    back(root, 3, ann)
    assert on_path(root) == [1, 2, 3]
    assert status_of(child) == "stopped"


def test_who_is_still_asked_for_stays_as_he_is(ann: User):
    root = a_root()
    other = a_child(root, "c0", asks(root, "c0"), status="paused")
    answers(root, "c0", *ended(other))
    says(root)
    at = on_path(root)[-1]
    judge = a_child(root, f"answer {at}", at, kind="validator", status="paused")
    write.append(root, [text_message("user", "More.", source="operator")])
    becomes(root, "paused")
    assert status_of(judge) == "paused"
    back(root, at, ann)
    assert (status_of(judge), status_of(other)) == ("paused", "stopped")


def test_an_edit_ends_the_sub_agents_that_it_leaves(ann: User):
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"), status="paused")
    becomes(root, "paused")
    acts.edit(now(root), 1, "Vouchers", by=ann)
    assert (status_of(root), status_of(child)) == ("queued", "stopped")


def test_a_rewind_that_is_refused_ends_nobody(ann: User):
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"), status="paused")
    becomes(root, "paused")
    with pytest.raises(Conflict):
        acts.rewind(now(root), 1, by=ann, expected_head=7)
    assert status_of(child) == "paused"


def test_a_sub_agent_that_is_driven_is_rewound_once_its_run_has_paused(ann: User):
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"))
    says(child)
    lease.take(root, "worker")
    lease.adopt(root, "worker")
    command = acts.rewind(now(child), 1, by=ann, expected_head=2)
    assert (command.trace_id, command.status) == (child, "pending")
    assert on_path(child) == [1, 2]
    lease.release(root, "worker")
    becomes(child, "paused")
    becomes(root, "paused")
    assert commands.unsettled() == [root]
    assert not commands.settle(root)
    command.refresh_from_db()
    assert command.status == "applied"
    assert on_path(child) == [1]
    assert (status_of(root), status_of(child)) == ("paused", "paused")


def test_a_sub_agent_that_nobody_waits_for_is_not_rewound(ann: User):
    worked = Worked()
    for act in (
        lambda: rewind.preview(now(worked.first), 1),
        lambda: acts.rewind(now(worked.first), 1, by=ann, expected_head=3),
    ):
        with pytest.raises(Conflict, match=f"rewind the run above it, {worked.root}"):
            act()
    assert not Command.objects.exists()


# Forks -------------------------------------------------------------------------------------------


def test_a_fork_of_a_recursive_run_has_its_newest_anchor_as_its_first(ann: User):
    worked = Worked()
    [first] = store.read_anchors(worked.root)
    new = normalize_root_task_anchor(ANCHOR | {"objective": "Vouchers work"})
    write.add_anchor(
        worked.root,
        2,
        type(first)(anchor=new, by="ann", supersedes=first.anchor.sha256, why="more"),
    )
    made = acts.fork(now(worked.root), worked.reviewed, by=ann)
    [copy] = store.read_anchors(made.pk)
    assert (copy.anchor, copy.by, copy.supersedes) == (new, "ann", "")
    assert copy.why == f"forked from {worked.root}"
    assert made.anchor_revisions.get().by == ann
    context = json.loads(made.context)
    assert context["lineage"] == []
    assert context["forked_from"] == {"trace": worked.root, "message": worked.reviewed}
    assert state(made.pk).entries == state(worked.root).entries
    assert len(store.read_tree(made.pk)) == 1
    # Neither ever changes the other.
    back(made.pk, 1, ann)
    assert state(made.pk).children == {}
    assert list(state(worked.root).children) == [worked.first]
    assert len(store.read_anchors(worked.root)) == 2


@pytest.mark.parametrize("kind", ["agent", "explore"])
def test_a_sub_agent_of_a_recursive_run_has_no_fork(ann: User, kind: str):
    root = a_root()
    child = a_child(root, "c1", asks(root, "c1"), kind=kind, status="completed")
    says(child)
    with pytest.raises(InvalidInput, match=f"fork the run {root} that it belongs to"):
        acts.fork(now(child), 1, by=ann)
    assert Trace.objects.count() == 2
    assert not Command.objects.exists()
