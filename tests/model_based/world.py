"""A run in a small world: a model that answers what a test drew, operators that act at drawn
moments, a process that dies at a drawn event, and a naive engine that is compared with it all."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from cyberagent.compaction.stage import CompactionStage
from cyberagent.core.asking import Asking
from cyberagent.core.config import RunConfig
from cyberagent.core.control import ManualControl, NoControl
from cyberagent.core.errors import ModelError, PromptTooLong
from cyberagent.core.events import Event, MessageStored
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.parts import Parts, Writer
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.rebuild import rebuilt, recorded_window
from cyberagent.core.recovery import RetryPolicy
from cyberagent.core.runner import AgentRunner
from cyberagent.core.state import open_state
from cyberagent.core.types import (
    Json,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    canonical_json,
    sha256,
    stored_json,
)
from cyberagent.core.window import Item, Window
from cyberagent.presets import build_runner
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.projections import PROJECTIONS
from cyberagent.trace.goals import GoalTree, replay
from cyberagent.trace.tree import safe_point
from tests.model_based.naive import MARK, NaiveEngine

TOOLS = ("goal", "read_file", "edit_file", "skill", "compress_context", "get_current_context")
SYSTEM = "You work on files."
MISSION = "mark00001x"
"""The mark of the first text of a world."""

# What is drawn ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call as a model makes it; ``arguments`` may be no JSON."""

    name: str
    arguments: Json


@dataclass(frozen=True)
class Turn:
    """One answer: ``kind`` is "ok", or the name of what goes wrong."""

    calls: tuple[Call, ...] = ()
    words: int = 3
    kind: str = "ok"
    signed: bool = False
    reuses_ids: bool = False
    usage: float | None = None


@dataclass(frozen=True)
class Go:
    """One ``run()``: ``says``: words of the user's message (None: go on without one);
    ``commands``: (event, command, argument); ``crash``: the event at which the process dies."""

    says: int | None
    turns: tuple[Turn, ...] = ()
    sides: tuple[str, ...] = ()
    commands: tuple[tuple[int, str, str], ...] = ()
    crash: int | None = None
    skill: bool = False


@dataclass(frozen=True)
class Rewind:
    """``back``: how many messages of the main path to leave; ``any_path``: to any message that
    ever was on one."""

    back: int
    any_path: bool = False


@dataclass(frozen=True)
class Undo:
    """Back to the head that the newest rewind left."""


Operation = Go | Rewind | Undo


# The model -----------------------------------------------------------------------------------


class DrawnModel:
    """A provider whose answers were drawn. It looks at every window that it is handed."""

    name = "drawn"

    def __init__(self, world: World, projection: str, dialect: str) -> None:
        self.world, self.projection = world, projection
        self.params: dict[str, Json] = {"model": "m", "dialect": dialect}
        self.turns: list[Turn] = []
        self.sides: list[str] = []

    def project(self, window: Window) -> dict[str, Json]:
        return PROJECTIONS[self.projection](window)

    def problems(self, payload: Any) -> list[str]:
        if self.projection.startswith("openai"):
            return problems_openai(payload, self.params["dialect"])
        return problems_anthropic(payload)

    def cost(self, usage: Usage) -> float | None:
        return None

    async def aclose(self) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta | Answer]:
        await self.world.was_sent(request)
        if request.branch_type:
            parts, reason = self._side(self.sides.pop(0) if self.sides else "good")
            usage = None
        else:
            turn = self.turns.pop(0) if self.turns else Turn()
            if turn.kind == "too_long":
                raise PromptTooLong("maximum context length exceeded")
            if turn.kind == "fails":
                raise ModelError("the model is gone")
            parts, reason = self._parts(turn), "tool_calls" if turn.calls else "stop"
            estimate = len(request.payload) // 4
            usage = None if turn.usage is None else Usage(prompt=round(estimate * turn.usage))
        for part in parts:
            if isinstance(part, Text):
                yield Delta(part.text)
        yield Answer(parts=parts, finish_reason=reason, usage=usage, model="m")  # type: ignore[arg-type]

    def _parts(self, turn: Turn) -> tuple[Part, ...]:
        parts: list[Part] = []
        if turn.signed:
            blob = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
            parts.append(Reasoning("hm", "m", blob))
        if turn.words or not turn.calls:
            parts.append(Text(self.world.text(turn.words)))
        for place, call in enumerate(turn.calls):
            call_id = f"call_{place}" if turn.reuses_ids else f"c{next(self.world.ids)}"
            told = call.arguments
            if isinstance(told, dict) and "summary" in told:
                told = {**told, "summary": self.world.text(2)}
            arguments = told if isinstance(told, str) else json.dumps(told)
            parts.append(ToolCall(call_id, call.name, arguments))
        return tuple(parts)

    def _side(self, kind: str) -> tuple[tuple[Part, ...], str]:
        if kind == "fails":
            raise ModelError("the summariser is gone")
        if kind == "empty":
            return (), "stop"
        if kind == "calls":
            return (
                ToolCall(f"s{next(self.world.ids)}", "read_file", '{"path": "f0"}'),
            ), "tool_calls"
        texts = {
            "good": f"[1-2] {self.world.text(2)} was found.",
            "error": f"Error: 503 {self.world.text(1)}",
            "goes_on": f"Let me continue. {self.world.text(1)}",
            "long": self.world.text(3_000),
        }
        return (Text(texts[kind]),), "stop"


