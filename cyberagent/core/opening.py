"""How a run is opened: a new trace is stored, or a stored one is gone on with, and what a process
that died left behind is put right. Source: docs/running.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import Conflict, InvalidInput
from cyberagent.core.events import CallFailed, Event, Recovery, Session
from cyberagent.core.family import ENDED
from cyberagent.core.lineage import LINEAGE, is_recursive, open_protocol, root_opening
from cyberagent.core.parts import Parts, Writer
from cyberagent.core.ports import CallEnd, NewTrace
from cyberagent.core.state import RunState, begins_turn, open_state, unanswered
from cyberagent.core.tooling import skipped_results
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import Json, Message, TraceState, text_message

LEFT = ("running", "interrupted")
"""Statuses in which a run was at work when its process died."""


@dataclass(frozen=True, slots=True)
class Opened:
    """``events``: what was told so far. ``was_left``: whether the last answer may have been the
    end: a process that died left it so; a sub-agent is not asked again but with a new
    contract."""

    state: RunState
    events: list[Event]
    was_left: bool


def anchor_given(value: object, parts: Parts, trace_id: str | None) -> RootTaskAnchor | None:
    """Raises InvalidInput where a new recursive run has no anchor, or another run has one."""
    if value is not None and (trace_id is not None or not parts.recursive):
        what = "a run that is stored already" if trace_id else "a run that is not recursive"
        raise InvalidInput(f"root_task_anchor: {what} takes none")
    if value is None:
        if trace_id is None and parts.recursive:
            raise InvalidInput("root_task_anchor: a recursive run needs one")
        return None
    return value if isinstance(value, RootTaskAnchor) else normalize_root_task_anchor(value)


async def open_run(
    parts: Parts,
    write: Writer,
    messages: Sequence[Message],
    config: RunConfig,
    *,
    trace_id: str | None,
    anchor: RootTaskAnchor | None,
) -> Opened:
    """Open a run with drafts to add. Raises InvalidInput, NotFound, and Conflict where its
    sub-agents are at work and would be left; then nothing is stored."""
    drafts = [m for m in messages if m.role != "system"]
    if trace_id is None:
        trace = await _new(parts, messages, config, anchor)
        how = "started"
        if anchor is not None:
            drafts.append(root_opening(anchor, config.language))
    else:
        trace = await parts.store.trace(trace_id)
        if parts.recursive and not is_recursive(trace):
            raise InvalidInput("this run has no root anchor: create it anew")
        how = "resumed" if trace.last_call else "started"
    was_left = trace.status in LEFT or trace.parent_trace is not None
    state = await open_state(parts.store, trace, config, parts)
    state.context_providers = list(parts.context_providers)
    state.tree = parts.tree or TreeBudget.of(await parts.store.tree(trace.id))
    if not state.system_prompt:
        state.system_prompt = parts.system_prompt
    events = await _close_open_call(parts, write, state)
    turn = max(trace.turn + sum(map(begins_turn, drafts)), 1)
    session = Session(
        how=how,
        provider=config.provider,
        model=config.model,
        preset=config.preset,
        turn=turn,
        owner=parts.owner,
    )
    dead, told = _answers_to_dead_calls(state) if drafts else ([], [])
    at_work = trace.parent_trace is None or trace.status not in ENDED
    if at_work and any(parts.tools.delegates(m.name) for m in dead):
        raise Conflict("its sub-agents are at work: go on with the run before you say more")
    events += await write(state, [*dead, *drafts], [*told, session], status="running", turn=turn)
    if drafts and state.protocol is not None:
        # What is handed down to a child is asked of its parent, with the contract given now.
        path = await parts.store.protocol_path(trace.id)
        state.protocol = await open_protocol(parts.store, state.trace, path)
    return Opened(state, events, was_left)


async def _new(
    parts: Parts, messages: Sequence[Message], config: RunConfig, anchor: RootTaskAnchor | None
) -> TraceState:
    mission = next((m.text for m in messages if m.role == "user"), None)
    if mission is None:
        raise InvalidInput("a new run needs a user message: its mission")
    system = next((m.text for m in messages if m.role == "system"), parts.system_prompt)
    return await parts.store.create_trace(
        NewTrace(
            mission=mission,
            config=config.to_json(),
            context={LINEAGE: []} if anchor else {},
            anchor=anchor,
            system_prompt=system,
        )
    )


def _answers_to_dead_calls(state: RunState) -> tuple[list[Message], list[Event]]:
    """Results for the calls of a batch that a dead process left, as new messages follow it:
    stored with those, since after them nothing can answer it any more."""
    message, waiting = unanswered(state.history)
    if message is None:
        return [], []
    drafts, events = skipped_results(message, waiting, state)
    why = "new messages came after a batch that a process left when it ended"
    return drafts, [*events, Recovery(step="interrupted calls answered", why=why)]


async def _close_open_call(parts: Parts, write: Writer, state: RunState) -> list[Event]:
    """End the call that a dead process left open: its answer will never come."""
    number = state.trace.last_call
    last = (await parts.store.calls(state.trace.id, [number])).get(number)
    if last is None or last.status != "sent":
        return []
    why = "the process that sent it ended before the answer was stored"
    return await write(
        state,
        [],
        [CallFailed(call=number, error=why, error_class="Interrupted")],
        call=CallEnd(number=number, status="cancelled", error=why),
    )


def as_message(value: Message | Mapping[str, Json]) -> Message:
    """A draft from ``{"role": "user" | "system", "content": text}``. Raises InvalidInput."""
    if isinstance(value, Message):
        return value
    role, content = value.get("role"), value.get("content")
    if role not in ("user", "system") or not isinstance(content, str) or not content.strip():
        raise InvalidInput("a message needs a role (user or system) and a text as its content")
    return text_message(role, content, source="user")
