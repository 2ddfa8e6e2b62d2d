"""The layers without a model: snip, micro (and aggressive micro), identity.

Source: docs/compaction.md, "Layered".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cyberagent.compaction.cut import safe_cut
from cyberagent.compaction.keep import said_in, said_json, said_text
from cyberagent.compaction.values import (
    Facts,
    Items,
    Links,
    Step,
    edited,
    edits_between,
    held,
    inserted,
    is_lasting,
    is_said,
    link,
    newest_turn,
)
from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.types import Text
from cyberagent.core.window import Item
from cyberagent.core.wording import label


@dataclass(frozen=True, slots=True)
class Snip:
    """The strategy ``snip``: of more than ``max_messages``, the first ``head`` and the last
    ``max_messages - head - 1`` stay, with a placeholder between that quotes what people said in
    the part cut out. Both cuts are safe ones, so a little more may stay."""

    name: str = "snip"
    level: int = 0
    last_resort: bool = False
    always: bool = False
    max_messages: int = 50
    head: int = 3

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step:
        if len(items) <= self.max_messages:
            return Step(items)
        links = link(items)
        tail_size = max(1, self.max_messages - self.head - 1)
        start = safe_cut(items, links, self.head)
        end = max(start, safe_cut(items, links, min(len(items) - tail_size, newest_turn(items))))
        middle = range(start, end)
        kept = self._kept(items, links, facts, middle)
        cut = [items[n] for n in middle if n not in kept]
        if all(i.strategy == self.name for i in cut):
            return Step(items)
        place = self._placeholder(cut, facts)
        after = (*items[:start], place, *(items[n] for n in sorted(kept)), *items[end:])
        if raw_size(after) >= raw_size(items):
            return Step(items)
        why = f"{len(items)} messages, over {self.max_messages}"
        edits = edits_between(items, after, strategy=self.name, level=self.level, why=why)
        return Step(after, edits)

    def _kept(self, items: Items, links: Links, facts: Facts, middle: range) -> set[int]:
        """Places of the middle part that stay: what a quotation could not hold."""
        kept = {n for n in held(items, links, facts) if n in middle}
        for n in middle:
            message = items[n].message
            is_text = all(isinstance(p, Text) for p in message.parts)
            if is_lasting(message) and not (is_said(message) and is_text):
                kept.add(n)
        return kept

    def _placeholder(self, cut: Sequence[Item], facts: Facts) -> Item:
        before = [i for i in cut if i.strategy == self.name and i.kind == "inserted"]
        count = len(cut) - len(before) + sum(i.message.metadata.get("cut", 0) for i in before)
        quotes = [replace(s, item=None) for s in said_in(cut)]
        text = label(facts.language, "snip_placeholder").format(count=count)
        if quotes:
            text += "\n" + said_text(quotes, facts.language)
        metadata = {"cut": count, "said": said_json(quotes)}
        why = f"{count} messages cut out"
        return inserted(text, facts, strategy=self.name, why=why, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Micro:
    """The strategies ``micro`` and ``aggressive``: tool results but the newest ``keep_recent``
    become ``[Previous: used NAME]``."""

    name: str = "micro"
    level: int = 1
    last_resort: bool = False
    always: bool = False
    keep_recent: int = 8

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step:
        links = link(items)
        fixed = held(items, links, facts)
        results = [n for n, i in enumerate(items) if i.message.role == "tool"]
        old = results[: max(0, len(results) - self.keep_recent)]
        newest = newest_turn(items)
        new: dict[int, Item] = {}
        for place in old:
            item, call = items[place], links.call[place]
            if place >= newest or place in fixed or item.message.is_placeholder:
                continue
            name = (call.name if call else item.message.name) or "a tool"
            text = label(facts.language, "micro_placeholder").format(name=name)
            why = f"older than the newest {self.keep_recent} results"
            placeholder = edited(item, (Text(text),), facts, strategy=self.name, why=why)
            if placeholder.message.tokens < item.message.tokens:
                new[place] = placeholder
        after = tuple(new.get(n, item) for n, item in enumerate(items)) if new else items
        why = f"keep_recent={self.keep_recent}"
        edits = edits_between(items, after, strategy=self.name, level=self.level, why=why)
        return Step(after, edits)


@dataclass(frozen=True, slots=True)
class Identity:
    """The strategy ``identity``: a pass that leaves at most ``at_most`` messages says again who
    the agent is and what its task is, once."""

    name: str = "identity"
    level: int = 4
    last_resort: bool = True
    always: bool = True
    at_most: int = 4

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step:
        if not items or len(items) > self.at_most or any(i.strategy == self.name for i in items):
            return Step(items)
        mission = " ".join(facts.plan.mission.split())[:MISSION_CHARS]
        text = label(facts.language, "identity_block").format(mission=mission)
        why = f"at most {self.at_most} messages are left"
        block = inserted(text, facts, strategy=self.name, why=why)
        place = 1 if items[0].message.role == "user" else 0
        after = (*items[:place], block, *items[place:])
        return Step(
            after, edits_between(items, after, strategy=self.name, level=self.level, why=why)
        )


MISSION_CHARS = 300
"""Characters of the mission in an identity block; the whole stands in the first message."""
