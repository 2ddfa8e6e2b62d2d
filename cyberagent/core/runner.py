"""The loop of one run, and nothing else.

Each turn: apply what operators asked, ask the model, run its tools. Every message and event is
committed before the next step. Source: docs/running.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast

from cyberagent.core import injection
from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.answering import Ending, after_answer, after_verdict, tell_anchor
from cyberagent.core.asking import Asking, Outcome
from cyberagent.core.budget import nudge_due
from cyberagent.core.config import SKILL_RECENCY_THRESHOLD, RunConfig
from cyberagent.core.control import NoControl, apply_commands, recent
from cyberagent.core.ends import Ends
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
    Event,
    Injected,
    MessageStored,
    Nudge,
    Recovery,
    ToolCalled,
    UsageReported,
)
from cyberagent.core.family import LOOKED_BACK, Family
from cyberagent.core.lane import Lane
from cyberagent.core.opening import anchor_given, as_message, open_run
from cyberagent.core.parts import Branched, Parts, Writer
from cyberagent.core.ports import Control
from cyberagent.core.state import RunState, unanswered
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.tooling import ToolStage, skipped_results
from cyberagent.core.types import Json, Message, ToolCall, text_message
from cyberagent.core.wording import wording


class AgentRunner:
    """Runs agents on what :class:`Parts` holds. One instance may run many traces, one by one."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._control: Control = parts.control or NoControl()
        self.write = Writer(parts.store, parts.counter)
        self._asking = Asking(parts, self._control, self.write)
        self._ends = Ends(parts.tools, self._control, self.write)
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
        anchor = anchor_given(root_task_anchor, self.parts, trace_id)
        opened = await open_run(
            self.parts, self.write, drafts, config, trace_id=trace_id, anchor=anchor
        )
        state = opened.state
        state.wanted_skills, state.known_skills = tuple(inject_skills), frozenset(self.parts.skills)
        state.skill_recency = skill_recency_threshold
        for event in opened.events:
            yield event
        try:
            async for event in self._turn(state, skill_recency_threshold, opened.was_left):
                yield event
        except Stopped:
            last = await self._ends.stop(state)
        except Paused as pause:
            last = await self._ends.pause(state, pause)
        except LeaseLost:
            raise
        except CyberAgentError as error:
            last = await self._ends.fail(state, error)
        else:
            return
        for event in last:
            yield event

    # The loop ------------------------------------------------------------------------------

    async def _turn(self, state: RunState, threshold: int, was_left: bool) -> AsyncIterator[Event]:
        async for event in self._finish_batch(state):
            yield event
        ending = Ending()
        async for event in self._finish_answer(state, ending, was_left):
            yield event
        if ending.status is not None:
            return
        async for event in self._inject_at_start(state, threshold):
            yield event
        while True:
            if (end := await self._end_of_task(state)) is not None:
                for event in end:
                    yield event
                return
            async for event in apply_commands(self._control, state, self.write):
                yield event
            if self._family is not None and state.protocol is not None:
                for event in await tell_anchor(self._family, self.write, state):
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
            elif state.protocol is not None:
                ending = Ending()
                async for event in self._after_answer(state, outcome.message, ending):
                    yield event
                if ending.status is not None:
                    return
            else:
                async for event in self._finish(state, Ending("completed", outcome.message.text)):
                    yield event
                return

    async def _finish_answer(
        self, state: RunState, ending: Ending, was_left: bool
    ) -> AsyncIterator[Event]:
        """What is left to do with an answer that nothing came after: in a recursive run it is not
        judged yet; with ``was_left`` it, or the verdict on it, may have been the end."""
        last = state.history[-1].message if state.history else None
        is_final = last is not None and await self._is_final(state, last)
        if last is not None and is_final and state.protocol is not None:
            async for event in self._after_answer(state, last, ending):
                yield event
            return
        found = Ending()
        if was_left and state.protocol is not None and self._family is not None:
            found = await after_verdict(self._family, state)
        elif was_left and last is not None and is_final:
            found = Ending("completed", last.text)
        ending.status = found.status
        async for event in self._finish(state, found):
            yield event

    async def _is_final(self, state: RunState, answer: Message) -> bool:
        """Whether this is an answer that the run may end with."""
        if answer.source != "model" or answer.tool_calls:
            return False
        number = cast("int", answer.metadata.get("call", 0))
        call = (await self.parts.store.calls(state.trace.id, [number])).get(number)
        was_cut = call is not None and call.finish_reason == "pause"
        return not was_cut and not await self._has_say()

    async def _after_answer(
        self, state: RunState, answer: Message, ending: Ending
    ) -> AsyncIterator[Event]:
        """A recursive run's answer: see :func:`after_answer`."""
        if self._family is None:
            raise InvalidInput("a recursive run needs a spawner of sub-agents")
        async for event in after_answer(self._family, self.write, state, answer, ending):
            yield event
        async for event in self._finish(state, ending):
            yield event

    async def _finish(self, state: RunState, ending: Ending) -> AsyncIterator[Event]:
        """End the run as ``ending`` says, if it says so."""
        if ending.status is None:
            return
        if ending.status == "completed":
            async for event in self._reflect_at_end(state):
                yield event
        for event in await self._ends.end(
            state, ending.status, answer=ending.answer, why=ending.why
        ):
            yield event

    async def _end_of_task(self, state: RunState) -> list[Event] | None:
        """The end of a child whose report was validated; None while it has work to do."""
        protocol = state.protocol
        if protocol is None or protocol.report is None or protocol.result is None:
            return None
        return await self._ends.end(state, "completed", answer=protocol.report.summary)

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
        """Answer every call of the newest batch that has no result yet. After a restart calls
        that had begun are run if their tool is idempotent; the others are told that they were
        interrupted."""
        message, waiting = unanswered(state.history)
        if message is None:
            return
        resumed = len(waiting) < len(message.tool_calls) or not self._is_fresh(state, message)
        if resumed:
            begun = await self._begun(state, message)
            lost = [
                c for c in waiting if c.id in begun and not self.parts.tools.is_idempotent(c.name)
            ]
            waiting = [c for c in waiting if c not in lost]
            why = "after the process ended in the middle of a batch of tool calls"
            drafts, events = skipped_results(message, lost, state)
            noted = [Recovery(step="interrupted calls answered", why=why)] if lost else []
            for event in await self.write(state, drafts, [*events, *noted]) if lost else ():
                yield event
        async for event in self._tools.run(message, waiting, state):
            yield event

    async def _begun(self, state: RunState, message: Message) -> set[str]:
        """Ids of the calls of a message that may have begun to be run: that is told before they
        are. Of a message that no run of ours made, nobody knows."""
        found: set[str] = set()
        is_ours = False
        upto = state.trace.last_event
        while upto > 0:
            first = max(0, upto - LOOKED_BACK)
            events = await self.parts.store.events(state.trace.id, first, upto - first)
            told = [e for e in events if isinstance(e, ToolCalled)]
            found |= {e.id for e in told if e.message == message.sequence}
            own = [e for e in events if e.message == message.sequence]
            is_ours = is_ours or any(isinstance(e, UsageReported) for e in own)
            if any(isinstance(e, MessageStored) for e in own):
                break
            upto = first
        return found if is_ours else {c.id for c in message.tool_calls}

    @staticmethod
    def _is_fresh(state: RunState, message: Message) -> bool:
        """Whether this very run stored the batch (else it is left over from another)."""
        return message.sequence in state.made_here


def _why(asked_by: Json) -> str:
    return f"asked for by {asked_by}" if asked_by else "declared for this run"


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one + (other or 0.0)
