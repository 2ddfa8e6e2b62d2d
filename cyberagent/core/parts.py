"""What a runner is put together from, and the one way in which it writes.

Source: docs/architecture.md, "Ports".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cyberagent.core.events import Event
from cyberagent.core.ports import (
    CallEnd,
    CommandEnd,
    Control,
    Provider,
    Replay,
    Skill,
    Store,
    TokenCounter,
    Tools,
)
from cyberagent.core.recovery import RetryPolicy
from cyberagent.core.state import RunState
from cyberagent.core.tokens import count_message
from cyberagent.core.types import Json, Message, TraceStatus

DEFAULT_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Chosen in one place, ``cyberagent.presets``. ``fallback`` is asked once ``provider`` is
    overloaded for good; ``context_providers`` add titled texts to ``get_current_context``;
    ``owner`` is who drives, as shown to operators."""

    store: Store
    provider: Provider
    tools: Tools
    counter: TokenCounter
    replay: Replay
    system_prompt: str
    skills: Mapping[str, Skill]
    control: Control | None = None
    fallback: Provider | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    context_providers: Sequence[Callable[..., Any]] = ()
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Writer:
    """Commits what a run made, then follows what was committed. Raises Conflict when the head
    moved meanwhile, LeaseLost when another owner drives the trace."""

    store: Store
    counter: TokenCounter

    async def __call__(
        self,
        state: RunState,
        drafts: Sequence[Message],
        events: Sequence[Event],
        *,
        call: CallEnd | None = None,
        status: TraceStatus | None = None,
        turn: int | None = None,
        plan_changed: bool = False,
        context: Mapping[str, Json] | None = None,
        command: CommandEnd | None = None,
    ) -> list[Event]:
        """The events as stored: MessageStored for each draft, then ``events``."""
        goal = state.goals.current or ""
        prepared = [
            replace(
                m,
                goal_id=m.goal_id if m.role == "tool" else goal,
                turn=turn or state.trace.turn,
                tokens=count_message(self.counter, m),
            )
            for m in drafts
        ]
        done = await self.store.append(
            state.trace.id,
            prepared,
            events,
            expected_head=state.trace.head_sequence,
            call=call,
            status=status,
            turn=turn,
            goals=state.goals.to_json() if plan_changed else None,
            context=context,
            command=command,
        )
        state.made_here.update(m.sequence for m in done.messages)
        state.take(done.messages, done.trace)
        return list(done.events)
