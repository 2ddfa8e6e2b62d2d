"""What operators do to runs: one plain function each, for pages, API and terminal alike.

An act is stored with who and when. Where a run is live its owner applies it at the next safe
point; where nobody drives it, it is applied here at once, in the same transaction. Who may do
what is checked by the caller (``traces.access``). Source: docs/running.md, "Commands".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db import transaction
from django.db.models import Q

from cyberagent import presets
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import Conflict, InvalidInput, NotFound
from cyberagent.core.injection import WANTED
from cyberagent.core.ports import NewTrace
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import text_message
from traces import acts, lease, ports, write
from traces.acting import (
    ENDED,
    RESUMABLE,
    Person,
    already,
    at_once,
    end,
    locked,
    name_of,
    pending,
    set_status,
)
from traces.models import LIVE_STATUSES, Command, Trace
from traces.queueing import queue_after_commit

SKILLS = WANTED
"""Where a trace's context keeps the skills that it was started with, or was given since."""


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
        now = locked(trace)
        command = pending(now, "say", by, {"text": text})
        if now.status != "waiting" and not now.is_live:
            set_status(now, "queued", f"{name_of(by)} said something")
            queue_after_commit(now.pk)
    return command


def pause(trace: Trace, *, by: Person) -> Command:
    """Raises Conflict where the run is not live."""
    with transaction.atomic():
        now = locked(trace)
        if not now.is_live:
            raise Conflict(f"the run cannot be paused: it is {already(now)}")
        if lease.is_free(now.pk):
            return at_once(now, "pause", by, "paused", f"paused by {name_of(by)}")
        return pending(now, "pause", by)


def resume(trace: Trace, *, by: Person) -> Command:
    """Queue a run that was paused, stopped or interrupted, or that failed. Raises Conflict for
    one that is live, waits for an approval or has completed."""
    with transaction.atomic():
        now = locked(trace)
        if now.status == "completed":
            raise Conflict("the run has completed; say something to go on")
        if now.status not in RESUMABLE:
            raise Conflict(f"the run cannot be resumed: it is {already(now)}")
        command = at_once(now, "resume", by, "queued", f"resumed by {name_of(by)}")
        queue_after_commit(now.pk)
    return command


def stop(trace: Trace, *, by: Person) -> Command:
    """Raises Conflict where the run has ended."""
    with transaction.atomic():
        now = locked(trace)
        if now.status in ENDED:
            raise Conflict(f"the run is {already(now)}")
        if lease.is_free(now.pk):
            return at_once(now, "stop", by, "stopped", f"stopped by {name_of(by)}")
        return pending(now, "stop", by)


# When nobody drives any more -------------------------------------------------------------------


def settle(trace_id: str) -> bool:
    """Deal with commands that came while their run was ending, or for which it paused, when
    nobody drives it any more. True: the run must be driven again; it is queued.

    First, in their order, what can be done to a run at rest; then a stop; then what was said. A
    compaction waits until the run goes on.
    """
    with transaction.atomic():
        trace = Trace.objects.select_for_update().get(pk=trace_id)
        if trace.is_live:
            return False
        waiting = list(Command.objects.filter(trace=trace, status="pending").order_by("pk"))
        for command in (c for c in waiting if c.name in acts.AT_REST):
            acts.apply_at_rest(trace, command)
            trace.refresh_from_db()
        for command in sorted(waiting, key=lambda c: c.name != "stop"):
            if command.name not in (*acts.AT_REST, "compact"):
                _settle_one(trace, command)
                trace.refresh_from_db()
        return trace.status == "queued"


def _settle_one(trace: Trace, command: Command) -> None:
    if command.name == "stop" and trace.status not in (*ENDED, *LIVE_STATUSES):
        end(trace, command, "applied", "", "stopped")
    elif command.name == "say" and trace.status == "completed":
        set_status(trace, "queued", "something was said while it ended")
    elif trace.status in ENDED or (command.name == "pause" and trace.status == "paused"):
        end(trace, command, "refused", f"the run was {trace.status} already")


def unsettled(limit: int = 100) -> list[str]:
    """Traces that :func:`settle` has something to do for: whoever should have, died before."""
    at_rest = Q(name__in=(*acts.AT_REST, "stop")) | Q(name="say", trace__status="completed")
    found = Command.objects.filter(at_rest, status="pending").exclude(
        trace__status__in=(*LIVE_STATUSES, "waiting")
    )
    return list(found.order_by("trace").values_list("trace", flat=True).distinct()[:limit])
