"""Trees of agents in time: a tree whose every event is watched, that can be cut short and gone on
with, and what must hold of it whenever it rests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cyberagent.core.config import RunConfig
from cyberagent.core.control import ManualControl
from cyberagent.core.events import Done, Event
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.lineage import spawned
from cyberagent.core.ports import Store
from cyberagent.core.rebuild import rebuilt
from cyberagent.core.types import Message
from cyberagent.presets import build_runner
from cyberagent.providers.projections import PROJECTIONS
from tests.core.trees import ANCHOR, MISSION, Tree, agent, brief, calls, report, say, verdict

FAST = 1e9
"""Characters a second: texts come at once, and delays count."""

CHILD_ID = "Child {} ended"

BOTH, ONE, AGAIN = brief("Count both"), brief("Count a.md"), brief("Count again")


def submit(objective: str, **fields: Any) -> dict[str, Any]:
    return calls({"submit_report": {"report": report(f"{objective}: done", **fields)}})


def review(decision: str, **fields: Any) -> dict[str, Any]:
    return calls({"review_child": {"child": "{id}", "decision": decision, **fields}}, id=CHILD_ID)


def revise(task_brief: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The two turns in which a child is sent back to work."""
    return [
        review("REVISE_CHILD", reason="once more", next_brief=task_brief),
        calls({"agent": {"task_brief": task_brief, "child": "{id}"}}, id=CHILD_ID),
    ]


ACCEPT = review("ACCEPT", reason="good enough")
READ = calls({"read_file": {"path": "a.md"}})
ANSWER = say("a.md has 2 lines.")

PASSING: list[Any] = [
    agent("# TaskBrief\nnull", "validator", say(verdict("passed", "R1", evidence=1))),
    agent("# TaskReport", "validator", say(verdict("passed", "B1"))),
]
"""Validators that find the root's answer, and every report, passed."""


def slow(turn: Mapping[str, Any], seconds: float = 60) -> dict[str, Any]:
    """The same turn from a model that takes its time."""
    return {**turn, "delay": seconds}


def works_as(objective: str, *turns: Any) -> dict[str, Any]:
    """A child whose contract has this objective."""
    return agent(f'"objective":"{objective}"', "agent", *turns)


class FlowStore(InMemoryStore):
    """A store that knows the missions of its traces, and whose models can be made quick."""

    @property
    def missions(self) -> dict[str, str]:
        return {name: rows.state.mission for name, rows in self._traces.items()}

    @property
    def roots(self) -> list[str]:
        return [name for name, r in self._traces.items() if r.state.parent_trace is None]

    def forget(self) -> None:
        """What a start left that got nowhere: whoever started it starts anew."""
        self._traces.clear()

    def quicken(self) -> None:
        for rows in self._traces.values():
            config = dict(rows.state.config)
            options = {**config.get("provider_options", {}), "speed": 0}
            rows.state = replace(rows.state, config={**config, "provider_options": options})


