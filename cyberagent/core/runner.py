"""The loop of one run, and nothing else.

Each turn: apply what operators asked, ask the model, run its tools. Every message and event is
committed before the next step. Source: docs/running.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from cyberagent.core import injection
from cyberagent.core.asking import Asking, Outcome
from cyberagent.core.budget import check_cost, nudge_due
from cyberagent.core.config import SKILL_RECENCY_THRESHOLD, RunConfig
from cyberagent.core.control import NoControl, apply_commands, ended, recent
from cyberagent.core.errors import (
    CyberAgentError,
    InvalidInput,
    LeaseLost,
    NotFound,
    PromptTooLong,
    ProviderError,
    WindowTooLarge,
)
from cyberagent.core.events import (
    BranchEnded,
    BranchStarted,
    CallFailed,
    Done,
    Error,
    Event,
    Injected,
    Nudge,
    Recovery,
    Session,
    StatusChanged,
)
from cyberagent.core.lane import Lane
from cyberagent.core.parts import Branched, Parts, Writer
from cyberagent.core.ports import CallEnd, Control, NewTrace, PendingCommand
from cyberagent.core.state import RunState, open_state, unanswered
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.tooling import ToolStage, skipped_results
from cyberagent.core.types import Json, Message, ToolCall, TraceStatus, text_message
from cyberagent.core.wording import wording


class AgentRunner:
    """Runs agents on what :class:`Parts` holds. One instance may run many traces, one by one."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._control: Control = parts.control or NoControl()
        self.write = Writer(parts.store, parts.counter)
        self._asking = Asking(parts, self._control, self.write)
        self._tools = ToolStage(parts.tools, parts.skills, self._control.stop, self.write)

    async def run(
        self,
        messages: Sequence[Message | Mapping[str, Json]],
        config: RunConfig,
        trace_id: str | None = None,
        inject_skills: Sequence[str] = (),
        skill_recency_threshold: int = SKILL_RECENCY_THRESHOLD,
    ) -> AsyncIterator[Event]:
        """Run to the end of the turn and yield every event; the last one is Done.

        ``messages``: drafts to add first, or ``{"role", "content"}`` objects (users' turns; a
        system message overrides the preset's prompt of a new trace). ``trace_id`` goes on with a
        stored trace. ``inject_skills`` must be in the model's window; those that stand among its
        last ``skill_recency_threshold`` messages are not repeated. Raises NotFound (trace, skill)
        and InvalidInput before anything is stored; later failures are stored, and told by the
        Error and Done events.
        """
        drafts = [as_message(m) for m in messages]
        for name in inject_skills:
            if name not in self.parts.skills:
                raise NotFound("skill", name)
        state, events = await self._open(drafts, config, trace_id)
        state.wanted_skills, state.known_skills = tuple(inject_skills), frozenset(self.parts.skills)
        state.skill_recency = skill_recency_threshold
        for event in events:
            yield event
        try:
            async for event in self._turn(state, skill_recency_threshold):
                yield event
        except Stopped:
            last = await self._stop(state)
        except Paused as pause:
            last = await self._end(state, "paused", why=str(pause), command=pause.command)
        except LeaseLost:
            raise
        except CyberAgentError as error:
            last = await self._fail(state, error)
        else:
            return
        for event in last:
            yield event

    # Opening -------------------------------------------------------------------------------

    async def _open(
        self, messages: Sequence[Message], config: RunConfig, trace_id: str | None
    ) -> tuple[RunState, list[Event]]:
        store = self.parts.store
        system = [m for m in messages if m.role == "system"]
        drafts = [m for m in messages if m.role != "system"]
        if trace_id is None:
            if not any(m.role == "user" for m in drafts):
                raise InvalidInput("a new run needs a user message: its mission")
            trace = await store.create_trace(
                NewTrace(
                    mission=next(m.text for m in drafts if m.role == "user"),
                    config=config.to_json(),
                    system_prompt=system[0].text if system else self.parts.system_prompt,
                )
            )
            how = "started"
        else:
            trace = await store.trace(trace_id)
            how = "resumed" if trace.last_call else "started"
        state = await open_state(store, trace, config, self.parts)
        state.context_providers = list(self.parts.context_providers)
        if not state.system_prompt:
            state.system_prompt = self.parts.system_prompt
        events = await self._close_open_call(state)
        turns = sum(1 for m in drafts if m.role == "user")
        session = Session(
            how=how,
            provider=config.provider,
            model=config.model,
            preset=config.preset,
            turn=trace.turn + turns,
            owner=self.parts.owner,
        )
        dead, told = self._answers_to_dead_calls(state) if drafts else ([], [])
        return state, events + await self.write(
            state, [*dead, *drafts], [*told, session], status="running", turn=trace.turn + turns
        )

    @staticmethod
    def _answers_to_dead_calls(state: RunState) -> tuple[list[Message], list[Event]]:
        """Results for the calls of a batch that a dead process left, as new messages follow it:
        stored with those, since after them nothing can answer it any more."""
        message, waiting = unanswered(state.history)
        if message is None:
            return [], []
        drafts, events = skipped_results(message, waiting, state)
        why = "new messages came after a batch that a process left when it ended"
        return drafts, [*events, Recovery(step="interrupted calls answered", why=why)]

    async def _close_open_call(self, state: RunState) -> list[Event]:
        """End the call that a dead process left open: its answer will never come."""
        number = state.trace.last_call
        last = (await self.parts.store.calls(state.trace.id, [number])).get(number)
        if last is None or last.status != "sent":
            return []
        why = "the process that sent it ended before the answer was stored"
        return await self.write(
            state,
            [],
            [CallFailed(call=number, error=why, error_class="Interrupted")],
            call=CallEnd(number=number, status="cancelled", error=why),
        )

    # The loop ------------------------------------------------------------------------------

    async def _turn(self, state: RunState, threshold: int) -> AsyncIterator[Event]:
        async for event in self._finish_batch(state):
            yield event
        async for event in self._inject_at_start(state, threshold):
            yield event
        while True:
            async for event in apply_commands(self._control, state, self.write):
                yield event
            for event in await self._keep_to_budget(state):
                yield event
            outcome = Outcome()
            async for event in self._next_call(state, outcome):
                yield event
            if outcome.answer is None or outcome.message is None:
                continue
            if outcome.message.tool_calls:
                async for event in self._finish_batch(state):
                    yield event
            elif outcome.answer.finish_reason == "pause" or await self._has_say():
                continue
            else:
                async for event in self._reflect_at_end(state):
                    yield event
                for event in await self._end(state, "completed", answer=outcome.message.text):
                    yield event
                return

    async def _next_call(self, state: RunState, outcome: Outcome) -> AsyncIterator[Event]:
        """Make the window fit and ask. Where the provider says that it is too long after all,
        compact once more; a window that did not change is never sent again."""
        compaction = self.parts.compaction
        if compaction is not None:
            async for event in compaction.manage(state, self):
                yield event
        try:
            async for event in self._asking.ask(state, outcome):
                yield event
            return
        except PromptTooLong as error:
            if compaction is None:
                raise
            refused, before = error, list(state.history)
        state.compact_asked = "recovery"
        step = Recovery(step="reactive compaction", why=str(refused))
        for event in await self.write(state, [], [step]):
            yield event
        async for event in compaction.manage(state, self):
            yield event
        if state.history == before:
            raise refused
        async for event in self._asking.ask(state, outcome):
            yield event

    async def _reflect_at_end(self, state: RunState) -> AsyncIterator[Event]:
        if self.parts.compaction is None or not state.config.enable_completion_extraction:
            return
        async for event in self.parts.compaction.reflect(state, self):
            yield event

    async def _has_say(self) -> bool:
        return any(c.name == "say" for c in await self._control.pending())

    async def _keep_to_budget(self, state: RunState) -> list[Event]:
        """Tell the model, once each, how far its turn has gone; at the last it must answer
        without tools. Raises LimitReached at the cost limit."""
        limits = state.config.limits
        check_cost(limits, state.cost)
        nudge = nudge_due(
            limits, steps=state.turn_answers, spent=state.turn_tokens, told=state.nudged
        )
        if not nudge:
            return []
        text = wording(state.config.language, nudge).format(
            steps=limits.max_steps,
            spent=f"{state.turn_tokens:,}",
            soft=f"{limits.token_soft_limit:,}",
            hard=f"{limits.token_hard_limit:,}",
        )
        note = text_message("user", text, source="framework", metadata={"nudge": nudge})
        return await self.write(state, [note], [Nudge(what=nudge, text=text, message=-1)])

    # Side branches -------------------------------------------------------------------------

    async def branch(self, state: RunState, lane: Lane, outcome: Branched) -> AsyncIterator[Event]:
        """Ask on ``lane`` until the model answers without calls; in its last turn it is asked
        for an answer without tools. A failure is told in ``outcome``, a stop is raised."""
        started = BranchStarted(branch_id=lane.branch_id, branch_type=lane.branch_type)
        for event in await self.write(state, [], [started]):
            yield event
        try:
            for turn in range(1, outcome.max_turns + 1):
                lane.final = turn == outcome.max_turns
                asked = Outcome()
                async for event in self._asking.ask(state, asked, lane):
                    yield event
                if asked.answer is None or asked.message is None:
                    continue
                outcome.cost = _sum(outcome.cost, asked.cost)
                outcome.text = asked.message.text
                outcome.finish_reason = asked.answer.finish_reason
                outcome.has_calls = bool(asked.message.tool_calls)
                if not asked.message.tool_calls:
                    break
                calls = asked.message.tool_calls
                async for event in self._tools.run(asked.message, calls, state, lane):
                    yield event
        except (ProviderError, WindowTooLarge) as error:
            outcome.text, outcome.why = None, str(error)
        ended = BranchEnded(
            branch_id=lane.branch_id,
            branch_type=lane.branch_type,
            outcome=outcome.why or "answered",
        )
        for event in await self.write(state, [], [ended]):
            yield event

    # Injection -----------------------------------------------------------------------------

    async def _inject_at_start(self, state: RunState, threshold: int) -> AsyncIterator[Event]:
        """Declared skills that are not in the window, or not among its last messages, come as
        one framework-only batch before the first answer."""
        due: list[ToolCall] = []
        held: list[Event] = []
        asked = dict(state.asked_skills)
        sequence = state.trace.last_sequence + 1
        for name in state.wanted_skills:
            if injection.skill_in_window(name, state.injected, state.history, threshold):
                held.append(Injected(what=f"skill {name}", why=recent(threshold), fired=False))
                state.asked_skills.pop(name, None)
            else:
                due.append(injection.skill_call(name, sequence, len(due)))
        context = {**state.trace.context, injection.ASKED: dict(state.asked_skills)}
        changed = context if state.asked_skills != asked else None
        for event in await self.write(state, [], held, context=changed) if held else ():
            yield event
        if not due:
            return
        batch = Message(role="assistant", parts=tuple(due), source="framework")
        fired = [
            Injected(what=f"skill {name}", why=_why(asked.get(name)), message=-1)
            for name in (c.parsed()["name"] for c in due)
        ]
        for event in await self.write(state, [batch], fired):
            yield event
        async for event in self._finish_batch(state):
            yield event

    # Tools ---------------------------------------------------------------------------------

    async def _finish_batch(self, state: RunState) -> AsyncIterator[Event]:
        """Answer every call of the newest batch that has no result yet. After a restart only
        calls of idempotent tools are run; the others are told that they were interrupted."""
        message, waiting = unanswered(state.history)
        if message is None:
            return
        resumed = len(waiting) < len(message.tool_calls) or not self._is_fresh(state, message)
        if resumed:
            lost = [c for c in waiting if not self.parts.tools.is_idempotent(c.name)]
            waiting = [c for c in waiting if c not in lost]
            why = "after the process ended in the middle of a batch of tool calls"
            drafts, events = skipped_results(message, lost, state)
            noted = [Recovery(step="interrupted calls answered", why=why)] if lost else []
            for event in await self.write(state, drafts, [*events, *noted]) if lost else ():
                yield event
        async for event in self._tools.run(message, waiting, state):
            yield event

    @staticmethod
    def _is_fresh(state: RunState, message: Message) -> bool:
        """Whether this very run stored the batch (else it is left over from another)."""
        return message.sequence in state.made_here

    # Ends ----------------------------------------------------------------------------------

    async def _end(
        self,
        state: RunState,
        status: TraceStatus,
        *,
        answer: str = "",
        why: str = "",
        before: Sequence[Event] = (),
        command: PendingCommand | None = None,
    ) -> list[Event]:
        """End the run in one commit: calls without results are answered, the status is set,
        the command that asked for it has ended, and Done is the last event."""
        message, waiting = unanswered(state.history)
        drafts: list[Message] = []
        events: list[Event] = []
        if message is not None:
            drafts, events = skipped_results(message, waiting, state)
        end = None
        if command is not None:
            end, told = ended(command)
            events.append(told)
        done = Done(
            trace=state.trace.id, status=status, answer=answer, steps=state.answers, why=why
        )
        told_last = [*before, StatusChanged(status=status, why=why), done]
        stored = await self.write(state, drafts, [*events, *told_last], status=status, command=end)
        if command is not None:
            await self._control.ended(command)
        return stored

    async def _stop(self, state: RunState) -> list[Event]:
        """All stops that wait are the same stop; the run ends with the last of them."""
        stops = [c for c in await self._control.pending() if c.name == "stop"]
        events: list[Event] = []
        for command in stops[:-1]:
            end, told = ended(command)
            events += await self.write(state, [], [told], command=end)
            await self._control.ended(command)
        last = stops[-1] if stops else None
        why = f"stopped by {last.by if last and last.by else 'an operator'}"
        return events + await self._end(state, "stopped", why=why, command=last)

    async def _fail(self, state: RunState, error: CyberAgentError) -> list[Event]:
        told = Error(error=str(error), error_class=type(error).__name__)
        return await self._end(state, "failed", why=str(error), before=[told])


def _why(asked_by: Json) -> str:
    return f"asked for by {asked_by}" if asked_by else "declared for this run"


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one + (other or 0.0)


def as_message(value: Message | Mapping[str, Json]) -> Message:
    """A draft from ``{"role": "user" | "system", "content": text}``. Raises InvalidInput."""
    if isinstance(value, Message):
        return value
    role, content = value.get("role"), value.get("content")
    if role not in ("user", "system") or not isinstance(content, str) or not content.strip():
        raise InvalidInput("a message needs a role (user or system) and a text as its content")
    return text_message(role, content, source="user")
