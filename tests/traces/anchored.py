"""Recursive trees as rows, made by hand: a root with its anchor, sub-agents with contracts."""

from __future__ import annotations

from typing import Any

from cyberagent.core.briefs import TaskBrief
from cyberagent.core.context_policy import normalize_root_task_anchor, normalize_task_brief
from cyberagent.core.lineage import LINEAGE, SPAWNED
from cyberagent.core.ports import NewTrace
from cyberagent.core.protocol_entries import Briefed, entry_to_json
from cyberagent.core.types import text_message
from traces import write
from traces.models import Trace

ANCHOR: dict[str, Any] = {
    "objective": "Move the shop to the new payment service",
    "completion_criteria": ["Orders can be paid", "The old service is switched off"],
    "constraints": ["No card number is logged"],
}


def changed(**changes: Any) -> dict[str, Any]:
    return ANCHOR | changes


FRAME = '{"completion_criteria":["c"],"constraints":[],"objective":""}'


def of_characters(count: int, letter: str = "é") -> dict[str, Any]:
    """An anchor whose canonical JSON has that many characters."""
    objective = letter * (count - len(FRAME))
    return {"objective": objective, "completion_criteria": ["c"], "constraints": []}


def rooted(owner: Any = None, status: str = "paused", **columns: Any) -> Trace:
    """A recursive run that was told its mission."""
    new = NewTrace(
        mission="Move the shop",
        status=status,
        context={LINEAGE: []},
        anchor=normalize_root_task_anchor(ANCHOR),
    )
    made = write.create_trace(new, owner_id=owner.pk if owner else None, **columns)
    write.append(made.id, [text_message("user", "Move the shop", source="user")])
    return Trace.objects.get(pk=made.id)


def below(parent: Trace, status: str = "paused", **brief: Any) -> Trace:
    """A sub-agent of ``parent`` at work on a contract of its own."""
    lineage = [t.pk for t in above(parent)]
    contract = contract_under(parent, **brief)
    context = {LINEAGE: lineage, SPAWNED: {"kind": "agent", "call": "c1", "index": 0}}
    made = _child(parent, status, context)
    entry = entry_to_json(Briefed(contract, parent.pk, ()))
    message = text_message(
        "user", contract.text, source="framework", metadata={"protocol": [entry]}
    )
    write.append(made.pk, [message])
    return Trace.objects.get(pk=made.pk)


def validator_of(parent: Trace, status: str = "running") -> Trace:
    context = {SPAWNED: {"kind": "validator", "call": "c1", "index": 0}}
    return _child(parent, status, context)


def contract_under(parent: Trace, **brief: Any) -> TaskBrief:
    value = {
        "objective": "Write the refund call",
        "completion_criteria": ["A refund reaches the bank"],
        "expected_outputs": ["refund.py"],
    }
    return normalize_task_brief(value | brief, normalize_root_task_anchor(ANCHOR))


def above(trace: Trace) -> list[Trace]:
    """The trace and those above it, the root first."""
    upper = above(trace.parent_trace) if trace.parent_trace else []
    return [*upper, trace]


def _child(parent: Trace, status: str, context: dict[str, Any]) -> Trace:
    new = NewTrace(
        mission="Write the refund call",
        status=status,
        context=context,
        parent_trace=parent.pk,
        parent_message=1,
    )
    return Trace.objects.get(pk=write.create_trace(new).id)
