"""What strategies are made of: edits and steps, what they may know, and which result answers
which call.

A strategy is a pure function of a history. It never changes a stored message: an edited one is a
new :class:`~cyberagent.core.window.Item` in the place of the old. Source: docs/compaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.ports import TokenCounter
from cyberagent.core.tokens import count_message
from cyberagent.core.types import Message, Part, Reasoning, Text, ToolCall
from cyberagent.core.window import Item
from cyberagent.trace.goals import TODO_TOOLS, GoalTree
from cyberagent.trace.tree import pair

Items: TypeAlias = tuple[Item, ...]
What = Literal["removed", "replaced", "inserted"]

PLAN_TOOLS = TODO_TOOLS | {"goal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One thing that a strategy did. ``sequences``: the stored messages it touched, in order;
    ``tokens_saved``: estimated, negative where text came in."""

    strategy: str
    level: int
    what: What
    sequences: tuple[int, ...]
    why: str
    tokens_saved: int


@dataclass(frozen=True, slots=True)
class Step:
    """A history, and what was done to it. No edits: it is the one that came in."""

    items: Items
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a strategy may know besides the history.

    ``skills``: the newest result of each loaded skill, by name (``injected_skills``' sequences);
    ``pinned``: sequences of messages that nothing may remove or edit (the anchor's, say).
    """

    counter: TokenCounter
    plan: GoalTree = field(default_factory=GoalTree)
    skills: Mapping[str, int] = field(default_factory=dict[str, int])
    pinned: frozenset[int] = frozenset()
    language: str = "en"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """What a model is to summarise before the pass can go on.

    ``items``: the history that the summary will stand for, earlier summaries among it;
    ``instruction``: the text that asks for it; ``tokens``: of the items, which the summary must
    stay below; ``characters``: the most that are kept of its text (0: no limit).
    """

    strategy: str
    items: Items
    instruction: str
    tokens: int
    characters: int = 0


class Strategy(Protocol):
    """One way to make a history smaller. ``last_resort``: run only while the history is over
    the threshold, not to reach the low-water mark; ``always``: run at the end of every pass that
    edited something."""

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def last_resort(self) -> bool: ...
    @property
    def always(self) -> bool: ...

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step | SummaryRequest: ...


class Summarising(Strategy, Protocol):
    """A strategy that needs a model: :meth:`rebuild` goes on with its text."""

    def rebuild(self, items: Items, text: str, budget: Budget, facts: Facts) -> Step: ...


# Edits ---------------------------------------------------------------------------------------


def edits_between(
    before: Items, after: Items, *, strategy: str, level: int, why: str
) -> tuple[Edit, ...]:
    """What makes ``after`` of ``before``, at most one edit of each kind. Items that stayed are
    the same objects; a replaced one has the sequence of the one it replaces. The savings add up
    to the difference of the sizes."""
    stayed = {id(i) for i in before} & {id(i) for i in after}
    old = [i for i in before if id(i) not in stayed]
    new = [i for i in after if id(i) not in stayed]
    forms = {i.message.sequence: i for i in new if i.kind == "replaced"}
    replaced = [i for i in old if i.kind != "inserted" and i.message.sequence in forms]
    changed = {i.message.sequence for i in replaced}
    used = {id(form) for sequence, form in forms.items() if sequence in changed}
    removed = [i for i in old if i.kind == "inserted" or i.message.sequence not in changed]
    came = [i for i in new if id(i) not in used]
    saved_by_form = raw_size(replaced) - raw_size([i for i in new if id(i) in used])
    told: tuple[tuple[What, list[Item], int], ...] = (
        ("removed", removed, raw_size(removed)),
        ("replaced", replaced, saved_by_form),
        ("inserted", came, -raw_size(came)),
    )
    return tuple(
        Edit(
            strategy=strategy,
            level=level,
            what=what,
            sequences=sequences(items),
            why=why,
            tokens_saved=saved,
        )
        for what, items, saved in told
        if items
    )


# Messages ----------------------------------------------------------------------------------


def is_said(message: Message) -> bool:
    """Whether a user or an operator said it. No deterministic strategy drops such a message."""
    return message.role == "user" and message.source in ("user", "operator", "import")


def is_lasting(message: Message) -> bool:
    """Whether no deterministic strategy may take this message: what people said, summaries (all
    that is left of the messages they stand for), and system messages."""
    return message.source == "summary" or message.role == "system" or is_said(message)


def opening(items: Iterable[Item]) -> Item | None:
    """The first user message: what a person said first, or the brief that the framework opened
    the history with."""
    has_begun = False
    for item in items:
        message = item.message
        is_brief = message.role == "user" and message.source == "framework" and not has_begun
        if is_said(message) or (is_brief and item.kind == "whole"):
            return item
        has_begun = has_begun or message.role in ("assistant", "tool")
    return None


def edited(item: Item, parts: Iterable[Part], facts: Facts, *, strategy: str, why: str) -> Item:
    """``item`` with other parts. Its thinking goes whole, as a turn that was edited cannot be
    sent with it; so does what only the stored message needs (whole output, usage, times)."""
    message = replace(
        item.message,
        parts=tuple(p for p in parts if not isinstance(p, Reasoning)),
        full_output=None,
        usage=None,
        duration_ms=None,
        created_at="",
        metadata={},
    )
    message = replace(message, tokens=count_message(facts.counter, message))
    kind = "inserted" if item.kind == "inserted" else "replaced"
    return Item(message, kind, strategy, why)


def inserted(text: str, facts: Facts, *, strategy: str, why: str, **fields: Any) -> Item:
    """A text of the framework's own that is no stored message; ``fields`` of its message."""
    message = Message(role="user", parts=(Text(text),), source="framework", **fields)
    message = replace(message, tokens=count_message(facts.counter, message))
    return Item(message, "inserted", strategy, why)


def sequences(items: Iterable[Item]) -> tuple[int, ...]:
    """Of the stored messages among ``items``."""
    return tuple(i.message.sequence for i in items if i.kind != "inserted")


# What answers what ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Links:
    """``call[n]``: the call that item ``n`` answers, None for what answers none; ``caller[n]``:
    the place of the message that made it, or -1. ``open``: places of messages with a call that
    has no result. (Flat lists: a tuple for each of 100,000 results would keep the garbage
    collector busy.)"""

    call: Sequence[ToolCall | None]
    caller: Sequence[int]
    open: frozenset[int]

    def results(self) -> Callable[[int], list[int]]:
        """What gives the places of the results of the turn at a place, in order."""
        first, following = [-1] * len(self.caller), [-1] * len(self.caller)
        for place in range(len(self.caller) - 1, -1, -1):
            caller = self.caller[place]
            if caller >= 0:
                following[place], first[caller] = first[caller], place

        def of(caller: int) -> list[int]:
            found: list[int] = []
            place = first[caller]
            while place >= 0:
                found.append(place)
                place = following[place]
            return found

        return of


def link(items: Items) -> Links:
    """Which result answers which call, in one pass; :func:`cyberagent.trace.tree.pair` decides
    where ids repeat, results come late or twice, or answer nothing."""
    calls: list[ToolCall | None] = [None] * len(items)
    callers = [-1] * len(items)
    waiting: dict[str, tuple[int, ToolCall]] = {}
    for place, item in enumerate(items):
        message = item.message
        role = message.role
        if role == "tool":
            found = waiting.pop(message.tool_call_id, None)
            if found is None:
                return _link_any(items)
            callers[place], calls[place] = found
        elif role == "assistant":
            for part in message.parts:
                if type(part) is ToolCall:
                    if part.id in waiting:
                        return _link_any(items)
                    waiting[part.id] = (place, part)
    return Links(calls, callers, frozenset(place for place, _ in waiting.values()))


def _link_any(items: Items) -> Links:
    """The same for any history. A result that comes again, a placeholder whose real result came
    later, and one without an id belong to the call that they name or follow, and go with it."""
    messages = [i.message for i in items]
    found = pair(messages)
    calls: list[ToolCall | None] = [None] * len(items)
    callers = [-1] * len(items)
    for one in found.answered:
        call = messages[one.caller].tool_calls[one.call]
        for place in (one.result, one.answered_at):
            callers[place], calls[place] = one.caller, call
    named: dict[str, tuple[int, ToolCall]] = {}
    newest: tuple[int, ToolCall] | None = None
    for place, message in enumerate(messages):
        if message.role == "assistant":
            for call in message.tool_calls:
                newest = named[call.id] = (place, call)
        elif message.role == "tool" and calls[place] is None:
            made = named.get(message.tool_call_id) if message.tool_call_id else newest
            if made:
                callers[place], calls[place] = made
    return Links(calls, callers, frozenset(caller for caller, _ in found.unanswered))


def newest_turn(items: Items) -> int:
    """The place where the newest turn starts: the model's last message, its results and all
    after it. Nothing from there on is ever edited. The number of items where no model spoke."""
    framework = None
    for place in range(len(items) - 1, -1, -1):
        message = items[place].message
        if message.role == "assistant" and message.source != "summary":
            if message.source != "framework":
                return place
            framework = place if framework is None else framework
    return len(items) if framework is None else framework


def held(items: Items, links: Links, facts: Facts) -> set[int]:
    """Places that nothing may take or edit: turns with a call that waits for its result, and
    what is pinned; a turn and its results are held together."""
    turns = set(links.open)
    alone: set[int] = set()
    if facts.pinned:
        for place, item in enumerate(items):
            if item.kind != "inserted" and item.message.sequence in facts.pinned:
                caller = links.caller[place]
                alone.add(place)
                turns.add(caller if caller >= 0 else place)
    if not turns:
        return alone
    results = {n for n, caller in enumerate(links.caller) if caller in turns}
    return alone | turns | results
