"""Rows of verdicts, made from the messages that carry them as these are stored.

The messages are the truth; the rows are there for the queue of verdicts and its statistics, and
can be made anew. Source: docs/rows.md, "Verdicts".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.briefs import TaskBrief
from cyberagent.core.errors import InvalidInput
from cyberagent.core.lineage import LINEAGE
from cyberagent.core.protocol import replay_protocol
from cyberagent.core.protocol_entries import Validated
from cyberagent.core.types import Message, sha256
from cyberagent.core.verdicts import ValidationResult
from traces import models, packets, records, rows
from traces.trees import read_anchors, root_id


def note(trace: rows.Row, stored: Iterable[Message]) -> None:
    """Make the rows of the verdicts in messages that are being stored; to be called in the same
    transaction. ``trace``: columns of its row. Raises InvalidTaskValue for a damaged record."""
    if LINEAGE in json.loads(trace["context"]):
        for verdict in _verdicts(trace["id"], stored):
            models.ValidationResult.objects.create(
                trace_id=trace["id"], sequence=verdict.message.sequence, **_columns(trace, verdict)
            )


def rebuild(trace_id: str) -> None:
    """Make the rows of a trace say what its messages say. What people found of a verdict stays;
    a row that no message stands behind goes, unless somebody reviewed it."""
    trace = models.Trace.objects.values("id", "parent_trace_id", "context").get(pk=trace_id)
    found = models.Message.objects.filter(trace_id=trace_id, metadata__contains=records.MARK)
    messages = map(rows.message_from, found.order_by("sequence").values(*rows.MESSAGE_COLUMNS))
    kept: list[int] = []
    for verdict in _verdicts(trace_id, messages) if LINEAGE in json.loads(trace["context"]) else ():
        kept.append(verdict.message.sequence)
        models.ValidationResult.objects.update_or_create(
            trace_id=trace_id,
            sequence=verdict.message.sequence,
            defaults=_columns(trace, verdict),
        )
    made = models.ValidationResult.objects.filter(trace_id=trace_id)
    made.exclude(sequence__in=kept).filter(reviews=None).delete()


# What a message says ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Verdict:
    message: Message
    result: ValidationResult
    revisions: tuple[AnchorRevision, ...]


def _verdicts(trace_id: str, messages: Iterable[Message]) -> Iterator[_Verdict]:
    """The verdicts in those messages that count in a replay of the protocol; of several in one
    message the last. Raises InvalidTaskValue for a damaged record."""
    revisions: tuple[AnchorRevision, ...] = ()
    for message in messages:
        if "protocol" not in message.metadata or message.branch_type:
            continue
        revisions = revisions or _revisions(trace_id)
        entries = replay_protocol([message], trace_id=trace_id, anchor=revisions[-1].anchor).entries
        said = [n.entry for n in entries if n.sequence == message.sequence]
        for entry in [e for e in said if isinstance(e, Validated)][-1:]:
            yield _Verdict(message, entry.result, revisions)


def _revisions(trace_id: str) -> tuple[AnchorRevision, ...]:
    found = read_anchors(root_id(trace_id))
    if not found:
        raise InvalidInput(f"trace {trace_id}: its root has no anchor")
    return found


def _columns(trace: rows.Row, verdict: _Verdict) -> dict[str, Any]:
    result, message = verdict.result, verdict.message
    is_root = trace["parent_trace_id"] is None
    validator = _validator(trace["id"], message)
    task = _of_the_root(verdict) if is_root else _of_the_brief(trace["id"], verdict, validator)
    return {
        "validator_id": validator,
        "verdict": result.verdict,
        "reason": rows.hold(result.reason),
        "criteria": rows.as_json([c.to_json() for c in result.criteria], "criteria"),
        "task": rows.hold(task),
        "is_root": is_root,
        "packet_sha256": result.packet_sha256[:64],
        "model": rows.hold(result.model)[:200],
        "cost": _cost(result.cost),
        "created_at": _moment(result.created_at or message.created_at),
    }


def _validator(trace_id: str, message: Message) -> str | None:
    """The trace that a message names as its validator, if it is a sub-agent of the judged one:
    a file that is imported may name any."""
    name = message.metadata.get("validator")
    if not isinstance(name, str) or not name:
        return None
    found = models.Trace.objects.filter(pk=name, parent_trace=trace_id)
    return found.values_list("pk", flat=True).first()


def _of_the_root(verdict: _Verdict) -> str:
    """The objective of the anchor that held when the message was stored."""
    at = verdict.message.created_at
    held = [r for r in verdict.revisions if r.at <= at] or verdict.revisions[:1]
    return held[-1].anchor.objective


def _of_the_brief(trace_id: str, verdict: _Verdict, validator: str | None) -> str:
    """The objective of the contract that held on the message's path. The packet that was judged
    holds it; where there is none, the path is read from its end to where the contract came."""
    brief = _judged(validator, verdict.result) or _on_the_path(trace_id, verdict)
    return brief.objective if brief else ""


def _judged(validator: str | None, result: ValidationResult) -> TaskBrief | None:
    """The contract in the packet that a validator was sent, if it is the one of the verdict."""
    if validator is None:
        return None
    told = models.Message.objects.filter(trace_id=validator, role="user").order_by("sequence")
    row = told.values(*rows.MESSAGE_COLUMNS).first()
    text = rows.message_from(row).text if row else ""
    if sha256(text.encode("utf-8", "surrogatepass")) != result.packet_sha256:
        return None
    return packets.read_packet(text).brief


def _on_the_path(trace_id: str, verdict: _Verdict) -> TaskBrief | None:
    anchor = verdict.revisions[-1].anchor
    for message in records.contracts(trace_id, verdict.message.sequence):
        briefs = replay_protocol([message], trace_id=trace_id, anchor=anchor).briefs
        if briefs:
            return briefs[-1].brief
    return None


def _cost(given: float | None) -> float | None:
    """As the column holds it; a file may say a whole number of any size."""
    try:
        return None if given is None else float(given)
    except OverflowError:
        return None


def _moment(text: str) -> datetime:
    try:
        return rows.moment_of(text)
    except InvalidInput:
        return rows.now()
