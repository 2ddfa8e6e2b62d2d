"""The loop of one run, and nothing else.

Each turn: apply what operators asked, ask the model, run its tools. Every message and event is
committed before the next step. Source: docs/running.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from cyberagent.core import injection
from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.answering import Ending, after_answer, tell_anchor
from cyberagent.core.asking import Asking, Outcome
from cyberagent.core.budget import nudge_due
from cyberagent.core.config import SKILL_RECENCY_THRESHOLD, RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.control import NoControl, apply_commands, ended, recent
from cyberagent.core.errors import (
    Conflict,
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
from cyberagent.core.family import Family
from cyberagent.core.lane import Lane
from cyberagent.core.lineage import LINEAGE, is_recursive, root_opening
from cyberagent.core.parts import Branched, Parts, Writer
from cyberagent.core.ports import CallEnd, Control, NewTrace, PendingCommand
from cyberagent.core.state import RunState, open_state, unanswered
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.tooling import ToolStage, skipped_results
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import Json, Message, ToolCall, TraceStatus, text_message
from cyberagent.core.wording import wording


class AgentRunner:
    """Runs agents on what :class:`Parts` holds. One instance may run many traces, one by one."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._control: Control = parts.control or NoControl()
        self.write = Writer(parts.store, parts.counter)
        self._asking = Asking(parts, self._control, self.write)
        self._family = None
        if parts.spawner is not None:
            self._family = Family(
                parts.store,
                parts.spawner,
                self._control,
                self.write,
                parts.replay,
                control_for=parts.control_for,
                heard=parts.heard,
            )
        self._tools = ToolStage(
            parts.tools, parts.skills, self._control.stop, self.write, self._family
        )

    async def aclose(self) -> None:
        """Give up the connections to the models."""
        await self.parts.provider.aclose()

    async def run(
        self,
        messages: Sequence[Message | Mapping[str, Json]],
        config: RunConfig,
        trace_id: str | None = None,
        root_task_anchor: RootTaskAnchor | Mapping[str, Json] | None = None,
        inject_skills: Sequence[str] = (),
        skill_recency_threshold: int = SKILL_RECENCY_THRESHOLD,
    ) -> AsyncIterator[Event]:
        """Run to the end of the turn and yield every event; the last one is Done.

        ``messages``: drafts to add first, or ``{"role", "content"}`` objects (users' turns; a
        system message overrides the preset's prompt of a new trace). ``trace_id`` goes on with a
        stored trace. ``root_task_anchor``: the task of the whole tree; a new trace of a recursive
        preset needs it, no other may have one. ``inject_skills`` must be in the model's window;
        those that stand among its last ``skill_recency_threshold`` messages are not repeated.
        Raises NotFound (trace, skill) and InvalidInput before anything is stored; later failures
        are stored, and told by the Error and Done events.
        """
        drafts = [as_message(m) for m in messages]
        for name in inject_skills:
            if name not in self.parts.skills:
                raise NotFound("skill", name)
        anchor = self._anchor(root_task_anchor, trace_id)
        state, events = await self._open(drafts, config, trace_id, anchor)
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

    def _anchor(self, value: object, trace_id: str | None) -> RootTaskAnchor | None:
        """Raises InvalidInput where a new recursive run has none, or another run has one."""
        if value is not None and (trace_id is not None or not self.parts.recursive):
            what = "a run that is stored already" if trace_id else "a run that is not recursive"
            raise InvalidInput(f"root_task_anchor: {what} takes none")
        if value is None:
            if trace_id is None and self.parts.recursive:
                raise InvalidInput("root_task_anchor: a recursive run needs one")
            return None
        return value if isinstance(value, RootTaskAnchor) else normalize_root_task_anchor(value)

    async def _open(
        self,
        messages: Sequence[Message],
        config: RunConfig,
        trace_id: str | None,
        anchor: RootTaskAnchor | None,
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
                    context={LINEAGE: []} if anchor else {},
                    anchor=anchor,
                    system_prompt=system[0].text if system else self.parts.system_prompt,
                )
            )
            how = "started"
            if anchor is not None:
                drafts.append(root_opening(anchor, config.language))
        else:
            trace = await store.trace(trace_id)
            if self.parts.recursive and not is_recursive(trace):
                raise InvalidInput("this run has no root anchor: create it anew")
            how = "resumed" if trace.last_call else "started"
        state = await open_state(store, trace, config, self.parts)
        state.context_providers = list(self.parts.context_providers)
        state.tree = self.parts.tree or TreeBudget.of(await store.tree(trace.id))
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
        if any(self.parts.tools.delegates(m.name) for m in dead):
            raise Conflict("its sub-agents are at work: go on with the run before you say more")
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
        if (left := self._open_answer(state)) is not None:
            ending = Ending()
            async for event in self._after_answer(state, left, ending):
                yield event
            if ending.status is not None:
                return
        while True:
            async for event in apply_commands(self._control, state, self.write):
                yield event
            if self._family is not None and state.protocol is not None:
                for event in await tell_anchor(self._family, self.write, state):
                    yield event
                if (end := await self._end_of_task(state)) is not None:
                    for event in end:
                        yield event
                    return
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
            elif state.protocol is not None:
                ending = Ending()
                async for event in self._after_answer(state, outcome.message, ending):
                    yield event
                if ending.status is not None:
                    return
            else:
                async for event in self._reflect_at_end(state):
                    yield event
                for event in await self._end(state, "completed", answer=outcome.message.text):
                    yield event
                return

    @staticmethod
    def _open_answer(state: RunState) -> Message | None:
        """The answer of a recursive run that was left before it was validated."""
        last = state.history[-1].message if state.history and state.protocol else None
        is_open = last is not None and last.source == "model" and not last.tool_calls
        return last if is_open else None

    async def _after_answer(
        self, state: RunState, answer: Message, ending: Ending
    ) -> AsyncIterator[Event]:
        """A recursive run's answer: see :func:`after_answer`."""
        if self._family is None:
            raise InvalidInput("a recursive run needs a spawner of sub-agents")
        async for event in after_answer(self._family, self.write, state, answer, ending):
            yield event
        if ending.status is None:
            return
        if ending.status == "completed":
            async for event in self._reflect_at_end(state):
                yield event
        for event in await self._end(state, ending.status, answer=ending.answer, why=ending.why):
            yield event

    async def _end_of_task(self, state: RunState) -> list[Event] | None:
        """The end of a child whose report was validated; None while it has work to do."""
        protocol = state.protocol
        if protocol is None or protocol.report is None or protocol.result is None:
            return None
        return await self._end(state, "completed", answer=protocol.report.summary)

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
        state.tree.check(limits)
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
        if status == "paused" and any(self.parts.tools.delegates(c.name) for c in waiting):
            message = None  # the same sub-agents go on later, and answer these calls
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
        if stops and not stops[-1].id:
            return await self._end(state, "stopped", why=str(stops[-1].arguments["why"]))
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
