"""A process that dies at any moment of a tree's work: whoever goes on ends it as if nothing had
happened, with each child made once, each contract ended once, each call answered once.

The death is a store that writes no more from its k-th write on, for every k there is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.events import ChildEnded, Reviewed, ToolResult, Verdict
from cyberagent.core.lineage import spawned
from cyberagent.core.types import Message
from tests.core.flows import (
    ACCEPT,
    AGAIN,
    ANSWER,
    BOTH,
    ONE,
    PASSING,
    READ,
    Flow,
    FlowStore,
    check_whole,
    revise,
    submit,
    works_as,
)
from tests.core.trees import MISSION, agent, brief, calls, say
from tests.examples import examples


class Died(BaseException):
    """The process is no more; nothing in it can catch that."""


class MortalStore(FlowStore):
    """Dies at its write number ``at`` (0: never), and writes nothing after that."""

    def __init__(self) -> None:
        super().__init__()
        self.at = self.writes = 0

    def revive(self, at: int = 0) -> None:
        self.at, self.writes = at, 0

    async def _lives(self, write: Callable[..., Awaitable[Any]], *given: Any, **more: Any) -> Any:
        self.writes += 1
        if self.at and self.writes >= self.at:
            raise Died
        return await write(*given, **more)

    async def create_trace(self, *given: Any, **more: Any) -> Any:
        return await self._lives(super().create_trace, *given, **more)

    async def append(self, *given: Any, **more: Any) -> Any:
        return await self._lives(super().append, *given, **more)

    async def start_call(self, *given: Any, **more: Any) -> Any:
        return await self._lives(super().start_call, *given, **more)

    async def move_head(self, *given: Any, **more: Any) -> Any:
        return await self._lives(super().move_head, *given, **more)


# A run with all that can happen: three generations, a revision, a validated answer.
TURNS = [
    calls({"agent": {"task_brief": BOTH}}),
    *revise(AGAIN),
    ACCEPT,
    ANSWER,
]
CHILD = [
    calls({"agent": {"task_brief": ONE}}),
    ACCEPT,
    submit("Count both"),
    READ,
    submit("Count again"),
]
AGENTS = [
    works_as("Count both", *CHILD),
    works_as("Count a.md", READ, submit("Count a.md")),
    agent("First?", "explore", READ, say("Two.")),
    agent("Second?", "explore", say("None.")),
    *PASSING,
]

# Two children of one batch, side by side.
PAIR = [brief("Count left"), brief("Count right")]
BESIDE_TURNS = [
    calls(*({"agent": {"task_brief": b}} for b in PAIR)),
    {
        "calls": [
            {"review_child": {"child": f"{{c{n}}}", "decision": "ACCEPT", "reason": "good"}}
            for n in (1, 2)
        ],
        "find": {f"c{n}": {"text": "Child {} ended", "nth": n} for n in (1, 2)},
    },
    ANSWER,
]
BESIDE_AGENTS = [
    *(works_as(b["objective"], READ, submit(b["objective"])) for b in PAIR),
    *PASSING,
]


# A run that is not recursive, with questions to look into.
PLAIN_TURNS = [READ, calls({"explore": {"branches": ["First?", "Second?"]}}), ANSWER]


def a_tree(folder: str, kind: str) -> Flow:
    turns, agents = (BESIDE_TURNS, BESIDE_AGENTS) if kind == "parallel" else (TURNS, AGENTS)
    settings: dict[str, Any] = {"children": "serial" if kind == "plain" else kind}
    if kind == "plain":
        turns, settings["preset"] = PLAIN_TURNS, "cyber"
    flow = Flow(Path(folder), turns, agents, MortalStore(), **settings)
    flow.config = flow.config.with_(provider_options={**flow.config.provider_options, "speed": 0})
    return flow


async def lived(flow: Flow, *deaths: int) -> None:
    """The run, with a process that dies at these writes of its, one process after the other."""
    store = flow.store
    assert isinstance(store, MortalStore)
    messages: Any = MISSION
    for at in (*deaths, 0):
        store.revive(at)
        with suppress(Died):
            await flow.begin(messages)
        roots = store.roots
        flow.root = roots[0] if roots and (await store.trace(roots[0])).head_sequence else ""
        messages = () if flow.root else MISSION
        if not flow.root:
            store.forget()
        elif (await store.trace(flow.root)).status == "completed":
            return


async def shape(flow: Flow) -> list[Any]:
    """All that a tree became, without ids and times."""
    members = [t.state for t in await flow.store.tree(flow.root)]
    members.sort(key=lambda t: (t.mission, t.created_at))
    names = {t.id: f"<{t.mission}>" for t in members}

    def plain(text: str) -> str:
        for name, shown in names.items():
            text = text.replace(name, shown)
        return re.sub(r"\d{4}-\d\d-\d\dT[\d:+.]+|call_turn_\w+|[0-9a-f]{64}", "…", text)

    def message(m: Message) -> Any:
        entries = [e["entry"] for e in m.metadata.get("protocol", [])]
        # The time is another one; and a call that is no harm to lose may have been interrupted,
        # which packets then show.
        has_own = m.name == "get_current_context" or m.text.startswith("# RootTaskAnchor")
        return m.role, m.name, "" if has_own else plain(m.text), entries

    found: list[Any] = []
    for t in members:
        events = await flow.store.events(t.id, 0, 100_000)
        kinds = (ChildEnded, Reviewed, Verdict, ToolResult)
        told = sorted(e.kind for e in events if isinstance(e, kinds))
        path = [message(m) for m in await flow.store.path(t.id)]
        # Side by side, results come in the order in which the children end.
        path = sorted(path) if flow.config.children == "parallel" else path
        found.append((spawned(t).get("kind"), t.mission, t.status, path, told))
    return found


@pytest.mark.parametrize("kind", ["serial", "parallel", "plain"])
async def test_whenever_a_process_dies_the_tree_ends_as_an_undisturbed_one(kind: str):
    with TemporaryDirectory() as folder:
        whole = a_tree(folder, kind)
        await lived(whole)
        assert whole.why[0] == "completed"
        await check_whole(whole.store, whole.root)
        expected, writes = await shape(whole), whole.store.writes
        assert writes > 25
        for k in range(1, writes + 1):
            flow = a_tree(folder, kind)
            await lived(flow, k)
            assert await shape(flow) == expected, f"cut at write {k}"
            await check_whole(flow.store, flow.root, windows=k % 10 == 0)


@examples(8)
@given(deaths=st.lists(st.integers(1, 60), min_size=2, max_size=5))
def test_processes_may_die_one_after_the_other(deaths: list[int]):
    async def run() -> None:
        with TemporaryDirectory() as folder:
            whole, flow = a_tree(folder, "serial"), a_tree(folder, "serial")
            await lived(whole)
            await lived(flow, *deaths)
            assert await shape(flow) == await shape(whole)
            await check_whole(flow.store, flow.root, windows=False)

    asyncio.run(run())
