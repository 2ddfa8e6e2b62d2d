"""Sub-agents: child traces that are run below the call that asked for them.

A child is found again by what it was made for, so a call that was left unanswered, by a pause or
a process that died, goes on with the same one, or takes the result that is there. Source:
docs/protocol.md, "In a run".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import check_tree
from cyberagent.core.control import NEEDS_REST, NoControl, Storing, UnderParent
from cyberagent.core.events import ChildEnded, ChildStarted, Event
from cyberagent.core.lineage import LINEAGE, SPAWNED, is_recursive, lineage_of, spawned
from cyberagent.core.ports import Control, NewTrace, Replay, Store
from cyberagent.core.state import RunState
from cyberagent.core.streams import Paused
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import Json, Message, TraceState, Usage

AgentKind = Literal["agent", "validator", "explore", "research"]

ENDED = frozenset({"completed", "failed", "stopped"})
"""Statuses of a child that has come to its end; with any other one its call goes on with it."""

REST = ("pause", *NEEDS_REST)
"""Commands for which a run rests, and its children with it."""

MOST_AT_ONCE = 4
"""Children of one trace that work side by side."""

LISTEN_SECONDS = 0.3
"""How often a trace that waits for its children looks for its operators' commands."""

STOP_SECONDS = 5.0
"""How long a child that is stopped may take to end in order."""

Heard = Callable[[str, Event], None]
"""Told of each event of each child, with its trace's id."""


class Runs(Protocol):
    """The part of :class:`cyberagent.core.runner.AgentRunner` that a family needs."""

    def run(
        self, messages: Sequence[Message], config: RunConfig, trace_id: str | None = None
    ) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None: ...


