"""How a run ends: in one commit, with no call left unanswered and Done as the last event.

Source: docs/running.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyberagent.core.control import ended, who
from cyberagent.core.errors import CyberAgentError
from cyberagent.core.events import Done, Error, Event, StatusChanged
from cyberagent.core.parts import Writer
from cyberagent.core.ports import Control, PendingCommand, Tools
from cyberagent.core.state import RunState, unanswered
from cyberagent.core.streams import Paused
from cyberagent.core.tooling import skipped_results
from cyberagent.core.types import Message, TraceStatus


class Ends:
    """Ends the runs of one runner."""

    def __init__(self, tools: Tools, control: Control, write: Writer) -> None:
        self._tools, self._control, self._write = tools, control, write

    async def end(
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
        if status == "paused" and any(self._tools.delegates(c.name) for c in waiting):
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
        stored = await self._write(state, drafts, [*events, *told_last], status=status, command=end)
        if command is not None:
            await self._control.ended(command)
        return state.with_told(stored)

    async def pause(self, state: RunState, pause: Paused) -> list[Event]:
        """Pauses that wait all end here: a run whose sub-agents paused for one is at rest."""
        waiting = [c for c in await self._control.pending() if c.name == "pause" and c.id]
        command = pause.command or (waiting.pop() if waiting else None)
        events: list[Event] = []
        for other in waiting:
            if command is None or other.id != command.id:
                end, told = ended(other)
                events += await self._write(state, [], [told], command=end)
                await self._control.ended(other)
        why = f"paused by {who(command)}" if command is not None else str(pause)
        return events + await self.end(state, "paused", why=why, command=command)

    async def stop(self, state: RunState) -> list[Event]:
        """All stops that wait are the same stop; the run ends with the last of them."""
        found = [c for c in await self._control.pending() if c.name == "stop"]
        above = next((c for c in found if not c.id), None)
        stops = [c for c in found if c.id]
        events: list[Event] = []
        for command in stops[:-1]:
            end, told = ended(command)
            events += await self._write(state, [], [told], command=end)
            await self._control.ended(command)
        last = stops[-1] if stops else None
        why = f"stopped by {last.by if last and last.by else 'an operator'}"
        if last is None and above is not None:
            why = str(above.arguments["why"])
        return events + await self.end(state, "stopped", why=why, command=last)

    async def fail(self, state: RunState, error: CyberAgentError) -> list[Event]:
        told = Error(error=str(error), error_class=type(error).__name__)
        return await self.end(state, "failed", why=str(error), before=[told])
