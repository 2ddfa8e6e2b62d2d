"""A lane: a chain of messages on which a model is asked — a side branch, or the main path where
it begins anew at a summary. Source: docs/running.md, "Side branches"."""

from __future__ import annotations

from dataclasses import dataclass, field

from cyberagent.core.types import BranchType, Message
from cyberagent.core.window import Item


@dataclass(slots=True, kw_only=True)
class Lane:
    """``items`` is what the next call on it is made from; ``head`` the sequence of its newest
    message (at first: of the message it leaves from; 0: it begins a root). ``allowed``: tools
    that run here, although all are in the window; ``final``: answer now, without tools."""

    head: int
    items: list[Item] = field(default_factory=list[Item])
    branch_type: BranchType = ""
    branch_id: str = ""
    answers: int = 0
    allowed: frozenset[str] = frozenset()
    final: bool = False

    @property
    def is_side(self) -> bool:
        return bool(self.branch_id)

    def take(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self.items.append(Item(message))
            self.head = message.sequence
            self.answers += message.source == "model"
