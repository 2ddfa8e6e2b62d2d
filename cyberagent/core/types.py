"""The values that the whole engine speaks in: parts, messages, traces, blobs.

A stored turn is one :class:`Message` with ordered :data:`Part` s — text, images, files,
reasoning and tool calls in the order the model made them — since providers with interleaved
thinking refuse a turn whose order was changed. Everything here is immutable; JSON forms are
plain dicts made by ``to_json`` and read by ``from_json``. Source: docs/messages.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
"""A value that ``json.dumps`` accepts: dict, list, str, int, float, bool or None."""

Role = Literal["system", "user", "assistant", "tool"]
Source = Literal["model", "tool", "user", "operator", "framework", "summary", "import"]
BranchType = Literal["", "reflection", "knowledge_eval", "compression"]
Author = Literal["model", "framework"]

TraceStatus = Literal[
    "queued", "running", "paused", "waiting", "completed", "failed", "stopped", "interrupted"
]
"""``waiting``: an approval is due. ``interrupted``: its process died and nobody took over."""


# Parts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image: base64 ``data`` with its ``media_type``, or a ``url``; never both."""

    media_type: str = ""
    data: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A file that a message carries: readable ``text``, or base64 ``data``."""

    name: str
    media_type: str = "text/plain"
    text: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought. ``blob`` is the provider's own, opaque form (a signature, encrypted
    content): replayed as it came to the same ``model``, never read."""

    text: str
    model: str = ""
    blob: Json = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. ``arguments`` is the JSON text as the model wrote it (it may not parse).

    ``made_by`` tells the framework's own calls (injections) from the model's. ``extra`` is
    opaque provider data that must go back with the call (e.g. a thought signature).
    """

    id: str
    name: str
    arguments: str = "{}"
    made_by: Author = "model"
    extra: Json = None

    def parsed(self) -> Json:
        """The arguments as a value; None where the text is not JSON."""
        try:
            return json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None


Part: TypeAlias = Text | Image | File | Reasoning | ToolCall

_PARTS: dict[str, type[Any]] = {
    "text": Text,
    "image": Image,
    "file": File,
    "reasoning": Reasoning,
    "tool_call": ToolCall,
}
_TAGS = {cls: tag for tag, cls in _PARTS.items()}


def part_to_json(part: Part) -> dict[str, Json]:
    """``{"type": tag, …}``; fields that hold their default are left out."""
    out: dict[str, Json] = {"type": _TAGS[type(part)]}
    for name, spec in type(part).__dataclass_fields__.items():
        value = getattr(part, name)
        if value != spec.default:
            out[name] = value
    return out


def part_from_json(value: Mapping[str, Json]) -> Part:
    """The part that :func:`part_to_json` wrote. Raises ValueError on an unknown tag or field."""
    fields = dict(value)
    tag = fields.pop("type", None)
    cls = _PARTS.get(tag) if isinstance(tag, str) else None
    if cls is None:
        raise ValueError(f"unknown part type {tag!r}")
    try:
        return cls(**fields)
    except TypeError as error:
        raise ValueError(f"malformed {tag} part: {error}") from None


# Usage -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, normalised over providers; None means "not reported".

    ``prompt`` is everything the model read, cached tokens included. Source:
    docs/providers.md, "Usage".
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    def to_json(self) -> dict[str, Json]:
        return {k: v for k in self.__slots__ if (v := getattr(self, k)) is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Json] | None) -> Usage | None:
        return None if value is None else cls(**{k: value.get(k) for k in cls.__slots__})


# Messages ----------------------------------------------------------------------------------

INTERRUPTED_RESULT = "The result of this call was not stored: it was interrupted."
"""Text of the result that stands in where a call's own result was never stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One immutable node of a trace's message tree.

    A draft that is not stored yet has ``sequence`` 0; the store numbers it and sets
    ``parent_sequence`` (None for a root), ``depth`` (1 at a root) and ``created_at``
    (ISO 8601, UTC). ``parts`` is what models are shown; ``full_output`` keeps a tool's whole
    output where ``parts`` holds a shortened form. ``tokens`` counts the parts alone, in the
    trace's encoding. Source: docs/messages.md.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    source: Source
    sequence: int = 0
    parent_sequence: int | None = None
    depth: int = 0
    tool_call_id: str = ""
    name: str = ""
    is_error: bool = False
    goal_id: str = ""
    turn: int = 0
    branch_type: BranchType = ""
    branch_id: str = ""
    tokens: int = 0
    usage: Usage | None = None
    duration_ms: int | None = None
    created_at: str = ""
    full_output: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def text(self) -> str:
        return "\n".join(p.text for p in self.parts if isinstance(p, Text))

    @property
    def reasoning(self) -> tuple[Reasoning, ...]:
        return tuple(p for p in self.parts if isinstance(p, Reasoning))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(p for p in self.parts if isinstance(p, ToolCall))

    @property
    def is_placeholder(self) -> bool:
        """Whether this tool result only stands in for one that was not stored; the real
        result, should it arrive late, takes its place in every window."""
        if self.role != "tool":
            return False
        return bool(self.metadata.get("placeholder")) or self.text == INTERRUPTED_RESULT

    def with_parts(self, parts: Iterable[Part]) -> Message:
        return replace(self, parts=tuple(parts))

    def to_json(self) -> dict[str, Json]:
        """The message as a JSON object; fields that hold their default are left out."""
        out: dict[str, Json] = {"role": self.role, "source": self.source}
        out["parts"] = [part_to_json(p) for p in self.parts]
        for name in _MESSAGE_PLAIN:
            value = getattr(self, name)
            if value != _MESSAGE_DEFAULTS[name]:
                out[name] = value
        if self.usage is not None:
            out["usage"] = self.usage.to_json()
        if self.metadata:
            out["metadata"] = dict(self.metadata)
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Message:
        """The message that :meth:`to_json` wrote. Raises ValueError on anything else."""
        fields = dict(value)
        try:
            fields["parts"] = tuple(part_from_json(p) for p in fields.get("parts", ()))
            fields["usage"] = Usage.from_json(fields.get("usage"))
            return cls(**fields)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"malformed message: {error}") from None


