"""The operator's hand on a run, through rows. Source: docs/running.md, "Commands"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from cyberagent.core.ports import PendingCommand
from traces.models import Command
from traces.rows import held
from traces.threads import in_reader

POLL_SECONDS = 0.3
"""How often a run looks for commands while it waits for a model or a tool."""


class DbControl:
    """See :class:`cyberagent.core.ports.Control`. ``stop`` is set by :meth:`watch`, which whoever
    drives the run keeps going beside it."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.stop = asyncio.Event()

    async def pending(self) -> Sequence[PendingCommand]:
        return await in_reader(pending_commands, self.trace_id)

    async def ended(self, command: PendingCommand) -> None:
        """Nothing to do: its row says so already."""

    async def watch(self) -> None:
        """Set ``stop`` within ``POLL_SECONDS`` of the command; returns once it is set."""
        while not self.stop.is_set():
            if await in_reader(stop_is_pending, self.trace_id):
                self.stop.set()
            else:
                await asyncio.sleep(POLL_SECONDS)


def pending_commands(trace_id: str) -> list[PendingCommand]:
    """Commands that nobody has applied or refused, oldest first."""
    found = Command.objects.filter(trace_id=trace_id, status="pending").order_by("pk")
    return [
        PendingCommand(id=pk, name=name, arguments=json.loads(arguments), by=held(by) if by else "")
        for pk, name, arguments, by in found.values_list("pk", "name", "arguments", "by__username")
    ]


def stop_is_pending(trace_id: str) -> bool:
    return Command.objects.filter(trace_id=trace_id, status="pending", name="stop").exists()