class Spawner(Protocol):
    """Chooses what sub-agents are made of; see ``cyberagent.presets``."""

    def settings(self, kind: AgentKind, parent: RunConfig) -> RunConfig:
        """The settings of a sub-agent of a run with the settings ``parent``."""
        ...

    def system_prompt(self, config: RunConfig) -> str: ...

    async def runner(
        self, kind: AgentKind, config: RunConfig, control: Control, tree: TreeBudget
    ) -> Runs: ...

    def read(self, config: RunConfig, path: str) -> bytes:
        """The whole content of a file of the workspace. Raises CyberAgentError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A sub-agent that a call asks for. ``message``: the assistant message with the call;
    ``mark``: what else tells it from the call's other sub-agents; ``opening``: its first
    messages; ``seconds``: after which it is stopped (0: never). ``brief``: number of the version
    of its contract, 0 for none."""

    kind: AgentKind
    call: str
    message: int
    mission: str
    config: RunConfig
    opening: tuple[Message, ...]
    index: int = 0
    mark: Mapping[str, Json] = field(default_factory=dict[str, Json])
    seconds: float = 0.0
    brief: int = 0

    @property
    def made_for(self) -> dict[str, Json]:
        return {"kind": self.kind, "call": self.call, "index": self.index, **self.mark}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a sub-agent ended. ``answer``: its last message, as far as it answered; ``why``: of a
    status that is not completed."""

    trace: TraceState
    path: tuple[Message, ...]
    status: str
    why: str = ""

    @property
    def answer(self) -> str:
        last = self.path[-1] if self.path else None
        is_answer = last is not None and last.source == "model" and not last.tool_calls
        return last.text if is_answer and last else ""

    @property
    def answers(self) -> list[Message]:
        return [m for m in self.path if m.source == "model"]

    @property
    def cost(self) -> float | None:
        costs = [m.metadata["cost"] for m in self.answers if "cost" in m.metadata]
        return sum(costs) if costs else None

    @property
    def usage(self) -> Usage | None:
        return next((m.usage for m in reversed(self.answers) if m.usage), None)

    @property
    def model(self) -> str:
        return next((str(m.metadata.get("model", "")) for m in reversed(self.answers)), "")


class Family:
    """The sub-agents of the traces that one runner drives."""

    def __init__(
        self,
        store: Store,
        spawner: Spawner,
        control: Control,
        write: Storing,
        replay: Replay,
        *,
        control_for: Callable[[str], Control] | None = None,
        heard: Heard | None = None,
    ) -> None:
        self.store, self.spawner, self.replay = store, spawner, replay
        self._control, self._write = control, write
        self._control_for = control_for or _no_control
        self._heard = heard or _unheard
        self._free = asyncio.Semaphore(MOST_AT_ONCE)

    def validator_of(self, config: RunConfig) -> str:
        """The model that validates for a run with these settings; its provider's name where
        that has only one."""
        chosen = self.spawner.settings("validator", config)
        return chosen.model or chosen.provider

    # One sub-agent ---------------------------------------------------------------------------

    async def attend(self, state: RunState, ask: Ask) -> Outcome:
        """Have a sub-agent do its work, from where it stands if it has begun, and wait for its
        end. Raises TreeTooLarge; Paused where it, or the run that asked, was paused."""
        child = await self.find(state, ask)
        if child is None:
            await self.check_room(state)
            child = await self.make(state, ask)
        if child.status not in ENDED:
            opening = () if child.head_sequence else ask.opening
            await self.go_on(state, child, ask, opening)
        return await self.outcome(state, child.id)

    async def find(self, state: RunState, ask: Ask) -> TraceState | None:
        """The sub-agent that was made for this very call."""
        for one in await self.store.tree(state.trace.id):
            mine = one.state.parent_trace == state.trace.id
            at = one.state.parent_message == ask.message
            if mine and at and dict(spawned(one.state)) == ask.made_for:
                return one.state
        return None

    async def check_room(self, state: RunState) -> None:
        """Raises TreeTooLarge where the tree has no room for one more. Validators and what they
        need no budget for are not counted: a verdict must not fail because work was wide."""
        members = [t.state for t in await self.store.tree(state.trace.id)]
        above = {t.id: t.parent_trace for t in members}
        depth, at = 1, state.trace.id
        while (parent := above[at]) is not None:
            depth, at = depth + 1, parent
        workers = [t for t in members if spawned(t).get("kind") != "validator"]
        check_tree(depth, len(workers) + 1)

    async def make(self, state: RunState, ask: Ask) -> TraceState:
        context: dict[str, Json] = {SPAWNED: ask.made_for}
        if is_recursive(state.trace) and ask.kind == "agent":
            context[LINEAGE] = [*lineage_of(state.trace), state.trace.id]
        return await self.store.create_trace(
            NewTrace(
                mission=ask.mission,
                config=ask.config.to_json(),
                context=context,
                system_prompt=self.spawner.system_prompt(ask.config),
                parent_trace=state.trace.id,
                parent_message=ask.message,
            )
        )

    async def go_on(
        self, state: RunState, child: TraceState, ask: Ask, opening: Sequence[Message]
    ) -> None:
        """Run ``child`` until it ends, pauses or is stopped. Stop and pause of the run above
        reach it."""
        async with self._free:
            began = ChildStarted(
                child=child.id,
                agent=ask.kind,
                mission=child.mission,
                brief=ask.brief,
                resumed=bool(child.head_sequence),
                message=ask.message,
            )
            await self._tell(state, began)
            control = UnderParent(self._control_for(child.id))
            if self._control.stop.is_set():
                control.tell("stop", "the run above it was stopped")
            runner = await self.spawner.runner(
                ask.kind, RunConfig.from_json(child.config), control, state.tree
            )
            work = asyncio.ensure_future(self._consume(runner, child, opening))
            beside = [
                asyncio.ensure_future(control.watch()),
                asyncio.ensure_future(self._pass_on(control)),
            ]
            try:
                await self._until_done(work, control, ask.seconds)
            finally:
                for task in (work, *beside):
                    task.cancel()
                await asyncio.gather(work, *beside, return_exceptions=True)
                await runner.aclose()
        after = await self.store.trace(child.id)
        ended = ChildEnded(child=child.id, agent=ask.kind, status=after.status, message=ask.message)
        await self._tell(state, ended)

    async def _consume(self, runner: Runs, child: TraceState, opening: Sequence[Message]) -> None:
        config = RunConfig.from_json(child.config)
        async for event in runner.run(opening, config, trace_id=child.id):
            self._heard(child.id, event)

    @staticmethod
    async def _until_done(work: asyncio.Future[None], control: UnderParent, seconds: float) -> None:
        done, _ = await asyncio.wait({work}, timeout=seconds or None)
        if not done:
            control.tell("stop", f"it took more than {seconds:g} seconds")
            done, _ = await asyncio.wait({work}, timeout=STOP_SECONDS)
        if done:
            work.result()

    async def _pass_on(self, control: UnderParent) -> None:
        """Hand what operators ask of the run above down to a child: a stop at once, a pause (or
        what a run has to rest for) within :data:`LISTEN_SECONDS`."""
        stopped = asyncio.ensure_future(self._control.stop.wait())
        try:
            while not stopped.done():
                for command in await self._control.pending():
                    if command.name in REST:
                        control.tell("pause", "the run above it was paused")
                await asyncio.wait({stopped}, timeout=LISTEN_SECONDS)
            control.tell("stop", "the run above it was stopped")
        finally:
            stopped.cancel()

    async def outcome(self, state: RunState, child_id: str) -> Outcome:
        """How a child that was attended to ended. Raises Paused where it only paused."""
        child = await self.store.trace(child_id)
        if child.status not in ENDED:
            raise Paused(f"its sub-agent {child_id} was paused")
        path = await self.store.path(child_id) if child.head_sequence else []
        why = "" if child.status == "completed" else await self._why(child)
        return Outcome(trace=child, path=tuple(path), status=child.status, why=why)

    async def _why(self, child: TraceState) -> str:
        """What its last Done event said."""
        events = await self.store.events(child.id, max(0, child.last_event - 20), 20)
        told = [str(e.data().get("why", "")) for e in events if e.kind in ("Done", "StatusChanged")]
        return next((w for w in reversed(told) if w), "")

    async def _tell(self, state: RunState, event: Event) -> None:
        state.told += await self._write(state, [], [event])


def _no_control(trace_id: str) -> Control:
    return NoControl()


def _unheard(trace_id: str, event: Event) -> None:
    return None
