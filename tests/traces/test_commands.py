"""What operators do to runs that nobody drives, and what they are told when it cannot be done."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import Conflict, InvalidConfig, InvalidInput, NotFound
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import TraceStatus
from traces import commands, lease, paths, queueing, write
from traces.models import Command, Event, Trace

pytestmark = pytest.mark.django_db

LONG_AGO = -60.0


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def started(owner: User | None = None) -> Trace:
    return commands.start(owner, "Add a login", RunConfig(provider="scripted"))


def now(trace: Trace) -> Trace:
    return Trace.objects.get(pk=trace.pk)


def with_status(trace: Trace, status: TraceStatus) -> Trace:
    write.append(trace.pk, [], status=status)
    return now(trace)


def live(trace: Trace) -> Trace:
    lease.take(trace.pk, "worker")
    return with_status(trace, "running")


def last_event(trace: Trace) -> dict[str, object]:
    return json.loads(Event.objects.filter(trace=trace).latest("number").data)


def test_a_run_starts_queued_with_its_mission_as_first_message(ann: User):
    config = RunConfig(provider="scripted", model="m", preset="explore")
    trace = commands.start(ann, "Add a login", config, shared=True)
    [first] = paths.page(trace)
    counter = counter_for("scripted", "m")
    assert (first.role, first.text, first.source, first.turn) == ("user", "Add a login", "user", 1)
    assert first.tokens == count_message(counter, first) > 0
    assert (trace.status, trace.owner, trace.shared, trace.turn) == ("queued", ann, True, 1)
    assert (trace.provider, trace.model, trace.preset) == ("scripted", "m", "explore")
    assert RunConfig.from_json(json.loads(trace.config)) == config
    assert lease.due() == [trace.pk]


def test_a_run_is_queued_once_its_rows_are_committed(settings, django_capture_on_commit_callbacks):
    settings.RUNS_EMBEDDED = True
    woken: list[bool] = []
    unhook = queueing.on_queued(lambda: woken.append(True))
    with django_capture_on_commit_callbacks(execute=True):
        started()
        assert woken == []
    unhook()
    assert woken == [True]


def test_nothing_is_stored_of_a_run_that_cannot_be(ann: User):
    with pytest.raises(InvalidInput, match="mission"):
        commands.start(ann, " \n", RunConfig())
    with pytest.raises(InvalidConfig, match="temperature"):
        commands.start(ann, "m", RunConfig(temperature=9))
    with pytest.raises(NotFound, match="no-such-skill"):
        commands.start(ann, "m", RunConfig(), skills=["no-such-skill"])
    assert not Trace.objects.exists()


def test_a_live_run_gets_commands_for_its_next_safe_point(ann: User):
    trace = live(started())
    for command in (
        commands.say(trace, "Use Redis.", by=ann),
        commands.pause(trace, by=ann),
        commands.stop(trace, by=ann),
    ):
        assert (command.status, command.by) == ("pending", ann)
    assert now(trace).status == "running"
    names = Command.objects.order_by("pk").values_list("name", flat=True)
    assert list(names) == ["say", "pause", "stop"]
    said = Command.objects.earliest("pk")
    assert json.loads(said.arguments) == {"text": "Use Redis."}


def test_a_run_that_nobody_drives_is_paused_resumed_and_stopped_at_once(ann: User):
    trace = started()
    paused = commands.pause(trace, by=ann)
    assert (paused.status, now(trace).status) == ("applied", "paused")
    assert now(trace).status_why == "paused by ann"
    assert paused.applied_at is not None
    commands.resume(trace, by=ann)
    assert now(trace).status == "queued"
    commands.stop(trace, by=ann)
    assert now(trace).status == "stopped"
    assert last_event(trace) == {"status": "stopped", "why": "stopped by ann"}
    kinds = list(Event.objects.filter(trace=trace).order_by("number").values_list("kind"))
    assert kinds == [("MessageStored",), *[("Command",), ("StatusChanged",)] * 3]


def test_a_run_whose_owner_died_is_stopped_at_once_and_the_dead_cannot_write(ann: User):
    trace = live(started())
    lease.take(trace.pk, "worker", LONG_AGO)
    commands.stop(trace, by=ann)
    assert now(trace).status == "stopped"
    assert not lease.beat(trace.pk, "worker")


@pytest.mark.parametrize(
    ("status", "act", "why"),
    [
        ("stopped", commands.stop, "the run is already stopped"),
        ("completed", commands.stop, "the run is already completed"),
        ("completed", commands.resume, "the run has completed; say something to go on"),
        ("paused", commands.pause, "the run cannot be paused: it is already paused"),
        ("queued", commands.resume, "the run cannot be resumed: it is live already"),
        ("waiting", commands.resume, "the run cannot be resumed: it is waiting for an approval"),
    ],
)
def test_an_act_that_comes_too_late_says_so(status, act, why, ann: User):
    trace = with_status(started(), status)
    with pytest.raises(Conflict) as told:
        act(trace, by=ann)
    assert str(told.value) == why
    assert not Command.objects.exists()
    assert now(trace).status == status


@pytest.mark.parametrize("status", ["completed", "failed", "stopped", "interrupted", "paused"])
def test_saying_something_queues_a_run_that_is_not_live(status, ann: User):
    trace = with_status(started(), status)
    commands.say(trace, "Go on.", by=ann)
    assert now(trace).status == "queued"
    assert lease.due() == [trace.pk]
    with pytest.raises(InvalidInput):
        commands.say(trace, "  ", by=ann)


def test_what_was_said_while_a_run_completed_makes_it_go_on(ann: User):
    trace = live(started())
    commands.say(trace, "One more thing.", by=ann)
    with_status(trace, "completed")
    assert commands.settle(trace.pk)
    assert now(trace).status == "queued"
    assert Command.objects.get().status == "pending"


def test_commands_that_came_too_late_for_a_run_are_refused(ann: User):
    trace = live(started())
    commands.say(trace, "One more thing.", by=ann)
    commands.pause(trace, by=ann)
    with_status(trace, "failed")
    assert not commands.settle(trace.pk)
    assert now(trace).status == "failed"
    assert set(Command.objects.values_list("status", "result")) == {
        ("refused", "the run was failed already")
    }


def test_a_stop_that_came_with_a_pause_stops_the_paused_run(ann: User):
    trace = live(started())
    commands.stop(trace, by=ann)
    with_status(trace, "paused")
    assert not commands.settle(trace.pk)
    assert now(trace).status == "stopped"
    assert Command.objects.get().status == "applied"
