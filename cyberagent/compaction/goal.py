"""Level 1: the messages of closed goals, without a model. Source: docs/compaction.md, "Level 1"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from cyberagent.compaction.values import (
    PLAN_TOOLS,
    Edit,
    Facts,
    Items,
    Links,
    Step,
    edited,
    held,
    inserted,
    is_lasting,
    link,
    newest_turn,
    sequences,
)
from cyberagent.core.config import GoalCompression
from cyberagent.core.guards import Budget
from cyberagent.core.types import Json, Message, Text, ToolCall
from cyberagent.core.window import Item
from cyberagent.core.wording import label
from cyberagent.trace.goals import Goal
from cyberagent.trace.plan_text import flat

Form = Literal["keep_goal_calls", "summary_line"]


@dataclass(frozen=True, slots=True)
class GoalCompaction:
    """The strategy ``goal``: closed goals one by one, the oldest first, until the history is
    down to the target."""

    name: str = "goal"
    level: int = 1
    last_resort: bool = False
    always: bool = False
    mode: GoalCompression = "on_overflow"
    form: Form = "keep_goal_calls"

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step:
        if self.mode == "none":
            return Step(items)
        return compress_completed_goals(items, facts, form=self.form, until=budget)


def compress_completed_goals(
    items: Items, facts: Facts, *, form: Form = "keep_goal_calls", until: Budget | None = None
) -> Step:
    """The history without how its completed and abandoned goals were worked on.

    Of a closed goal's messages stay: what people said, summaries, and (``keep_goal_calls``) the
    calls of the plan's tools with their results, where that of ``done`` or ``abandon`` says that
    details were cleared; or (``summary_line``) one line in place of it all. ``until``: stop as
    soon as the history is down to this target; None clears every closed goal. In time linear in
    the items.
    """
    groups = _closed_groups(items, facts)
    if not groups:
        return Step(items)
    links = link(items)
    work = _Work(
        items=items,
        links=links,
        results=links.results(),
        newest=newest_turn(items),
        held=held(items, links, facts),
        facts=facts,
    )
    size = sum([i.message.tokens for i in items]) if until else 0
    for goal, places in groups:
        if until and until.corrected(until.fixed + size) <= until.target:
            break
        if form == "summary_line":
            size -= _fold(work, goal, places)
        else:
            size -= _clear(work, goal, places)
    return work.step()


@dataclass(slots=True, kw_only=True)
class _Work:
    """What is going to happen to each item: ``new[place]`` are the items in its stead."""

    items: Items
    links: Links
    results: Callable[[int], list[int]]
    newest: int
    held: set[int]
    facts: Facts
    new: dict[int, tuple[Item, ...]] = field(default_factory=dict[int, tuple[Item, ...]])
    edits: list[Edit] = field(default_factory=list[Edit])

    def is_fixed(self, place: int) -> bool:
        """Whether the item must stay as it is."""
        return (
            place >= self.newest
            or place in self.held
            or is_lasting(self.items[place].message)
            or place in self.new
        )

    def step(self) -> Step:
        if not self.edits:
            return Step(self.items)
        new, out = self.new, list[Item]()
        for place, item in enumerate(self.items):
            if place in new:
                out += new[place]
            else:
                out.append(item)
        return Step(tuple(out), tuple(self.edits))


def _closed_groups(items: Items, facts: Facts) -> list[tuple[Goal, list[int]]]:
    """The closed goals that have messages, with the places of those, oldest goal first."""
    closed: dict[str, list[int]] = {g.id: [] for g in facts.plan.walk() if not g.is_open}
    if not closed:
        return []
    for place, item in enumerate(items):
        places = closed.get(item.message.goal_id)
        if places is not None:
            places.append(place)
    found = [(facts.plan.get(goal_id), places) for goal_id, places in closed.items() if places]
    return sorted(found, key=lambda group: group[1][0])


# One goal ------------------------------------------------------------------------------------


def _turns(work: _Work, places: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """The goal's items that may go, each turn with its results wherever those stand; a result
    whose call is of another goal goes with that one."""
    items, calls = work.items, work.links.call
    for place in places:
        if work.is_fixed(place) or calls[place] is not None:
            continue
        results = work.results(place) if items[place].message.role == "assistant" else ()
        if not any(r >= work.newest for r in results):
            yield place, results


def _clear(work: _Work, goal: Goal, places: Sequence[int]) -> int:
    """Keep the plan's calls alone; the tokens saved."""
    removed: list[Item] = []
    replaced: list[tuple[Item, Item]] = []
    for place, results in _turns(work, places):
        item = work.items[place]
        kept = _plan_calls(item.message)
        if not kept:
            work.new[place] = ()
            removed.append(item)
        elif any(type(p) is ToolCall and p.name not in PLAN_TOOLS for p in item.message.parts):
            why = f"goal {goal.id}: only the plan's calls are kept"
            new = edited(item, kept, work.facts, strategy="goal", why=why)
            work.new[place] = (new,)
            replaced.append((item, new))
        for result in results:
            old = work.items[result]
            call = work.links.call[result]
            if call is None or call.name not in PLAN_TOOLS:
                work.new[result] = ()
                removed.append(old)
            elif _closes(call) and (new := _cleared(old, goal, work.facts)):
                work.new[result] = (new,)
                replaced.append((old, new))
    return _note(work, goal, removed, replaced)


