"""Between the engine's values and the columns of a row, both ways. No query is made here.

Source: docs/rows.md, "Texts and times".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.context_policy import read_root_task_anchor
from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import KINDS, Event
from cyberagent.core.types import (
    CallRecord,
    Json,
    Message,
    TraceState,
    Usage,
    part_from_json,
    part_to_json,
    stored_json,
)

Row = Mapping[str, Any]
"""The columns of one row by name, as ``QuerySet.values()`` gives them."""

# Texts ---------------------------------------------------------------------------------------

_MARK = "\x1f"
_UNHOLDABLE = re.compile("[\x00\ud800-\udfff]")


def hold(text: str) -> str:
    """``text`` as a text column of any database can hold it: NUL and lone surrogates, which
    PostgreSQL refuses, are escaped as in JSON behind a mark; any other text stays as it is."""
    if _UNHOLDABLE.search(text) or text.startswith(_MARK):
        return _MARK + stored_json(text)
    return text


def held(text: str) -> str:
    """The text that :func:`hold` was given."""
    return json.loads(text[1:]) if text.startswith(_MARK) else text


def as_json(value: Json, what: str) -> str:
    """``value`` as a JSON column holds it. Raises InvalidInput for what JSON cannot say."""
    try:
        return stored_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} cannot be stored as JSON: {error}") from None


# Times ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def iso(moment: datetime) -> str:
    """ISO 8601, UTC, milliseconds (microseconds where there are some): ``…T12:00:00.000Z``."""
    # SQLite gives times without a zone to raw queries; Django writes them in UTC.
    moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    spec = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")


def moment_of(text: str) -> datetime:
    """The moment that ``text`` names; without an offset it is UTC. Raises InvalidInput."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text[:40]!r} is not a time in ISO 8601") from None


def now() -> datetime:
    """This moment in whole milliseconds, as all stored times."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


# Messages ------------------------------------------------------------------------------------

MESSAGE_COLUMNS = (
    "sequence", "parent_sequence", "depth", "role", "source", "parts", "full_output",
    "tool_call_id", "name", "is_error", "goal_id", "turn", "branch_type", "side_branch", "tokens",
    "usage", "duration_ms", "metadata", "created_at",
)  # fmt: skip
"""What :func:`message_from` needs of a row. ``side_branch`` holds ``Message.branch_id``; the
column ``branch_id`` names the row's :class:`traces.models.Branch`."""

_LARGEST = 2**31 - 1


def message_columns(message: Message, created_at: datetime) -> dict[str, Any]:
    """The columns of a numbered message, without those of its place and its running totals.
    Raises InvalidInput for values that no row can hold."""
    what = f"message {message.sequence}"
    if len(message.goal_id) > 100 or len(message.branch_id) > 64:
        raise InvalidInput(f"{what}: the id of its goal or side branch is too long")
    for number in (message.tokens, message.turn, message.duration_ms or 0):
        if not 0 <= number <= _LARGEST:
            raise InvalidInput(f"{what}: {number} is out of range")
    output, usage = message.full_output, message.usage
    return {
        "sequence": message.sequence,
        "parent_sequence": message.parent_sequence,
        "depth": message.depth,
        "role": message.role,
        "source": message.source,
        "parts": as_json([part_to_json(p) for p in message.parts], what),
        "full_output": None if output is None else hold(output),
        "tool_call_id": hold(message.tool_call_id),
        "name": hold(message.name),
        "is_error": message.is_error,
        "goal_id": hold(message.goal_id),
        "turn": message.turn,
        "branch_type": message.branch_type,
        "side_branch": hold(message.branch_id),
        "tokens": message.tokens,
        "usage": None if usage is None else as_json(usage.to_json(), what),
        "duration_ms": message.duration_ms,
        "metadata": as_json(dict(message.metadata), what) if message.metadata else "{}",
        "created_at": created_at,
    }


def message_from(row: Row) -> Message:
    """The message that :func:`message_columns` was given."""
    usage, output, metadata = row["usage"], row["full_output"], row["metadata"]
    return Message(
        role=row["role"],
        source=row["source"],
        parts=tuple(part_from_json(p) for p in json.loads(row["parts"])),
        sequence=row["sequence"],
        parent_sequence=row["parent_sequence"],
        depth=row["depth"],
        tool_call_id=held(row["tool_call_id"]),
        name=held(row["name"]),
        is_error=row["is_error"],
        goal_id=held(row["goal_id"]),
        turn=row["turn"],
        branch_type=row["branch_type"],
        branch_id=held(row["side_branch"]),
        tokens=row["tokens"],
        usage=None if usage is None else Usage.from_json(json.loads(usage)),
        duration_ms=row["duration_ms"],
        created_at=iso(row["created_at"]),
        full_output=None if output is None else held(output),
        metadata={} if metadata == "{}" else json.loads(metadata),
    )


