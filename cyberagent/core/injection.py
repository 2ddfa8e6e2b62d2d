"""Framework-made tool calls: the periodic ``get_current_context`` and declared skills.

They are appended to the model's own batch and run like any call. Source: docs/windows.md,
"Injection".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from cyberagent.core.config import CONTEXT_INJECTION_INTERVAL
from cyberagent.core.events import Injected
from cyberagent.core.types import Json, Message, Part, ToolCall, TraceState, stored_json
from cyberagent.core.window import Item

CONTEXT_TOOL = "get_current_context"
SKILL_TOOL = "skill"
REPORT_TOOL = "submit_report"

WANTED = "inject_skills"
"""Where a trace's context keeps the skills that must be in its windows."""

ASKED = "asked_skills"
"""Where it keeps who asked for which skill, until that is loaded."""


def context_is_due(iteration: int, calls: Sequence[ToolCall], offered: Iterable[str]) -> bool:
    """Whether ``get_current_context`` is to be added to this batch: each fifth iteration of the
    main path (``iteration`` counts from 1), if there is a batch and the model did not ask."""
    return (
        iteration % CONTEXT_INJECTION_INTERVAL == 0
        and bool(calls)
        and CONTEXT_TOOL in offered
        and all(c.name != CONTEXT_TOOL for c in calls)
    )


def context_call(sequence: int) -> ToolCall:
    return ToolCall(id=f"fw_context_{sequence}", name=CONTEXT_TOOL, made_by="framework")


def skill_call(name: str, sequence: int, place: int) -> ToolCall:
    return ToolCall(
        id=f"fw_skill_{sequence}_{place}",
        name=SKILL_TOOL,
        arguments=stored_json({"name": name}),
        made_by="framework",
    )


def skill_in_window(
    name: str, injected: Mapping[str, Json], items: Sequence[Item], threshold: int | None = None
) -> bool:
    """Whether the recorded result of skill ``name`` is in ``items``, whole; with ``threshold``,
    whether it is also among the last ``threshold`` messages of that list."""
    record = injected.get(name)
    if not record:
        return False
    recent = items if threshold is None else items[max(0, len(items) - threshold) :]
    return any(i.kind == "whole" and i.message.sequence == record["sequence"] for i in recent)


def loaded_skill(message: Message, calls: Mapping[str, ToolCall]) -> str | None:
    """The skill that a tool result loaded, whoever asked for it; None for all else."""
    call = calls.get(message.tool_call_id)
    if message.is_error or call is None or call.name != SKILL_TOOL:
        return None
    arguments = call.parsed()
    if not isinstance(arguments, dict):
        return None
    name = cast("dict[str, Json]", arguments).get("name")
    return name if isinstance(name, str) else None


class Turning(Protocol):
    """What :func:`framework_calls` reads of a run's state."""

    trace: TraceState
    history: list[Item]
    answers: int
    injected: dict[str, Json]
    wanted_skills: tuple[str, ...]
    asked_skills: dict[str, Json]


def framework_calls(
    state: Turning, answer: Sequence[Part], offered: Iterable[str]
) -> tuple[list[ToolCall], list[Injected]]:
    """Calls that the framework appends to the model's batch, each with its event; nothing where
    the model made no batch, or one that its work ends with."""
    asked = [p for p in answer if isinstance(p, ToolCall)]
    if not asked or any(c.name == REPORT_TOOL for c in asked):
        return [], []
    sequence, iteration = state.trace.last_sequence + 1, state.answers + 1
    added: list[ToolCall] = []
    events: list[Injected] = []
    if context_is_due(iteration, asked, offered):
        added.append(context_call(sequence))
        why = f"iteration {iteration} of the main path"
        events.append(Injected(what=CONTEXT_TOOL, why=why, message=-1))
    for name in state.wanted_skills:
        by = state.asked_skills.get(name)
        if by or not skill_in_window(name, state.injected, state.history):
            added.append(skill_call(name, sequence, len(added)))
            why = f"asked for by {by}" if by else "it had left the window"
            events.append(Injected(what=f"skill {name}", why=why, message=-1))
    return added, events


def injected_skills(path: Sequence[Message]) -> dict[str, Json]:
    """The records of a path by replay: the newest result of each skill on it, from the newest
    snapshot on. ``{name: {"message_id", "sequence"}}``."""
    records: dict[str, Json] = {}
    calls: dict[str, ToolCall] = {}
    for message in path:
        snapshot = message.metadata.get("snapshot")
        if snapshot:
            records = dict(snapshot.get("injected_skills", {}))
        calls.update((c.id, c) for c in message.tool_calls)
        if message.role == "tool" and (name := loaded_skill(message, calls)):
            records[name] = {"message_id": f"m{message.sequence}", "sequence": message.sequence}
    return records
