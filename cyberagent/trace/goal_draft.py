"""A plan being changed: the rules of the goal tool. Source: docs/goals.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cyberagent.core.errors import InvalidGoalOperation
from cyberagent.trace.goal_values import (
    LONGEST_ID,
    Change,
    Goal,
    GoalOperation,
    UnknownGoal,
    as_id,
    descriptions,
    given,
    one_line,
    paragraphs,
)


class Draft:
    """A plan being changed: a working copy, thrown away when an operation fails."""

    def __init__(
        self, by_id: Mapping[str, Goal], roots: Sequence[str], current: str | None
    ) -> None:
        self.by_id = dict(by_id)
        self.roots = list(roots)
        self.current = current
        self.changes: list[Change] = []

    def run(self, op: GoalOperation) -> None:
        if not any(given(v) for v in (op.done, op.abandon, op.add, op.focus)):
            raise InvalidGoalOperation("nothing was asked for: give add, focus, done or abandon")
        done, abandon = op.done or "", op.abandon or ""
        if done and abandon and as_id(done) is None and as_id(abandon) is None:
            raise InvalidGoalOperation("done and abandon in one call need the ids of their goals")
        if done:
            self.complete(*self._closing("done", done, op.summary))
        if abandon:
            why = op.reason if done else op.summary or (op.reason if not op.add else None)
            self.abandon(*self._closing("abandon", abandon, why))
        if op.add is not None and given(op.add):
            self.add(descriptions(op.add), op.reason, under=op.under, after=op.after)
        elif given(op.under) or given(op.after):
            raise InvalidGoalOperation("under and after say where to add; there is nothing to add")
        if op.focus is not None and given(op.focus):
            self.focus(self.known(op.focus))

    # Finding

    def known(self, value: str) -> Goal:
        """The goal that ``value`` names. Raises UnknownGoal."""
        goal_id = as_id(value)
        if goal_id is None or goal_id not in self.by_id:
            raise UnknownGoal(one_line(value)[:80] or repr(value))
        return self.by_id[goal_id]

    def _open(self, goal: Goal, wanted: str) -> Goal:
        if goal.status == wanted:
            raise InvalidGoalOperation(f"goal {goal.id} is {wanted} already")
        if not goal.is_open:
            raise InvalidGoalOperation(f"goal {goal.id} is {goal.status}: it cannot be {wanted}")
        return goal

    def _closing(self, name: str, value: str, text: str | None) -> tuple[Goal, str]:
        """The goal that ``done`` or ``abandon`` means, and the summary."""
        if as_id(value) is not None:
            return self.known(value), paragraphs(text)
        if not (own := paragraphs(value)):
            raise InvalidGoalOperation(f"{name} is empty")
        if self.current is None:
            raise InvalidGoalOperation(
                f"no goal is in focus: give the id of the goal in {name} and its text in summary"
            )
        more = paragraphs(text)
        return self.by_id[self.current], f"{own}: {more}" if more and more != own else own

    # Changing

    def set(self, goal: Goal, **changes: Any) -> Goal:
        self.by_id[goal.id] = replace(goal, **changes)
        return self.by_id[goal.id]

    def complete(self, goal: Goal, summary: str) -> None:
        self._open(goal, "completed")
        left = [c for c in goal.children if self.by_id[c].is_open]
        if left:
            names = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if left[10:] else "")
            raise InvalidGoalOperation(f"goal {goal.id} has open children: {names}")
        self.set(goal, status="completed", summary=summary)
        self.changes.append(Change("completed", goal.id))
        self._leave(goal)

    def abandon(self, goal: Goal, why: str) -> None:
        """Abandon a goal, and with it whatever is open below it."""
        self._open(goal, "abandoned")
        waiting = [goal.id]
        while waiting:
            one = self.by_id[waiting.pop()]
            waiting.extend(reversed(one.children))
            if one.is_open:
                self.set(one, status="abandoned", summary=why if one.id == goal.id else "")
                self.changes.append(Change("abandoned", one.id))
        self._leave(goal)

    def _leave(self, closed: Goal) -> None:
        """Where the focus was closed, move it to the nearest open goal above, if any."""
        if self.current is None or self.by_id[self.current].is_open:
            return
        above = closed.parent
        while above and not self.by_id[above].is_open:
            above = self.by_id[above].parent
        self.current = None
        if above:
            self.focus(self.by_id[above])

    def focus(self, goal: Goal) -> None:
        """Focus a goal; it and the goals above it are now in progress."""
        self._open(goal, "opened again" if goal.status == "completed" else "in focus")
        self.current = goal.id
        one: Goal | None = goal
        while one is not None and one.is_open:
            if one.status == "pending":
                self.set(one, status="in_progress")
            one = self.by_id.get(one.parent)

    def add(
        self, texts: Sequence[str], reason: str | None, *, under: str | None, after: str | None
    ) -> None:
        sibling = self.known(after) if after else None
        if under:
            parent = self.known(under).id
        else:
            parent = sibling.parent if sibling else self.current or ""
        if sibling and sibling.parent != parent:
            raise InvalidGoalOperation(f"goal {sibling.id} does not stand under goal {parent}")
        if parent:
            self._open(self.by_id[parent], "given children")
        naming = self.names(parent, sibling)
        why = paragraphs(reason)
        ids = [self.create(naming(), text, reason=why) for text in texts]
        siblings = list(self.siblings(parent))
        place = siblings.index(sibling.id) + 1 if sibling else len(siblings)
        siblings[place:place] = ids
        self.arrange(parent, siblings)

    def create(self, goal_id: str, text: str, **more: Any) -> str:
        """Make a goal that stands nowhere yet; see :meth:`arrange`."""
        if len(goal_id) > LONGEST_ID:
            raise InvalidGoalOperation(f"goals cannot be nested deeper than {goal_id[:20]}…")
        self.by_id[goal_id] = Goal(id=goal_id, description=text, **more)
        self.changes.append(Change("added", goal_id, text))
        return goal_id

    def siblings(self, parent: str) -> Sequence[str]:
        return self.by_id[parent].children if parent else self.roots

    def arrange(self, parent: str, ids: Sequence[str]) -> None:
        if parent:
            self.set(self.by_id[parent], children=tuple(ids))
        else:
            self.roots = list(ids)

    def names(self, parent: str, replaced: Goal | None = None) -> Callable[[], str]:
        """What gives the next ids under ``parent``, one a call: the first replaces ``replaced``
        if that is abandoned ("2'", then "2''"); all others take the next number."""
        prefix = f"{parent}." if parent else ""
        number = len(self.siblings(parent))
        while number and f"{prefix}{number}" not in self.by_id:
            number -= 1  # as many steps as there are goals with a mark among them
        first = ""
        if replaced and replaced.status == "abandoned":
            first = replaced.id.rstrip("'") + "'"
            while first in self.by_id:
                first += "'"

        def following() -> str:
            nonlocal number, first
            if first:
                name, first = first, ""
                return name
            number += 1
            return f"{prefix}{number}"

        return following
