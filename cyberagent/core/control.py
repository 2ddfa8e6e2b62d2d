"""Operators' commands at a run's safe points. Source: docs/running.md, "Commands"."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from cyberagent.core.errors import ProtocolRefused
from cyberagent.core.events import Command, Event, Injected
from cyberagent.core.injection import ASKED, WANTED, skill_in_window
from cyberagent.core.lane import Lane
from cyberagent.core.ports import CommandEnd, Control, PendingCommand
from cyberagent.core.reviewing import operator_review
from cyberagent.core.state import RunState
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.types import Json, Message, TraceStatus, text_message, utc_now


class Storing(Protocol):
    """The runner's one way of writing."""

    async def __call__(
        self,
        state: RunState,
        drafts: Sequence[Message],
        events: Sequence[Event],
        *,
        status: TraceStatus | None = None,
        turn: int | None = None,
        plan_changed: bool = False,
        context: dict[str, Json] | None = None,
        command: CommandEnd | None = None,
        lane: Lane | None = None,
    ) -> list[Event]: ...


class NoControl:
    """Nobody steers: a run of a library user who does not ask for it."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()

    async def pending(self) -> Sequence[PendingCommand]:
        return ()

    async def watch(self) -> None:
        await self.stop.wait()

    async def ended(self, command: PendingCommand) -> None:
        return None


class ManualControl(NoControl):
    """An operator within the same program: ``request("say", text="…")``, ``request("stop")``."""

    def __init__(self, by: str = "operator") -> None:
        super().__init__()
        self._by = by
        self._ids = itertools.count(1)
        self._waiting: list[PendingCommand] = []

    def request(self, name: str, **arguments: Json) -> None:
        self._waiting.append(
            PendingCommand(id=next(self._ids), name=name, arguments=arguments, by=self._by)
        )
        if name == "stop":
            self.stop.set()

    async def pending(self) -> Sequence[PendingCommand]:
        return tuple(self._waiting)

    async def ended(self, command: PendingCommand) -> None:
        self._waiting.remove(command)


NEEDS_REST = ("rewind", "edit")
"""Commands for which a live run pauses first; whoever gives them applies them then."""

REST = ("pause", *NEEDS_REST)
"""Commands for which a run rests, and its sub-agents with it."""


class UnderParent:
    """The control of a sub-agent: its own operators' hand, and what the run ``above`` is asked:
    a stop of that is one of its own, and so is a rest, at the next safe point."""

    def __init__(self, own: Control, above: Control) -> None:
        self._own, self._above = own, above
        self._stop_why = ""
        self.stop = asyncio.Event()

    def end(self, why: str) -> None:
        """Stop it for a reason that no operator gave."""
        self._stop_why = self._stop_why or why
        self.stop.set()

    async def watch(self) -> None:
        above = asyncio.ensure_future(self._above.stop.wait())
        own = asyncio.ensure_future(self._own.watch())
        try:
            await asyncio.wait({above, own}, return_when=asyncio.FIRST_COMPLETED)
            if own.done():
                own.result()  # raises what its operators could not be heard for
                self.stop.set()
            else:
                self.end("the run above it was stopped")
        finally:
            above.cancel()
            own.cancel()
            await asyncio.gather(above, own, return_exceptions=True)

    async def pending(self) -> Sequence[PendingCommand]:
        own = await self._own.pending()
        if self._stop_why:
            return [*own, _from_above("stop", self._stop_why)]
        if any(c.name in REST for c in await self._above.pending()):
            return [*own, _from_above("pause", "the run above it was paused")]
        return own

    async def ended(self, command: PendingCommand) -> None:
        if command.id:
            await self._own.ended(command)


def _from_above(name: str, why: str) -> PendingCommand:
    return PendingCommand(id=0, name=name, arguments={"why": why}, by="")


async def apply_commands(control: Control, state: RunState, store: Storing) -> AsyncIterator[Event]:
    """Apply what waits, oldest first. Raises Stopped for a stop, Paused for a pause and for what
    can only be done to a run that nobody drives; what came later is left for the resumed run."""
    for command in await control.pending():
        if command.name == "stop":
            raise Stopped
        if command.name == "pause" and not command.id:
            raise Paused(str(command.arguments["why"]))
        if command.name == "pause":
            raise Paused(f"paused by {command.by}", command)
        if command.name in NEEDS_REST:
            raise Paused(f"{command.name} asked for by {command.by}")
        for event in await _applied(command, state, store):
            yield event
        await control.ended(command)


async def _applied(command: PendingCommand, state: RunState, store: Storing) -> list[Event]:
    end, event = ended(command)
    if command.name == "say":
        text = str(command.arguments.get("text", ""))
        said = text_message("user", text, source="operator", metadata={"by": command.by})
        return await store(state, [said], [event], turn=state.trace.turn + 1, command=end)
    if command.name == "compact":
        if state.compact_command is None:
            state.compact_command = command  # the pass ends it, in the commit of what it made
            return []
        end, event = ended(command, "refused", "another compaction was asked for just before")
        return await store(state, [], [event], command=end)
    if command.name == "inject":
        return await _inject(command, state, store)
    if command.name == "review":
        return await _review(command, state, store)
    if command.name == "anchor":
        return await store(state, [], [event], command=end)  # told by the runner, see there
    if command.name == "policy":
        name = str(command.arguments.get("policy", ""))
        state.config = state.config.with_(policy=name)
        context = {**state.trace.context, "policy": name}
        return await store(state, [], [event], command=end, context=context)
    end, event = ended(command, "refused", "a live run cannot do this")
    return await store(state, [], [event], command=end)


async def _inject(command: PendingCommand, state: RunState, store: Storing) -> list[Event]:
    """Have a skill injected with the next batch of tools, or say why it is held back. Kept in
    the trace's context until it is loaded, so that a run which ends before still injects it."""
    name = str(command.arguments.get("skill", ""))
    if why := held_back(name, state):
        end, event = ended(command, "refused", why)
        held = Injected(what=f"skill {name}", why=why, fired=False)
        return await store(state, [], [held, event], command=end)
    state.wanted_skills = tuple(dict.fromkeys((*state.wanted_skills, name)))
    state.asked_skills[name] = who(command)
    wanted = dict.fromkeys((*state.trace.context.get(WANTED, ()), name))
    context = {**state.trace.context, WANTED: list(wanted), ASKED: dict(state.asked_skills)}
    end, event = ended(command)
    return await store(state, [], [event], command=end, context=context)


