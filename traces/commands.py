"""What operators do to runs: one plain function each, for pages, API and terminal alike.

An act is stored with who and when. Where a run is live its owner applies it at the next safe
point; where nobody drives it, it is applied here at once, in the same transaction. Who may do
what is checked by the caller (``traces.access``). Source: docs/running.md, "Commands".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db import transaction
from django.db.models import Q, QuerySet

from cyberagent import presets
from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import Conflict, InvalidInput, NotFound
from cyberagent.core.events import StatusChanged
from cyberagent.core.family import ENDED as OVER
from cyberagent.core.injection import WANTED
from cyberagent.core.lineage import LINEAGE, root_opening
from cyberagent.core.ports import NewTrace
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import Json, text_message
from traces import acts, lease, ports, trees, write
from traces.acting import (
    ENDED,
    RESUMABLE,
    Person,
    already,
    at_once,
    end,
    go_on,
    locked,
    name_of,
    pause_around,
    pending,
    set_status,
    stop_below,
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
    anchor: RootTaskAnchor | None = None,
) -> Trace:
    """Store a new run with its first message and queue it. ``skills``: names of those that
    must be in its window from the start; ``anchor``: of a recursive run, told it after its
    mission. Raises InvalidInput (no mission, bad config, an anchor that is missing or not
    taken) and NotFound (a skill); then nothing is stored."""
    if not mission.strip():
        raise InvalidInput("a run needs a mission")
    config = config.checked()
    check_anchor(config, anchor)
    opening = [text_message("user", mission, source="user", turn=1)]
    if anchor is not None:
        opening.append(replace(root_opening(anchor, config.language), turn=1))
    counter = counter_for(config.provider, config.model)
    opening = [replace(m, tokens=count_message(counter, m)) for m in opening]
    context: dict[str, Json] = {SKILLS: list(skills)} if skills else {}
    if anchor is not None:
        context[LINEAGE] = []
    shown = {"provider": config.provider, "preset": config.preset, "model": config.model[:200]}
    with transaction.atomic():
        known = ports.current_skills()
        if unknown := sorted(set(skills) - known.keys()):
            raise NotFound("skill", unknown[0])
        new = NewTrace(
            mission=mission,
            config=config.to_json(),
            context=context,
            system_prompt=presets.system_prompt(config, known),
            anchor=anchor,
        )
        made = write.create_trace(new, owner_id=owner.pk if owner else None, shared=shared, **shown)
        write.append(made.id, opening, turn=1, expected_head=0)
        queue_after_commit(made.id)
    return Trace.objects.get(pk=made.id)


def check_anchor(config: RunConfig, anchor: RootTaskAnchor | None) -> None:
    """Raises InvalidInput where a run with these settings needs an anchor and has none, or has
    one and takes none."""
    recursive = presets.preset_named(config.preset).recursive
    if recursive and anchor is None:
        raise InvalidInput(f"anchor: the preset {config.preset} needs a root task anchor")
    if anchor is not None and not recursive:
        raise InvalidInput(f"anchor: the preset {config.preset} takes no root task anchor")


def say(trace: Trace, text: str, *, by: Person) -> Command:
    """Say something to the run: it becomes a user message at the run's next safe point. A run
    that is not live is queued again to hear it; of a paused sub-agent that is the run at its
    root. Raises InvalidInput, and Conflict for a sub-agent that has ended, for one that cannot
    go on, and for a validator."""
    if not text.strip():
        raise InvalidInput("say something: the text is empty")
    with transaction.atomic():
        now = locked(trace)
        if now.parent_trace_id:
            _check_hears(now)
        command = pending(now, "say", by, {"text": text})
        if now.status != "waiting" and not now.is_live:
            go_on(now, f"{name_of(by)} said something")
    return command


def _check_hears(child: Trace) -> None:
    if trees.is_validator(child):
        raise Conflict("a validator hears nothing but its packet")
    if child.status in ENDED:
        raise Conflict(
            f"the sub-agent has ended ({child.status}); speak to the run above it, "
            f"{child.parent_trace_id}"
        )


def pause(trace: Trace, *, by: Person) -> Command:
    """A sub-agent's pause is one of all that is above it. Raises Conflict where the run is not
    live."""
    with transaction.atomic():
        now = locked(trace)
        if not now.is_live:
            raise Conflict(f"the run cannot be paused: it is {already(now)}")
        if not lease.is_free(now.pk):
            return pending(now, "pause", by)
        why = f"paused by {name_of(by)}"
        command = at_once(now, "pause", by, "paused", why)
        pause_around(now, why)
    return command


def resume(trace: Trace, *, by: Person) -> Command:
    """Queue a run that was paused, stopped or interrupted, or that failed; of a sub-agent the
    run at its root, which goes on with it where the call that asked for it is still open.
    Raises Conflict for one that is live, waits for an approval, has completed or would not go
    on."""
    with transaction.atomic():
        now = locked(trace)
        if now.status == "completed":
            what = f"speak to run {now.parent_trace_id}" if now.parent_trace_id else "say something"
            raise Conflict(f"the run has completed; {what} to go on")
        if now.status not in RESUMABLE:
            raise Conflict(f"the run cannot be resumed: it is {already(now)}")
        command = pending(now, "resume", by)
        end(now, command, "applied", "")
        go_on(now, f"resumed by {name_of(by)}")
    command.refresh_from_db()
    return command


def stop(trace: Trace, *, by: Person) -> Command:
    """With all sub-agents; those of a run that is driven are stopped by whoever drives it.
    Raises Conflict where the run has ended."""
    with transaction.atomic():
        now = locked(trace)
        if now.status in ENDED:
            raise Conflict(f"the run is {already(now)}")
        if not lease.is_free(now.pk):
            return pending(now, "stop", by)
        why = f"stopped by {name_of(by)}"
        command = at_once(now, "stop", by, "stopped", why)
        stop_below(now, why)
    return command


# When nobody drives any more -------------------------------------------------------------------


def settle(trace_id: str) -> bool:
    """Deal with what is left of a tree of traces that nobody drives any more: sub-agents that
    were at work when their run ended, and commands that came meanwhile, or for which it paused.
    True: the run at the root must be driven again; it is queued.

    First, in their order, what can be done to a run at rest; then a stop; then what was said. A
    compaction waits until the run goes on.
    """
    root_id = trees.root_id(trace_id)
    _refuse_late(root_id)
    with transaction.atomic():
        root = Trace.objects.select_for_update().get(pk=root_id)
        if root.is_live:
            return False
        if root.status != "waiting":
            _leave(root)
        tree = trees.whole(root.pk).values("pk")
        found = Command.objects.filter(trace__in=tree, status="pending").order_by("pk")
        waiting = list(found.values_list("pk", "name"))
        for key in (k for k, name in waiting if name in acts.AT_REST):
            command = _fresh(key)
            acts.apply_at_rest(command.trace, command)
        for key, name in sorted(waiting, key=lambda one: one[1] != "stop"):
            if name not in (*acts.AT_REST, "compact"):
                command = _fresh(key)
                _settle_one(command.trace, command)
        root.refresh_from_db()
        return root.status == "queued"


def _fresh(key: int) -> Command:
    """A command and its trace as they are now: those before it may have changed both."""
    return Command.objects.select_related("trace", "by").get(pk=key)


def _refuse_late(root_id: str) -> None:
    """End commands that came too late for a sub-agent; its run may be driven. One row is held at
    a time: see :func:`traces.acting.locked`."""
    for key in list(_late().filter(trace__in=trees.below(root_id)).values_list("pk", flat=True)):
        with transaction.atomic():
            command = _fresh(key)
            trace = command.trace
            if command.status == Command.Status.PENDING and trace.status in OVER:
                end(trace, command, "refused", f"the run was {trace.status} already")


def _late() -> QuerySet[Command]:
    over = Command.objects.filter(
        status="pending", trace__parent_trace__isnull=False, trace__status__in=OVER
    )
    return over.exclude(name__in=LATER).order_by("pk")


LATER = ("policy", "inject", "compact")
"""Commands that wait for a sub-agent which ended: a revision may make it go on."""


def _leave(root: Trace) -> None:
    """Sub-agents whose run ended under them, without a word to them: they wait for it to go on."""
    for child in trees.below(root.pk).filter(status__in=LIVE_STATUSES):
        why = f"the run that it belongs to is {root.status}"
        event = StatusChanged(status="interrupted", why=why)
        write.append(child.pk, [], [event], status="interrupted")


def _settle_one(trace: Trace, command: Command) -> None:
    if command.name == "stop" and trace.status not in (*ENDED, *LIVE_STATUSES):
        end(trace, command, "applied", "", "stopped")
        stop_below(trace, f"stop by {name_of(command.by)}")
    elif command.name == "say" and trace.status == "completed" and not trace.parent_trace_id:
        set_status(trace, "queued", "something was said while it ended")
    elif trace.status in ENDED or (command.name == "pause" and trace.status == "paused"):
        end(trace, command, "refused", f"the run was {trace.status} already")


def unsettled(limit: int = 100) -> list[str]:
    """Roots of trees that :func:`settle` has something to do for: whoever should have, died
    before."""
    at_rest = Q(name__in=(*acts.AT_REST, "stop")) | Q(name="say", trace__status="completed")
    found = Command.objects.filter(at_rest, status="pending").exclude(
        trace__status__in=(*LIVE_STATUSES, "waiting")
    )
    resting = found.order_by("trace").values_list("trace", flat=True).distinct()
    late = _late().order_by("trace").values_list("trace", flat=True).distinct()
    roots = trees.at_rest([*resting[:limit], *trees.left_at_work(limit)])
    return list(dict.fromkeys([*roots, *map(trees.root_id, late[:limit])]))
