"""The engine in the plainest way: what a trace must look like after any operations.

Every message carries what holds right after it: the plan, what people have said, and whose text
may be shown there. Nothing is replayed, nothing is walked but parents.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from cyberagent.core.types import Json, Message, ToolCall, stored_json

MARK = re.compile(r"mark\d{5}x")
"""A word that stands in one drawn text and in nothing else."""

Plan = dict[str, str]
"""Goal → status; the goal in focus stands under the key ``focus``."""


def marks(message: Message) -> set[str]:
    """The marks of all that a model could be shown of a message."""
    return set(MARK.findall(stored_json(message.with_parts(message.parts).to_json()["parts"])))


def plan_after(plan: Plan, arguments: Json) -> Plan | None:
    """The plan after one goal call of one operation; None where it is wrong."""
    new = dict(plan)
    focus = new.get("focus", "")

    def is_open(goal: str) -> bool:
        return new.get(goal) in ("pending", "in_progress")

    def below(goal: str) -> list[str]:
        return [g for g in new if g.startswith(f"{goal}.")]

    def take_focus(goal: str) -> None:
        new["focus"] = goal
        while goal:
            if new[goal] == "pending":
                new[goal] = "in_progress"
            goal = goal.rpartition(".")[0]

    def leave_focus() -> None:
        if not focus or is_open(focus):
            return
        above = focus.rpartition(".")[0]
        while above and not is_open(above):
            above = above.rpartition(".")[0]
        new.pop("focus", None)
        if above:
            take_focus(above)

    if "add" in arguments:
        prefix = f"{focus}." if focus else ""
        level = [g for g in new if g != "focus" and g.rpartition(".")[0] == focus]
        new[f"{prefix}{len(level) + 1}"] = "pending"
    elif "done" in arguments:
        goal = arguments["done"]
        if not is_open(goal) or any(is_open(g) for g in below(goal)):
            return None
        new[goal] = "completed"
        leave_focus()
    elif "abandon" in arguments:
        goal = arguments["abandon"]
        if not is_open(goal):
            return None
        new |= {g: "abandoned" for g in [goal, *below(goal)] if is_open(g)}
        leave_focus()
    elif "focus" in arguments:
        if not is_open(arguments["focus"]):
            return None
        take_focus(arguments["focus"])
    return new


@dataclass
class After:
    """What holds right after one message of a main path."""

    plan: Plan = field(default_factory=dict)
    said: tuple[tuple[int, str], ...] = ()
    shown: frozenset[int] = frozenset()
    calls: tuple[ToolCall, ...] = ()
    """Calls that wait for their result here."""


@dataclass
class NaiveEngine:
    """``stored``: the messages as they were when they were first seen, as JSON."""

    stored: dict[int, Json] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    after: dict[int, After] = field(default_factory=dict)
    branch_ends: dict[str, int] = field(default_factory=dict)
    owners: dict[str, set[int]] = field(default_factory=dict)
    sides: set[int] = field(default_factory=set)
    head: int = 0

    def path(self, head: int | None = None) -> list[int]:
        at = self.head if head is None else head
        found: list[int] = []
        while at:
            found.append(at)
            at = self.parents[at]
        return found[::-1]

    def add(self, message: Message) -> None:
        """Take in the next stored message; fails where it does not stand where it must."""
        n = message.sequence
        assert n == len(self.stored) + 1, "sequences have no gap"
        self.stored[n] = message.to_json()
        for mark in marks(message):
            self.owners.setdefault(mark, set()).add(n)
        if message.branch_id:
            parent = self.branch_ends.get(message.branch_id, self.head)
            self.branch_ends[message.branch_id] = n
            self.sides.add(n)
        elif message.source == "summary":
            parent = self.path()[0]
        else:
            parent = self.head
        assert (message.parent_sequence or 0) == parent, "a message stands below its parent"
        self.parents[n] = parent
        assert message.depth == len(self.path(n))
        if not message.branch_id:
            self.after[n] = self._after(message)
            self.head = n

    def _after(self, message: Message) -> After:
        n, before = message.sequence, self.after.get(self.head, After())
        now = After(before.plan, before.said, before.shown | {n}, before.calls)
        if message.role == "user" and message.source in ("user", "operator"):
            now.said = (*before.said, (n, message.text))
        if message.role == "assistant":
            assert not before.calls, "a batch is answered before the model speaks again"
            now.calls = message.tool_calls
        if message.role == "tool":
            [call] = [c for c in before.calls if c.id == message.tool_call_id]
            now.calls = tuple(c for c in before.calls if c is not call)
            if call.name == "goal" and not message.is_placeholder:
                now.plan = self._planned(before.plan, call, message)
        elif message.role == "user":
            assert not before.calls or message.source == "framework"
        return now

    @staticmethod
    def _planned(plan: Plan, call: ToolCall, result: Message) -> Plan:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            assert result.is_error
            return plan
        new = plan_after(plan, arguments)
        assert result.is_error == (new is None), (call.arguments, result.text)
        return plan if new is None else new

    def safe_point(self, to: int) -> int:
        """The nearest message at or before ``to`` at which nothing waits for a result."""
        while to and self.after[to].calls:
            to = self.parents[to]
        return to

    def may_show(self, mark: str, at: int) -> bool:
        """Whether text with this mark belongs to what lies behind message ``at``."""
        shown = self.after[at].shown if at else frozenset()
        return bool(self.owners.get(mark, set()) & shown)
