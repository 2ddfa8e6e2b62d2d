"""The traces of a tree as values for its board: rows, protocol states, what was read.

What is read of one trace is kept until something happens in it or above it. Source:
docs/pages.md, "Board".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from django.db.models import Q

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.errors import CyberAgentError, InvalidInput
from cyberagent.core.lineage import (
    LINEAGE,
    SPAWNED,
    is_brought_by_open_call,
    open_calls,
    with_open_call,
)
from cyberagent.core.protocol import ProtocolState, replay_protocol
from cyberagent.core.refs import ContextRef
from cyberagent.core.types import Message
from traces import paths, records, trees
from traces.board import LIVE, Board, Member, Read, board
from traces.kept import Kept
from traces.models import Message as MessageRow
from traces.models import Trace, ValidationResult
from traces.rows import MESSAGE_COLUMNS, held, message_from
from traces.store import read_messages

MOST = 200
"""Traces that a board shows: a run's own tree has at most 64, an imported one any."""


def board_of(trace: Trace) -> Board:
    """The board of a trace and all below it."""
    found = members_of(trace)
    ids = [m.id for m in found]
    verdicts = ValidationResult.objects.filter(trace__in=ids)
    keys = {(t, s): k for t, s, k in verdicts.values_list("trace_id", "sequence", "pk")}
    root = trace if trace.parent_trace_id is None else trees.root(trace.pk).get()
    return board(found, verdicts=keys, root_is_live=root.status in LIVE)


def members_of(trace: Trace) -> list[Member]:
    """A trace and all below it, parents before their children."""
    tree = _tree(trace)
    return _members(trace, tree, _opened(trace, tree))


def task_of(trace: Trace) -> tuple[Member, ProtocolState | None]:
    """A trace alone, and the state of the one above it (None for a root)."""
    tree = [_placed(trace, 0)]
    opened = _opened(trace, tree)
    above = opened.get(trace.parent_trace_id or "", _NOTHING)
    return _members(trace, tree, opened)[0], above.state


@dataclass(slots=True)
class _Placed:
    """A row with where it stands. ``made_for``: what it was spawned for, as its context says;
    ``parent_event``: the newest event of the trace above it."""

    row: Trace
    level: int
    made_for: Mapping[str, Any]
    lineage: Sequence[str] | None
    parent_event: int = 0

    @property
    def is_validator(self) -> bool:
        return self.made_for.get("kind") == "validator"


def _tree(trace: Trace) -> list[_Placed]:
    children: dict[str | None, list[Trace]] = {}
    for row in trees.below(trace.pk).order_by("created_at", "pk")[:MOST]:
        children.setdefault(row.parent_trace_id, []).append(row)
    found: list[_Placed] = []
    waiting = [(trace, 0, 0)]
    while waiting:
        row, level, above = waiting.pop()
        found.append(replace(_placed(row, level), parent_event=above))
        below = reversed(children.get(row.pk, []))
        waiting += [(child, level + 1, row.last_event) for child in below]
    return found


def _placed(row: Trace, level: int) -> _Placed:
    context = json.loads(row.context)
    made_for = context.get(SPAWNED)
    told: Mapping[str, Any] = made_for if isinstance(made_for, dict) else {}
    return _Placed(row, level, told, context.get(LINEAGE))


def _members(trace: Trace, tree: Sequence[_Placed], opened: Mapping[str, _Opened]) -> list[Member]:
    asked = _asked(tree)
    found: list[Member] = []
    for placed in tree:
        row, kind = placed.row, str(placed.made_for.get("kind", ""))
        own = opened.get(row.pk, _NOTHING)
        is_below = row.pk != trace.pk
        member = Member(
            id=row.pk,
            parent=(row.parent_trace_id or "") if is_below else "",
            asked_at=row.parent_message or 0,
            level=placed.level,
            kind=kind,
            mission=held(row.mission),
            status=row.status,
            why=held(row.status_why),
            steps=row.steps,
            tokens=row.prompt_tokens + row.completion_tokens,
            cost=row.cost,
            goal=held(row.current_goal),
            protocol=own.state,
            problem=own.problem,
            reads=_reads(row) if own.state else (),
            **_place(placed, opened, asked) if is_below and kind != "validator" else {},
        )
        found.append(member)
    return found


