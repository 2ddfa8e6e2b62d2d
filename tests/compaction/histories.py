"""Histories for tests of compaction: short ways to write them, and any that could be stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from cyberagent.compaction.values import Facts, Items
from cyberagent.core.tokens import TiktokenCounter, count_message
from cyberagent.core.types import INTERRUPTED_RESULT, Image, Message, Reasoning, Text, ToolCall
from cyberagent.core.window import Item
from cyberagent.trace.goals import GoalTree

COUNTER = TiktokenCounter("o200k_base", exact=True)


# Written by hand -----------------------------------------------------------------------------


def user(text: str, **fields: Any) -> Message:
    return Message(role="user", parts=(Text(text),), source="user", **fields)


def operator(text: str, **fields: Any) -> Message:
    return Message(role="user", parts=(Text(text),), source="operator", **fields)


def says(*parts: str | ToolCall | Reasoning, goal: str = "", **fields: Any) -> Message:
    made = tuple(Text(p) if isinstance(p, str) else p for p in parts)
    fields.setdefault("source", "model")
    return Message(role="assistant", parts=made, goal_id=goal, **fields)


def call(call_id: str, name: str = "read_file", arguments: str = "{}", **fields: Any) -> ToolCall:
    return ToolCall(call_id, name, arguments, **fields)


def result(call_id: str, text: str, goal: str = "", name: str = "read_file", **f: Any) -> Message:
    return Message(
        role="tool",
        parts=(Text(text),),
        source="tool",
        tool_call_id=call_id,
        goal_id=goal,
        name=name,
        **f,
    )


def work(call_id: str, goal: str = "", *, text: str = "some output", name: str = "read_file"):
    """A turn with one call, and its result."""
    return [says(call(call_id, name), goal=goal), result(call_id, text, goal, name)]


def history(*messages: Message | Sequence[Message]) -> Items:
    """The messages, numbered from 1 and counted."""
    flat: list[Message] = []
    for one in messages:
        flat += [one] if isinstance(one, Message) else list(one)
    return tuple(
        Item(replace(m, sequence=n, tokens=count_message(COUNTER, m)))
        for n, m in enumerate(flat, 1)
    )


def plan(mission: str = "the mission", **statuses: str) -> GoalTree:
    """``plan(g1="completed", g1_1="abandoned")``: goals by id, parents first."""
    goals: dict[str, dict[str, Any]] = {}
    roots: list[dict[str, Any]] = []
    for key, status in statuses.items():
        goal_id = key.removeprefix("g").replace("_", ".")
        goal: dict[str, Any] = {
            "id": goal_id,
            "description": f"goal {goal_id}",
            "status": status,
            "summary": f"what came of {goal_id}" if status in ("completed", "abandoned") else "",
            "children": [],
        }
        goals[goal_id] = goal
        above = goal_id.rpartition(".")[0]
        (goals[above]["children"] if above else roots).append(goal)
    return GoalTree.from_json({"mission": mission, "current_id": None, "goals": roots})


def facts(tree: GoalTree | None = None, **fields: Any) -> Facts:
    return Facts(counter=COUNTER, plan=GoalTree() if tree is None else tree, **fields)


def texts(items: Items) -> list[str]:
    """One line an item: its role, calls and text."""
    lines: list[str] = []
    for item in items:
        m = item.message
        calls = ", ".join(f"{c.name}({c.arguments})" for c in m.tool_calls)
        lines.append(" ".join(x for x in (f"[{m.role}]", calls, m.text) if x))
    return lines


# Any history, sound or broken -----------------------------------------------------------------

GOALS = ("", "1", "2", "2.1", "3")
SIGNED = Reasoning("hm", "m", {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"})
LONG = "output " * 40

_ids = st.sampled_from(["a", "b", "c", "call_0", "call_1", ""])
_names = st.sampled_from(
    ["read_file", "goal", "goal", "skill", "todo_write", "get_current_context"]
)
_arguments = st.sampled_from(
    [
        "{}",
        '{"done": "1", "summary": "x"}',
        '{"abandon": "2"}',
        '{"focus": "2.1"}',
        '{"done": ""}',
        '{"done"',
        "[1]",
        '{"name": "plan-well"}',
    ]
)
_calls = st.builds(
    ToolCall, _ids, _names, _arguments, st.sampled_from(["model", "model", "framework"])
)
_words = st.sampled_from(["ok", LONG, "", "行动 " * 30, "line\n> quoted\nline", "\ud800"])
_people = st.builds(
    Message,
    role=st.just("user"),
    parts=st.one_of(
        st.sampled_from(["go on", LONG, "两行\n文字", "\ud800", "### x"]).map(lambda t: (Text(t),)),
        st.just((Text("see"), Image("image/png", "iVBORw0KGgo="))),
    ),
    source=st.sampled_from(["user", "operator", "import"]),
    goal_id=st.sampled_from(GOALS),
)
_notes = st.builds(
    Message,
    role=st.sampled_from(["user", "user", "system"]),
    parts=_words.map(lambda t: (Text(t),)),
    source=st.just("framework"),
    goal_id=st.sampled_from(GOALS),
)
_summaries = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant"]),
    parts=st.just((Text("[Summary] before"),)),
    source=st.just("summary"),
    goal_id=st.sampled_from(GOALS),
    metadata=st.just({"stands_for": {"first": 1, "last": 2, "messages": 2}}),
)


@st.composite
def _turn(draw: st.DrawFn) -> list[Message]:
    """A turn with calls, and results that may be missing, late, twice, or of another goal."""
    goal = draw(st.sampled_from(GOALS))
    calls = draw(st.lists(_calls, max_size=3))
    parts: list[Any] = [SIGNED] if draw(st.booleans()) else []
    parts += [Text(draw(_words))] if draw(st.booleans()) or not calls else []
    is_framework = bool(calls) and all(c.made_by == "framework" for c in calls)
    source = "framework" if is_framework and len(parts) == 0 else "model"
    out = [Message(role="assistant", parts=(*parts, *calls), source=source, goal_id=goal)]
    for one in calls:
        fate = draw(st.sampled_from(["ok"] * 12 + ["none", "placeholder", "late", "twice", "lost"]))
        own = draw(st.sampled_from([goal] * 8 + list(GOALS)))
        good = result(one.id, draw(_words), own, one.name, is_error=draw(st.booleans()))
        stand_in = result(one.id, INTERRUPTED_RESULT, own, one.name, is_error=True)
        out += {
            "ok": [good],
            "none": [],
            "placeholder": [stand_in],
            "late": [stand_in, user("late?"), good],
            "twice": [good, good],
            "lost": [replace(good, tool_call_id="nobody")],
        }[fate]
    return out


HISTORIES = st.lists(
    st.one_of(_turn(), _turn(), _turn(), st.lists(_people, min_size=1, max_size=1),
              st.lists(_notes, max_size=1), st.lists(_summaries, max_size=1)),
    max_size=14,
).map(lambda groups: history(*groups))  # fmt: skip

_status = st.sampled_from(["pending", "in_progress", "completed", "abandoned"])


@st.composite
def known(draw: st.DrawFn) -> Facts:
    """Facts with a plan of the goals that HISTORIES speaks of, in any states that can be."""
    one, two, three = draw(_status), draw(_status), draw(_status)
    below = draw(_status if two in ("pending", "in_progress") else st.just("completed"))
    return facts(
        plan(g1=one, g2=two, g2_1=below, g3=three),
        skills=draw(st.dictionaries(st.just("plan-well"), st.integers(1, 12), max_size=1)),
        pinned=frozenset(draw(st.lists(st.integers(1, 12), max_size=2))),
        language=draw(st.sampled_from(["en", "zh"])),
    )
