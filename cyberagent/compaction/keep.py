"""What a compaction puts back at full fidelity, from its own source and never from a summary:
what people said, loaded skills, pinned messages; and the floor that these make.

Source: docs/compaction.md, "What comes back".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from cyberagent.compaction.values import (
    Facts,
    Items,
    Links,
    edited,
    inserted,
    is_lasting,
    is_said,
    link,
    opening,
)
from cyberagent.core.guards import Budget
from cyberagent.core.tokens import MESSAGE_OVERHEAD
from cyberagent.core.types import Json, Message, Text, ToolCall, clean_text
from cyberagent.core.window import BrokenManifest, Item
from cyberagent.core.wording import label

USER_MESSAGES_BUDGET = 20_000
"""Tokens of users' and operators' messages that come back word for word."""

EXCERPT_CHARS = 400
SHORTEST_EXCERPT_CHARS = 80
ALL_EXCERPTS_CHARS = 40_000
"""Where very many are excerpted, each gets less, so that their sum stays near this."""


# What people said ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a person said in message ``sequence``: as its own item, or as a quotation only
    (``item`` None), which is either the ``whole`` text or an excerpt."""

    sequence: int
    text: str
    whole: bool = True
    item: Item | None = None


def said_in(items: Iterable[Item]) -> list[Said]:
    """All that people said, in order; quotations that an earlier pass made among it."""
    found: list[Said] = []
    for item in items:
        message = item.message
        if is_said(message):
            found.append(Said(sequence=message.sequence, text=message.text, item=item))
        elif item.kind == "inserted":
            quoted = cast("list[tuple[int, bool, str]]", message.metadata.get("said", ()))
            found += [Said(sequence=n, whole=whole, text=text) for n, whole, text in quoted]
    return found


def said_json(said: Iterable[Said]) -> list[Json]:
    """The quotations as an item's metadata, so that the next pass finds them."""
    return [[s.sequence, s.whole, s.text] for s in said]


def said_text(said: Iterable[Said], language: str) -> str:
    """Quotations as a model reads them: each line marked, with the message's sequence."""
    lines = [label(language, "said_head")]
    for one in said:
        key = "said_whole" if one.whole else "said_excerpt"
        lines.append(label(language, key).format(sequence=one.sequence))
        lines.append(quote(one.text))
    return "\n".join(lines)


def quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in clean_text(text).split("\n"))


@dataclass(frozen=True, slots=True)
class KeptUsers:
    """``first``: the message that opened the history; ``quoted``: an inserted item with what is
    only quoted, or None; ``whole``: the others word for word, as their own items."""

    first: Item | None
    quoted: Item | None
    whole: Items


def kept_users(items: Items, facts: Facts, budget: int = USER_MESSAGES_BUDGET) -> KeptUsers:
    """What comes back of what people said: the first message whole; of the others the newest
    word for word, up to ``budget`` tokens; those before as excerpts with their sequences. Pinned
    ones are always whole."""
    first = opening(items)
    said = said_in(items)
    rest = [s for s in said if s.item is not first or first is None]
    kept = _within(rest, facts, budget, always=said[0] if said else None)
    quoted = [s for s in kept if s.item is None]
    block = None
    if quoted:
        block = inserted(
            said_text(quoted, facts.language),
            facts,
            strategy="users",
            why=f"what people said before, up to {budget:,} tokens word for word",
            metadata={"said": said_json(quoted)},
        )
    return KeptUsers(first, block, tuple(s.item for s in kept if s.item is not None))