# Protocol states -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a trace's messages say: its state, or why there is none; its path as far as that was
    read for it; the message that brought the contract in force."""

    state: ProtocolState | None = None
    problem: str = ""
    path: Sequence[Message] = ()
    contract: Message | None = None


_NOTHING = _Opened()


def _opened(trace: Trace, tree: Sequence[_Placed]) -> dict[str, _Opened]:
    """Of each trace whose messages tell something of the tree, each under its parent's; those
    above ``trace`` first. As ``cyberagent.core.lineage.open_protocol`` does for one trace."""
    found: dict[str, _Opened] = {}
    anchor: RootTaskAnchor | None = None
    parents = {placed.row.parent_trace_id for placed in tree}
    for placed in (*(_placed(row, 0) for row in _above(trace)), *tree):
        row = placed.row
        if placed.lineage is None and row.pk not in parents:
            continue  # Nothing is told of it that its messages say.
        path = _protocol_path(row.pk, row.last_event)
        if placed.lineage is None:
            found[row.pk] = _Opened(path=path)
            continue
        try:
            anchor = anchor or _anchor(next(iter(placed.lineage), row.pk))
            found[row.pk] = _open(row, path, anchor, found.get(row.parent_trace_id or ""))
        except CyberAgentError as error:
            found[row.pk] = _Opened(problem=str(error), path=path)
    return found


def _above(trace: Trace) -> list[Trace]:
    return [] if trace.parent_trace_id is None else list(reversed(trees.above(trace.pk)))


def _anchor(root: str) -> RootTaskAnchor:
    revisions = trees.read_anchors(root)
    if not revisions:
        raise InvalidInput("this run's root has no anchor: create the run anew")
    return revisions[-1].anchor


def _open(
    row: Trace, path: Sequence[Message], anchor: RootTaskAnchor, above: _Opened | None
) -> _Opened:
    state = replay_protocol(path, trace_id=row.pk, anchor=anchor)
    contract = _contract(state, path)
    if above is not None and above.state is not None:
        state = state.under_parent(with_open_call(above.state, above.path, state, contract))
    return _Opened(state=state, path=path, contract=contract)


def _contract(state: ProtocolState, path: Sequence[Message]) -> Message | None:
    if not state.briefs:
        return None
    sequence = state.briefs[-1].given_at_sequence
    on_path = next((m for m in path if m.sequence == sequence), None)
    return on_path or read_messages(state.trace_id, [sequence]).get(sequence)


@lru_cache(maxsize=512)
def _protocol_path(trace_id: str, last_event: int) -> Sequence[Message]:
    # Whatever moves a head or adds to a path has an event: what was read stays true for it.
    return tuple(records.protocol_path(trace_id))


# Where it was asked for ------------------------------------------------------------------------

_Asked = Mapping[tuple[str, int], tuple[bool, Message]]
"""By trace and sequence: whether the message is on the main path, and itself."""


def _asked(tree: Sequence[_Placed]) -> _Asked:
    rows = {placed.row.pk: placed.row for placed in tree}
    wanted: dict[str, set[int]] = {}
    for placed in tree:
        row = placed.row
        if row.parent_trace_id in rows and row.parent_message and not placed.is_validator:
            wanted.setdefault(row.parent_trace_id, set()).add(row.parent_message)
    found: dict[tuple[str, int], tuple[bool, Message]] = {}
    for parent, sequences in wanted.items():
        told = _on_path(parent, rows[parent].last_event, tuple(sorted(sequences)))
        found |= {(parent, message.sequence): (on, message) for on, message in told}
    return found


@lru_cache(maxsize=512)
def _on_path(
    trace_id: str, last_event: int, sequences: tuple[int, ...]
) -> Sequence[tuple[bool, Message]]:
    spans = paths.ranges(trace_id)
    rows = MessageRow.objects.filter(trace=trace_id, sequence__in=sequences)
    found: list[tuple[bool, Message]] = []
    for row in rows.values(*MESSAGE_COLUMNS, "branch_id"):
        message = message_from(row)
        on = any(b == row["branch_id"] and s <= message.depth <= e for b, s, e in spans)
        found.append((on, message))
    return found


def _place(placed: _Placed, opened: Mapping[str, _Opened], asked: _Asked) -> dict[str, Any]:
    """``on_path``, ``waited`` and ``answered`` of a sub-agent."""
    row = placed.row
    parent = row.parent_trace_id or ""
    above = opened.get(parent, _NOTHING).path
    contract = opened.get(row.pk, _NOTHING).contract
    on_path, message = asked.get((parent, row.parent_message or 0), (False, None))
    if contract is not None:
        waited = is_brought_by_open_call(contract, above)
        return {"on_path": on_path, "waited": waited}
    call = placed.made_for.get("call")
    if not call or message is None:
        return {"on_path": on_path, "waited": on_path}
    newest = next((m.sequence for m in reversed(above) if m.role == "assistant"), 0)
    waited = newest == message.sequence and call in open_calls(above)
    answered = 0
    if on_path and not waited:
        last = message.depth + len(message.tool_calls)
        results = _results(parent, placed.parent_event, message.depth + 1, last)
        answered = next((n for n, answers in results if answers == call), 0)
    return {"on_path": on_path, "waited": waited, "answered": answered}


@lru_cache(maxsize=512)
def _results(trace_id: str, last_event: int, first: int, last: int) -> Sequence[tuple[int, str]]:
    """Results at these depths of a main path and the calls that they answer; a stand-in for a
    result is none."""
    found = paths.page(trace_id, first=first, last=last)
    return [(m.sequence, m.tool_call_id) for m in found if not m.is_placeholder]


# What was read ---------------------------------------------------------------------------------

READ = "read_context_ref"


def _reads(row: Trace) -> tuple[Read, ...]:
    """The readings on the main path, in order."""
    found = _readings(row).found
    if not found:
        return ()
    spans = paths.ranges(row)
    return tuple(
        one
        for one, branch, depth in found
        if any(b == branch and start <= depth <= end for b, start, end in spans)
    )


@dataclass(frozen=True, slots=True)
class _Readings:
    """All readings of one trace with their branches and depths, as far as message ``upto``;
    ``asked``: the ref of each call for one. Messages never change: it is only read on."""

    upto: int = 0
    asked: Mapping[str, ContextRef] = field(default_factory=dict[str, ContextRef])
    found: tuple[tuple[Read, int, int], ...] = ()


_kept = Kept(_Readings(), most=512)


def _readings(row: Trace) -> _Readings:
    """Those of a trace up to its newest message, or further."""
    before = _kept.of(row.pk)
    if before.upto >= row.last_sequence:
        return before
    wanted = Q(role="assistant", parts__contains=READ) | Q(role="tool", name=READ)
    messages = MessageRow.objects.filter(
        wanted, trace=row, sequence__gt=before.upto, sequence__lte=row.last_sequence
    ).order_by("sequence")
    asked = dict(before.asked)
    found = list(before.found)
    for told in messages.values(*MESSAGE_COLUMNS, "branch_id"):
        message = message_from(told)
        asked |= _asked_by(message)
        ref = asked.get(message.tool_call_id) if message.role == "tool" else None
        if ref is not None and not message.is_error:
            start, end = _slice(message.text)
            read = Read(ref=ref, sequence=message.sequence, start=start, end=end)
            found.append((read, told["branch_id"], message.depth))
    after = _Readings(row.last_sequence, asked, tuple(found))
    _kept.keep(row.pk, after)
    return after


def _asked_by(message: Message) -> dict[str, ContextRef]:
    asked: dict[str, ContextRef] = {}
    for call in message.tool_calls:
        told: Any = call.parsed() if call.name == READ else None
        if isinstance(told, dict):
            pair = (str(told.get(n, "")).strip() for n in ("ref_id", "version"))
            asked[call.id] = ContextRef(*pair)
    return asked


def _slice(text: str) -> tuple[int, int]:
    """The characters that a result holds, as its first line says."""
    try:
        told = json.loads(text.partition("\n")[0])
        return int(told["from"]), int(told["to"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0, 0