_MESSAGE_PLAIN = (
    "sequence", "parent_sequence", "depth", "tool_call_id", "name", "is_error", "goal_id", "turn",
    "branch_type", "branch_id", "tokens", "duration_ms", "created_at", "full_output",
)  # fmt: skip
_MESSAGE_DEFAULTS = {n: Message.__dataclass_fields__[n].default for n in _MESSAGE_PLAIN}


def text_message(role: Role, text: str, *, source: Source, **fields: Any) -> Message:
    """A draft with one text part; no part at all where the text is empty."""
    return Message(role=role, parts=(Text(text),) if text else (), source=source, **fields)


# Canonical JSON and blobs ------------------------------------------------------------------


# One encoder for all: making one anew costs more than a small value's JSON.
_ENCODER = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
)


def canonical_json(value: Json) -> bytes:
    """Sorted keys, no spaces, unescaped Unicode, UTF-8: the bytes that are hashed and sent.

    Raises ValueError for NaN, Infinity, and text that UTF-8 cannot hold (a lone surrogate).
    """
    text = _ENCODER.encode(value)
    return text.encode("utf-8")


def stored_json(value: Json) -> str:
    """Like :func:`canonical_json`, as text, with lone surrogates escaped: holds any text at all
    and is itself plain UTF-8 without NUL. The form of rows and blobs. Raises ValueError for NaN
    and Infinity."""
    text = _ENCODER.encode(value)
    if text.isascii():
        return text
    return _SURROGATE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


_SURROGATE = re.compile("[\ud800-\udfff]")


def utc_now() -> str:
    """This moment as every stored time: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def clean_text(text: str) -> str:
    """``text`` with lone surrogates replaced by U+FFFD, so that UTF-8 can hold it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# Traces ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceState:
    """A trace's own fields at one moment; a value, read from the store and never saved whole.

    ``context`` holds replayable run state (e.g. ``injected_skills``); ``config`` is the
    RunConfig as JSON; ``origin`` says where the trace came from ("run", or an import format).
    """

    id: str
    mission: str
    status: TraceStatus
    head_sequence: int = 0
    last_sequence: int = 0
    last_event: int = 0
    last_call: int = 0
    turn: int = 0
    config: Mapping[str, Json] = field(default_factory=dict[str, Json])
    context: Mapping[str, Json] = field(default_factory=dict[str, Json])
    system_prompt: str = ""
    origin: str = "run"
    parent_trace: str | None = None
    parent_message: int | None = None
    created_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One model call as stored: the window's manifest and hash, then what came of it.

    ``manifest`` is the delta-coded form of docs/windows.md. ``sha256`` is the hash of the exact
    bytes sent. Times in milliseconds. ``status``: sent, ok, failed, cancelled.
    """

    number: int
    provider: str
    model: str
    projection: str
    manifest: Mapping[str, Json]
    sha256: str
    estimated_tokens: int
    exact: bool
    composition: Mapping[str, int] = field(default_factory=dict[str, int])
    branch_id: str = ""
    after_sequence: int = 0
    status: Literal["sent", "ok", "failed", "cancelled"] = "sent"
    message_sequence: int | None = None
    usage: Usage | None = None
    finish_reason: str = ""
    first_token_ms: int | None = None
    duration_ms: int | None = None
    tries: int = 1
    error: str = ""
    cost: float | None = None
    created_at: str = ""
