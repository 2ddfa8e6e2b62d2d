"""The message tree: paths, what answers what, safe points, what lies beside the path.

All pure, on messages in hand; a store answers the same questions over rows by ranges.
Source: docs/messages.md, "The tree".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.core.types import BranchType, Json, Message, ToolCall


@dataclass(frozen=True, slots=True)
class Pair:
    """A call and its result, as places in a list of messages: ``call`` counts the calls of the
    message at ``caller``. ``answered_at`` is the place of the first answer: before ``result``
    only where a placeholder stood in until the real result came."""

    caller: int
    call: int
    result: int
    answered_at: int


@dataclass(frozen=True, slots=True)
class Pairing:
    """``answered`` in the order of the results; ``unanswered``: (caller, call) in the order of
    the calls; ``orphans``: places of results that answer nothing, or only again."""

    answered: tuple[Pair, ...]
    unanswered: tuple[tuple[int, int], ...]
    orphans: tuple[int, ...]


@dataclass(slots=True)
class _Open:
    """Calls with one id that wait: a list per caller, the newest caller last."""

    callers: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])
    placeholders: list[Pair] = field(default_factory=list[Pair])

    def take(self) -> tuple[int, int] | None:
        """The first waiting call of the newest message that has one."""
        if not self.callers:
            return None
        slot = self.callers[-1].pop(0)
        if not self.callers[-1]:
            self.callers.pop()
        return slot


def pair(messages: Sequence[Message]) -> Pairing:
    """Which result answers which call. Ids may be used again (some providers do), so position
    decides: a result answers the first waiting call with its id in the newest message that has
    one. A real result takes the place of a placeholder that came before it."""
    waiting: defaultdict[str, _Open] = defaultdict(_Open)
    answered: dict[int, Pair] = {}
    orphans: list[int] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            calls = waiting[message.tool_call_id]
            if (found := _answer(calls, place, message)) is None:
                orphans.append(place)
                continue
            if found.answered_at != place:
                del answered[found.answered_at]
            answered[place] = found
        elif message.role == "assistant":
            by_id: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
            for number, call in enumerate(message.tool_calls):
                by_id[call.id].append((place, number))
            for call_id, slots in by_id.items():
                waiting[call_id].callers.append(slots)
    left = [slot for calls in waiting.values() for slots in calls.callers for slot in slots]
    return Pairing(tuple(answered.values()), tuple(sorted(left)), tuple(orphans))


def _answer(calls: _Open, place: int, message: Message) -> Pair | None:
    if slot := calls.take():
        found = Pair(*slot, place, place)
        if message.is_placeholder:
            calls.placeholders.append(found)
        return found
    if calls.placeholders and not message.is_placeholder:
        old = calls.placeholders.pop()
        return Pair(old.caller, old.call, place, old.answered_at)
    return None


def unanswered(messages: Sequence[Message]) -> list[tuple[Message, ToolCall]]:
    """Calls without a result, each with the message that made it, in order."""
    return [(messages[at], messages[at].tool_calls[k]) for at, k in pair(messages).unanswered]


def safe_point(path: Sequence[Message], to_sequence: int) -> int:
    """The sequence of message ``to_sequence`` of this path, or of the nearest earlier one after
    which no call waits for its result; 0 where there is none (before the first message).

    A call that nobody ever answered, though the path went on after it, is waited for only up to
    where it went on: else an old crash would bar every later point. Raises NotFound where the
    message is not on the path.
    """
    if to_sequence == 0:
        return 0
    places = {message.sequence: place for place, message in enumerate(path)}
    if to_sequence not in places:
        raise NotFound("message on this path", to_sequence)
    waits = _waits(path)
    place = places[to_sequence]
    while place >= 0 and waits[place]:
        place -= 1
    return path[place].sequence if place >= 0 else 0


def _waits(path: Sequence[Message]) -> list[int]:
    """For each place, how many calls wait for a result after it."""
    found = pair(path)
    steps = [0] * (len(path) + 1)
    for one in found.answered:
        steps[one.caller] += 1
        steps[one.answered_at] -= 1
    goes_on = len(path)
    went_on: dict[int, int] = {}
    callers = {caller for caller, _ in found.unanswered}
    for place in range(len(path) - 1, -1, -1):
        if place in callers:
            went_on[place] = goes_on
        if path[place].role != "tool":
            goes_on = place
    for caller, _ in found.unanswered:
        steps[caller] += 1
        steps[went_on[caller]] -= 1
    return list(accumulate(steps))


# Paths and what lies beside them ---------------------------------------------------------------


def path_of(messages: Mapping[int, Message], head: int) -> list[Message]:
    """The chain from a root to message ``head`` (0: empty). Raises NotFound where a message of
    it is missing, InvalidInput where a parent does not come before its child."""
    path: list[Message] = []
    sequence: int | None = head or None
    while sequence is not None:
        if sequence not in messages:
            raise NotFound("message", sequence)
        message = messages[sequence]
        path.append(message)
        parent = message.parent_sequence
        if parent is not None and parent >= sequence:
            raise InvalidInput(f"message {sequence} has {parent}, a later one, as its parent")
        sequence = parent
    return path[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Messages beside the main path, in order of their sequence. ``left_from``: the message
    that they left from (0: none). A ghost, which a rewind left behind, has no ``branch_id``."""

    left_from: int
    sequences: tuple[int, ...]
    branch_id: str = ""
    branch_type: BranchType = ""


