"""What all acts of operators share: the lock, the stored command and its end.

Used by ``traces.commands`` and ``traces.acts`` alone. Source: docs/running.md, "Commands".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from django.contrib.auth.models import AbstractBaseUser

from cyberagent.core import events
from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.ports import CommandEnd
from cyberagent.core.types import Json, TraceStatus
from traces import rows, write
from traces.models import Command, Trace

Person = AbstractBaseUser | None
"""Who acts; None: the program itself."""

ENDED = ("completed", "failed", "stopped", "interrupted")
RESUMABLE = ("paused", "failed", "stopped", "interrupted")

End = Literal["applied", "refused"]


def locked(trace: Trace) -> Trace:
    """The trace as it is now, held until the transaction ends. Raises NotFound."""
    found = Trace.objects.select_for_update().filter(pk=trace.pk).first()
    if found is None:
        raise NotFound("trace", trace.pk)
    return found


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
    """Take the lease from whoever had it: an owner that was silent for too long finds it gone."""
    Trace.objects.filter(pk=trace.pk).update(lease_owner="", lease_until=None, takeovers=0)


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
    """Raises Conflict where the run waits for an approval: a call of its is undecided."""
    if trace.status == "waiting":
        raise Conflict(f"{what}: the run waits for an approval; decide on it, or stop the run")
