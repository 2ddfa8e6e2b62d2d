"""What a runner is put together from, and the one way in which it writes.

Source: docs/architecture.md, "Ports".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cyberagent.core.events import Event
from cyberagent.core.family import Heard, Spawner
from cyberagent.core.lane import Lane
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
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import Json, Message, TraceStatus
from cyberagent.core.window import Item

DEFAULT_RETRY = RetryPolicy()


class Compaction(Protocol):
    """Keeps a run's windows within their budget; see ``cyberagent.compaction``."""

    def manage(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        """Called before each call on the main path: may edit ``state.history``, and ask a model
        on side branches through ``runner``."""
        ...

    def reflect(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        """Extract knowledge on a side branch."""
        ...

    async def restored(self, store: Store, trace_id: str, path: Sequence[Message]) -> list[Item]:
        """The history of a path, as it was after the newest summary on it."""
        ...


class Branching(Protocol):
    """What compaction needs of the runner: its writer, and side branches."""

    write: Writer

    def branch(self, state: RunState, lane: Lane, outcome: Branched) -> AsyncIterator[Event]:
        """Ask on ``lane`` until it answers without calls, or its turns are used up."""
        ...


@dataclass(slots=True)
class Branched:
    """What came of a side branch: ``text`` is its last answer, None where it failed (``why``)."""

    max_turns: int = 1
    text: str | None = None
    finish_reason: str = "stop"
    has_calls: bool = False
    cost: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Chosen in one place, ``cyberagent.presets``. ``fallback`` is asked once ``provider`` is
    overloaded for good; ``context_providers`` add titled texts to ``get_current_context``;
    ``compaction`` keeps windows small (None: a window that does not fit is an error); ``owner``
    is who drives, as shown to operators.

    ``recursive``: the preset follows the recursive task protocol; ``spawner`` makes sub-agents
    (None: there are none); ``tree``: the account of the tree that this run is a part of (None: it
    begins one); ``control_for``: the operators' hand on a sub-agent, by its trace's id;
    ``heard``: told of the sub-agents' events."""

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
    compaction: Compaction | None = None
    owner: str = ""
    recursive: bool = False
    spawner: Spawner | None = None
    tree: TreeBudget | None = None
    control_for: Callable[[str], Control] | None = None
    heard: Heard | None = None


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
        lane: Lane | None = None,
    ) -> list[Event]:
        """The events as stored: MessageStored for each draft, then ``events``. ``lane``: where
        the drafts go, if not to the end of the main path."""
        goal = state.goals.current or ""
        prepared = [
            replace(
                m,
                # A summary stands for the messages of many goals and belongs to none.
                goal_id=m.goal_id if m.role == "tool" or m.source == "summary" else goal,
                turn=turn or state.trace.turn,
                branch_type=lane.branch_type if lane else "",
                branch_id=lane.branch_id if lane else "",
                tokens=count_message(self.counter, m),
            )
            for m in drafts
        ]
        async with state.writing:
            done = await self.store.append(
                state.trace.id,
                prepared,
                events,
                parent=lane.head if lane and lane.head else None,
                root=bool(lane and not lane.head),
                move_head=not (lane and lane.is_side),
                expected_head=state.trace.head_sequence,
                call=call,
                status=status,
                turn=turn,
                goals=state.goals.to_json() if plan_changed else None,
                context=context,
                command=command,
            )
            state.made_here.update(m.sequence for m in done.messages)
            state.tree.take(done.messages)
            if lane is None:
                state.take(done.messages, done.trace)
            else:
                state.trace = done.trace
                lane.take(done.messages)
        return list(done.events)
