"""Running the tools of one batch: side by side where they allow it, stored in call order.

Source: docs/tools.md, "A batch".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from cyberagent.core.config import RunConfig
from cyberagent.core.control import Storing
from cyberagent.core.events import Event, GoalChanged, ToolCalled, ToolResult
from cyberagent.core.family import Family
from cyberagent.core.filecache import reading_key, unchanged_stub
from cyberagent.core.injection import ASKED, loaded_skill
from cyberagent.core.lane import Lane
from cyberagent.core.ports import Skill, ToolContext, ToolOutcome, Tools
from cyberagent.core.state import RunState
from cyberagent.core.streams import Paused, Stopped, unless_stopped
from cyberagent.core.types import Json, Message, Text, ToolCall
from cyberagent.core.wording import label, wording

PREVIEW_CHARS = 200


@dataclass(frozen=True, slots=True)
class Ran:
    """A tool call that ended, with its time in milliseconds."""

    call: ToolCall
    outcome: ToolOutcome
    elapsed_ms: int


class ToolStage:
    """Runs calls and stores their results through ``store``."""

    def __init__(
        self,
        tools: Tools,
        skills: Mapping[str, Skill],
        stop: asyncio.Event,
        store: Storing,
        family: Family | None = None,
    ) -> None:
        self._tools, self._skills, self._stop, self._store = tools, skills, stop, store
        self._family = family

    async def run(
        self,
        message: Message,
        calls: Sequence[ToolCall],
        state: RunState,
        lane: Lane | None = None,
    ) -> AsyncIterator[Event]:
        """Answer ``calls`` of assistant ``message``, which stands on the main path or ``lane``.
        Raises Stopped when an operator stops the run; calls that have no result then are left
        to the caller."""
        for group in self._groups(calls, state.config):
            if self._stop.is_set():
                raise Stopped
            if lane is None and _is_reported(state):
                for event in await self._too_late(message, group, state):
                    yield event
                continue
            begun: list[Event] = [
                ToolCalled(id=c.id, name=c.name, made_by=c.made_by, message=message.sequence)
                for c in group
            ]
            for event in await self._store(state, [], begun):
                yield event
            before = state.goals
            async for ran in self._ran(message, group, state, lane):
                if ran is None:
                    told, state.told = state.told, []
                    for event in told:
                        yield event
                    continue
                for event in await self._result(message, ran, state, before, lane):
                    yield event
                before = state.goals

    async def _too_late(
        self, message: Message, group: Sequence[ToolCall], state: RunState
    ) -> list[Event]:
        """Refuse calls that stand behind the report in its own batch: what was judged must stay
        as it was, and nobody is left to review a sub-agent."""
        refused = ToolOutcome(text=label(state.config.language, "after_report"), status="error")
        events: list[Event] = []
        for call in group:
            ran = Ran(call, refused, 0)
            events += await self._result(message, ran, state, state.goals, None)
        return events

    async def _ran(
        self, message: Message, group: Sequence[ToolCall], state: RunState, lane: Lane | None
    ) -> AsyncIterator[Ran | None]:
        """The calls of a group that ran, in their order; those that wait for sub-agents as each
        ends, and not cut off by a stop: their sub-agents end in order, and the calls with them.
        None: sub-agents told something meanwhile."""
        if self._family is None or not self._tools.delegates(group[0].name):
            work = asyncio.gather(*(self._one(c, message, state, lane) for c in group))
            for ran in await unless_stopped(work, self._stop):
                yield ran
            return
        tasks = [asyncio.ensure_future(self._one(c, message, state, lane)) for c in group]
        failed: BaseException | None = None
        async with aclosing(self._family.as_ended(tasks)) as each:
            async for ended in each:
                if ended is None:
                    yield None
                    continue
                try:
                    ran = ended.result()
                except (Paused, Stopped) as error:
                    # The others come to their own rest. A stop is what the run ends with.
                    failed = failed if isinstance(failed, Stopped) else error
                    continue
                yield ran
        if failed is not None:
            raise failed

    def _groups(self, calls: Sequence[ToolCall], config: RunConfig) -> Iterator[list[ToolCall]]:
        """Runs of neighbours that may go side by side; all others alone. Calls that wait for
        sub-agents and others never share a group."""
        group: list[ToolCall] = []
        for call in calls:
            waits = self._tools.delegates(call.name)
            beside = config.children == "parallel" if waits else True
            if group and self._tools.delegates(group[0].name) is not waits:
                yield group
                group = []
            if beside and self._tools.is_parallel_safe(call.name):
                group.append(call)
                continue
            if group:
                yield group
                group = []
            yield [call]
        if group:
            yield group

    async def _one(
        self, call: ToolCall, message: Message, state: RunState, lane: Lane | None
    ) -> Ran:
        if lane is not None and call.name not in lane.allowed:
            text = f"{call.name} cannot be used in a side branch"
            return Ran(call, ToolOutcome(text=text, status="error"), 0)
        context = ToolContext(
            trace_id=state.trace.id,
            config=state.config,
            state=state,
            workspace=state.workspace,
            skills=self._skills,
            now=datetime.now(UTC).isoformat(timespec="seconds"),
            call=call.id,
            message=message.sequence,
            family=None if lane else self._family,
        )
        start = time.monotonic()
        waits = self._tools.delegates(call.name)
        limit = None if waits else state.config.limits.tool_timeout_seconds or None
        try:
            async with asyncio.timeout(limit):
                outcome = await self._tools.call(call.name, call.arguments, context)
        except TimeoutError:
            text = f"{call.name} was stopped: it took more than {limit:g} seconds"
            outcome = ToolOutcome(text=text, status="error")
        return Ran(call, outcome, round((time.monotonic() - start) * 1000))

    async def _result(
        self,
        message: Message,
        ran: Ran,
        state: RunState,
        goals_before: object,
        lane: Lane | None,
    ) -> list[Event]:
        ran = ran if lane else _told_once(ran, state)
        shown, full = shorten(ran.outcome, state.config.limits.max_tool_output_chars)
        result = Message(
            role="tool",
            parts=(Text(shown),),
            source="tool",
            tool_call_id=ran.call.id,
            name=ran.call.name,
            is_error=ran.outcome.status == "error",
            goal_id=message.goal_id,
            duration_ms=ran.elapsed_ms,
            full_output=full,
            metadata=ran.outcome.metadata,
        )
        events: list[Event] = [
            ToolResult(
                id=ran.call.id,
                name=ran.call.name,
                status=ran.outcome.status,
                step=state.answers,
                elapsed_ms=ran.elapsed_ms,
                preview=ran.outcome.text[:PREVIEW_CHARS],
                message=-1,
            )
        ]
        changed = state.goals is not goals_before
        if changed:
            done, total = state.goals.progress()
            events.append(
                GoalChanged(
                    changes=tuple(ran.outcome.metadata.get("changes", ())),
                    current=state.goals.current,
                    done=done,
                    total=total,
                    message=-1,
                )
            )
        context = None if lane else self._skill_record(result, state)
        stored = await self._store(
            state,
            [result],
            [*events, *ran.outcome.events],
            plan_changed=changed,
            context=context,
            lane=lane,
        )
        return state.with_told(stored)

    @staticmethod
    def _skill_record(result: Message, state: RunState) -> dict[str, Json] | None:
        """The trace's context with this skill's newest place, if ``result`` loaded one."""
        name = loaded_skill(result, state.calls)
        if name is None:
            return None
        sequence = state.trace.last_sequence + 1
        state.injected[name] = {"message_id": f"m{sequence}", "sequence": sequence}
        state.asked_skills.pop(name, None)
        context = {**state.trace.context, "injected_skills": dict(state.injected)}
        return context | ({ASKED: dict(state.asked_skills)} if ASKED in context else {})


def _is_reported(state: RunState) -> bool:
    return state.protocol is not None and state.protocol.report is not None


def _told_once(ran: Ran, state: RunState) -> Ran:
    """A file that has not changed since it was read gets a short answer, as long as its content
    still stands in the window."""
    key = reading_key(ran.call) if ran.outcome.status == "ok" else None
    if key is None:
        return ran
    file, content = state.files.get(key), ran.outcome.text
    stub = unchanged_stub(file, content, state.shows, state.config.language)
    if stub is None or len(stub) >= len(content):
        return ran
    told = replace(ran.outcome, text=stub, metadata={**ran.outcome.metadata, "unchanged": True})
    return replace(ran, outcome=told)


def shorten(outcome: ToolOutcome, limit: int) -> tuple[str, str | None]:
    """What the model is shown, and the whole output where that is less: the head and the tail
    with a line between that says how much is missing. ``limit`` in characters, 0 = none."""
    text = outcome.text or "(no output)"
    if not outcome.shorten or not limit or len(text) <= limit:
        return text, None
    head = limit * 2 // 3
    tail = limit - head
    left_out = len(text) - limit
    shown = f"{text[:head]}\n[… {left_out:,} characters left out …]\n{text[-tail:]}"
    return shown, text


def skipped_results(
    message: Message,
    calls: Sequence[ToolCall],
    state: RunState,
    status: Literal["interrupted"] = "interrupted",
) -> tuple[list[Message], list[Event]]:
    """Error results for calls that will not be run, so that none is ever left unanswered."""
    text = wording(state.config.language, "interrupted")
    draft = Message(
        role="tool",
        parts=(Text(text),),
        source="framework",
        is_error=True,
        goal_id=message.goal_id,
        metadata={"placeholder": True},
    )
    drafts = [replace(draft, tool_call_id=c.id, name=c.name) for c in calls]
    events: list[Event] = [
        ToolResult(
            id=c.id, name=c.name, status=status, step=state.answers, preview=text, message=-i
        )
        for i, c in enumerate(calls, 1)
    ]
    return drafts, events
