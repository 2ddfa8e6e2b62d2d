"""Sub-agents: child traces that are run below the call that asked for them.

A child is found again by what it was made for, so a call that was left unanswered, by a pause or
a process that died, goes on with the same one, or takes the result that is there. Source:
docs/protocol.md, "In a run".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import check_tree
from cyberagent.core.control import REST, NoControl, Storing, UnderParent
from cyberagent.core.errors import Conflict, CyberAgentError
from cyberagent.core.events import ChildEnded, ChildStarted, Done, Error, Event, StatusChanged
from cyberagent.core.lineage import LINEAGE, SPAWNED, is_recursive, lineage_of, spawned
from cyberagent.core.ports import Control, NewTrace, Replay, Store
from cyberagent.core.state import RunState
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import Json, Message, TraceState, TraceStatus, Usage

T = TypeVar("T")

AgentKind = Literal["agent", "validator", "explore", "research"]

ENDED = frozenset({"completed", "failed", "stopped"})
"""Statuses of a child that has come to its end; with any other one its call goes on with it."""

MOST_AT_ONCE = 4
"""Children of one trace that work side by side."""

STOP_SECONDS = 5.0
"""How long a child that is stopped may take to end in order."""

LOOKED_BACK = 200
"""Events that are read at once, from the newest back, to find what was told of a child."""

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
    """How a sub-agent ended. ``answer``: its last message, as far as it answered; ``why``: what
    was told of its status, "" mostly where it completed."""

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
        self._news = asyncio.Event()

    def validator_of(self, config: RunConfig) -> str:
        """The model that validates for a run with these settings; its provider's name where
        that has only one."""
        chosen = self.spawner.settings("validator", config)
        return chosen.model or chosen.provider

    @property
    def is_stopped(self) -> bool:
        """Whether the run above was asked to stop, and its sub-agents with it."""
        return self._control.stop.is_set()

    async def as_ended(
        self, tasks: Sequence[asyncio.Future[T]]
    ) -> AsyncGenerator[asyncio.Future[T] | None, None]:
        """Each of ``tasks`` as it ends; None whenever sub-agents told something meanwhile, which
        ``state.told`` then holds. Tasks are cancelled where nobody waits for them any more."""
        waiting = set(tasks)
        try:
            while waiting:
                news = asyncio.ensure_future(self._news.wait())
                try:
                    done, _ = await asyncio.wait(
                        {*waiting, news}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    news.cancel()
                if news in done:
                    self._news.clear()
                    yield None
                for ended in (t for t in tasks if t in done and t in waiting):
                    waiting.discard(ended)
                    yield ended
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    # One sub-agent ---------------------------------------------------------------------------

    async def attend(self, state: RunState, ask: Ask) -> Outcome:
        """Have a sub-agent do its work, from where it stands if it has begun, and wait for its
        end. Raises TreeTooLarge and LimitReached where there is no room or nothing left for one
        more; Stopped and Paused where the run that asked ends before it begins, Paused where it
        was paused itself."""
        child = await self.find(state, ask)
        if child is not None and _is_over(child, ask):
            await self.tell_end(state, child, ask)
            return await self.outcome(state, child.id)
        async with self._free:
            await self._check_goes_on()  # there may have been a long wait for the place
            if child is None:
                child = await self._made(state, ask)
            opening = () if child.head_sequence else ask.opening
            await self._attend(state, child, ask, opening)
        return await self.outcome(state, child.id)

    async def _made(self, state: RunState, ask: Ask) -> TraceState:
        state.tree.check(state.config.limits)
        async with state.tree.growing:
            if ask.kind != "validator":
                await self.check_room(state)
            return await self.make(state, ask)

    async def find(self, state: RunState, ask: Ask) -> TraceState | None:
        """The sub-agent that was made for this very call."""
        for one in await self.store.tree(state.trace.id):
            mine = one.state.parent_trace == state.trace.id
            at = one.state.parent_message == ask.message
            if mine and at and dict(spawned(one.state)) == ask.made_for:
                return one.state
        return None

    async def check_room(self, state: RunState, more: int = 1) -> None:
        """Raises TreeTooLarge where the tree has no room for ``more``. Validators are neither
        counted nor held back: a verdict must not fail because the work was shared out widely."""
        members = [t.state for t in await self.store.tree(state.trace.id)]
        above = {t.id: t.parent_trace for t in members}
        depth, at = 1, state.trace.id
        while (parent := above[at]) is not None:
            depth, at = depth + 1, parent
        workers = [t for t in members if spawned(t).get("kind") != "validator"]
        check_tree(depth, len(workers) + more)

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
        reach it. Raises as :meth:`attend`."""
        async with self._free:
            await self._check_goes_on()
            await self._attend(state, child, ask, opening)

    async def _attend(
        self, state: RunState, child: TraceState, ask: Ask, opening: Sequence[Message]
    ) -> None:
        began = ChildStarted(
            child=child.id,
            agent=ask.kind,
            mission=child.mission,
            brief=ask.brief,
            resumed=bool(child.head_sequence),
            message=ask.message,
        )
        await self._tell(state, began)
        try:
            await self._work(state, child, ask, opening)
        except (Conflict, Paused, Stopped):
            raise
        except CyberAgentError as error:  # it could not even begin
            told = Error(error=str(error), error_class=type(error).__name__)
            await self._end(child, "failed", str(error), told)
        await self._tell(state, _ended(await self.store.trace(child.id), ask))

    async def _work(
        self, state: RunState, child: TraceState, ask: Ask, opening: Sequence[Message]
    ) -> None:
        control = UnderParent(self._control_for(child.id), self._control)
        runner = await self.spawner.runner(
            ask.kind, RunConfig.from_json(child.config), control, state.tree
        )
        work = asyncio.ensure_future(self._consume(runner, child, opening))
        watch = asyncio.ensure_future(control.watch())
        try:
            in_order = await self._until_done(work, watch, control, ask.seconds)
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
            await runner.aclose()
        if not in_order:
            why = f"it took more than {ask.seconds:g} seconds and did not end when it was stopped"
            await self._end(child, "stopped", why)

    async def _consume(self, runner: Runs, child: TraceState, opening: Sequence[Message]) -> None:
        config = RunConfig.from_json(child.config)
        async for event in runner.run(opening, config, trace_id=child.id):
            self._heard(child.id, event)

    @staticmethod
    async def _until_done(
        work: asyncio.Future[None],
        watch: asyncio.Future[None],
        control: UnderParent,
        seconds: float,
    ) -> bool:
        """Whether the work ended in order; False where its time was over and a stop did not end
        it. Raises what went wrong, with the watch as well: a sub-agent that nobody could stop
        must not go on."""
        tasks = {work, watch}
        until = time.monotonic() + seconds if seconds else None
        while not work.done():
            left = None if until is None else max(0.0, until - time.monotonic())
            done, tasks = await asyncio.wait(
                tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if watch in done:
                watch.result()
            if not done:
                control.end(f"it took more than {seconds:g} seconds")
                await asyncio.wait({work}, timeout=STOP_SECONDS)
                break
        if work.done():
            work.result()
        return work.done()

    async def _check_goes_on(self) -> None:
        """Raises Stopped or Paused where the run above is about to end: no sub-agent begins
        then."""
        if self.is_stopped:
            raise Stopped
        if any(c.name in REST for c in await self._control.pending()):
            raise Paused("it was paused before its sub-agent went on")

    async def outcome(self, state: RunState, child_id: str) -> Outcome:
        """How a child that was attended to ended. Raises Paused where it only paused."""
        child = await self.store.trace(child_id)
        if child.status not in ENDED:
            raise Paused(f"its sub-agent {child_id} was paused")
        path = await self.store.path(child_id) if child.head_sequence else []
        why = await self._why(child)
        return Outcome(trace=child, path=tuple(path), status=child.status, why=why)

    async def _why(self, child: TraceState) -> str:
        """What was told of its status last."""
        events = await self.store.events(child.id, max(0, child.last_event - 20), 20)
        return next((e.why for e in reversed(events) if isinstance(e, StatusChanged)), "")

    async def _tell(self, state: RunState, event: Event) -> None:
        stored = await self._write(state, [], [event])
        state.told += stored
        self._news.set()

    async def tell_end(self, state: RunState, child: TraceState, ask: Ask) -> None:
        """Tell that ``child`` ended, where the process that ran it died before it did."""
        upto = state.trace.last_event
        while upto > 0:
            first = max(0, upto - LOOKED_BACK)
            for event in reversed(await self.store.events(state.trace.id, first, upto - first)):
                if isinstance(event, ChildStarted | ChildEnded) and event.child == child.id:
                    if isinstance(event, ChildStarted):
                        await self._tell(state, _ended(child, ask))
                    return
            upto = first

    async def _end(self, child: TraceState, status: TraceStatus, why: str, *before: Event) -> None:
        """The end of a sub-agent that could not store it itself."""
        done = Done(trace=child.id, status=status, why=why)
        told = [*before, StatusChanged(status=status, why=why), done]
        await self.store.append(child.id, [], told, status=status)


def _is_over(child: TraceState, ask: Ask) -> bool:
    """Whether there is nothing more to wait for. A verdict that was cut off before it was on
    record is asked for again."""
    cut_off = ask.kind == "validator" and child.status == "stopped"
    return child.status in ENDED and not cut_off


def _ended(child: TraceState, ask: Ask) -> ChildEnded:
    return ChildEnded(child=child.id, agent=ask.kind, status=child.status, message=ask.message)


def _no_control(trace_id: str) -> Control:
    return NoControl()


def _unheard(trace_id: str, event: Event) -> None:
    return None
