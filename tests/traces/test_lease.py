"""One owner at a time: taking, losing, taking over."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection

from cyberagent.core.errors import LeaseLost
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import text_message
from traces import lease, write
from traces.models import Event, Message, Trace

LONG_AGO = -60.0
"""Seconds of a lease that ran out a minute ago."""


def queued() -> str:
    return write.create_trace(NewTrace(mission="m")).id


def status_of(trace_id: str) -> str:
    return Trace.objects.values_list("status", flat=True).get(pk=trace_id)


@pytest.mark.django_db
def test_a_free_trace_is_taken_and_only_its_owner_takes_it_again():
    trace = queued()
    assert lease.take(trace, "a")
    assert not lease.take(trace, "b")
    assert lease.take(trace, "a")
    assert lease.beat(trace, "a")
    assert not lease.beat(trace, "b")


@pytest.mark.django_db
def test_a_trace_that_is_not_due_cannot_be_taken():
    trace = queued()
    write.append(trace, [], status="paused")
    assert not lease.take(trace, "a")
    assert lease.due() == []


@pytest.mark.django_db
def test_what_was_given_back_is_taken_by_the_next_and_counts_as_no_takeover():
    trace = queued()
    for owner in "abcdefgh":
        assert lease.take(trace, owner)
        assert lease.release(trace, owner)
    assert Trace.objects.get(pk=trace).takeovers == 0


@pytest.mark.django_db
def test_a_dead_owners_trace_is_due_and_taken_over():
    trace = queued()
    assert lease.due() == [trace]
    assert lease.take(trace, "a")
    assert lease.due() == []
    lease.take(trace, "a", LONG_AGO)
    assert lease.due() == [trace]
    assert lease.take(trace, "b")
    assert not lease.beat(trace, "a")
    assert Trace.objects.get(pk=trace).takeovers == 1


@pytest.mark.django_db
def test_after_three_takeovers_the_run_is_interrupted_with_its_cause():
    trace = queued()
    write.append(trace, [], status="running")
    for owner in ("first", "second", "third", "fourth"):
        assert lease.take(trace, owner, LONG_AGO)
    assert not lease.take(trace, "fifth")
    row = Trace.objects.get(pk=trace)
    assert (row.status, row.lease_owner) == ("interrupted", "")
    assert "died 4 times" in row.status_why
    assert Event.objects.filter(trace=trace, kind="StatusChanged").count() == 1
    assert lease.due() == []


@pytest.mark.django_db
def test_a_write_of_an_owner_that_lost_its_lease_is_refused_whole():
    trace = queued()
    lease.take(trace, "a", LONG_AGO)
    lease.take(trace, "b")
    message = text_message("user", "x", source="user")
    with pytest.raises(LeaseLost):
        write.append(trace, [message], owner="a")
    with pytest.raises(LeaseLost):
        write.move_head(trace, 0, expected_head=0, owner="a")
    assert not Message.objects.filter(trace=trace).exists()
    write.append(trace, [message], owner="b")


def at_once(act: Callable[[str], bool], owners: list[str]) -> list[str]:
    """The owners for whom ``act`` was true, each in a thread of its own, all at one moment."""
    won: list[str] = []
    ready = threading.Barrier(len(owners))

    def compete(owner: str) -> None:
        try:
            connection.ensure_connection()
            ready.wait()
            if act(owner):
                won.append(owner)
        finally:
            connection.close()

    threads = [threading.Thread(target=compete, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("dead", [False, True], ids=["free", "left by a dead owner"])
def test_of_owners_who_race_exactly_one_wins(dead: bool):
    for _ in range(10):
        trace = queued()
        if dead:
            lease.take(trace, "dead", LONG_AGO)
        won = at_once(lambda owner, t=trace: lease.take(t, owner), ["a", "b", "c", "d"])
        assert len(won) == 1
        assert Trace.objects.get(pk=trace).lease_owner == won[0]
