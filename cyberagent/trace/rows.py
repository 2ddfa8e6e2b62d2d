"""Rows of the merged view: what one stored message shows, as plain values for any page.

A page asks for the rows of the messages that it shows and never builds the whole tree: how many
rows a message makes is known when it is stored, so places in a long list are sums.
Source: docs/messages.md, "The merged view".
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, cast

from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.protocol import PROTOCOL_TOOLS
from cyberagent.core.protocol_entries import (
    Briefed,
    Entry,
    Reported,
    Reviewed,
    Validated,
    entry_from_json,
)
from cyberagent.core.types import File, Image, Json, Message, Source, ToolCall
from cyberagent.trace.goals import Goal
from cyberagent.trace.plan_text import flat
from cyberagent.trace.tree import Branch, stands_for

LONGEST_TEXT = 200
"""Characters of a row's text; the whole is fetched when it is opened."""

LONGEST_ARGUMENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the framework recorded with a message, in short: that it tells the root ``anchor`` or
    brings a ``contract`` (``text``: the objective), carries a ``report`` (``word``: its status), a
    ``verdict`` or a ``review`` (``word``: the decision; ``who``: the operator, "" for the trace
    itself; ``against``: the verdict that was accepted nevertheless)."""

    what: Literal["anchor", "contract", "report", "verdict", "review"]
    word: str = ""
    text: str = ""
    who: str = ""
    against: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionRow:
    kind: ClassVar[str] = "mission"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRow:
    """``steps``: model answers under the goal and all below it; ``duration_ms``: the sum of
    their messages' durations."""

    kind: ClassVar[str] = "goal"
    goal: Goal
    is_current: bool = False
    steps: int = 0
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """``part``: place among the rows of its message, from 0. ``extras``: how many images and
    files it carries. ``is_thought``: nothing but reasoning is in it."""

    kind: ClassVar[str] = "message"
    sequence: int
    part: int = 0
    role: str = ""
    source: Source = "model"
    goal_id: str = ""
    text: str = ""
    extras: int = 0
    is_thought: bool = False
    tokens: int = 0
    duration_ms: int | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A tool call and its result as one. ``result``: sequence of the result (0: none yet, or the
    row is a result that answers no call)."""

    kind: ClassVar[str] = "call"
    sequence: int
    part: int = 0
    goal_id: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    made_by: str = "model"
    status: Literal["waiting", "ok", "error", "orphan"] = "waiting"
    outcome: str = ""
    result: int = 0
    tokens: int = 0
    duration_ms: int | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """A summary; ``messages`` stored ones stand behind it, from ``first`` to ``last``."""

    kind: ClassVar[str] = "summary"
    sequence: int
    part: int = 0
    goal_id: str = ""
    text: str = ""
    messages: int = 0
    first: int = 0
    last: int = 0
    tokens_before: int = 0
    tokens_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow:
    kind: ClassVar[str] = "branch"
    branch: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostRow:
    """A path that a rewind left behind."""

    kind: ClassVar[str] = "ghost"
    branch: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRow:
    """A sub-agent: a trace that message ``sequence`` spawned with ``call`` ("": not known), or
    one below that trace (``level`` 1: its own sub-agent). ``agent``: agent, validator, explore or
    research, "" where that is not known; ``steps``: its model answers; ``goal``: what it is at;
    ``verdict`` and ``why``: of a validator the one that it gave, else the one on it."""

    kind: ClassVar[str] = "child"
    sequence: int
    trace_id: str
    mission: str = ""
    status: str = ""
    agent: str = ""
    call: str = ""
    level: int = 0
    steps: int = 0
    goal: str = ""
    verdict: str = ""
    why: str = ""


Row: TypeAlias = (
    MissionRow | GoalRow | MessageRow | CallRow | SummaryRow | BranchRow | GhostRow | ChildRow
)
StoredRow: TypeAlias = MessageRow | CallRow | SummaryRow


def row_count(message: Message, *, orphan: bool = False) -> int:
    """How many rows a message makes, known when it is stored, before any result is.

    A tool result makes none, as its call's row shows it; it makes one where it answers no call:
    the caller knows (``orphan``), or it has no call's id at all.
    """
    if message.role == "tool":
        return 1 if orphan or not message.tool_call_id else 0
    if message.source == "summary":
        return 1
    calls = len(message.tool_calls)
    return calls + (1 if message.text.strip() or _extras(message) or not calls else 0)


def rows_of(message: Message, results: Sequence[Message] = ()) -> list[StoredRow]:
    """The rows of one message, top to bottom: its text, then its calls, each with its result
    from ``results`` (the k-th with an id answers the k-th call with it). A tool result that is
    asked for itself is an orphan and makes one row."""
    if message.role == "tool":
        return [_orphan(message)]
    if message.source == "summary":
        return [_summary(message)]
    rows: list[StoredRow] = []
    if row_count(message) > len(message.tool_calls):
        rows.append(_text_row(message))
    left = list(results)
    for call in message.tool_calls:
        result = _take(left, call.id)
        rows.append(_call_row(message, call, result, part=len(rows)))
    return rows


def _take(results: list[Message], call_id: str) -> Message | None:
    """The result with this id, taken off the list; a placeholder only if nothing else is there."""
    same = [m for m in results if m.tool_call_id == call_id]
    if not same:
        return None
    real = [m for m in same if not m.is_placeholder]
    found = (real or same)[0]
    results.remove(found)
    return found


def _extras(message: Message) -> int:
    return sum(isinstance(p, Image | File) for p in message.parts)


def _text_row(message: Message) -> MessageRow:
    thought = "" if message.text.strip() else " ".join(r.text for r in message.reasoning)
    notes = notes_of(message)
    # The text of a contract is JSON that a model reads; a row says what it is about.
    told = next((n.text for n in notes if n.what in ("anchor", "contract")), "")
    return MessageRow(
        sequence=message.sequence,
        role=message.role,
        source=message.source,
        goal_id=message.goal_id,
        text=_short(told or (message.text if message.text.strip() else thought)),
        extras=_extras(message),
        is_thought=bool(thought),
        tokens=message.tokens,
        duration_ms=message.duration_ms,
        notes=notes,
    )


def _call_row(message: Message, call: ToolCall, result: Message | None, *, part: int) -> CallRow:
    status: Literal["waiting", "ok", "error"] = "waiting"
    if result is not None:
        status = "error" if result.is_error else "ok"
    return CallRow(
        sequence=message.sequence,
        part=part,
        goal_id=message.goal_id,
        call_id=call.id,
        name=call.name,
        arguments=short_arguments(call),
        made_by=call.made_by,
        status=status,
        outcome=_short(result.text) if result else "",
        result=result.sequence if result else 0,
        tokens=result.tokens if result else 0,
        duration_ms=result.duration_ms if result else None,
        notes=notes_of(result) if result else (),
    )


def _orphan(message: Message) -> CallRow:
    return CallRow(
        sequence=message.sequence,
        goal_id=message.goal_id,
        call_id=message.tool_call_id,
        name=message.name,
        status="orphan",
        outcome=_short(message.text),
        tokens=message.tokens,
        duration_ms=message.duration_ms,
    )


def _summary(message: Message) -> SummaryRow:
    told = stands_for(message)
    return SummaryRow(
        sequence=message.sequence,
        goal_id=message.goal_id,
        text=_short(message.text),
        messages=_number(told, "messages"),
        first=_number(told, "first"),
        last=_number(told, "last"),
        tokens_before=_number(told, "tokens_before"),
        tokens_after=_number(told, "tokens_after") or message.tokens,
    )


# What the framework recorded -----------------------------------------------------------------


def notes_of(message: Message) -> tuple[Note, ...]:
    """What a message records of the recursive protocol. Only what the framework wrote counts, as
    in the protocol itself; a record that cannot be read is passed over: this is for the eye."""
    is_framework = message.source == "framework"
    if not (is_framework or (message.role == "tool" and message.name in PROTOCOL_TOOLS)):
        return ()
    notes = [n for entry in _entries(message) for n in _notes(entry)]
    if is_framework and message.metadata.get("anchor") and not notes:
        notes.append(Note(what="anchor", text=_anchor_objective(message.text)))
    return tuple(notes)


def _entries(message: Message) -> Iterator[Entry]:
    found: Json = message.metadata.get("protocol")
    for value in cast("list[Json]", found) if isinstance(found, list) else ():
        try:
            yield entry_from_json(value)
        except InvalidTaskValue:
            continue


def _notes(entry: Entry) -> Iterator[Note]:
    match entry:
        case Briefed():
            yield Note(what="contract", text=entry.brief.objective)
        case Reported():
            yield Note(what="report", word=entry.report.status, text=entry.report.summary)
        case Validated():
            yield Note(what="verdict", word=entry.result.verdict, text=entry.result.reason)
        case Reviewed():
            review = entry.review
            yield Note(
                what="review",
                word=review.decision,
                text=review.reason,
                who=review.reviewer.id if review.reviewer.kind == "operator" else "",
                against=review.against_verdict,
            )
        case _:
            return


def _anchor_objective(text: str) -> str:
    """The objective of the anchor that stands in a text as one line of JSON."""
    for line in text.splitlines():
        if line.startswith('{"completion_criteria"'):
            try:
                value: Json = json.loads(line)
            except (ValueError, RecursionError):
                return ""
            told: Json = cast("dict[str, Json]", value).get("objective")
            return told if isinstance(told, str) else ""
    return ""


def _number(told: Mapping[str, Json], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and value >= 0 else 0


def _short(text: str) -> str:
    # A long text is cut before its blanks are counted: tool results have megabytes.
    return flat(text[: LONGEST_TEXT * 10], LONGEST_TEXT)


# Arguments ---------------------------------------------------------------------------------

_MAIN = (
    "command", "pattern", "query", "path", "file_path", "filename", "url", "name", "mission",
    "prompt",
)  # fmt: skip
"""Arguments that say most of a call by themselves, the strongest first."""


def short_arguments(call: ToolCall, longest: int = LONGEST_ARGUMENT) -> str:
    """A call's arguments in a few words: ``"models/user.py"``, ``"app.py", 3 hunks``,
    ``done="1"``; of a contract its objective. Texts are quoted as in JSON and cut to ``longest``
    characters; what is not a JSON object is shown as it was written."""
    value = call.parsed()
    if not isinstance(value, dict):
        return flat(call.arguments[: longest * 10], longest) if call.arguments else ""
    given = {k: v for k, v in cast("dict[str, Json]", value).items() if v not in (None, "")}
    main = next((n for n in _MAIN if isinstance(given.get(n), str)), None)
    shown = [_quoted(given.pop(main), longest)] if main else []
    shown += [_argument(name, item, longest) for name, item in given.items()]
    return flat(", ".join(shown), 3 * longest)


def _argument(name: str, value: Json, longest: int) -> str:
    if isinstance(value, list):
        word = "hunks" if name in ("edits", "hunks") else name
        return f"{len(cast('list[Json]', value))} {word}"
    if isinstance(value, dict):
        told: Json = cast("dict[str, Json]", value).get("objective")
        return f"{name}={_quoted(told, longest)}" if isinstance(told, str) else f"{name}={{…}}"
    if isinstance(value, str):
        lines = value.count("\n") + 1
        return f"{name}: {lines} lines" if lines > 1 else f"{name}={_quoted(value, longest)}"
    return f"{name}={json.dumps(value)}"


def _quoted(text: str, longest: int) -> str:
    return json.dumps(flat(text[: longest * 10], longest), ensure_ascii=False)


# Terminal ----------------------------------------------------------------------------------

_INVISIBLE = frozenset("\u061c\u2028\u2029\u200b\u200e\u200f\u2060\ufeff")


def terminal_safe(text: str) -> str:
    """``text`` with nothing in it that a terminal would act on: control characters and escapes
    become visible signs (ESC is ␛), marks that turn the direction of text and lone surrogates
    become U+FFFD. Line ends and tabs stay."""
    return text if text.isascii() and text.isprintable() else "".join(map(_safe, text))


def _safe(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or character in _INVISIBLE:
        return "\ufffd"
    return "\ufffd" if unicodedata.bidirectional(character) in _TURNING else character


_TURNING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def cut_to_width(text: str, width: int) -> str:
    """``text`` cut to ``width`` columns with an ellipsis; wide characters take two."""
    used = 0
    for place, character in enumerate(text):
        used += _columns(character)
        if used > width:
            return _fitting(text[:place], width - 1) + "…"
    return text


def _fitting(text: str, width: int) -> str:
    while text and sum(map(_columns, text)) > width:
        text = text[:-1]
    return text


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