def branches(messages: Mapping[int, Message]) -> list[Branch]:
    """The side branches, by their first message."""
    found: dict[str, list[Message]] = {}
    for sequence in sorted(messages):
        if messages[sequence].branch_id:
            found.setdefault(messages[sequence].branch_id, []).append(messages[sequence])
    return [
        Branch(
            left_from=own[0].parent_sequence or 0,
            sequences=tuple(m.sequence for m in own),
            branch_id=branch_id,
            branch_type=own[0].branch_type,
        )
        for branch_id, own in found.items()
    ]


def ghosts(messages: Mapping[int, Message], head: int) -> list[Branch]:
    """What rewinds left behind: all that is neither on the path to ``head``, nor in a side
    branch, nor stood for by a summary of the path; grouped by where it left."""
    path = path_of(messages, head)
    kept = {m.sequence for m in path}
    for summary in path:
        kept |= set(stood_for(messages, summary))
    groups: dict[int, list[int]] = {}
    group_of: dict[int, int] = {}
    for sequence in sorted(messages.keys() - kept):
        message = messages[sequence]
        if message.branch_id:
            continue
        parent = message.parent_sequence or 0
        group = group_of.get(parent, sequence)
        group_of[sequence] = group
        groups.setdefault(group, []).append(sequence)
    return [
        Branch(left_from=messages[first].parent_sequence or 0, sequences=tuple(own))
        for first, own in groups.items()
    ]


def stands_for(message: Message) -> Mapping[str, Json]:
    """What a summary says of the messages it stands for (``metadata["stands_for"]``): ``first``
    and ``last`` sequence, ``messages``, ``tokens_before``, ``tokens_after``; else empty."""
    value = message.metadata.get("stands_for") if message.source == "summary" else None
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else {}


def stood_for(messages: Mapping[int, Message], summary: Message) -> list[int]:
    """Sequences of the path that a summary replaced, oldest first; earlier summaries among them
    stand for theirs in turn and are opened by asking again."""
    last = stands_for(summary).get("last")
    found: list[int] = []
    sequence = last if isinstance(last, int) else None
    while sequence is not None and sequence != summary.parent_sequence and sequence in messages:
        if found and sequence >= found[-1]:
            break
        found.append(sequence)
        sequence = messages[sequence].parent_sequence
    return found[::-1]
