"""The mutable state of one run, and how it is made from what is stored.

Nothing here is ever saved: opening a trace replays its main path. Source: docs/running.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from cyberagent.core.briefs import TaskBrief
from cyberagent.core.budget import FINAL
from cyberagent.core.config import SKILL_RECENCY_THRESHOLD, RunConfig
from cyberagent.core.events import Event
from cyberagent.core.filecache import FileCache, reading_key
from cyberagent.core.guards import Breaker, Calibration, Progress
from cyberagent.core.injection import ASKED, injected_skills
from cyberagent.core.lineage import is_contract, open_protocol
from cyberagent.core.ports import PendingCommand, Plan, Replay, Store
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.rebuild import recorded_window
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import Json, Message, ToolCall, TraceState
from cyberagent.core.window import BrokenManifest, Item, Recorder


@dataclass(slots=True, kw_only=True)
class RunState:
    """One run at work. ``history`` is what the next call is made from. ``answers`` counts the
    model's answers on the main path, ``turn_answers`` and ``turn_tokens`` its answers since the
    turn began and what they read and wrote, ``nudged`` what it was told of that;
    ``goals`` is replaced by the goal tools; ``made_here`` are messages that this very run
    stored; ``calls`` are the calls of the path by id, the newest of each; ``model`` is
    the one that is asked, ``compact_asked`` who asked for a compaction at the next safe point.

    ``asked_skills``: skills that operators asked for and that are not loaded yet, with who;
    ``known_skills``: those that this run can load; ``compact_command``: the operator's command
    that a compaction will end.

    ``protocol``: of a recursive trace, as its path says; ``delegating``: the contracts of calls
    that have no result yet, by call; ``told``: events of sub-agents that are stored and not yet
    passed on; ``tree``: what the whole tree of traces has used; ``writing`` is held while
    something is stored, since sub-agents that work side by side tell of themselves."""

    trace: TraceState
    config: RunConfig
    goals: Plan
    history: list[Item]
    system_prompt: str
    answers: int = 0
    turn_answers: int = 0
    cost: float = 0.0
    injected: dict[str, Json] = field(default_factory=dict[str, Json])
    wanted_skills: tuple[str, ...] = ()
    asked_skills: dict[str, Json] = field(default_factory=dict[str, Json])
    known_skills: frozenset[str] = frozenset()
    skill_recency: int = SKILL_RECENCY_THRESHOLD
    turn_tokens: int = 0
    nudged: str = ""
    compact_asked: str = ""
    compact_command: PendingCommand | None = None
    just_compacted: bool = False
    model: str = ""
    calibration: Calibration = field(default_factory=Calibration)
    breaker: Breaker = field(default_factory=Breaker)
    progress: Progress = field(default_factory=Progress)
    deeds: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    warned_tight: bool = False
    told_dear: bool = False
    files: FileCache = field(default_factory=FileCache)
    made_here: set[int] = field(default_factory=set[int])
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    recorder: Recorder = field(default_factory=Recorder)
    terminal_cwd: str = ""
    collaborators: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    notifications: list[str] = field(default_factory=list[str])
    context_providers: list[Callable[..., Any]] = field(default_factory=list[Callable[..., Any]])
    protocol: ProtocolState | None = None
    delegating: dict[str, tuple[str, TaskBrief]] = field(
        default_factory=dict[str, tuple[str, TaskBrief]]
    )
    told: list[Event] = field(default_factory=list[Event])
    tree: TreeBudget = field(default_factory=TreeBudget)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def final_asked(self) -> bool:
        """Whether this turn must end with an answer without tools."""
        return self.nudged in FINAL

    @property
    def workspace(self) -> Path | None:
        return Path(self.config.workspace) if self.config.workspace else None

    def take(self, messages: Sequence[Message], trace: TraceState) -> None:
        """Add stored messages to the history and follow the trace's new fields."""
        self.trace = trace
        for message in messages:
            self.history.append(Item(message))
            self.calls.update((c.id, c) for c in message.tool_calls)
            if self.protocol is not None:
                self.protocol = self.protocol.after(message)
            self.deeds.update(
                (c.name, c.arguments) for c in message.tool_calls if c.made_by == "model"
            )
            if begins_turn(message):
                self.turn_answers, self.turn_tokens, self.nudged = 0, 0, ""
            self.nudged = str(message.metadata.get("nudge") or self.nudged)
            if message.source == "model":
                self.answers += 1
                self.turn_answers += 1
                self.turn_tokens += _spent(message)
                self.cost += message.metadata.get("cost") or 0.0
            self._note_file(message)

    def _note_file(self, message: Message) -> None:
        """Remember what a file held when it was read. A stub that says that it has not changed
        is no reading."""
        call = self.calls.get(message.tool_call_id) if message.role == "tool" else None
        key = reading_key(call) if call and not message.is_error else None
        if key and not message.metadata.get("unchanged"):
            content = message.text if message.full_output is None else message.full_output
            self.files.put(key, content, message.sequence)

    def with_told(self, stored: Sequence[Event]) -> list[Event]:
        """Events that were stored just now and what sub-agents told meanwhile, by number."""
        told, self.told = self.told, []
        return sorted([*told, *stored], key=lambda e: e.number)

    def shows(self, sequence: int) -> bool:
        """Whether a stored message stands in the history, unedited."""
        return any(i.kind == "whole" and i.message.sequence == sequence for i in self.history)


