"""An operator's review of a child: left for the trace above it, or applied at once where that is
at rest. Source: docs/verdicts.md, "An operator's review of a child".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import transaction

from cyberagent.core import events
from cyberagent.core.errors import Conflict, InvalidInput
from cyberagent.core.lineage import open_calls
from cyberagent.core.reviewing import operator_review
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import Json, Message
from traces import records, rows, write
from traces.acting import Person, at_rest_only, end_of, locked, name_of, pending
from traces.models import Command, Trace
from traces.protocols import protocol_of

COMMAND = "review"
ARGUMENTS = ("child", "decision", "reason", "next_brief")


def review_child(parent: Trace, arguments: Mapping[str, Json], *, by: Person) -> Command:
    """Review a child of ``parent``: ``{child, decision, reason, next_brief}``. A parent that is
    at work applies it at its next safe point.

    Raises ProtocolRefused and InvalidTaskValue where no such review is due or it is malformed,
    InvalidInput for other arguments, Conflict where ``parent`` waits for an approval, or is at
    rest with an open call. Then nothing is stored.
    """
    given = _given(arguments)
    with transaction.atomic():
        now = locked(parent)
        at_rest_only(now, "the review cannot be made")
        if now.is_live:
            _draft(now, given, by)
        command = pending(now, COMMAND, by, given)
        if not now.is_live:
            review_now(now, command, given)
    command.refresh_from_db()
    return command


def _given(arguments: Mapping[str, Json]) -> dict[str, Json]:
    for name in arguments:
        if name not in ARGUMENTS:
            raise InvalidInput(f"a review takes no {name}")
    for name in ("child", "decision", "reason"):
        if not isinstance(arguments.get(name, ""), str):
            raise InvalidInput(f"{name} must be a text")
    return {name: arguments[name] for name in ARGUMENTS if arguments.get(name) not in ("", None)}


def review_now(trace: Trace, command: Command, arguments: Mapping[str, Any]) -> bool:
    """Apply a pending review to a trace that the caller has locked and that nobody drives; it
    queues nothing. Its cost does not grow with the path. Raises as :func:`review_child`."""
    if open_calls(records.newest_batch(trace.pk)):
        raise Conflict(
            f"run {trace.pk} was left in the middle of a tool call; resume it, then review"
        )
    message, told = _draft(trace, arguments, command.by)
    ended, ends = end_of(command, "applied", f"{told.decision} {told.child}")
    write.append(
        trace.pk,
        [_placed(trace, message)],
        [told, *ends],
        expected_head=trace.head_sequence,
        command=ended,
    )
    return False


def _draft(
    trace: Trace, arguments: Mapping[str, Json], by: Person
) -> tuple[Message, events.Reviewed]:
    return operator_review(
        protocol_of(trace),
        arguments,
        by=name_of(by),
        at=rows.iso(rows.now()),
        language=str(json.loads(trace.config).get("language") or "en"),
    )


def _placed(trace: Trace, message: Message) -> Message:
    """The message as the run itself would have stored it."""
    counter = counter_for(trace.provider, rows.held(trace.model))
    goal = rows.held(trace.current_goal).partition(" ")[0]
    return replace(message, tokens=count_message(counter, message), goal_id=goal, turn=trace.turn)
