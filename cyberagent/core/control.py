"""Operators' commands at a run's safe points. Source: docs/running.md, "Commands"."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from cyberagent.core.events import Command, Event, StatusChanged
from cyberagent.core.lane import Lane
from cyberagent.core.ports import CommandEnd, Control, PendingCommand
from cyberagent.core.state import RunState
from cyberagent.core.streams import Stopped
from cyberagent.core.types import Json, Message, TraceStatus, text_message


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


async def apply_commands(control: Control, state: RunState, store: Storing) -> AsyncIterator[Event]:
    """Apply what waits, oldest first. A stop raises Stopped; a pause sets the trace's status
    and leaves what came after it for the resumed run."""
    for command in await control.pending():
        if command.name == "stop":
            raise Stopped
        end, event = _end(command, "applied")
        if command.name == "say":
            text = str(command.arguments.get("text", ""))
            said = text_message("user", text, source="operator", metadata={"by": command.by})
            events = await store(state, [said], [event], turn=state.trace.turn + 1, command=end)
        elif command.name == "pause":
            paused = StatusChanged(status="paused", why=f"paused by {command.by}")
            events = await store(state, [], [event, paused], status="paused", command=end)
        elif command.name == "compact":
            state.compact_asked = command.by
            events = await store(state, [], [event], command=end)
        elif command.name == "policy":
            name = str(command.arguments.get("policy", ""))
            state.config = state.config.with_(policy=name)
            context = {**state.trace.context, "policy": name}
            events = await store(state, [], [event], command=end, context=context)
        else:
            end, event = _end(command, "refused", "a live run cannot do this")
            events = await store(state, [], [event], command=end)
        await control.ended(command)
        for stored in events:
            yield stored
        if command.name == "pause":
            return


async def end_stops(control: Control, store: Storing, state: RunState) -> AsyncIterator[Event]:
    """Mark every stop that waits as applied: the run has ended."""
    for command in await control.pending():
        if command.name == "stop":
            end, event = _end(command, "applied")
            for stored in await store(state, [], [event], command=end):
                yield stored
            await control.ended(command)


def _end(command: PendingCommand, status: str, result: str = "") -> tuple[CommandEnd, Command]:
    done = "refused" if status == "refused" else "applied"
    return CommandEnd(id=command.id, status=done, result=result), Command(
        command=command.id, name=command.name, by=command.by, status=done, result=result
    )
