"""What happens in a run, one class a kind, each with its literal tag.

Stored events are numbered per trace (1, 2, 3 …) and committed before anybody hears of them.
:class:`TextDelta` alone is neither numbered nor stored: it carries its offset, so whoever joins
in the middle can tell what is missing. Source: docs/events.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, cast

from cyberagent.core.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``number`` is 0 until stored. ``message`` is the sequence that the event is about."""

    kind: ClassVar[str] = ""
    stored: ClassVar[bool] = True
    number: int = 0
    message: int | None = None
    at: str = ""

    def data(self) -> dict[str, Json]:
        """The kind's own fields, without those that every event has."""
        return {name: getattr(self, name) for name in _own_fields(type(self))}

    def to_json(self) -> dict[str, Json]:
        """One flat object; the tag is called ``event``."""
        out: dict[str, Json] = {"event": self.kind, "number": self.number, "at": self.at}
        if self.message is not None:
            out["message"] = self.message
        return out | self.data()


_COMMON = frozenset({"number", "message", "at"})


@cache
def _own_fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name not in _COMMON)


KINDS: dict[str, type[Event]] = {}


_E = TypeVar("_E", bound=Event)


def _kind(cls: type[_E]) -> type[_E]:
    cls.kind = cls.__dict__.get("kind", cls.__name__)
    KINDS[cls.kind] = cls
    return cls


def _frozen(value: Json) -> Any:
    return tuple(cast("list[Json]", value)) if isinstance(value, list) else value


def event_from_json(value: Mapping[str, Json]) -> Event:
    """The event that ``to_json`` wrote. Raises ValueError on an unknown tag or field."""
    # JSON knows no tuples, events hold nothing else.
    data: dict[str, Any] = {k: _frozen(v) for k, v in value.items()}
    tag = data.pop("event", None)
    cls = KINDS.get(tag) if isinstance(tag, str) else None
    if cls is None:
        raise ValueError(f"unknown event {tag!r}")
    try:
        return cls(**data)
    except TypeError as error:
        raise ValueError(f"malformed {tag} event: {error}") from None


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Event):
    """A run begins or goes on: ``how`` is started, resumed, taken_over or imported."""

    how: Literal["started", "resumed", "taken_over", "imported"]
    provider: str = ""
    model: str = ""
    preset: str = ""
    turn: int = 0
    owner: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStored(Event):
    """A message was committed: ``message`` is its sequence."""

    role: str = ""
    source: str = ""
    goal_id: str = ""
    branch_id: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Thought(Event):
    """The model finished a stretch of reasoning in ``message``."""

    text: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(Event):
    """Model call ``call`` is being sent; its window is recorded already."""

    call: int
    tokens: int = 0
    exact: bool = True
    branch_id: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(Event):
    """Text of the answer being written. ``offset``: characters of this answer sent before.
    ``stream`` tells answer text from reasoning."""

    stored: ClassVar[bool] = False
    call: int
    offset: int
    text: str
    stream: Literal["text", "reasoning"] = "text"


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(Event):
    """A tool starts; called ToolCall on the wire. ``id`` is the call's id, ``message`` the
    assistant message that made it."""

    kind: ClassVar[str] = "ToolCall"
    id: str
    name: str
    made_by: str = "model"


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult(Event):
    """A tool ended; also the audit row. ``message`` is the result's sequence; ``status``:
    ok, error, interrupted, denied, duplicate. ``allowed_by``: the rule or person."""

    id: str
    name: str
    status: str
    step: int = 0
    elapsed_ms: int = 0
    preview: str = ""
    allowed_by: str = "policy"


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReported(Event):
    """Call ``call`` ended well; called Usage on the wire. Tokens as the provider reported them;
    None: not reported."""

    kind: ClassVar[str] = "Usage"
    call: int
    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    cost: float | None = None
    duration_ms: int | None = None


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed(Event):
    """Call ``call`` ended without an answer; nothing of it was kept."""

    call: int
    error: str
    error_class: str


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class GoalChanged(Event):
    """The plan changed: one line for each change, in the run's language."""

    changes: tuple[str, ...] = ()
    current: str | None = None
    done: int = 0
    total: int = 0


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Injected(Event):
    """The framework put something into the window, or held it back (``fired`` False)."""

    what: str
    why: str
    fired: bool = True
    tokens: int = 0


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
    """A compaction pass, as the ledger shows it. ``level``: the highest that acted; ``strategy``:
    those that acted; ``trigger``: overflow, on_complete or manual; ``first`` to ``last``: the
    messages it touched; ``edits``: ``{"strategy", "level", "what", "messages", "count", "why",
    "tokens_saved"}`` each; ``message``: the summary, if one was made; ``success`` False: nothing
    was changed, and ``why`` says why. Tokens as the provider counts them, as far as known."""

    level: int
    strategy: str
    trigger: str
    tokens_before: int
    tokens_after: int
    policy: str = ""
    success: bool = True
    first: int = 0
    last: int = 0
    removed: int = 0
    edits: tuple[Json, ...] = ()
    by: str = ""
    cost: float | None = None
    breaker: str = "closed"
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge(Event):
    """A knowledge entry was extracted (``status`` pending) or judged (accepted, rejected).
    ``entry`` names it within its trace; ``sources``: sequences of the messages it came from."""

    entry: str
    status: str
    text: str = ""
    sources: tuple[int, ...] = ()
    goal_id: str = ""
    by: str = ""
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStarted(Event):
    branch_id: str
    branch_type: str


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchEnded(Event):
    branch_id: str
    branch_type: str
    outcome: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound(Event):
    to_sequence: int
    from_sequence: int
    by: str
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Nudge(Event):
    what: str
    text: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Event):
    name: str
    times: int


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChanged(Event):
    state: str
    failures: int = 0


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery(Event):
    step: str
    why: str


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Event):
    """A call is tried again after ``delay_ms``; ``attempt`` is the number of the try to come."""

    call: int
    attempt: int
    delay_ms: int
    error: str
    error_class: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted(Event):
    """A sub-agent begins, or goes on (``resumed``). ``child``: its trace; ``agent``: agent,
    validator, explore or research; ``brief``: number of its contract's version, 0 for none;
    ``message``: the assistant message that asked for it."""

    child: str
    agent: str = ""
    mission: str = ""
    brief: int = 0
    resumed: bool = False


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnded(Event):
    """A sub-agent is at its end; ``status`` as its trace's."""

    child: str
    agent: str = ""
    status: str = ""
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Event):
    """This trace's report, or the root's answer, was validated: passed, failed or unknown.
    ``validator``: the trace of the validator, "" where none was asked; ``message``: the one
    that carries the result."""

    verdict: str
    why: str = ""
    validator: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed(Event):
    """The result of ``child`` was reviewed; ``by``: "parent", or an operator's name."""

    child: str
    decision: str
    by: str = ""
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRevised(Event):
    """An operator gave the tree another root anchor: SHA-256 of the new and of the old one."""

    sha256: str
    supersedes: str
    by: str
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Event):
    """An operator's act and what became of it: ``status`` applied or refused."""

    command: int
    name: str
    by: str
    status: str
    result: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged(Event):
    status: str
    why: str = ""


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Event):
    error: str
    error_class: str


@_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Event):
    """A run ended: the last event of one ``run()``. ``status`` as the trace's."""

    trace: str
    status: str
    answer: str = ""
    steps: int = 0
    why: str = ""
