"""A trace as if nothing had ever been compacted, and its plan at each point of it.

A trace without goals gets some: from its todo lists, else from the turns of its users.
Source: docs/lab.md, "The whole trace" and "Goals where there are none".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cyberagent.compaction.values import is_said
from cyberagent.core.types import Message
from cyberagent.trace.goal_values import one_line
from cyberagent.trace.goals import TODO_TOOLS, Goal, GoalTree, replay
from cyberagent.trace.tree import pair, path_of, stood_for

Segmented: TypeAlias = Literal["goals", "todos", "user turns"]

SUMMARY_CHARS = 500
"""Characters of the last answer that stand as the summary of a goal that has none of its own."""

DESCRIPTION_CHARS = 120


def whole_path(messages: Mapping[int, Message], head: int) -> list[Message]:
    """The main path with the originals in place of the summaries that stand for them. A summary
    whose originals are not stored (the session began with it) stays. Raises as
    :func:`~cyberagent.trace.tree.path_of`."""
    out: list[Message] = []
    done: set[int] = set()
    waiting = path_of(messages, head)[::-1]
    while waiting:
        message = waiting.pop()
        if message.sequence in done:
            continue
        done.add(message.sequence)
        originals = stood_for(messages, message) if message.source == "summary" else []
        if originals:
            waiting += [messages[n] for n in reversed(originals)]
        else:
            out.append(message)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """``plan_of(place)``: the plan before the message at ``place``; ``by``: what the goals come
    from. ``messages`` carry the goals' ids."""

    messages: tuple[Message, ...]
    plan_of: Callable[[int], GoalTree]
    by: Segmented


def segmented(messages: Sequence[Message], mission: str = "") -> Segments:
    """The trace with goals: its own, else its todos, else a goal for each turn of a user."""
    plans = _Plans.along(messages, mission)
    own = plans.newest
    if len(own) and any(m.goal_id in own for m in messages):
        if plans.has_goals:
            return Segments(messages=tuple(messages), plan_of=plans.at, by="goals")
        told = _Told.by(messages, own)
        return Segments(
            messages=tuple(messages), plan_of=lambda n: told.summed(plans.at(n), n), by="todos"
        )
    return _by_turns(messages, mission)


# The plan along a path -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plans:
    """``trees[n]``: the plan from right after place ``places[n]`` on."""

    start: GoalTree
    places: list[int]
    trees: list[GoalTree]
    has_goals: bool

    @classmethod
    def along(cls, messages: Sequence[Message], mission: str) -> _Plans:
        tree = start = GoalTree(mission=mission)
        places: list[int] = []
        trees: list[GoalTree] = []
        has_goals = False
        changes: list[tuple[int, Sequence[Message], bool]] = [
            (n, (m,), False) for n, m in enumerate(messages) if "snapshot" in m.metadata
        ]
        for one in pair(messages).answered:
            caller = messages[one.caller]
            call = caller.tool_calls[one.call]
            if call.name == "goal" or call.name in TODO_TOOLS:
                alone = (caller.with_parts((call,)), messages[one.result])
                changes.append((one.result, alone, call.name == "goal"))
        for place, what, is_goal in sorted(changes, key=lambda change: change[0]):
            after = replay(what, mission, start=tree)
            if after is not tree:
                tree = after
                places.append(place)
                trees.append(tree)
                has_goals = has_goals or is_goal or len(what) == 1
        return cls(start, places, trees, has_goals)

    @property
    def newest(self) -> GoalTree:
        return self.trees[-1] if self.trees else self.start

    def at(self, place: int) -> GoalTree:
        found = bisect_left(self.places, place)
        return self.trees[found - 1] if found else self.start


@dataclass(frozen=True, slots=True)
class _Told:
    """What the model said last at each goal: places and texts, by goal."""

    places: dict[str, list[int]]
    texts: dict[str, list[str]]

    @classmethod
    def by(cls, messages: Sequence[Message], plan: GoalTree) -> _Told:
        told = cls({}, {})
        for place, message in enumerate(messages):
            if message.goal_id in plan and (text := _answer(message)):
                told.places.setdefault(message.goal_id, []).append(place)
                told.texts.setdefault(message.goal_id, []).append(text)
        return told

    def before(self, goal_id: str, place: int) -> str:
        found = bisect_left(self.places.get(goal_id, ()), place)
        return self.texts[goal_id][found - 1] if found else ""

    def summed(self, tree: GoalTree, place: int) -> GoalTree:
        """``tree`` with a summary for each closed goal that has none."""
        by_id = {
            key: goal
            if goal.is_open or goal.summary
            else replace(goal, summary=self.before(key, place))
            for key, goal in tree.by_id.items()
        }
        return replace(tree, by_id=by_id)


def _answer(message: Message) -> str:
    if message.role != "assistant" or message.source in ("framework", "summary"):
        return ""
    return one_line(message.text[: 4 * SUMMARY_CHARS])[:SUMMARY_CHARS]


# Users' turns ----------------------------------------------------------------------------------


def _by_turns(messages: Sequence[Message], mission: str) -> Segments:
    """What people say begins a goal; it is completed when they speak again after an answer."""
    starts: list[int] = []
    names: list[str] = []
    marked: list[Message] = []
    answered = True
    for place, message in enumerate(messages):
        if is_said(message) and answered:
            starts.append(place)
            text = one_line(message.text[: 4 * DESCRIPTION_CHARS])
            names.append(text[:DESCRIPTION_CHARS] or "(no text)")
            answered = False
        answered = answered or message.role == "assistant"
        marked.append(replace(message, goal_id=str(len(starts)) if starts else ""))
    every = GoalTree(by_id={str(n): _goal(n, name) for n, name in enumerate(names, 1)})
    told = _Told.by(marked, every)

    def plan_of(place: int) -> GoalTree:
        count = bisect_left(starts, place)
        goals = {
            str(n): _goal(n, names[n - 1], told.before(str(n), place) if n < count else None)
            for n in range(1, count + 1)
        }
        current = str(count) if count else None
        return GoalTree(mission=mission, roots=tuple(goals), by_id=goals, current=current)

    return Segments(messages=tuple(marked), plan_of=plan_of, by="user turns")


def _goal(number: int, name: str, summary: str | None = None) -> Goal:
    if summary is None:
        return Goal(id=str(number), description=name, status="in_progress")
    return Goal(id=str(number), description=name, status="completed", summary=summary)
