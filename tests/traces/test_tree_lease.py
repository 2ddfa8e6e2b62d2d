"""A tree of traces is driven as one, under the lease of its root."""

from __future__ import annotations

import pytest

from cyberagent.core.errors import LeaseLost
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import CallRecord, text_message
from tests.traces.grown import a_child, a_root, asks
from tests.traces.test_lease import at_once
from traces import commands, lease, write
from traces.models import Command, Message, Trace

pytestmark = pytest.mark.django_db

LONG_AGO = -60.0
"""Seconds of a lease that ran out a minute ago."""


def a_tree(owner: str = "a", seconds: float = lease.LEASE_SECONDS) -> tuple[str, str, str]:
    """Root, child and grandchild, all at work for one owner."""
    root = a_root()
    assert lease.take(root, owner, seconds)
    child = a_child(root, "c1", asks(root, "c1"), owner=owner)
    return root, child, a_child(child, "c2", asks(child, "c2"), owner=owner)


def owners(*traces: str) -> list[str]:
    found = dict(Trace.objects.filter(pk__in=traces).values_list("pk", "lease_owner"))
    return [found[t] for t in traces]


def said(text: str = "x") -> list[object]:
    return [text_message("user", text, source="user", tokens=1)]


def test_sub_agents_are_never_due_and_never_taken():
    root, child, below = a_tree()
    assert lease.due() == []
    lease.release(root, "a")
    assert lease.due() == [root]
    assert not lease.take(child, "b")
    assert not lease.take(below, "b")
    assert owners(root, child, below) == ["", "", ""]


def test_a_new_owner_gets_all_that_is_below_and_the_former_one_can_write_none_of_it():
    root, child, below = a_tree(seconds=LONG_AGO)
    other = a_child(a_root(owner="z"), "c1", 1, owner="z")
    assert lease.take(root, "b")
    write.append(child, said(), owner="a")  # until it is adopted
    lease.adopt(root, "b")
    assert owners(root, child, below, other) == ["b", "b", "b", "z"]
    record = CallRecord(
        number=1,
        provider="scripted",
        model="m",
        projection="p/1",
        manifest={},
        sha256="0" * 64,
        estimated_tokens=1,
        exact=True,
    )
    count = Message.objects.count()
    for trace in (root, child, below):
        with pytest.raises(LeaseLost):
            write.append(trace, said(), owner="a")
        with pytest.raises(LeaseLost):
            write.move_head(trace, 0, expected_head=1, owner="a")
        with pytest.raises(LeaseLost):
            write.start_call(trace, record, {}, owner="a")
        with pytest.raises(LeaseLost):
            write.create_trace(NewTrace(mission="m", parent_trace=trace), driver="a")
    assert Message.objects.count() == count
    write.append(below, said(), owner="b")


def test_adopting_is_one_statement_however_many_there_are(django_assert_num_queries):
    root = a_root()
    lease.take(root, "b")
    for n in range(30):
        a_child(root, f"c{n}", 1, kind="explore", owner="a")
    with django_assert_num_queries(1):
        lease.adopt(root, "b")
    assert set(Trace.objects.values_list("lease_owner", flat=True)) == {"b"}


def test_a_tree_is_free_as_its_root_is():
    root, child, below = a_tree()
    assert not any(map(lease.is_free, (root, child, below)))
    lease.take(root, "a", LONG_AGO)
    assert all(map(lease.is_free, (root, child, below)))
    lease.take(root, "b")
    assert not lease.is_free(below)
    lease.release(root, "b")
    assert lease.is_free(below)
    assert not lease.is_free("nowhere")


def test_who_gives_the_lease_back_keeps_nothing_of_the_tree():
    root, child, below = a_tree()
    assert not lease.release(root, "b")
    assert owners(child, below) == ["a", "a"]
    assert lease.release(root, "a")
    assert owners(root, child, below) == ["", "", ""]
    for trace in (child, below):
        with pytest.raises(LeaseLost):
            write.append(trace, said(), owner="a")


def test_an_act_on_a_sub_agent_whose_owner_died_takes_the_whole_tree_from_it():
    root, child, below = a_tree(seconds=LONG_AGO)
    commands.stop(Trace.objects.get(pk=below), by=None)
    assert owners(root, child, below) == ["", "", ""]
    assert not lease.beat(root, "a")
    with pytest.raises(LeaseLost):
        write.append(child, said(), owner="a")


def test_sub_agents_of_a_run_whose_owners_kept_dying_wait_for_it_to_go_on():
    root, child, below = a_tree("first", LONG_AGO)
    for owner in ("second", "third", "fourth"):
        assert lease.take(root, owner, LONG_AGO)
    assert commands.unsettled() == []
    assert not lease.take(root, "fifth")
    assert commands.unsettled() == [root]
    assert not commands.settle(root)
    for trace in (child, below):
        row = Trace.objects.get(pk=trace)
        assert row.status == "interrupted"
        assert row.status_why == "the run that it belongs to is interrupted"
    assert commands.unsettled() == []


@pytest.mark.django_db(transaction=True)
def test_an_act_at_rest_and_a_new_owner_never_take_the_tree_from_each_other():
    """Whoever comes first: the command is applied before the tree is taken, or waits for its
    owner; it never takes the lease of one that has just begun."""
    for _ in range(10):
        root, child, _ = a_tree(seconds=LONG_AGO)

        def act(name: str, root: str = root, child: str = child) -> bool:
            if name == "owner":
                return lease.take(root, "b")
            return bool(commands.stop(Trace.objects.get(pk=child), by=None))

        won = at_once(act, ["owner", "operator"])
        command = Command.objects.latest("pk")
        status = Trace.objects.get(pk=child).status
        assert (command.status, status) in (("applied", "stopped"), ("pending", "running"))
        if "owner" not in won:  # the tree was freed while it looked; it looks again in a second
            assert command.status == "applied"
            assert lease.take(root, "b")
        assert owners(root) == ["b"]
