"""What a whole tree of traces has used: one account, shared by all runs of the tree.

Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from cyberagent.core.config import Limits
from cyberagent.core.errors import LimitReached
from cyberagent.core.ports import TreeTrace
from cyberagent.core.types import Message


@dataclass(slots=True)
class TreeBudget:
    """``steps``: model answers on main paths; ``cost``: US dollars, as far as prices are known,
    side branches included. ``growing`` is held while a trace is added, so that two that are
    added at once are both counted."""

    steps: int = 0
    cost: float = 0.0
    growing: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)

    @classmethod
    def of(cls, traces: Iterable[TreeTrace]) -> TreeBudget:
        found = list(traces)
        return cls(sum(t.steps for t in found), sum(t.cost or 0.0 for t in found))

    def take(self, messages: Iterable[Message]) -> None:
        """Count messages that were stored just now, on whatever path."""
        for message in messages:
            if message.source == "model":
                self.steps += not message.branch_id
                self.cost += message.metadata.get("cost") or 0.0

    def check(self, limits: Limits) -> None:
        """Raises LimitReached where the tree has used all that it may."""
        if limits.max_cost and self.cost >= limits.max_cost:
            raise LimitReached(
                f"the run has cost ${self.cost:.4f}, sub-agents included; its limit is "
                f"${limits.max_cost:g}"
            )
        if limits.max_tree_steps and self.steps >= limits.max_tree_steps:
            raise LimitReached(
                f"the run and its sub-agents have made {self.steps} model calls; "
                f"the limit is {limits.max_tree_steps}"
            )