def _within(said: Sequence[Said], facts: Facts, budget: int, *, always: Said | None) -> list[Said]:
    """``said`` with its older part excerpted."""
    left, is_full = budget, False
    kept: list[Said] = []
    chars = max(SHORTEST_EXCERPT_CHARS, min(EXCERPT_CHARS, ALL_EXCERPTS_CHARS // (len(said) or 1)))
    for one in reversed(said):
        if one is always or one.sequence in facts.pinned:
            kept.append(one)
            continue
        if not is_full and one.whole:
            tokens = one.item.message.tokens if one.item else _tokens(one.text, facts)
            if tokens <= left:
                left -= tokens
                kept.append(one)
                continue
        # The first that does not fit is cut to what is left: a character is a token at most.
        kept.append(_excerpted(one, chars if is_full else max(chars, left)))
        is_full = True
    return kept[::-1]


def _tokens(text: str, facts: Facts) -> int:
    return facts.counter.count(text) + MESSAGE_OVERHEAD


def _excerpted(one: Said, chars: int) -> Said:
    """An excerpt of the head and the tail; a text that is short enough is quoted whole."""
    if not one.whole:
        return one
    others = sum(not isinstance(p, Text) for p in one.item.message.parts) if one.item else 0
    more = f" [+{others}]" if others else ""
    if len(one.text) <= chars:
        return replace(one, text=one.text + more, whole=not others, item=None)
    head = chars * 2 // 3
    text = f"{one.text[:head]} […] {one.text[len(one.text) - (chars - head) :]}{more}"
    return replace(one, text=text, whole=False, item=None)


# Turns that come back --------------------------------------------------------------------------


def kept_turns(items: Items, links: Links, wanted: Iterable[int], facts: Facts) -> list[Item]:
    """The items at the ``wanted`` places and what they cannot do without: a result brings its
    turn, with no other calls than those wanted; a turn brings its results."""
    alone: set[int] = set()
    asked: set[int] = set()
    for place in wanted:
        call = links.call[place]
        if call:
            asked.add(id(call))
        else:
            alone.add(place)
    results: dict[int, list[int]] = {}
    if asked or alone:
        for place, caller in enumerate(links.caller):
            if caller in alone or _answers(items[place], links.call[place], asked):
                results.setdefault(caller, []).append(place)
    out: list[Item] = []
    for place in sorted(alone | results.keys()):
        answers = results.get(place, [])
        turn = items[place]
        if place not in alone:
            turn = _only_calls(turn, [links.call[r] for r in answers], facts)
        out += [turn, *(items[r] for r in answers)]
    return out


def _answers(item: Item, call: ToolCall | None, asked: set[int]) -> bool:
    """Whether the item answers one of the calls ``asked`` for by its id, and not by its place
    alone, which a turn with fewer calls would not tell."""
    return call is not None and id(call) in asked and item.message.tool_call_id == call.id


def _only_calls(turn: Item, answered: Sequence[ToolCall | None], facts: Facts) -> Item:
    wanted = {id(call) for call in answered}
    calls = [p for p in turn.message.parts if id(p) in wanted]
    if len(calls) == len(turn.message.parts):
        return turn
    why = "the call of a result that comes back"
    return edited(turn, calls, facts, strategy="keep", why=why)


def skill_places(items: Items, facts: Facts) -> list[int]:
    """Places of the loaded skills' results that stand in the history unedited, newest first."""
    wanted = set(facts.skills.values())
    if not wanted:
        return []
    found = [
        n
        for n, i in enumerate(items)
        if i.kind == "whole" and i.message.role == "tool" and i.message.sequence in wanted
    ]
    return found[::-1]


def pinned_places(items: Items, links: Links, facts: Facts) -> list[int]:
    """Places of pinned messages that are no person's words; for a result that of its turn, which
    comes back with its whole batch."""
    if not facts.pinned:
        return []
    first = opening(items)
    found: list[int] = []
    for place, item in enumerate(items):
        is_pinned = item.kind != "inserted" and item.message.sequence in facts.pinned
        if is_pinned and item is not first and not is_lasting(item.message):
            caller = links.caller[place]
            found.append(caller if caller >= 0 else place)
    return found


def system_items(items: Items) -> tuple[Items, Items]:
    """The system messages: those that the history begins with, and those in its midst. Rules are
    never summarised."""
    head = 0
    while head < len(items) and items[head].message.role == "system":
        head += 1
    midst = tuple(i for i in items[head:] if i.message.role == "system")
    return items[:head], midst


# The history after a summary -------------------------------------------------------------------


def rebuilt_history(
    items: Items,
    summary: Item,
    facts: Facts,
    budget: Budget,
    *,
    user_messages_budget: int = USER_MESSAGES_BUDGET,
    tail: Sequence[Item] = (),
) -> Items:
    """First user message, summary, what people said, system messages, pinned ones, loaded skills,
    ``tail``; system messages that opened the history open it again.

    Skills come back newest first for as long as the whole stays within ``budget.target``; the
    others are loaded again at the next tool stage.
    """
    users = kept_users(items, facts, user_messages_budget)
    links = link(items)
    head, midst = system_items(items)
    out = [*head, *([users.first] if users.first else []), summary]
    if users.quoted:
        out.append(users.quoted)
    if users.whole:
        out += [_below(users.whole, facts), *users.whole]
    out += midst
    wanted = set(pinned_places(items, links, facts))
    turns = kept_turns(items, links, wanted, facts)
    for place in skill_places(items, facts):
        more = kept_turns(items, links, wanted | {place}, facts)
        if budget.size((*out, *more, *tail)) <= budget.target:
            wanted.add(place)
            turns = more
    return (*out, *turns, *tail)


def _below(whole: Items, facts: Facts) -> Item:
    numbers = ", ".join(str(i.message.sequence) for i in whole)
    text = label(facts.language, "said_below").format(sequences=numbers)
    return inserted(text, facts, strategy="users", why="says whose words follow")


# Kept items, stored with the summary -------------------------------------------------------------


def kept_json(items: Iterable[Item]) -> list[Json]:
    """The items around a summary, as its ``metadata["kept"]``: a run that goes on in another
    process has the same history. ``null`` stands for the summary itself."""
    out: list[Json] = []
    for item in items:
        if item.message.source == "summary":
            out.append(None)
        elif item.kind == "whole":
            out.append([item.message.sequence])
        else:
            out.append([item.kind, item.strategy, item.why, item.message.to_json()])
    return out


def kept_sequences(summary: Message) -> list[int]:
    """Sequences of the stored messages that :func:`kept_items` needs."""
    return [entry[0] for entry in _kept(summary) if entry is not None and len(entry) == 1]


def kept_items(summary: Message, messages: Mapping[int, Message]) -> Items:
    """The history that a stored summary began, from what is stored with it and ``messages``.
    Raises BrokenManifest where a message is missing."""
    out: list[Item] = []
    for entry in _kept(summary):
        if entry is None:
            out.append(Item(summary))
        elif len(entry) == 1:
            if entry[0] not in messages:
                raise BrokenManifest(f"message {entry[0]}, kept by a summary, is not stored")
            out.append(Item(messages[entry[0]]))
        else:
            kind, strategy, why, message = entry
            out.append(Item(Message.from_json(message), kind, strategy, why))
    return tuple(out)


def _kept(summary: Message) -> list[list[Json] | None]:
    return cast("list[list[Json] | None]", summary.metadata.get("kept", []))


# Floor ---------------------------------------------------------------------------------------


def floor(
    items: Items,
    budget: Budget,
    facts: Facts,
    *,
    user_messages_budget: int = USER_MESSAGES_BUDGET,
) -> int:
    """Tokens that no strategy can remove: system prompt, schemas, system messages, what people
    said as far as it comes back, and what is pinned (the anchor)."""
    users = kept_users(items, facts, user_messages_budget)
    head, midst = system_items(items)
    kept = [i for i in (users.first, users.quoted, *users.whole, *head, *midst) if i]
    links = link(items)
    kept += kept_turns(items, links, pinned_places(items, links, facts), facts)
    return budget.size(tuple(kept))
