"""Where a history may be cut. Source: docs/compaction.md, "Safe cuts"."""

from __future__ import annotations

from collections.abc import Sequence

from cyberagent.compaction.values import Links, link
from cyberagent.core.types import Message
from cyberagent.core.window import Item


def find_safe_cut_point(messages: Sequence[Message], desired_keep: int) -> int:
    """The place to cut at so that at least the last ``desired_keep`` messages are kept and no
    call is separated from its result.

    A cut on a tool message goes back to its assistant message; one right after a turn whose
    results are still missing goes before that turn.
    """
    items = tuple(Item(m) for m in messages)
    return safe_cut(items, link(items), len(items) - desired_keep)


def safe_cut(items: Sequence[Item], links: Links, wanted: int) -> int:
    """The nearest safe place at or before ``wanted``."""
    cut = min(max(wanted, 0), len(items))
    place = len(items) - 1
    while True:
        while place >= cut:
            if 0 <= links.caller[place] < cut:
                cut = links.caller[place]
            place -= 1
        before = _waiting_turn(items, links, cut)
        if before is None:
            return cut
        cut = before


def _waiting_turn(items: Sequence[Item], links: Links, cut: int) -> int | None:
    """The place of the turn right before ``cut``, with only results between, if a call of it
    waits for its result."""
    place = cut - 1
    while place >= 0 and items[place].message.role == "tool":
        place -= 1
    return place if place in links.open else None
