"""The one way in which rows of a trace are written: create, append, move the head, start a call.

Plain synchronous functions, each one transaction in the caller's thread; ``traces.store`` calls
them for runs, views and commands call them as they are. The row of the trace is locked first, so
that sequences and event numbers have no gap and no double. Whoever watches is told after the
commit. Source: docs/rows.md, "Appending".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Max

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.errors import Conflict, InvalidInput, LeaseLost, NotFound
from cyberagent.core.events import CallStarted, Event, MessageStored, StatusChanged
from cyberagent.core.ports import Appended, CallEnd, CommandEnd, NewTrace
from cyberagent.core.types import CallRecord, Json, Message, TraceState, TraceStatus
from traces import live, models, ports, rows, sql, verdict_rows
from traces.place import (
    PLACE_COLUMNS,
    PLACE_NAMES,
    Chain,
    Place,
    is_answer,
    place_from,
    place_of,
)
from traces.projection import knowledge_in
from traces.projection import refresh as refresh_knowledge

# Traces ------------------------------------------------------------------------------------


def create_trace(new: NewTrace, *, driver: str = "", **columns: Any) -> TraceState:
    """Store an empty trace, and its anchor as the first revision; ``columns`` are further columns
    of its row (``owner_id`` …). A child trace is seen by those who see its parent; with ``driver``
    it is made only for who holds the lease of its parent, and is theirs from the start.

    Raises NotFound and LeaseLost (the parent), InvalidInput (an anchor that is no root's); then
    nothing was written."""
    if new.parent_trace and new.anchor:
        raise InvalidInput("a sub-agent has no anchor of its own: that of its root holds")
    config = dict(new.config)
    row = models.Trace(
        mission=rows.hold(new.mission),
        config=rows.as_json(config, "config"),
        context=rows.as_json(dict(new.context), "context"),
        system_prompt=rows.hold(new.system_prompt),
        origin=new.origin,
        status=new.status,
        parent_trace_id=new.parent_trace,
        parent_message=new.parent_message,
        created_at=rows.now(),
        **shown_columns(config) | columns,
    )
    with transaction.atomic():
        if new.parent_trace:
            _under(row, _lock(new.parent_trace, driver), driver)
        row.save(force_insert=True)
        if new.anchor:
            by = row.owner.get_username() if row.owner else ""
            first = AnchorRevision(anchor=new.anchor, by=by, at=rows.iso(row.created_at))
            add_anchor(row.pk, 1, first, by_id=row.owner_id)
        _tell(row.pk, 0)
    return rows.state_from(row.__dict__)


def _under(row: models.Trace, parent: rows.Row, driver: str) -> None:
    """Make ``row`` a child trace of ``parent``, which is locked. Times of one parent's children
    grow, so that their order is the one in which they were made."""
    found = models.Trace.objects.filter(pk=parent["id"])
    row.owner_id, row.shared = found.values_list("owner_id", "shared")[0]
    row.lease_owner = row.lease_owner or driver
    siblings = models.Trace.objects.filter(parent_trace_id=parent["id"])
    newest = siblings.aggregate(newest=Max("created_at"))["newest"]
    if newest is not None and newest >= row.created_at:
        row.created_at = newest + timedelta(milliseconds=1)


def add_anchor(
    trace_id: str, number: int, revision: AnchorRevision, *, by_id: int | None = None
) -> None:
    """Store revision ``number`` of a root's anchor. Raises InvalidInput for what no row holds."""
    moment = rows.moment_of(revision.at) if revision.at else rows.now()
    models.AnchorRevision.objects.create(
        trace_id=trace_id, number=number, by_id=by_id, **rows.anchor_columns(revision, moment)
    )


def shown_columns(config: Mapping[str, Json]) -> dict[str, str]:
    """Columns that the list of runs shows of a config."""
    names = {"provider": 32, "model": 200, "preset": 64}
    return {n: rows.hold(str(config.get(n) or ""))[:size] for n, size in names.items()}


# Appending ---------------------------------------------------------------------------------


def append(
    trace_id: str,
    messages: Sequence[Message],
    events: Sequence[Event] = (),
    *,
    parent: int | None = None,
    root: bool = False,
    move_head: bool = True,
    expected_head: int | None = None,
    call: CallEnd | None = None,
    status: TraceStatus | None = None,
    context: Mapping[str, Json] | None = None,
    turn: int | None = None,
    goals: Mapping[str, Json] | None = None,
    command: CommandEnd | None = None,
    owner: str = "",
) -> Appended:
    """:meth:`cyberagent.core.ports.Store.append`. With ``owner``, only for who holds the
    lease. Raises NotFound, Conflict, LeaseLost, InvalidInput; then nothing was written."""
    moment = rows.now()
    with transaction.atomic():
        trace, head = _lock_with_head(trace_id, owner)
        _check_head(trace, expected_head)
        above = None if root else (place_of(trace_id, parent) if parent else head)
        changes, stored = _add_messages(trace, messages, above, move_head, moment)
        if call is not None:
            changes |= _end_call(trace, call, stored)
        if command is not None:
            _end_command(trace_id, command, moment)
        numbered = _add_events(trace, events, moment, stored)
        if told := knowledge_in(events):
            refresh_knowledge(trace_id, told, moment)
        if any("protocol" in m.metadata for m in stored):
            verdict_rows.note(trace, stored)
        changes |= _fields(trace, events, status=status, context=context, turn=turn)
        state = _finish(trace, changes, numbered, goals, moment)
    return Appended(trace=state, messages=tuple(stored), events=tuple(numbered))


def move_head(
    trace_id: str,
    to: int,
    events: Sequence[Event] = (),
    *,
    expected_head: int,
    goals: Mapping[str, Json] | None = None,
    owner: str = "",
) -> Appended:
    """:meth:`cyberagent.core.ports.Store.move_head`. Raises as :func:`append`, and Conflict
    for a message of a side branch: those never are on the main path."""
    moment = rows.now()
    with transaction.atomic():
        trace = _lock(trace_id, owner)
        _check_head(trace, expected_head)
        place = place_of(trace_id, to) if to else None
        if place is not None and place.kind:
            raise Conflict(f"message {to} is on a side branch; the head cannot move there")
        changes = _head(place)
        numbered = _add_events(trace, events, moment)
        state = _finish(trace, changes, numbered, goals, moment)
    return Appended(trace=state, events=tuple(numbered))


def start_call(
    trace_id: str, record: CallRecord, blobs: Mapping[str, bytes], *, owner: str = ""
) -> Appended:
    """:meth:`cyberagent.core.ports.Store.start_call`."""
    moment = rows.now()
    with transaction.atomic():
        trace = _lock(trace_id, owner)
        if record.number != trace["last_call"] + 1:
            raise Conflict(f"call {record.number} does not follow call {trace['last_call']}")
        if blobs:
            models.Blob.objects.bulk_create(
                [models.Blob(sha256=h, data=data) for h, data in sorted(blobs.items())],
                ignore_conflicts=True,
            )
        columns = rows.call_columns(record, moment)
        sql.insert(models.ModelCall, [{"trace_id": trace_id} | columns])
        started = CallStarted(
            call=record.number,
            tokens=record.estimated_tokens,
            exact=record.exact,
            branch_id=record.branch_id,
        )
        numbered = _add_events(trace, [started], moment)
        state = _finish(trace, {"last_call": record.number}, numbered, None, moment)
    return Appended(trace=state, events=tuple(numbered))


# The parts of a transaction ----------------------------------------------------------------

_LISTED = ("steps", "prompt_tokens", "completion_tokens", "cost")
_LOCK_NAMES = (*rows.STATE_COLUMNS, *_LISTED, "head_branch_id", "lease_owner")
_LOCK = f'SELECT {sql.columns(_LOCK_NAMES)} FROM "traces_trace" WHERE "id" = %s'


def _lock(trace_id: str, owner: str) -> dict[str, Any]:
    """The trace's row, locked until the transaction ends."""
    return _checked(trace_id, sql.fetch(_LOCK + sql.locking(), [trace_id], _LOCK_NAMES), owner)


_HEAD_NAMES = (*_LOCK_NAMES, *PLACE_NAMES)
_WITH_HEAD = f"""
SELECT {sql.columns(_LOCK_NAMES, "t")}, {PLACE_COLUMNS}
FROM "traces_trace" t
LEFT JOIN "traces_message" m ON m."trace_id" = t."id" AND m."sequence" = t."head_sequence"
LEFT JOIN "traces_branch" b ON b."id" = m."branch_id"
WHERE t."id" = %s"""


def _lock_with_head(trace_id: str, owner: str) -> tuple[dict[str, Any], Place | None]:
    """The same, and the head as a parent: what an append needs nearly always."""
    if locking := sql.locking():
        # A statement of its own: one that waited for the lock would join what was there before.
        sql.fetch(f'SELECT 1 FROM "traces_trace" WHERE "id" = %s{locking}', [trace_id], ["one"])
    row = _checked(trace_id, sql.fetch(_WITH_HEAD, [trace_id], _HEAD_NAMES), owner)
    return row, place_from(row) if row["head_sequence"] else None


def _checked(trace_id: str, row: dict[str, Any] | None, owner: str) -> dict[str, Any]:
    if row is None:
        raise NotFound("trace", trace_id)
    if owner and row["lease_owner"] != owner:
        now = row["lease_owner"] or "nobody"
        raise LeaseLost(f"{owner} no longer drives trace {trace_id}; {now} does")
    return row


def _check_head(trace: rows.Row, expected: int | None) -> None:
    if expected is not None and expected != trace["head_sequence"]:
        raise Conflict(
            f"the head is message {trace['head_sequence']}, not {expected}: "
            "something was appended or rewound meanwhile"
        )


def _add_messages(
    trace: rows.Row,
    drafts: Sequence[Message],
    above: Place | None,
    moves: bool,
    moment: datetime,
) -> tuple[dict[str, Any], list[Message]]:
    """Store drafts as one chain; what changes on the trace's row, and the stored messages."""
    if not drafts:
        return {}, []
    chain = Chain(trace["id"], above)
    stored: list[Message] = []
    columns: list[dict[str, Any]] = []
    for sequence, draft in enumerate(drafts, trace["last_sequence"] + 1):
        created = rows.moment_of(draft.created_at) if draft.created_at else moment
        message = replace(
            draft,
            sequence=sequence,
            parent_sequence=chain.tip.sequence if chain.tip else None,
            depth=chain.tip.depth + 1 if chain.tip else 1,
            created_at=rows.iso(created),
        )
        columns.append(rows.message_columns(message, created) | chain.add(message))
        stored.append(message)
    sql.insert(models.Message, columns)
    changes: dict[str, Any] = {"last_sequence": stored[-1].sequence}
    if answers := sum(is_answer(m) for m in stored):
        changes["steps"] = trace["steps"] + answers
    return changes | (_head(chain.tip) if moves else {}), stored


def _head(place: Place | None) -> dict[str, Any]:
    if place is None:
        return {"head_sequence": 0, "head_branch_id": None, "head_depth": 0}
    return {
        "head_sequence": place.sequence,
        "head_branch_id": place.branch,
        "head_depth": place.depth,
    }


def _end_call(trace: rows.Row, end: CallEnd, stored: Sequence[Message]) -> dict[str, Any]:
    """Write what came of a call; the trace's columns that grow by it."""
    usage = rows.usage_columns(end.usage)
    found = models.ModelCall.objects.filter(trace_id=trace["id"], number=end.number).update(
        status=end.status,
        message_sequence=_sequence(end.message, stored),
        finish_reason=end.finish_reason,
        first_token_ms=end.first_token_ms,
        duration_ms=end.duration_ms,
        tries=end.tries,
        error=rows.hold(end.error),
        cost=end.cost,
        **usage,
    )
    if not found:
        raise NotFound("call", end.number)
    changes: dict[str, Any] = {
        name: trace[name] + usage[name]
        for name in ("prompt_tokens", "completion_tokens")
        if usage[name]
    }
    if end.cost is not None:
        changes["cost"] = (trace["cost"] or 0.0) + end.cost
    return changes


def _end_command(trace_id: str, end: CommandEnd, moment: datetime) -> None:
    found = models.Command.objects.filter(pk=end.id, trace_id=trace_id, status="pending")
    if not found.update(status=end.status, result=rows.hold(end.result), applied_at=moment):
        raise NotFound("pending command", end.id)


def _add_events(
    trace: rows.Row, events: Sequence[Event], moment: datetime, stored: Sequence[Message] = ()
) -> list[Event]:
    """Number and store an event for each stored message, then ``events``."""
    at, last = rows.iso(moment), trace["last_event"]
    numbered: list[Event] = [_stored_event(m, last + n, at) for n, m in enumerate(stored, 1)]
    numbered += [
        replace(event, number=number, at=at, message=_sequence(event.message, stored))
        for number, event in enumerate(events, last + len(stored) + 1)
    ]
    sql.insert(models.Event, [rows.event_columns(trace["id"], e, moment) for e in numbered])
    return numbered


def _fields(
    trace: rows.Row,
    events: Sequence[Event],
    *,
    status: TraceStatus | None,
    context: Mapping[str, Json] | None,
    turn: int | None,
) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if status is not None:
        why = [e.why for e in events if isinstance(e, StatusChanged)]
        changes |= {"status": status, "status_why": rows.hold(why[-1] if why else "")}
    if context is not None:
        changes["context"] = rows.as_json(dict(context), "context")
    if turn is not None:
        changes["turn"] = turn
    return changes


def _finish(
    trace: dict[str, Any],
    changes: dict[str, Any],
    numbered: Sequence[Event],
    goals: Mapping[str, Json] | None,
    moment: datetime,
) -> TraceState:
    """Write the trace's row, refresh the goals, and tell watchers once it is committed."""
    if numbered:
        changes["last_event"] = numbered[-1].number
    if goals is not None:
        changes |= plan_columns(goals)
        ports.goals_changed(trace["id"], goals)
    if changes:
        changes["updated_at"] = moment
        if changes.get("head_branch_id") == trace["head_branch_id"]:
            changes.pop("head_branch_id", None)  # a foreign key that is written is checked
        sql.update(models.Trace, trace["id"], changes)
        _tell(trace["id"], changes.get("last_event", trace["last_event"]))
    return rows.state_from(trace | changes)


def plan_columns(goals: Mapping[str, Json]) -> dict[str, Any]:
    """Progress over top-level goals that are not abandoned, and the focus as one line."""
    top = [g for g in goals.get("goals", ()) if g["status"] != "abandoned"]
    current = goals.get("current_id") or ""
    found = next((g for g in walk_goals(goals) if g["id"] == current), None)
    text = f"{current} {found['description']}" if found else current
    return {
        "goals_done": sum(g["status"] == "completed" for g in top),
        "goals_total": len(top),
        "current_goal": rows.hold(text[:300])[:300],
    }


def walk_goals(goals: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Every goal of a GoalTree's JSON, in the order in which a plan shows them."""
    found: list[Mapping[str, Json]] = []
    waiting = list(reversed(goals.get("goals", ())))
    while waiting:
        goal = waiting.pop()
        found.append(goal)
        waiting.extend(reversed(goal.get("children", ())))
    return found


def _tell(trace_id: str, number: int) -> None:
    transaction.on_commit(partial(live.publish, trace_id, number), robust=True)


def _sequence(index: int | None, stored: Sequence[Message]) -> int | None:
    """A -k of :meth:`Store.append` as the sequence of the k-th stored message."""
    return stored[-index - 1].sequence if index is not None and index < 0 else index


def _stored_event(message: Message, number: int, at: str) -> Event:
    return MessageStored(
        number=number,
        at=at,
        message=message.sequence,
        role=message.role,
        source=message.source,
        goal_id=message.goal_id,
        branch_id=message.branch_id,
    )
