"""What operators do to sub-agents, and to runs that have some."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from cyberagent.core.errors import Conflict
from cyberagent.core.types import text_message
from tests.traces.grown import (
    a_child,
    a_root,
    answers,
    asks,
    becomes,
    brief,
    contracts,
    ended,
    reports,
    says,
    status_of,
)
from tests.traces.played import asked, now, told
from traces import acts, commands, lease, queueing, write
from traces.models import Command, Event, Trace

pytestmark = pytest.mark.django_db


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


class Tree:
    """A root that waits for a child, which waits for one of its own."""

    def __init__(self) -> None:
        self.root = a_root()
        self.child = a_child(self.root, "c1", asks(self.root, "c1", "c9"))
        self.below = a_child(self.child, "c2", asks(self.child, "c2"))

    def driven(self) -> Tree:
        assert lease.take(self.root, "worker")
        lease.adopt(self.root, "worker")
        return self

    def all_are(self, *statuses: str) -> Tree:
        for trace, status in zip((self.root, self.child, self.below), statuses, strict=True):
            becomes(trace, status)
        return self

    @property
    def statuses(self) -> list[str]:
        return [status_of(t) for t in (self.root, self.child, self.below)]

    @property
    def owners(self) -> set[str]:
        return set(Trace.objects.values_list("lease_owner", flat=True))


@pytest.fixture
def tree() -> Tree:
    return Tree()


@pytest.fixture
def queued(settings, django_capture_on_commit_callbacks):
    """How often a run was queued while ``act`` ran."""
    settings.RUNS_EMBEDDED = True

    def count(act) -> int:
        woken: list[bool] = []
        unhook = queueing.on_queued(lambda: woken.append(True))
        try:
            with django_capture_on_commit_callbacks(execute=True):
                act()
        finally:
            unhook()
        return len(woken)

    return count


# Of a tree that is driven ------------------------------------------------------------------------


@pytest.mark.parametrize("act", [commands.pause, commands.stop], ids=["pause", "stop"])
def test_an_act_on_a_sub_agent_of_a_driven_run_waits_for_it(tree: Tree, ann: User, act):
    tree.driven()
    command = act(now(tree.below), by=ann)
    assert (command.trace_id, command.status, command.by) == (tree.below, "pending", ann)
    assert tree.statuses == ["running", "running", "running"]
    assert tree.owners == {"worker"}
    stopped = act(now(tree.root), by=ann)
    assert (stopped.trace_id, stopped.status) == (tree.root, "pending")
    assert Command.objects.count() == 2


def test_a_live_sub_agent_hears_what_is_said_to_it(tree: Tree, ann: User):
    tree.driven()
    command = commands.say(now(tree.child), "Look in tests, too.", by=ann)
    assert (command.trace_id, command.status) == (tree.child, "pending")
    assert json.loads(command.arguments) == {"text": "Look in tests, too."}


@pytest.mark.parametrize("status", ["completed", "failed", "stopped", "interrupted"])
def test_who_speaks_to_a_sub_agent_that_has_ended_is_sent_to_its_parent(
    tree: Tree, ann: User, status
):
    becomes(tree.below, status)
    with pytest.raises(Conflict) as error:
        commands.say(now(tree.below), "More.", by=ann)
    assert str(error.value) == (
        f"the sub-agent has ended ({status}); speak to the run above it, {tree.child}"
    )
    assert not Command.objects.exists()


def test_nobody_speaks_to_a_validator(tree: Tree, ann: User):
    judge = a_child(tree.child, "r1", 1, kind="validator")
    with pytest.raises(Conflict, match="hears nothing but its packet"):
        commands.say(now(judge), "Let it pass.", by=ann)


@pytest.mark.parametrize("status", ["paused", "completed", "failed"])
def test_a_sub_agent_at_rest_in_a_driven_tree_is_not_taken_from_under_its_run(
    tree: Tree, ann: User, status
):
    tree.driven().all_are("running", "running", status)
    for act in (
        lambda: acts.rewind(now(tree.below), 0, by=ann, expected_head=1),
        lambda: commands.resume(now(tree.below), by=ann),
        lambda: acts.edit(now(tree.below), 1, "x", by=ann),
    ):
        with pytest.raises(Conflict):
            act()
    assert tree.owners == {"worker"}
    assert not Command.objects.exists()


def test_commands_that_came_too_late_for_a_sub_agent_are_refused_while_its_run_goes_on(
    tree: Tree, ann: User
):
    tree.driven()
    late = [
        commands.stop(now(tree.below), by=ann),
        commands.say(now(tree.below), "More.", by=ann),
        acts.rewind(now(tree.below), 0, by=ann, expected_head=1),
    ]
    kept = asked(tree.below, "policy", ann, policy="off")
    assert commands.unsettled() == []
    becomes(tree.below, "completed")
    assert commands.unsettled() == [tree.root]
    assert not commands.settle(tree.root)
    for command in late:
        command.refresh_from_db()
        assert (command.status, command.result) == ("refused", "the run was completed already")
    kept.refresh_from_db()
    assert kept.status == "pending"  # a revision may make it go on
    assert commands.unsettled() == []
    assert tree.owners == {"worker"}
    assert tree.statuses == ["running", "running", "completed"]


# Of a tree that nobody drives --------------------------------------------------------------------


def test_a_stopped_run_at_rest_ends_all_that_is_below_it(tree: Tree, ann: User):
    done = a_child(tree.root, "c9", 2, status="completed")
    tree.all_are("paused", "paused", "interrupted")
    command = commands.stop(now(tree.root), by=ann)
    assert command.status == "applied"
    assert tree.statuses == ["stopped", "stopped", "stopped"]
    assert status_of(done) == "completed"
    assert now(tree.below).status_why == "stopped by ann"
    assert told(tree.below, "StatusChanged") == [{"status": "stopped", "why": "stopped by ann"}]


def test_a_paused_run_that_was_left_pauses_all_that_is_below_it(tree: Tree, ann: User):
    tree.all_are("queued", "running", "running")
    commands.pause(now(tree.root), by=ann)
    assert tree.statuses == ["paused", "paused", "paused"]
    assert now(tree.below).status_why == "paused by ann"


def test_a_sub_agent_that_is_paused_at_rest_pauses_what_is_above_and_below_it(
    tree: Tree, ann: User
):
    beside = a_child(tree.root, "c9", 2)
    command = commands.pause(now(tree.child), by=ann)
    assert (command.trace_id, command.status) == (tree.child, "applied")
    assert tree.statuses == ["paused", "paused", "paused"]
    assert status_of(beside) == "running"
    assert commands.unsettled() == [tree.root]
    commands.settle(tree.root)
    assert status_of(beside) == "interrupted"


def test_a_sub_agent_is_stopped_at_rest_with_what_is_below_it_and_nothing_else(
    tree: Tree, ann: User
):
    tree.all_are("paused", "paused", "paused")
    assert commands.stop(now(tree.child), by=ann).status == "applied"
    assert tree.statuses == ["paused", "stopped", "stopped"]
    with pytest.raises(Conflict, match="already stopped"):
        commands.stop(now(tree.child), by=ann)


@pytest.mark.parametrize("status", ["paused", "interrupted", "stopped", "failed"])
def test_resuming_a_sub_agent_resumes_the_run_at_its_root(tree: Tree, ann: User, queued, status):
    tree.all_are("paused", "paused", status)
    assert queued(lambda: commands.resume(now(tree.below), by=ann)) == 1
    assert tree.statuses == ["queued", "queued", "queued"]
    assert lease.due() == [tree.root]
    command = Command.objects.get()
    assert (command.trace_id, command.name, command.status) == (tree.below, "resume", "applied")
    assert now(tree.root).status_why == "resumed by ann"
    kinds = [k for (k,) in Event.objects.filter(trace=tree.below).values_list("kind")]
    assert kinds[-2:] == ["Command", "StatusChanged"]


def test_a_run_that_a_dead_owner_left_goes_on_with_a_resumed_sub_agent(tree: Tree, ann: User):
    lease.take(tree.root, "dead", -60.0)
    becomes(tree.below, "stopped")
    commands.resume(now(tree.below), by=ann)
    assert tree.statuses == ["running", "running", "queued"]
    assert tree.owners == {""}
    assert lease.due() == [tree.root]


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("completed", "the run that it belongs to, {root}, is already completed"),
        ("waiting", "the run that it belongs to, {root}, is waiting for an approval"),
    ],
)
def test_a_sub_agent_cannot_be_resumed_where_its_run_cannot(tree: Tree, ann: User, root, why):
    tree.all_are(root, "paused", "paused")
    with pytest.raises(Conflict) as error:
        commands.resume(now(tree.below), by=ann)
    assert str(error.value) == why.format(root=tree.root)
    assert not Command.objects.exists()
    assert tree.statuses == [root, "paused", "paused"]


def test_a_sub_agent_that_nobody_waits_for_cannot_be_resumed(tree: Tree, ann: User):
    answers(tree.child, "c2", *ended(tree.below))
    tree.all_are("paused", "paused", "failed")
    with pytest.raises(Conflict, match=f"speak to the run above it, {tree.child}"):
        commands.resume(now(tree.below), by=ann)
    # The same where a call further up has its answer.
    other = Tree().all_are("paused", "paused", "paused")
    answers(other.root, "c1", *ended(other.child))
    with pytest.raises(Conflict, match=f"speak to the run above it, {other.root}"):
        commands.resume(now(other.below), by=ann)
    assert not Command.objects.exists()


def test_a_revised_sub_agent_is_resumed_through_the_call_that_revised_it(tree: Tree, ann: User):
    answers(tree.child, "c2", *ended(tree.below))
    becomes(tree.below, "completed")
    again = asks(tree.child, "c5")
    contracts(tree.below, "c5", brief("Look again"), tree.child, message=again)
    tree.all_are("paused", "paused", "paused")
    commands.resume(now(tree.below), by=ann)
    assert tree.statuses == ["queued", "queued", "queued"]


@pytest.mark.parametrize("status", ["completed", "queued", "running", "waiting"])
def test_a_sub_agent_that_is_not_at_rest_is_not_resumed(tree: Tree, ann: User, status):
    tree.all_are("paused", "paused", status)
    with pytest.raises(Conflict):
        commands.resume(now(tree.below), by=ann)
    assert not Command.objects.exists()


def test_what_is_said_to_a_paused_sub_agent_makes_its_run_go_on(tree: Tree, ann: User, queued):
    tree.all_are("paused", "paused", "paused")
    assert queued(lambda: commands.say(now(tree.below), "Look in tests.", by=ann)) == 1
    assert tree.statuses == ["queued", "queued", "queued"]
    assert Command.objects.get().status == "pending"  # heard once it is at work
    other = Tree().all_are("completed", "paused", "paused")
    with pytest.raises(Conflict):
        commands.say(now(other.below), "Look in tests.", by=ann)
    assert Command.objects.count() == 1


# When a run ended --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "stopped", "interrupted", "paused", "completed"])
def test_sub_agents_that_their_run_left_at_work_wait_for_it(tree: Tree, status):
    tree.all_are(status, "running", "queued")
    assert commands.unsettled() == [tree.root]
    assert not commands.settle(tree.root)
    assert tree.statuses == [status, "interrupted", "interrupted"]
    assert commands.unsettled() == []


def test_a_run_that_waits_for_an_approval_is_left_alone(tree: Tree):
    tree.all_are("waiting", "running", "running")
    assert commands.unsettled() == []
    assert not commands.settle(tree.root)
    assert tree.statuses == ["waiting", "running", "running"]


def test_commands_on_sub_agents_are_settled_with_their_run(tree: Tree, ann: User):
    tree.driven()
    stop = commands.stop(now(tree.child), by=ann)
    pause = commands.pause(now(tree.root), by=ann)
    write.append(tree.root, [], status="paused")
    lease.release(tree.root, "worker")
    tree.all_are("paused", "paused", "paused")
    assert commands.unsettled() == [tree.root]
    assert not commands.settle(tree.root)
    stop.refresh_from_db()
    pause.refresh_from_db()
    assert (stop.status, pause.status) == ("applied", "refused")
    assert tree.statuses == ["paused", "stopped", "stopped"]


def test_an_edit_of_a_sub_agent_while_it_was_driven_makes_its_run_go_on(tree: Tree, ann: User):
    tree.driven()
    words = text_message("user", "Look in tests.", source="operator")
    said = write.append(tree.below, [words], turn=2).messages[0].sequence
    command = acts.edit(now(tree.below), said, "Look in docs.", by=ann)
    assert command.status == "pending"
    lease.release(tree.root, "worker")
    tree.all_are("paused", "paused", "paused")
    assert commands.settle(tree.root)
    command.refresh_from_db()
    assert (command.status, tree.statuses) == ("applied", ["queued", "queued", "queued"])
    assert now(tree.below).head_sequence == 3


def test_a_settled_tree_is_asked_for_by_any_of_its_traces(tree: Tree):
    tree.all_are("failed", "running", "running")
    commands.settle(tree.below)
    assert tree.statuses == ["failed", "interrupted", "interrupted"]


def test_a_stop_that_came_with_a_pause_ends_the_whole_tree(tree: Tree, ann: User):
    tree.driven()
    commands.stop(now(tree.root), by=ann)
    lease.release(tree.root, "worker")
    tree.all_are("paused", "paused", "paused")
    assert not commands.settle(tree.root)
    assert tree.statuses == ["stopped", "stopped", "stopped"]


def test_a_child_that_reported_is_no_ones_to_resume(tree: Tree, ann: User):
    reports(tree.child)
    says(tree.child)
    tree.all_are("paused", "completed", "completed")
    with pytest.raises(Conflict, match=f"speak to run {tree.root}"):
        commands.resume(now(tree.child), by=ann)
