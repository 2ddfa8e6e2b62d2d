"""Pruning: old tool output becomes a placeholder. Source: docs/compaction.md, "Prune"."""

from __future__ import annotations

from dataclasses import dataclass

from cyberagent.compaction.values import (
    Facts,
    Items,
    Links,
    Step,
    edited,
    edits_between,
    held,
    is_said,
    link,
    newest_turn,
)
from cyberagent.core.guards import Budget
from cyberagent.core.types import Text
from cyberagent.core.window import Item
from cyberagent.core.wording import label


@dataclass(frozen=True, slots=True)
class Prune:
    """The strategy ``prune``, from the newest message back: nothing of the last ``keep_turns``
    users' turns; beyond, the newest ``protect_tokens`` of tool output stay, and all output of
    ``protected_tools``; the rest goes, if that is more than ``minimum_tokens``."""

    name: str = "prune"
    level: int = 1
    last_resort: bool = False
    always: bool = False
    keep_turns: int = 2
    protect_tokens: int = 40_000
    minimum_tokens: int = 20_000
    protected_tools: tuple[str, ...] = ("skill",)

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step:
        links = link(items)
        places = self._prunable(items, links, held(items, links, facts))
        new = {place: self._placeholder(items[place], facts) for place in places}
        new = {p: i for p, i in new.items() if i.message.tokens < items[p].message.tokens}
        saved = sum(items[p].message.tokens - i.message.tokens for p, i in new.items())
        if saved <= self.minimum_tokens:
            return Step(items)
        after = tuple(new.get(place, item) for place, item in enumerate(items))
        why = f"tool output beyond the newest {self.protect_tokens:,} tokens"
        return Step(
            after, edits_between(items, after, strategy=self.name, level=self.level, why=why)
        )

    def _prunable(self, items: Items, links: Links, fixed: set[int]) -> list[int]:
        found: list[int] = []
        turns = seen = 0
        newest = newest_turn(items)
        for place in range(len(items) - 1, -1, -1):
            item = items[place]
            turns += is_said(item.message)
            if turns < self.keep_turns or item.message.role != "tool" or self._is_past(item):
                continue
            call = links.call[place]
            name = call.name if call else item.message.name
            if name in self.protected_tools or item.message.is_error or place >= newest:
                continue
            seen += item.message.tokens
            if seen > self.protect_tokens and place not in fixed:
                found.append(place)
        return found

    def _is_past(self, item: Item) -> bool:
        return item.strategy == self.name or item.message.is_placeholder

    def _placeholder(self, item: Item, facts: Facts) -> Item:
        text = label(facts.language, "prune_placeholder")
        return edited(item, (Text(text),), facts, strategy=self.name, why="old tool output")