class Flow(Tree):
    """A tree whose model may be slow, and that can be waited for, cut short and gone on with.
    ``controls``: an operator's hand on each trace that has one, by what it was sent to do."""

    def __init__(
        self,
        folder: Path,
        turns: list[Any],
        agents: list[Any],
        store: FlowStore | None = None,
        **config: Any,
    ) -> None:
        super().__init__(folder, turns, agents, **config)
        self.store: FlowStore = store or FlowStore()
        options = {**self.config.provider_options, "speed": FAST}
        self.config = self.config.with_(provider_options=options)
        self.all: list[tuple[str, Event]] = []
        self.root = ""
        self.controls: dict[str, ManualControl] = {}
        self._run: asyncio.Task[Flow] | None = None
        self._waiting: list[tuple[Callable[[str, Event], bool], asyncio.Event]] = []

    def hand_on(self, mission: str) -> ManualControl:
        """An operator's hand on the sub-agents with this mission."""
        return self.controls.setdefault(mission, ManualControl("ann"))

    def _control_for(self, trace_id: str) -> ManualControl:
        return self.hand_on(self.store.missions[trace_id]) if trace_id else ManualControl()

    def hear(self, trace: str, event: Event) -> None:
        self.all.append((trace, event))
        for fits, seen in self._waiting:
            if fits(trace, event):
                seen.set()

    async def when(self, kind: str, mission: str = "", times: int = 1) -> None:
        """Wait for the next event of this kind (the ``times``-th from now) of a trace that was
        sent to do this; a test that hangs is ended."""
        count = 0

        def fits(trace: str, event: Event) -> bool:
            nonlocal count
            if event.kind == kind and mission in self.store.missions[trace]:
                count += 1
            return count == times

        seen = asyncio.Event()
        self._waiting.append((fits, seen))
        waiting = asyncio.ensure_future(seen.wait())
        tasks = {waiting, self._run} if self._run else {waiting}
        await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert seen.is_set(), f"no {kind} of {mission or 'any'} came"

    async def begin(
        self,
        messages: Any = MISSION,
        config: RunConfig | None = None,
        control: ManualControl | None = None,
        **arguments: Any,
    ) -> Flow:
        """Run to the end, or until it pauses."""
        if self.root:
            arguments["trace_id"] = self.root
        elif self.config.preset == "recursive":
            arguments.setdefault("root_task_anchor", ANCHOR)
        runner = await build_runner(
            config or self.config,
            store=self.store,
            environment={},
            control=control,
            control_for=self._control_for,
            heard=self.hear,
        )
        self.events = []
        async for event in runner.run(messages, config or self.config, **arguments):
            self.root = self.root or self.store.roots[0]
            self.events.append(event)
            self.hear(self.root, event)
        return self

    def started(self, **arguments: Any) -> asyncio.Task[Flow]:
        self._run = asyncio.ensure_future(self.begin(**arguments))
        return self._run

    async def go_on(self, messages: Any = (), **arguments: Any) -> Flow:
        """Resume, with a model that does not keep anybody waiting."""
        self.store.quicken()
        options = {**self.config.provider_options, "speed": 0}
        self.config = self.config.with_(provider_options=options)
        return await self.begin(messages, **arguments)

    @property
    def why(self) -> tuple[str, str]:
        assert isinstance(self.events[-1], Done)
        return self.events[-1].status, self.events[-1].why

    async def statuses(self) -> list[tuple[str, str]]:
        """Kind or mission and status of each trace, parents first."""
        found = [t.state for t in await self.store.tree(self.root)]
        return [
            ("validator" if spawned(t).get("kind") == "validator" else t.mission, t.status)
            for t in found
        ]

    async def id_of(self, mission: str, kind: str | None = None) -> str:
        """The id of the only trace that was sent to do this."""
        found = [t.state for t in await self.store.tree(self.root) if t.state.mission == mission]
        (one,) = [t for t in found if kind is None or spawned(t).get("kind") == kind]
        return one.id

    async def path(self, mission: str) -> list[Message]:
        return await self.store.path(await self.id_of(mission))

    async def told(self, mission: str = "") -> list[Event]:
        """All stored events of a trace, the root's where nothing is named."""
        name = await self.id_of(mission) if mission else self.root
        return await self.store.events(name, 0, 100_000)


# What must hold whenever a tree rests ------------------------------------------------------------


async def check_whole(store: Store, root: str, *, windows: bool = True) -> None:
    """Events without gaps, one result for each call that is not at work, no call of a model
    without an end, one record of each thing that happened, windows that rebuild."""
    for member in await store.tree(root):
        state = member.state
        if not state.head_sequence:
            continue
        events = await store.events(state.id, 0, 100_000)
        assert [e.number for e in events] == list(range(1, state.last_event + 1))
        path = await store.path(state.id)
        _check_results(path, ended=state.status in ("completed", "failed", "stopped"))
        numbers = list(range(1, state.last_call + 1))
        ends = {n: c.status for n, c in (await store.calls(state.id, numbers)).items()}
        assert "sent" not in ends.values(), (state.mission, ends)
        if not any(m.source == "summary" for m in path):  # which stands for older records
            _check_records(path)
        for number in numbers if windows else ():
            assert (await rebuilt(store, state.id, number, PROJECTIONS)).holds


def _check_results(path: list[Message], *, ended: bool) -> None:
    """Batch by batch, since ids are used again in a conversation that was inherited."""
    starts = [n for n, m in enumerate(path) if m.role == "assistant"]
    for start, end in pairwise([*starts, len(path)]):
        asked = [c.id for c in path[start].tool_calls]
        answered = [m.tool_call_id for m in path[start:end] if m.role == "tool"]
        assert len(answered) == len(set(answered)), "a result came twice"
        assert set(answered) <= set(asked)
        if ended or end < len(path):
            assert set(asked) == set(answered), "a call was left without a result"


def records(path: list[Message]) -> list[str]:
    """Kinds of the protocol's entries on a path, in order."""
    return [e["entry"] for m in path for e in m.metadata.get("protocol", [])]


def _check_records(path: list[Message]) -> None:
    """Each contract ends once, each report has one verdict, each end at most one review."""
    found = Counter(records(path))
    assert found["delegated"] == found["child_ended"] >= found["reviewed"]
    assert found["reported"] <= found["validated"]


def in_order(events: list[Event]) -> bool:
    """Whether a stream tells stored events in the order of their numbers, none left out."""
    numbers = [e.number for e in events if e.stored]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
