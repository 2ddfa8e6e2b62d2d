"""What all acts of operators share: the lock, the stored command and its end.

Used by ``traces.commands`` and ``traces.acts`` alone. Source: docs/running.md, "Commands".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from django.contrib.auth.models import AbstractBaseUser

from cyberagent.core import events
from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.family import ENDED as OVER
from cyberagent.core.ports import CommandEnd
from cyberagent.core.types import Json, TraceStatus
from traces import lease, rows, trees, write
from traces.models import LIVE_STATUSES, Command, Trace
from traces.queueing import queue_after_commit

Person = AbstractBaseUser | None
"""Who acts; None: the program itself."""

ENDED = ("completed", "failed", "stopped", "interrupted")
RESUMABLE = ("paused", "failed", "stopped", "interrupted")

End = Literal["applied", "refused"]


def locked(trace: Trace) -> Trace:
    """The trace as it is now, its tree held until the transaction ends: nobody can begin to
    drive it. That is the root's row alone. Whoever writes for a run may hold several rows, and
    to wait for one of them while holding another could make both wait for ever. Raises
    NotFound."""
    root = trees.root_id(trace.pk)
    held = Trace.objects.select_for_update().filter(pk=root).first()
    if held is None:
        raise NotFound("trace", trace.pk)
    return held if root == trace.pk else Trace.objects.get(pk=trace.pk)


def pending(
    trace: Trace, name: str, by: Person, arguments: Mapping[str, Json] | None = None
) -> Command:
    """Store a command that waits for a safe point."""
    return Command.objects.create(
        trace=trace, name=name, by=by, arguments=rows.as_json(dict(arguments or {}), name)
    )


def at_once(trace: Trace, name: str, by: Person, status: TraceStatus, why: str) -> Command:
    """Apply a command that changes the status of a run that nobody drives."""
    command = pending(trace, name, by)
    free(trace)
    end(trace, command, "applied", "", status, why)
    command.refresh_from_db()
    return command


def free(trace: Trace) -> None:
    """Take the tree from whoever had it: an owner that was silent for too long finds it gone."""
    lease.free(trace.pk)


def end_of(
    command: Command, status: End, result: str = ""
) -> tuple[CommandEnd, list[events.Event]]:
    """The end of a command and the event that tells of it, to be stored together."""
    by = name_of(command.by)
    told = events.Command(
        command=command.pk, name=command.name, by=by, status=status, result=result
    )
    return CommandEnd(id=command.pk, status=status, result=result), [told]


def end(
    trace: Trace,
    command: Command,
    status: End,
    result: str,
    becomes: TraceStatus | None = None,
    why: str = "",
    *,
    context: Mapping[str, Json] | None = None,
    also: Sequence[events.Event] = (),
) -> None:
    """End a command; the trace ``becomes`` a status, gets another ``context``, and further
    events are told, in the same transaction."""
    ended, told = end_of(command, status, result)
    told = [*also, *told]
    if becomes is not None:
        by = name_of(command.by)
        told.append(events.StatusChanged(status=becomes, why=why or f"{command.name} by {by}"))
    write.append(trace.pk, [], told, status=becomes, context=context, command=ended)


def set_status(trace: Trace, status: TraceStatus, why: str) -> None:
    free(trace)
    event = events.StatusChanged(status=status, why=why)
    write.append(trace.pk, [], [event], status=status)


def name_of(by: Any) -> str:
    return by.get_username() if by is not None else "the program"


def already(trace: Trace) -> str:
    return {
        "queued": "live already",
        "running": "live already",
        "waiting": "waiting for an approval",
    }.get(trace.status, f"already {trace.status}")


def at_rest_only(trace: Trace, what: str) -> None:
    """Raises Conflict where the run waits for an approval: a call of its is undecided; and for
    a sub-agent at rest in a tree that is driven: the run above may go on with it any moment."""
    if trace.status == "waiting":
        raise Conflict(f"{what}: the run waits for an approval; decide on it, or stop the run")
    if trace.parent_trace_id and not trace.is_live and not lease.is_free(trace.pk):
        raise Conflict(f"{what}: the run that it belongs to is at work; pause that one first")


# Trees -----------------------------------------------------------------------------------------


def stop_below(trace: Trace, why: str) -> None:
    """End all sub-agents that a call could still go on with."""
    for child in trees.below(trace.pk).exclude(status__in=OVER):
        _becomes(child, "stopped", why)


def stop_with_all_below(trace: Trace, why: str) -> None:
    if trace.status not in OVER:
        _becomes(trace, "stopped", why)
    stop_below(trace, why)


def pause_around(trace: Trace, why: str) -> None:
    """Pause what is live below a trace that was paused, and above it: a run whose sub-agent is
    paused waits for it."""
    above = [t for t in trees.above(trace.pk) if t.is_live]
    for one in [*above, *trees.below(trace.pk).filter(status__in=LIVE_STATUSES)]:
        _becomes(one, "paused", why)


def _becomes(trace: Trace, status: TraceStatus, why: str) -> None:
    event = events.StatusChanged(status=status, why=why)
    write.append(trace.pk, [], [event], status=status)


def go_on(trace: Trace, why: str) -> None:
    """Queue a trace that is at rest, locked by the caller. For a sub-agent that is the run at
    its root, which comes back to it through the calls that are still open. Raises Conflict where
    it would not."""
    above = trees.above(trace.pk)
    if above:
        check_goes_on(trace, above)
    set_status(trace, "queued", why)
    for one in above:
        if not one.is_live:
            _becomes(one, "queued", why)
    queue_after_commit(above[-1].pk if above else trace.pk)


def check_goes_on(trace: Trace, above: Sequence[Trace]) -> None:
    """Raises Conflict where the run at the root cannot go on, or would not come to this
    sub-agent. ``above``: the traces above it, the nearest first."""
    root = above[-1]
    if root.status in ("completed", "waiting") or not lease.is_free(root.pk):
        raise Conflict(f"the run that it belongs to, {root.pk}, is {already(root)}")
    for child, parent in pairwise([trace, *above]):
        if not trees.is_asked(child):
            raise Conflict(
                f"nobody waits for the sub-agent {child.pk} any more: the call that asked for it "
                f"has its answer; speak to the run above it, {parent.pk}"
            )