def begins_turn(message: Message) -> bool:
    """Whether a turn begins with ``message``: a person's word, or a sub-agent's contract."""
    is_said = message.role == "user" and message.source in ("user", "operator")
    return is_said or is_contract(message)


def _spent(message: Message) -> int:
    """Tokens that an answer's call read and wrote; where none were reported, those of the
    answer alone."""
    usage = message.usage
    if usage is None or usage.prompt is None:
        return message.tokens
    return usage.prompt + (usage.completion or 0)


class Opening(Protocol):
    """What :func:`open_state` needs of a runner's parts."""

    @property
    def store(self) -> Store: ...
    @property
    def replay(self) -> Replay: ...
    @property
    def compaction(self) -> Restoring | None: ...


class Restoring(Protocol):
    async def restored(
        self, store: Store, trace_id: str, path: Sequence[Message]
    ) -> list[Item]: ...


async def open_state(
    store: Store, trace: TraceState, config: RunConfig, parts: Opening
) -> RunState:
    """The state at the trace's head: the plan and the injected skills by replay of its main
    path, the history as it was after the newest summary."""
    path = await store.path(trace.id) if trace.head_sequence else []
    if policy := trace.context.get("policy"):
        config = config.with_(policy=str(policy))
    state = RunState(
        trace=trace,
        config=config,
        goals=parts.replay(path, trace.mission),
        history=[],
        system_prompt=trace.system_prompt,
        injected=injected_skills(path),
        asked_skills=dict(trace.context.get(ASKED) or {}),
        breaker=Breaker.from_json(trace.context.get("breaker") or Breaker().to_json()),
    )
    state.take(path, trace)
    state.protocol = await open_protocol(store, trace, path)
    state.answers += answers_before(path)
    state.history = await history_of(store, trace.id, path, parts.compaction)
    last = (await store.calls(trace.id, [trace.last_call])).get(trace.last_call)
    if last is not None:
        reported = last.usage.prompt if last.usage else None
        state.calibration = Calibration().after(last.estimated_tokens, reported, last.model)
    return state


async def history_of(
    store: Store, trace_id: str, path: Sequence[Message], compaction: Restoring | None = None
) -> list[Item]:
    """What the next call is made from: the items of the newest window that was recorded on the
    way along this path, edits in it included, then what was stored since. So a run that goes on,
    or was rewound, sends what it would have sent. Where a summary is newer, it begins there."""
    newest = max((p for p, m in enumerate(path) if m.source == "summary"), default=-1)
    found = await _newest_call(store, trace_id, path)
    if found is not None and found[1] >= newest:
        number, place = found
        with suppress(BrokenManifest):
            _, window = await recorded_window(store, trace_id, number)
            return [*window.items, *(Item(m) for m in path[place + 1 :])]
    if compaction is not None:
        return await compaction.restored(store, trace_id, path)
    return [Item(m) for m in path]


async def _newest_call(
    store: Store, trace_id: str, path: Sequence[Message]
) -> tuple[int, int] | None:
    """Number and place of the newest call on the way along ``path``. A call that was made at a
    message of it is not on the way if the run then left the path there: another answer, or an
    older message, follows."""
    places = {m.sequence: place for place, m in enumerate(path)}
    made: dict[int, list[int]] = {}
    for number, after in await store.main_calls(trace_id):
        if after in places:
            made.setdefault(places[after], []).append(number)
    for place in sorted(made, reverse=True):
        numbers = made[place]
        if place + 1 < len(path):
            numbers = await _before(store, trace_id, numbers, path[place + 1])
        if numbers:
            return max(numbers), place
    return None


async def _before(
    store: Store, trace_id: str, numbers: Sequence[int], following: Message
) -> Sequence[int]:
    """Of the calls ``numbers``, made at one message, those that led to ``following``, which
    stands below it: the call that it answers, else all that were made before it was stored."""
    if (answered := following.metadata.get("call")) in numbers:
        return [cast("int", answered)]
    calls = await store.calls(trace_id, numbers)
    return [n for n, c in calls.items() if c.created_at <= following.created_at]


def answers_before(path: Sequence[Message]) -> int:
    """Model answers that the newest summary of ``path`` stands for, as its snapshot counts."""
    for message in reversed(path):
        snapshot = message.metadata.get("snapshot")
        if isinstance(snapshot, dict):
            return int(cast("dict[str, Any]", snapshot).get("answers", 0))
    return 0


def unanswered(history: Sequence[Item]) -> tuple[Message | None, list[ToolCall]]:
    """The newest assistant message, if calls of its wait for results, and those calls.

    Results are matched by position first: the k-th result with an id answers the k-th call
    with it, since providers reuse ids within a conversation.
    """
    answered: list[str] = []
    for item in reversed(history):
        message = item.message
        if message.role == "tool":
            answered.append(message.tool_call_id)
        elif message.role == "assistant":
            waiting: list[ToolCall] = []
            for call in message.tool_calls:
                if call.id in answered:
                    answered.remove(call.id)
                else:
                    waiting.append(call)
            return (message, waiting) if waiting else (None, [])
        else:
            return None, []
    return None, []
