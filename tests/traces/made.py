"""Traces for tests of pages: whole bundles of any size, stored through the import's path."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cyberagent.core.types import (
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    TraceState,
    Usage,
    text_message,
)
from cyberagent.trace.formats import TraceBundle
from traces.bundle import store_bundle
from traces.models import Trace


class Story:
    """Writes the messages of one path, one after the other, as a run would have stored them."""

    def __init__(self, mission: str = "Tidy the notes") -> None:
        self.mission = mission
        self.messages: list[Message] = []
        self.goal = ""
        self._calls = 0
        self.add(text_message("user", mission, source="user"))

    def add(self, message: Message, parent: int | None = None) -> int:
        """Store under the newest message, or under ``parent``; the new sequence."""
        above = parent if parent is not None else len(self.messages) or None
        depth = self.messages[above - 1].depth + 1 if above else 1
        made = Message(
            **{
                **{name: getattr(message, name) for name in Message.__dataclass_fields__},
                "sequence": len(self.messages) + 1,
                "parent_sequence": above,
                "depth": depth,
                "goal_id": self.goal if not message.branch_type else "",
                "tokens": 10,
                "created_at": "2026-01-02T03:04:05.000Z",
            }
        )
        self.messages.append(made)
        return made.sequence

    def say(self, text: str, **fields: Any) -> int:
        return self.add(text_message("assistant", text, source="model", **fields))

    def tool(
        self, name: str, arguments: dict[str, Any], output: str, text: str = "", **fields: Any
    ) -> int:
        """A call with its result; the sequence of the result."""
        self._calls += 1
        call = ToolCall(f"c{self._calls}", name, json.dumps(arguments, ensure_ascii=False))
        parts: tuple[Part, ...] = (Text(text), call) if text else (call,)
        usage = Usage(prompt=100, completion=10)
        self.add(
            Message(role="assistant", source="model", parts=parts, usage=usage, duration_ms=50)
        )
        return self.add(
            text_message(
                "tool", output, source="tool", tool_call_id=call.id, name=name, duration_ms=20,
                **fields,
            )
        )  # fmt: skip

    def plan(self, focus: str = "", **arguments: Any) -> int:
        """A call of the goal tool; from then on messages belong to ``focus``."""
        given = arguments | ({"focus": focus} if focus else {})
        number = self.tool("goal", given, "## Updated")
        self.goal = focus
        return number

    def think(self, text: str) -> int:
        return self.add(Message(role="assistant", source="model", parts=(Reasoning(text),)))

    def bundle(self, **state: Any) -> TraceBundle:
        head = state.pop("head", len(self.messages))
        return TraceBundle(
            state=TraceState(
                id="", mission=self.mission, status=state.pop("status", "completed"),
                head_sequence=head, last_sequence=len(self.messages), **state,
            ),
            messages=tuple(self.messages),
        )  # fmt: skip

    def store(self, owner: Any, **state: Any) -> Trace:
        return store_bundle(self.bundle(**state), owner)


def planned(steps: int = 6) -> Story:
    """Three goals: one done with ``steps`` tool calls, one abandoned, one going on."""
    story = Story("Tidy the notes <b>boldly</b>")
    story.plan(add=["Look around", "Plan A", "Write it down"], focus="1")
    for n in range(steps):
        story.tool("read_file", {"path": f"notes/{n}.md"}, f"note number {n}")
    story.plan(done="1", summary="six notes, two of them empty", focus="2")
    story.tool("terminal", {"command": "ls"}, "no such shell", is_error=True)
    story.plan(abandon="2", summary="there is no shell", focus="3")
    story.think("Which file comes first?")
    story.say("I will **write** the index now.")
    return story


def forked() -> TraceBundle:
    """A path with all that can hang on one: what a rewind left, a side branch, a summary that
    stands for three messages, a sub-agent."""
    story = Story("Fix the login")
    spawned = story.tool("agent", {"mission": "Read the logs"}, "the logs are fine")
    story.say("Try the cache first.")
    story.tool("terminal", {"command": "flush"}, "flushed")
    story.say(
        "The cache was not it.",
    )
    story.add(
        text_message("user", "What did you learn?", source="framework", branch_type="reflection",
                     branch_id="b1")
    )  # fmt: skip
    story.say("Caches are innocent.", branch_type="reflection", branch_id="b1")
    first, last = spawned + 1, spawned + 4
    summary = text_message(
        "user", "The cache was flushed in vain.", source="summary",
        metadata={"stands_for": {"first": first, "last": last, "messages": 4,
                                 "tokens_before": 4000, "tokens_after": 120}},
    )  # fmt: skip
    told = story.add(summary, parent=spawned)
    story.say("A wrong turn.")
    story.tool("terminal", {"command": "rm -r cache"}, "removed")
    story.add(text_message("user", "Rather look at the clock.", source="operator"), parent=told)
    story.say("The clock is wrong.")
    child = planned(2)
    bundle = story.bundle()
    below = child.bundle(parent_message=spawned)
    return replace(
        bundle,
        children=(replace(below, state=replace(below.state, id="child", parent_trace="root")),),
        state=replace(bundle.state, id="root"),
    )


def long(messages: int) -> Story:
    """One goal with about ``messages`` messages, two for each of its rows."""
    story = Story("A long run")
    story.plan(add=["Count"], focus="1")
    while len(story.messages) < messages:
        story.tool("search_files", {"pattern": f"word {len(story.messages)}"}, "one match")
    return story
