"""What operators do to runs: one plain function each, for pages, API and terminal alike.

An act is stored with who and when. Where a run is live its owner applies it at the next safe
point; where nobody drives it, it is applied here at once, in the same transaction. Who may do
what is checked by the caller (``traces.access``). Source: docs/running.md, "Commands".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from cyberagent import presets
from cyberagent.core import events
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import Conflict, InvalidInput, NotFound
from cyberagent.core.ports import CommandEnd, NewTrace
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import Json, TraceStatus, text_message
from traces import lease, ports, rows, write
from traces.models import Command, Trace
from traces.queueing import queue_after_commit

Person = AbstractBaseUser | None
"""Who acts; None: the program itself."""

ENDED = ("completed", "failed", "stopped", "interrupted")
RESUMABLE = ("paused", "failed", "stopped", "interrupted")
SKILLS = "inject_skills"
"""Where a trace's context keeps the skills that it was started with."""


def start(
    owner: Person,
    mission: str,
    config: RunConfig,
    *,
    skills: Sequence[str] = (),
    shared: bool = False,
) -> Trace:
    """Store a new run with its first message and queue it. ``skills``: names of those that
    must be in its window from the start. Raises InvalidInput (no mission, bad config) and
    NotFound (a skill); then nothing is stored."""
    if not mission.strip():
        raise InvalidInput("a run needs a mission")
    config = config.checked()
    first = text_message("user", mission, source="user", turn=1)
    counter = counter_for(config.provider, config.model)
    first = replace(first, tokens=count_message(counter, first))
    shown = {"provider": config.provider, "preset": config.preset, "model": config.model[:200]}
    with transaction.atomic():
        known = ports.current_skills()
        if unknown := sorted(set(skills) - known.keys()):
            raise NotFound("skill", unknown[0])
        new = NewTrace(
            mission=mission,
            config=config.to_json(),
            context={SKILLS: list(skills)} if skills else {},
            system_prompt=presets.system_prompt(config, known),
        )
        made = write.create_trace(new, owner_id=owner.pk if owner else None, shared=shared, **shown)
        write.append(made.id, [first], turn=1, expected_head=0)
        queue_after_commit(made.id)
    return Trace.objects.get(pk=made.id)


def say(trace: Trace, text: str, *, by: Person) -> Command:
    """Say something to the run: it becomes a user message at the run's next safe point. A run
    that is not live is queued again to hear it."""
    if not text.strip():
        raise InvalidInput("say something: the text is empty")
    with transaction.atomic():
        now = _locked(trace)
        command = _pending(now, "say", by, {"text": text})
        if now.status != "waiting" and not now.is_live:
            _set_status(now, "queued", f"{_name(by)} said something")
            queue_after_commit(now.pk)
    return command


def pause(trace: Trace, *, by: Person) -> Command:
    """Raises Conflict where the run is not live."""
    with transaction.atomic():
        now = _locked(trace)
        if not now.is_live:
            raise Conflict(f"the run cannot be paused: it is {_already(now)}")
        if lease.is_free(now.pk):
            return _at_once(now, "pause", by, "paused", f"paused by {_name(by)}")
        return _pending(now, "pause", by)


def resume(trace: Trace, *, by: Person) -> Command:
    """Queue a run that was paused, stopped or interrupted, or that failed. Raises Conflict for
    one that is live, waits for an approval or has completed."""
    with transaction.atomic():
        now = _locked(trace)
        if now.status == "completed":
            raise Conflict("the run has completed; say something to go on")
        if now.status not in RESUMABLE:
            raise Conflict(f"the run cannot be resumed: it is {_already(now)}")
        command = _at_once(now, "resume", by, "queued", f"resumed by {_name(by)}")
        queue_after_commit(now.pk)
    return command


def stop(trace: Trace, *, by: Person) -> Command:
    """Raises Conflict where the run has ended."""
    with transaction.atomic():
        now = _locked(trace)
        if now.status in ENDED:
            raise Conflict(f"the run is {_already(now)}")
        if lease.is_free(now.pk):
            return _at_once(now, "stop", by, "stopped", f"stopped by {_name(by)}")
        return _pending(now, "stop", by)


def settle(trace_id: str) -> bool:
    """Deal with commands that came while their run was ending, when nobody drives it any more.
    True: the run must be driven again, to hear what was said; it is queued."""
    with transaction.atomic():
        trace = Trace.objects.select_for_update().get(pk=trace_id)
        waiting = list(Command.objects.filter(trace=trace, status="pending").order_by("pk"))
        if trace.is_live or not waiting:
            return False
        if trace.status not in ENDED:
            stops = [c for c in waiting if c.name == "stop"]
            if stops:
                _end(trace, stops[0], "applied", "", "stopped")
            return False
        hears = trace.status == "completed" and any(c.name == "say" for c in waiting)
        for command in waiting:
            if not (hears and command.name == "say"):
                _end(trace, command, "refused", f"the run was {trace.status} already")
        if hears:
            _set_status(trace, "queued", "something was said while it ended")
        return hears


# Parts -------------------------------------------------------------------------------------


def _locked(trace: Trace) -> Trace:
    """The trace as it is now, held until the transaction ends. Raises NotFound."""
    found = Trace.objects.select_for_update().filter(pk=trace.pk).first()
    if found is None:
        raise NotFound("trace", trace.pk)
    return found


def _pending(
    trace: Trace, name: str, by: Person, arguments: Mapping[str, Json] | None = None
) -> Command:
    return Command.objects.create(
        trace=trace, name=name, by=by, arguments=rows.as_json(dict(arguments or {}), name)
    )


def _at_once(trace: Trace, name: str, by: Person, status: TraceStatus, why: str) -> Command:
    """Apply a command to a run that nobody drives. An owner that was silent for too long finds
    its lease gone."""
    command = _pending(trace, name, by)
    Trace.objects.filter(pk=trace.pk).update(lease_owner="", lease_until=None, takeovers=0)
    _end(trace, command, "applied", "", status, why)
    command.refresh_from_db()
    return command


def _end(
    trace: Trace,
    command: Command,
    end: Any,
    result: str,
    status: TraceStatus | None = None,
    why: str = "",
) -> None:
    by = _name(command.by)
    told: list[events.Event] = [
        events.Command(command=command.pk, name=command.name, by=by, status=end, result=result)
    ]
    if status is not None:
        told.append(events.StatusChanged(status=status, why=why or f"{command.name} by {by}"))
    write.append(
        trace.pk,
        [],
        told,
        status=status,
        command=CommandEnd(id=command.pk, status=end, result=result),
    )


def _set_status(trace: Trace, status: TraceStatus, why: str) -> None:
    Trace.objects.filter(pk=trace.pk).update(lease_owner="", lease_until=None, takeovers=0)
    event = events.StatusChanged(status=status, why=why)
    write.append(trace.pk, [], [event], status=status)


def _name(by: Any) -> str:
    return by.get_username() if by is not None else "the program"


def _already(trace: Trace) -> str:
    return {
        "queued": "live already",
        "running": "live already",
        "waiting": "waiting for an approval",
    }.get(trace.status, f"already {trace.status}")
