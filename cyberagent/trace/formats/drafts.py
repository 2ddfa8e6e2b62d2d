"""Drafts of messages while a transcript is read: mutable, linked, numbered at the end.

Source: docs/formats.md, "What an import makes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cyberagent.core.types import BranchType, Json, Message, Part, Role, Source, Usage
from cyberagent.trace.goals import TODO_TOOLS, GoalTree, replay

_PLAN_TOOLS = TODO_TOOLS | {"goal"}


@dataclass(slots=True, eq=False)
class Draft:
    """One message to be. ``stands_for``: on a summary, the tip of the path it replaces.
    ``caller``: of a tool result, the message that made the call. ``left``: a rewind or a
    summary took it off the path."""

    role: Role
    source: Source
    parts: list[Part] = field(default_factory=list[Part])
    parent: Draft | None = None
    turn: int = 0
    tool_call_id: str = ""
    name: str = ""
    is_error: bool = False
    usage: Usage | None = None
    duration_ms: int | None = None
    created_at: str = ""
    branch_type: BranchType = ""
    branch_id: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Any])
    stands_for: Draft | None = None
    caller: Draft | None = None
    human: bool = False
    left: bool = False
    sequence: int = 0
    depth: int = 0

    def path(self) -> list[Draft]:
        """From the root to this draft."""
        found: list[Draft] = []
        draft: Draft | None = self
        while draft is not None:
            found.append(draft)
            draft = draft.parent
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Finished:
    """``goals``: the plan at the head as JSON; None where nobody ever planned."""

    messages: tuple[Message, ...]
    goals: dict[str, Json] | None


def finish(drafts: Sequence[Draft], head: Draft | None, mission: str) -> Finished:
    """Number the drafts in the order given (parents stand before their children) and replay the
    plan along the way: each message gets the goal that was in focus when it was made, each
    summary a snapshot of the plan."""
    messages: list[Message] = []
    plans: dict[Draft, GoalTree] = {}
    nothing = GoalTree(mission=mission)
    for number, draft in enumerate(drafts, 1):
        parent = draft.parent
        draft.sequence, draft.depth = number, parent.depth + 1 if parent else 1
        before = parent or draft.stands_for
        plan = plans[before] if before else nothing
        if draft.source == "summary":
            _summarise(draft, plan)
        caller = draft.caller
        goal_id = messages[caller.sequence - 1].goal_id if caller else plan.current or ""
        if draft.source == "summary":  # it stands for the messages of many goals
            goal_id = ""
        message = _message(draft, goal_id)
        if caller and draft.name in _PLAN_TOOLS:
            plan = replay((messages[caller.sequence - 1], message), mission, start=plan)
        messages.append(message)
        plans[draft] = plan
    plan = plans[head] if head else nothing
    return Finished(tuple(messages), plan.to_json() if len(plan) else None)


def _summarise(draft: Draft, plan: GoalTree) -> None:
    if len(plan):
        draft.metadata["snapshot"] = {"goals": plan.to_json()}
    if draft.stands_for is None:
        return
    path = draft.stands_for.path()
    tokens = draft.metadata.get("stands_for", {})
    draft.metadata["stands_for"] = tokens | {
        "first": path[0].sequence,
        "last": path[-1].sequence,
        "messages": len(path),
    }


def _message(draft: Draft, goal_id: str) -> Message:
    return Message(
        role=draft.role,
        parts=tuple(draft.parts),
        source=draft.source,
        sequence=draft.sequence,
        parent_sequence=draft.parent.sequence if draft.parent else None,
        depth=draft.depth,
        tool_call_id=draft.tool_call_id,
        name=draft.name,
        is_error=draft.is_error,
        goal_id=goal_id,
        turn=draft.turn,
        branch_type=draft.branch_type,
        branch_id=draft.branch_id,
        usage=draft.usage,
        duration_ms=draft.duration_ms,
        created_at=draft.created_at,
        metadata=draft.metadata,
    )


def timestamp(value: Json) -> str:
    """``value`` if it is an ISO 8601 time with an offset; else empty."""
    if not isinstance(value, str) or len(value) > 40:
        return ""
    try:
        return value if datetime.fromisoformat(value).tzinfo is not None else ""
    except ValueError:
        return ""
