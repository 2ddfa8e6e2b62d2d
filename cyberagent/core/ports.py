"""What the engine needs from outside, as Protocols: a store, a provider, tools, control.

``core`` imports nothing of the rest; whoever builds a runner hands these in.
Source: docs/architecture.md, "Ports".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cyberagent.core.anchor import AnchorRevision, RootTaskAnchor
from cyberagent.core.events import Event
from cyberagent.core.types import (
    BranchType,
    CallRecord,
    Json,
    Message,
    Part,
    TraceState,
    TraceStatus,
    Usage,
)

if TYPE_CHECKING:
    from cyberagent.core.config import RunConfig
    from cyberagent.core.family import Family
    from cyberagent.core.window import Window


# Store -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrace:
    mission: str
    config: Mapping[str, Json] = field(default_factory=dict[str, Json])
    context: Mapping[str, Json] = field(default_factory=dict[str, Json])
    system_prompt: str = ""
    origin: str = "run"
    status: TraceStatus = "queued"
    parent_trace: str | None = None
    parent_message: int | None = None
    anchor: RootTaskAnchor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTrace:
    """One trace of a tree, with what it used: model answers, US dollars (None: not known)."""

    state: TraceState
    steps: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """What came of model call ``number``; written in the transaction that stores its answer.
    ``message`` is an index as in :meth:`Store.append` (-1: the first message appended)."""

    number: int
    status: Literal["ok", "failed", "cancelled"]
    message: int | None = None
    usage: Usage | None = None
    finish_reason: str = ""
    first_token_ms: int | None = None
    duration_ms: int | None = None
    tries: int = 1
    error: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """What became of command ``id``: applied or refused, with a sentence."""

    id: int
    status: Literal["applied", "refused"]
    result: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    trace: TraceState
    messages: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()


class Store(Protocol):
    """Rows of traces. Every method is one transaction; events are numbered inside it.

    Raises NotFound for an unknown trace, Conflict where the head is not the one expected,
    LeaseLost where this store's owner no longer holds the trace.
    """

    async def create_trace(self, new: NewTrace) -> TraceState: ...

    async def trace(self, trace_id: str) -> TraceState: ...

    async def append(
        self,
        trace_id: str,
        messages: Sequence[Message],
        events: Sequence[Event] = (),
        *,
        parent: int | None = None,
        root: bool = False,
        move_head: bool = True,
        expected_head: int | None = None,
        call: CallEnd | None = None,
        status: TraceStatus | None = None,
        context: Mapping[str, Json] | None = None,
        turn: int | None = None,
        goals: Mapping[str, Json] | None = None,
        command: CommandEnd | None = None,
    ) -> Appended:
        """Commit messages as one chain, with events, an ended call and trace fields.

        The first message becomes a child of ``parent`` (None: of the head; ``root``: of
        nothing); ``move_head`` False leaves the main path alone (side branches). The store
        makes one MessageStored event per message, before ``events``. In ``events``, a
        ``message`` of -k stands for the k-th message of this call (-1 is the first).
        ``context`` replaces the trace's context whole; ``goals`` is the plan afterwards
        (GoalTree as JSON), for stores that keep a projection of it; ``command`` records what
        became of an operator's command, so that its effect and its end are one. With no messages
        only the rest is written.
        """
        ...

    async def path(
        self, trace_id: str, *, head: int | None = None, first: int = 1, last: int | None = None
    ) -> list[Message]:
        """Messages of the path that ends at ``head`` (None: the trace's), by depth, from
        depth ``first`` to ``last`` inclusive."""
        ...

    async def protocol_path(self, trace_id: str) -> list[Message]:
        """Of the path to the head what the state of the recursive protocol follows from, at
        least: messages with records or snapshots, and those from the newest assistant message
        on."""
        ...

    async def messages(self, trace_id: str, sequences: Sequence[int]) -> dict[int, Message]: ...

    async def move_head(
        self,
        trace_id: str,
        to: int,
        events: Sequence[Event] = (),
        *,
        expected_head: int,
        goals: Mapping[str, Json] | None = None,
    ) -> Appended:
        """Point the head at message ``to`` (0: before the first). Nothing is deleted. ``goals``:
        the plan as replayed at ``to``, as in :meth:`append`."""
        ...

    async def start_call(
        self, trace_id: str, record: CallRecord, blobs: Mapping[str, bytes]
    ) -> Appended:
        """Store a call that is about to be sent, its new blobs and its CallStarted event (which
        is returned). ``record.number`` must be the trace's ``last_call`` + 1, else Conflict."""
        ...

    async def calls(self, trace_id: str, numbers: Sequence[int]) -> dict[int, CallRecord]: ...

    async def main_calls(self, trace_id: str) -> list[tuple[int, int]]:
        """Number and ``after_sequence`` of every call that was not made on a side branch, by
        number."""
        ...

    async def blobs(self, hashes: Sequence[str]) -> dict[str, bytes]: ...

    async def events(self, trace_id: str, after: int = 0, limit: int = 1000) -> list[Event]: ...

    async def tree(self, trace_id: str) -> list[TreeTrace]:
        """Every trace of the tree that ``trace_id`` belongs to, parents before their children,
        those of one parent in the order in which they were made."""
        ...

    async def anchors(self, trace_id: str) -> tuple[AnchorRevision, ...]:
        """The revisions of a root trace's anchor, the oldest first; none where it has none."""
        ...


# Control: an operator's hand on a run --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommand:
    """An operator's act that waits for a safe point. ``name``: say, pause, stop, … ``id`` 0: it
    was not given to this run but to the one above it, and is not this run's to end."""

    id: int
    name: str
    arguments: Mapping[str, Json]
    by: str


class Control(Protocol):
    """How a run hears of its operators."""

    stop: asyncio.Event
    """Set as soon as a stop is asked for; model and tool waits race against it."""

    async def pending(self) -> Sequence[PendingCommand]:
        """Commands not yet applied, oldest first."""
        ...

    async def watch(self) -> None:
        """Sets ``stop`` when it is asked for, then returns; whoever drives a run keeps this
        going beside it."""
        ...

    async def ended(self, command: PendingCommand) -> None:
        """Told once the end of ``command`` is committed (:attr:`Store.append`'s ``command``):
        ``pending`` must not give it again."""
        ...


# Providers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """``payload``: the exact bytes to send. ``answers_before``: model answers on this path so
    far (what a scripted or replayed model counts by); in a side branch, those of the branch."""

    payload: bytes
    trace_id: str = ""
    call: int = 0
    answers_before: int = 0
    branch_type: BranchType = ""


@dataclass(frozen=True, slots=True)
class Delta:
    text: str
    stream: Literal["text", "reasoning"] = "text"


FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole model answer: ordered parts; tool calls' ids are never empty."""

    parts: tuple[Part, ...]
    finish_reason: FinishReason
    usage: Usage | None = None
    model: str = ""


class Provider(Protocol):
    """One way to ask a model. ``stream`` yields deltas, then exactly one Answer; it raises a
    ProviderError and nothing else; closing it ends the request at once."""

    name: str
    projection: str
    """Name and version of ``project``, e.g. ``openai/1``: stored with each call."""

    params: Mapping[str, Json]
    """What this provider puts into each window's params: ``model``, ``dialect`` …"""

    def project(self, window: Window) -> dict[str, Json]:
        """The payload of this window: pure and total, repairs what stored history broke."""
        ...

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        """Broken payload rules, one sentence each; empty when it may be sent."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta | Answer]: ...

    def cost(self, usage: Usage) -> float | None:
        """Price of a call in US dollars; None where prices are not known."""
        ...

    async def aclose(self) -> None: ...


# Tools ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """What a tool may see and change of its run. ``state`` is the runner's mutable state
    (``goals``, ``read_files`` …), ``workspace`` the folder that file tools are confined to;
    ``call`` the id of the call that runs it, in assistant message ``message``; ``family`` what
    sub-agents are asked through, None on a side branch."""

    trace_id: str
    config: RunConfig
    state: Any
    workspace: Path | None = None
    skills: Mapping[str, Skill] = field(default_factory=lambda: dict[str, Skill]())
    now: str = ""
    call: str = ""
    message: int = 0
    family: Family | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as offered to a model: a line for the index, ``text`` when it is loaded."""

    name: str
    description: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """``text`` is the whole output. ``shorten``: whether the run's output limit applies;
    ``events``: told with the result, of which a ``message`` of -1 is the sequence."""

    text: str
    status: Literal["ok", "error"] = "ok"
    shorten: bool = True
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    events: tuple[Event, ...] = ()


class Tools(Protocol):
    """The tools of one run."""

    def schemas(self) -> tuple[Json, ...]:
        """``{"name", "description", "parameters"}`` each, in a fixed order."""
        ...

    def index(self) -> list[tuple[str, str]]:
        """Name and one line of each, for the system prompt."""
        ...

    def is_parallel_safe(self, name: str) -> bool: ...

    def is_idempotent(self, name: str) -> bool: ...

    def delegates(self, name: str) -> bool:
        """Whether it waits for sub-agents: no time limit but theirs, and no answer when the run
        pauses."""
        ...

    async def call(self, name: str, arguments: str, context: ToolContext) -> ToolOutcome:
        """Check the arguments against the schema and run the tool. Never raises for what the
        model got wrong: the outcome says which argument and why."""
        ...


# Plan ----------------------------------------------------------------------------------------


class Plan(Protocol):
    """The GoalTree as the runner needs it: an immutable value. The goal tools replace it on
    ``ToolContext.state.goals``; ``replay`` of the path gives the same value again."""

    @property
    def current(self) -> str | None:
        """Id of the focused goal."""
        ...

    def to_prompt(self, include_summary: bool = False, language: str = "en") -> str: ...

    def to_json(self) -> dict[str, Json]: ...

    def progress(self) -> tuple[int, int]:
        """Top-level goals done, and all that are not abandoned."""
        ...


class Replay(Protocol):
    """Rebuilds the plan of a path: from its newest snapshot on, or an empty plan."""

    def __call__(self, messages: Sequence[Message], mission: str) -> Plan: ...


# Tokens --------------------------------------------------------------------------------------


class TokenCounter(Protocol):
    @property
    def encoding(self) -> str: ...

    @property
    def exact(self) -> bool:
        """True where the model's own encoding is known; else counts are estimates."""
        ...

    def count(self, text: str) -> int: ...