# Events --------------------------------------------------------------------------------------

EVENT_COLUMNS = ("number", "kind", "message", "data", "created_at")


def event_columns(trace_id: str, event: Event, created_at: datetime) -> dict[str, Any]:
    """The columns of a numbered event. Raises InvalidInput."""
    return {
        "trace_id": trace_id,
        "number": event.number,
        "kind": event.kind,
        "message": event.message,
        "data": as_json(event.data(), f"a {event.kind} event"),
        "created_at": created_at,
    }


def event_from(row: Row) -> Event:
    """The stored event. Fields that this version does not know are left out, so that rows of
    a later one can still be read."""
    kind = KINDS[row["kind"]]
    data = json.loads(row["data"])
    known = {k: v for k, v in data.items() if k in kind.__dataclass_fields__}
    for name, value in known.items():
        if isinstance(value, list):
            known[name] = tuple(cast(list[Any], value))
    return kind(number=row["number"], message=row["message"], at=iso(row["created_at"]), **known)


# Calls ---------------------------------------------------------------------------------------

USAGE_COLUMNS = {
    "prompt": "prompt_tokens",
    "completion": "completion_tokens",
    "cached": "cached_tokens",
    "cache_write": "cache_write_tokens",
    "reasoning": "reasoning_tokens",
}
_CALL_PLAIN = (
    "number", "provider", "model", "projection", "sha256", "estimated_tokens", "exact",
    "branch_id", "after_sequence", "status", "message_sequence", "finish_reason",
    "first_token_ms", "duration_ms", "tries", "cost",
)  # fmt: skip
CALL_COLUMNS = (
    *_CALL_PLAIN, "manifest", "composition", "error", "created_at", *USAGE_COLUMNS.values(),
)  # fmt: skip


def call_columns(record: CallRecord, created_at: datetime) -> dict[str, Any]:
    """The columns of a call as its record says. Raises InvalidInput."""
    what = f"call {record.number}"
    out = {name: getattr(record, name) for name in _CALL_PLAIN}
    return (
        out
        | usage_columns(record.usage)
        | {
            "model": record.model[:200],
            "manifest": as_json(record.manifest, what),
            "composition": as_json(record.composition, what),
            "error": hold(record.error),
            "created_at": created_at,
        }
    )


def usage_columns(usage: Usage | None) -> dict[str, int | None]:
    return {column: getattr(usage, name, None) for name, column in USAGE_COLUMNS.items()}


def call_from(row: Row) -> CallRecord:
    counts = {name: row[column] for name, column in USAGE_COLUMNS.items()}
    reported = any(v is not None for v in counts.values())
    return CallRecord(
        **{name: row[name] for name in _CALL_PLAIN},
        manifest=json.loads(row["manifest"]),
        composition=json.loads(row["composition"]),
        usage=Usage(**counts) if reported else None,
        error=held(row["error"]),
        created_at=iso(row["created_at"]),
    )


# Traces --------------------------------------------------------------------------------------

STATE_COLUMNS = (
    "id", "mission", "status", "head_sequence", "last_sequence", "last_event", "last_call",
    "turn", "config", "context", "system_prompt", "origin", "parent_trace_id", "parent_message",
    "created_at",
)  # fmt: skip


def state_from(row: Row) -> TraceState:
    """The trace's own fields as a value."""
    return TraceState(
        id=row["id"],
        mission=held(row["mission"]),
        status=row["status"],
        head_sequence=row["head_sequence"],
        last_sequence=row["last_sequence"],
        last_event=row["last_event"],
        last_call=row["last_call"],
        turn=row["turn"],
        config=json.loads(row["config"]),
        context=json.loads(row["context"]),
        system_prompt=held(row["system_prompt"]),
        origin=row["origin"],
        parent_trace=row["parent_trace_id"],
        parent_message=row["parent_message"],
        created_at=iso(row["created_at"]),
    )


# Anchors -------------------------------------------------------------------------------------

ANCHOR_COLUMNS = ("text", "by_name", "created_at", "why", "supersedes")


def anchor_columns(revision: AnchorRevision, created_at: datetime) -> dict[str, Any]:
    """The columns of a revision of an anchor, without its trace, number and user. Raises
    InvalidInput."""
    if len(by_name := hold(revision.by)) > 200:
        raise InvalidInput("the name of who revised the anchor is too long")
    return {
        "text": revision.anchor.text,
        "sha256": revision.anchor.sha256,
        "supersedes": revision.supersedes,
        "by_name": by_name,
        "why": hold(revision.why),
        "created_at": created_at,
    }


def anchor_from(row: Row) -> AnchorRevision:
    return AnchorRevision(
        anchor=read_root_task_anchor(row["text"]),
        by=held(row["by_name"]),
        at=iso(row["created_at"]),
        why=held(row["why"]),
        supersedes=row["supersedes"],
    )
