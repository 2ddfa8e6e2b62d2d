"""What importers give and exporters take: a whole trace as one value.

A :class:`TraceBundle` is everything that is stored of a trace — every message of its tree, not
only the main path — so that a store can take it in and give it out again without loss. An
:class:`Imported` is a bundle with the account of how it was read. Source: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import Event
from cyberagent.core.types import CallRecord, Json, Message, TraceState, clean_text

MISSION_CHARS = 2_000
"""A mission taken from a transcript is cut to this many characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBundle:
    """A trace with all its rows. ``messages`` stand by ``sequence`` (1, 2, 3 …, no gaps), each
    with its ``parent_sequence`` and ``depth``; parents come before children.

    ``goals`` is the plan as JSON, for people: stores rebuild it by replay. ``children`` are
    the traces of sub-agents; ``state.parent_message`` of a child is a sequence in this trace.
    ``anchors``: the revisions of a recursive root's anchor, the oldest first.
    """

    state: TraceState
    messages: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    goals: Mapping[str, Json] | None = None
    children: tuple[TraceBundle, ...] = ()
    anchors: tuple[AnchorRevision, ...] = ()

    def walk(self) -> Iterator[TraceBundle]:
        """This trace, then its descendants, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def main_path(self) -> list[Message]:
        """The messages from the root to the head."""
        found: list[Message] = []
        sequence: int | None = self.state.head_sequence or None
        while sequence is not None:
            message = self.messages[sequence - 1]
            found.append(message)
            sequence = message.parent_sequence
        return found[::-1]

    def checked(self) -> TraceBundle:
        """Self, if its tree is whole; else InvalidInput that names the first broken message."""
        for number, message in enumerate(self.messages, 1):
            if message.sequence != number:
                raise InvalidInput(f"message {number} is numbered {message.sequence}")
            parent = message.parent_sequence
            if parent is not None and not 0 < parent < number:
                raise InvalidInput(f"message {number} hangs on message {parent}")
            depth = 1 if parent is None else self.messages[parent - 1].depth + 1
            if message.depth != depth:
                raise InvalidInput(f"message {number} has depth {message.depth}, not {depth}")
        count = len(self.messages)
        if not 0 <= self.state.head_sequence <= count:
            raise InvalidInput(
                f"the head {self.state.head_sequence} is not one of {count} messages"
            )
        if self.state.last_sequence != count:
            raise InvalidInput(f"{self.state.last_sequence} messages expected, {count} found")
        return self


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line (counted from 1) that could not be used, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One conversation as read from a file.

    ``side_branches``: side chains found (sub-agents inside the file, summarising calls).
    ``skipped`` lists the first of ``skipped_lines`` lines that could not be used; ``ignored``
    counts known lines that are no conversation, by kind; ``warnings`` are sentences.
    """

    format: str
    trace: TraceBundle
    side_branches: int = 0
    skipped: tuple[Skipped, ...] = ()
    skipped_lines: int = 0
    ignored: Mapping[str, int] = field(default_factory=dict[str, int])
    warnings: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Stored messages, those of child traces included."""
        return sum(len(trace.messages) for trace in self.trace.walk())

    @property
    def tool_calls(self) -> int:
        return sum(len(m.tool_calls) for trace in self.trace.walk() for m in trace.messages)

    @property
    def children(self) -> int:
        """Child traces, at any depth."""
        return sum(1 for _ in self.trace.walk()) - 1

    def report(self) -> dict[str, Json]:
        """The counts as a JSON object, for a person who wants to know what was read."""
        return {
            "format": self.format,
            "mission": self.trace.state.mission,
            "messages": self.messages,
            "tool_calls": self.tool_calls,
            "side_branches": self.side_branches,
            "children": self.children,
            "skipped_lines": self.skipped_lines,
            "skipped": [{"line": s.line, "why": s.why} for s in self.skipped],
            "ignored": dict(self.ignored),
            "warnings": list(self.warnings),
        }


@dataclass(slots=True)
class Notes:
    """Collects, while a file is read, what could not be used and why. Bounded: a file of a
    million broken lines gives a hundred reasons and a count."""

    skipped: list[Skipped] = field(default_factory=list[Skipped])
    skipped_lines: int = 0
    ignored: dict[str, int] = field(default_factory=dict[str, int])
    warned: dict[str, int] = field(default_factory=dict[str, int])

    REASONS = 100
    KINDS = 100

    def skip(self, line: int, why: str) -> None:
        self.skipped_lines += 1
        if len(self.skipped) < Notes.REASONS:
            self.skipped.append(Skipped(line, why[:200]))

    def ignore(self, kind: object) -> None:
        """Count a line that is no conversation; ``kind`` comes from the file."""
        _count(self.ignored, clean_text(str(kind))[:60])

    def warn(self, sentence: str) -> None:
        _count(self.warned, sentence)

    def warnings(self) -> tuple[str, ...]:
        return tuple(s if n == 1 else f"{s} ({n} times)" for s, n in self.warned.items())


def _count(counts: dict[str, int], key: str) -> None:
    if key not in counts and len(counts) >= Notes.KINDS:
        key = "other"
    counts[key] = counts.get(key, 0) + 1


def mission_of(text: str) -> str:
    """``text`` as a mission: cut, and free of NUL and lone surrogates."""
    return clean_text(text.strip()[:MISSION_CHARS]).replace("\x00", "�").strip()