def _plan_calls(message: Message) -> list[ToolCall]:
    if message.role != "assistant":
        return []
    return [p for p in message.parts if type(p) is ToolCall and p.name in PLAN_TOOLS]


def _closes(call: ToolCall) -> bool:
    """Whether it is a ``goal(done=…)`` or ``goal(abandon=…)``."""
    if call.name != "goal" or ("done" not in call.arguments and "abandon" not in call.arguments):
        return False
    value = call.parsed()
    if not isinstance(value, dict):
        return False
    arguments = cast("dict[str, Json]", value)
    return bool(arguments.get("done") or arguments.get("abandon"))


def _cleared(item: Item, goal: Goal, facts: Facts) -> Item | None:
    """The result that says that details were cleared; None where it says so already, or where it
    is an error or stands in for one that may come."""
    message = item.message
    text = label(facts.language, "goal_cleared")
    if message.is_error or message.is_placeholder or message.text == text:
        return None
    why = f"goal {goal.id} is {goal.status}"
    return edited(item, (Text(text),), facts, strategy="goal", why=why)


def _note(
    work: _Work, goal: Goal, removed: Sequence[Item], replaced: Sequence[tuple[Item, Item]]
) -> int:
    why = f"goal {goal.id} is {goal.status}"
    lost = _lost_skills(removed, work.facts)
    saved = 0
    if removed:
        tokens = sum(i.message.tokens for i in removed)
        also = f"; skill {', '.join(lost)} has left the window" if lost else ""
        work.edits.append(_edit("removed", removed, why + also, tokens))
        saved += tokens
    if replaced:
        tokens = sum(a.message.tokens - b.message.tokens for a, b in replaced)
        work.edits.append(_edit("replaced", [a for a, _ in replaced], why, tokens))
        saved += tokens
    return saved


def _edit(
    what: Literal["removed", "replaced", "inserted"], items: Sequence[Item], why: str, saved: int
) -> Edit:
    ordered = tuple(sorted(sequences(items)))
    return Edit(strategy="goal", level=1, what=what, sequences=ordered, why=why, tokens_saved=saved)


def _lost_skills(removed: Sequence[Item], facts: Facts) -> list[str]:
    if not facts.skills:
        return []
    gone = set(sequences(removed))
    return [name for name, sequence in facts.skills.items() if sequence in gone]


# The summary line ----------------------------------------------------------------------------


def _fold(work: _Work, goal: Goal, places: Sequence[int]) -> int:
    """One line in place of the goal's messages; the tokens saved. A line that an earlier pass
    put there stays the only one."""
    gone: list[int] = []
    has_line = False
    for place, results in _turns(work, places):
        if work.items[place].strategy == "goal" and work.items[place].kind == "inserted":
            has_line = True
        else:
            gone += (place, *results)
    gone.sort()
    removed = [work.items[p] for p in gone]
    before = sum(i.message.tokens for i in removed)
    line = None if has_line or not gone else _line(goal, len(gone), work.facts)
    if before <= (line.message.tokens if line else 0):
        return 0
    work.new.update((place, ()) for place in gone)
    saved = _note(work, goal, removed, ())
    if line:
        work.new[gone[0]] = (line,)
        why = f"what came of goal {goal.id}"
        work.edits.append(_edit("inserted", (), why, -line.message.tokens))
        saved -= line.message.tokens
    return saved


def _line(goal: Goal, count: int, facts: Facts) -> Item:
    head = label(facts.language, f"goal_line_{goal.status}")
    told = goal.summary or label(facts.language, "goal_line_empty")
    quoted = "\n".join(f"> {line}" for line in told.splitlines())
    text = head.format(id=goal.id, text=flat(goal.description), count=count) + "\n" + quoted
    why = f"goal {goal.id} is {goal.status}"
    return inserted(text, facts, strategy="goal", why=why, goal_id=goal.id)
