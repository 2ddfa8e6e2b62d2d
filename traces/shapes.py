"""Traces, messages, calls and commands as JSON objects, for the REST API and the terminal alike.

Every field is always there, defaults too: a program should not have to know them.
Source: docs/api.md.
"""

from __future__ import annotations

import json
from dataclasses import fields

from cyberagent.core.events import Compacted
from cyberagent.core.types import CallRecord, Json, Message, part_to_json
from cyberagent.trace.goals import Goal, GoalTree
from traces.compacting import Preview
from traces.models import Command, Knowledge, Trace
from traces.rewind import Receipt
from traces.rows import held, iso

_TRACE = (
    "id", "status", "origin", "provider", "model", "preset", "shared", "turn", "head_sequence",
    "last_sequence", "last_event", "last_call", "parent_message", "steps", "prompt_tokens",
    "completion_tokens", "cost", "goals_done", "goals_total",
)  # fmt: skip
_MESSAGE = (
    "sequence", "parent_sequence", "depth", "role", "source", "tool_call_id", "name", "is_error",
    "goal_id", "turn", "branch_type", "branch_id", "tokens", "duration_ms", "full_output",
    "created_at",
)  # fmt: skip
_CALL = (
    "number", "provider", "model", "projection", "sha256", "estimated_tokens", "exact",
    "branch_id", "after_sequence", "status", "message_sequence", "finish_reason",
    "first_token_ms", "duration_ms", "tries", "error", "cost", "created_at",
)  # fmt: skip
_RECEIPT = (
    "asked", "to", "head", "leaves", "brings_back", "calls", "checked", "held", "first_broken",
    "then", "then_sha256", "now_sha256", "equal", "difference", "state",
)  # fmt: skip


def trace_json(trace: Trace) -> dict[str, Json]:
    """A trace as lists show it."""
    return {name: getattr(trace, name) for name in _TRACE} | {
        "mission": held(trace.mission),
        "status_why": held(trace.status_why),
        "current_goal": held(trace.current_goal),
        "owner": None if trace.owner is None else trace.owner.get_username(),
        "parent_trace": trace.parent_trace_id,
        "created_at": iso(trace.created_at),
        "updated_at": iso(trace.updated_at),
    }


def trace_detail(trace: Trace) -> dict[str, Json]:
    """A trace with its configuration and the ids of its direct sub-agents."""
    children = Trace.objects.filter(parent_trace=trace).order_by("created_at", "pk")
    return trace_json(trace) | {
        "config": json.loads(trace.config),
        "system_prompt": held(trace.system_prompt),
        "children": list(children.values_list("pk", flat=True)),
    }


def message_json(message: Message) -> dict[str, Json]:
    return {name: getattr(message, name) for name in _MESSAGE} | {
        "parts": [part_to_json(p) for p in message.parts],
        "usage": None if message.usage is None else message.usage.to_json(),
        "metadata": dict(message.metadata),
    }


def call_json(call: CallRecord) -> dict[str, Json]:
    return {name: getattr(call, name) for name in _CALL} | {
        "composition": dict(call.composition),
        "usage": None if call.usage is None else call.usage.to_json(),
    }


def command_json(command: Command) -> dict[str, Json]:
    return {
        "id": command.pk,
        "name": command.name,
        "arguments": json.loads(command.arguments),
        "by": None if command.by is None else command.by.get_username(),
        "status": command.status,
        "result": held(command.result),
        "created_at": iso(command.created_at),
        "applied_at": None if command.applied_at is None else iso(command.applied_at),
    }


def receipt_json(receipt: Receipt) -> dict[str, Json]:
    done, total = receipt.plan.progress()
    return {name: getattr(receipt, name) for name in _RECEIPT} | {
        "skills": list(receipt.skills),
        "goals_done": done,
        "goals_total": total,
        "current_goal": receipt.plan.current or "",
    }


def preview_json(preview: Preview) -> dict[str, Json]:
    plain = {f.name: getattr(preview, f.name) for f in fields(preview)}
    lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
    return plain | lists | {"tokens_saved": preview.tokens_saved}


def compaction_json(told: Compacted) -> dict[str, Json]:
    return {"number": told.number, "at": told.at, "message": told.message} | told.data()


def knowledge_json(row: Knowledge) -> dict[str, Json]:
    return {
        "id": row.pk,
        "name": held(row.name),
        "text": held(row.text),
        "sources": json.loads(row.sources),
        "goal_id": held(row.goal_id),
        "status": row.status,
        "judge": held(row.judge),
        "why": held(row.why),
        "created_at": iso(row.created_at),
        "judged_at": None if row.judged_at is None else iso(row.judged_at),
    }


def goals_json(tree: GoalTree) -> list[dict[str, Json]]:
    """The plan as a flat list, in the order shown."""
    return [_goal_json(place, goal, tree) for place, goal in enumerate(tree.walk())]


def _goal_json(place: int, goal: Goal, tree: GoalTree) -> dict[str, Json]:
    return {
        "goal_id": goal.id,
        "parent_goal_id": goal.parent,
        "position": place,
        "level": goal.level,
        "description": goal.description,
        "reason": goal.reason,
        "status": goal.status,
        "summary": goal.summary,
        "priority": goal.priority,
        "is_current": goal.id == tree.current,
    }