async def _review(command: PendingCommand, state: RunState, store: Storing) -> list[Event]:
    """An operator's review of a child, or why it cannot be."""
    try:
        draft, told = operator_review(
            state.protocol,
            command.arguments,
            by=who(command),
            at=utc_now(),
            language=state.config.language,
        )
    except ProtocolRefused as error:
        end, event = ended(command, "refused", str(error))
        return await store(state, [], [event], command=end)
    end, event = ended(command)
    return await store(state, [draft], [told, event], command=end)


def held_back(name: str, state: RunState) -> str:
    """Why a skill that was asked for is not injected now; empty where it is."""
    if name not in state.known_skills:
        return "it was added after this run began; pause the run, then inject it"
    if name in state.asked_skills:
        return "it was asked for already and comes with the next tools"
    if skill_in_window(name, state.injected, state.history, state.skill_recency):
        return recent(state.skill_recency)
    return ""


def recent(threshold: int) -> str:
    return f"it is among the last {threshold} messages"


def who(command: PendingCommand) -> str:
    return command.by or "the program"


def ended(
    command: PendingCommand, status: Literal["applied", "refused"] = "applied", result: str = ""
) -> tuple[CommandEnd, Command]:
    """The end of a command and the event that tells of it, to be stored together."""
    return CommandEnd(id=command.id, status=status, result=result), Command(
        command=command.id, name=command.name, by=command.by, status=status, result=result
    )