# The world -----------------------------------------------------------------------------------


@cache
def workspace() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="world-"))
    for n in range(4):
        (folder / f"f{n}").write_text(f"mark9000{n}x\n" + f"file {n} holds a fact\n" * (5 + 25 * n))
    return folder


@cache
def runner_loop() -> asyncio.Runner:
    return asyncio.Runner()


@cache
def known_parts() -> Parts:
    config = RunConfig(tools=TOOLS, provider_options={"script": {"turns": [{"say": "x"}]}})
    made = build_runner(config, store=InMemoryStore(), environment={})
    return runner_loop().run(made).parts


@dataclass
class World:
    config: RunConfig
    projection: str = "openai/1"
    dialect: str = "openai"
    naive: NaiveEngine = field(default_factory=NaiveEngine)
    events: list[Event] = field(default_factory=list)
    left: list[tuple[int, list[int], bytes]] = field(default_factory=list)
    trace_id: str = ""
    checked_calls: int = 0
    operators: int = 0

    def __post_init__(self) -> None:
        (workspace() / "notes").write_text("one\ntwo\n")
        self.config = self.config.with_(workspace=str(workspace()), tools=TOOLS)
        self.ids, self._marks = itertools.count(1), itertools.count(1)
        clock = itertools.count(1)
        self.store = InMemoryStore(now=lambda: f"2026-01-01T00:00:00.{next(clock):09d}Z")
        self.model = DrawnModel(self, self.projection, self.dialect)
        known = known_parts()
        self.parts = replace(
            known,
            store=self.store,
            provider=self.model,
            system_prompt=SYSTEM,
            compaction=CompactionStage(known.counter, known.tools.schemas(), now=lambda: 0.0),
            retry=RetryPolicy(max_tries=1),
        )

    def text(self, words: int) -> str:
        return " ".join([f"mark{next(self._marks):05d}x", *["word"] * words])

    def do(self, operation: Operation) -> None:
        runner_loop().run(self._do(operation))

    async def _do(self, operation: Operation) -> None:
        if isinstance(operation, Go):
            await self._go(operation)
        elif not self.trace_id:
            return
        elif isinstance(operation, Rewind):
            await self._rewind(operation)
        elif self.left:
            head, calls, body = self.left.pop()
            await self._move(head)
            if calls == await self._calls_at(head):  # else a run has gone on from there since
                assert await self.next_body() == body, "an undone rewind gives the payload back"
        await self._check()

    # A run

    async def _go(self, go: Go) -> None:
        says = go.says
        if says is None and not self.naive.head:
            says = 3
        messages = [] if says is None else [{"role": "user", "content": self.text(says)}]
        control = ManualControl()
        self.model.turns, self.model.sides = list(go.turns), list(go.sides)
        runner = AgentRunner(replace(self.parts, control=control))
        stream = runner.run(
            messages,
            self.config,
            trace_id=self.trace_id or None,
            inject_skills=["plan-well"] if go.skill else [],
        )
        heard: list[Event] = []
        number = 0
        async for event in stream:
            number += 1
            if not self.trace_id:
                [self.trace_id] = self.store._traces
            heard += [event] if event.stored else ()
            for at, name, argument in go.commands:
                if at == number:
                    self._command(control, name, argument)
            if go.crash == number:
                await stream.aclose()
                break
        new = await self.store.events(self.trace_id, after=len(self.events), limit=100_000)
        assert new[: len(heard)] == heard, "what was told is what is stored, in that order"
        if go.crash is None or number < go.crash:
            assert new == heard and heard[-1].kind == "Done"
        await self._take(new)

    def _command(self, control: ManualControl, name: str, argument: str) -> None:
        given = {"say": {"text": self.text(3)}, "policy": {"policy": argument}}.get(name, {})
        control.request(name, **given)

    async def _take(self, new: Sequence[Event]) -> None:
        self.events += new
        for event in new:
            if isinstance(event, MessageStored):
                assert event.message
                found = await self.store.messages(self.trace_id, [event.message])
                self.naive.add(found[event.message])

    async def was_sent(self, request: ModelRequest) -> None:
        record = (await self.store.calls(self.trace_id or request.trace_id, [request.call]))[
            request.call
        ]
        assert record.status == "sent" and sha256(request.payload) == record.sha256

    # Rewinding

    async def _rewind(self, rewind: Rewind) -> None:
        if rewind.any_path:
            known = sorted(self.naive.after)
        else:
            known = self.naive.path()
        target = known[-1 - rewind.back] if rewind.back < len(known) else 0
        path = await self.store.path(self.trace_id, head=target) if target else []
        point = safe_point(path, target)
        assert point == self.naive.safe_point(target)
        head = self.naive.head
        self.left.append((head, await self._calls_at(head), await self.next_body()))
        await self._move(point)
        sent = await self._calls_at(point)
        if sent and point:
            windows = [(await recorded_window(self.store, self.trace_id, n))[1] for n in sent]
            now = tuple((await self._state()).history)
            assert any(w.items == now for w in windows), "the next window is one sent there before"

    async def _calls_at(self, at: int) -> list[int]:
        return [n for n, after in await self.store.main_calls(self.trace_id) if after == at]

    async def _move(self, to: int) -> None:
        await self.store.move_head(self.trace_id, to, expected_head=self.naive.head)
        self.naive.head = to

    async def _state(self) -> Any:
        trace = await self.store.trace(self.trace_id)
        return await open_state(self.store, trace, self.config, self.parts)

    async def next_body(self) -> bytes:
        """What a run that goes on here would send, were nothing added."""
        asking = Asking(self.parts, NoControl(), Writer(self.store, self.parts.counter))
        window = asking.window(await self._state())
        return canonical_json(self.model.project(window))

    # What must hold

    async def _check(self) -> None:
        trace = await self.store.trace(self.trace_id)
        naive = self.naive
        assert [e.number for e in self.events] == list(range(1, len(self.events) + 1))
        told = [e.message for e in self.events if isinstance(e, MessageStored)]
        assert told == list(range(1, trace.last_sequence + 1)), "each message is told once"
        rows = await self.store.messages(self.trace_id, range(1, trace.last_sequence + 2))
        assert {n: m.to_json() for n, m in rows.items()} == naive.stored, "no row ever changes"
        assert trace.head_sequence == naive.head
        path = await self.store.path(self.trace_id) if naive.head else []
        assert [m.sequence for m in path] == naive.path()
        assert plan_of(replay(path, trace.mission)) == (
            naive.after[naive.head].plan if naive.head else {}
        )
        for number in range(self.checked_calls + 1, trace.last_call + 1):
            await self.check_call(number)
        self.checked_calls = trace.last_call

    def check_all(self) -> None:
        """At the end, whatever came since: each call still rebuilds to its hash."""
        runner_loop().run(self._check_every_call())

    async def _check_every_call(self) -> None:
        for number in range(1, self.checked_calls + 1):
            assert (await rebuilt(self.store, self.trace_id, number, PROJECTIONS)).holds

    async def check_call(self, number: int) -> None:
        again = await rebuilt(self.store, self.trace_id, number, PROJECTIONS)
        assert again.holds, f"call {number} rebuilds to what was sent"
        chat = replace(again.window, params={**again.window.params, "dialect": self.dialect})
        assert problems_openai(PROJECTIONS["openai/1"](chat), self.dialect) == []
        assert problems_anthropic(PROJECTIONS["anthropic/1"](again.window)) == []
        assert again.window.system == SYSTEM
        if not again.record.branch_id:
            self._check_said(again.window, again.record.after_sequence)
            self._check_shown(again.window, again.record.after_sequence)

    def _check_said(self, window: Window, at: int) -> None:
        """What people said behind this window is in it: whole, or quoted word for word (these
        worlds are too small for excerpts)."""
        whole = {i.message.sequence: i for i in window.items if i.kind == "whole"}
        quoting = [i.message.text for i in window.items if i.kind == "inserted"]
        for sequence, text in self.naive.after[at].said if at else ():
            if sequence in whole:
                assert whole[sequence].message.text == text
            else:
                assert any(f"> {text}" in q and str(sequence) in q for q in quoting), (
                    f"message {sequence} has left the window"
                )

    def _check_shown(self, window: Window, at: int) -> None:
        """Nothing of a side branch, nor of a path that was left, is in a main window; but the
        mission, which is the trace's own, whatever path it is on."""
        for item in window.items:
            for mark in set(MARK.findall(_shown(item))) - {MISSION}:
                assert self.naive.may_show(mark, at), f"{mark} is not of this path"


def _shown(item: Item) -> str:
    return stored_json(item.message.to_json()["parts"])


def plan_of(tree: GoalTree) -> dict[str, str]:
    plan: dict[str, str] = {g.id: g.status for g in tree.walk()}
    return plan | ({"focus": tree.current} if tree.current else {})
