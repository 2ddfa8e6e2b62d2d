"""A tree of messages in the plainest way: what the rows are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cyberagent.core.types import Message


@dataclass
class Naive:
    """Messages by sequence; paths are walked parent by parent."""

    messages: dict[int, Message] = field(default_factory=dict)
    head: int = 0

    def add(self, *messages: Message, moves: bool = True) -> None:
        for message in messages:
            self.messages[message.sequence] = message
        if moves and messages:
            self.head = messages[-1].sequence

    def path(self, head: int | None = None) -> list[Message]:
        at = self.head if head is None else head
        found: list[Message] = []
        while at:
            found.append(self.messages[at])
            at = self.messages[at].parent_sequence or 0
        return found[::-1]

    def goal_totals(self, rows: Mapping[int, int]) -> dict[str, tuple[int, int, int, int]]:
        """Goal → (rows, steps, tokens, ms) of the main path; ``rows``: those of each message,
        as the test counts them."""
        found: dict[str, tuple[int, int, int, int]] = {}
        for m in self.path():
            shown, steps, tokens, ms = found.get(m.goal_id, (0, 0, 0, 0))
            found[m.goal_id] = (
                shown + rows[m.sequence],
                steps + (m.role == "assistant" and m.source == "model"),
                tokens + m.tokens,
                ms + (m.duration_ms or 0),
            )
        return found
