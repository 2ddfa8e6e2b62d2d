"""Recursive runs in memory: a script for the whole tree, real tools on real files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cyberagent.core.config import RunConfig
from cyberagent.core.events import Done, Event
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.lineage import spawned
from cyberagent.core.ports import Control
from cyberagent.core.types import TraceState
from cyberagent.presets import build_runner

ANCHOR: dict[str, Any] = {
    "objective": "Have the two notes counted",
    "completion_criteria": ["A count for each note is given"],
    "constraints": ["Change no note"],
}
MISSION = [{"role": "user", "content": "Count the notes."}]


def brief(objective: str, **fields: Any) -> dict[str, Any]:
    """A brief with one criterion and one output."""
    return {
        "objective": objective,
        "completion_criteria": [f"{objective}: done"],
        "expected_outputs": ["a text"],
        **fields,
    }


def report(criterion: str, **fields: Any) -> dict[str, Any]:
    return {
        "status": "completed",
        "summary": f"Done: {criterion}",
        "criteria": [{"criterion": criterion, "met": True, "evidence": ["count"]}],
        "outputs": [{"name": "count", "text": "2"}],
        **fields,
    }


def verdict(word: str, *ids: str, evidence: Any = "count") -> str:
    """A validator's answer with the same word for every criterion of ``ids``."""
    return json.dumps(
        {
            "verdict": word,
            "criteria": [
                {"criterion": i, "verdict": word, "reason": "seen", "evidence": [evidence]}
                for i in ids
            ],
        }
    )


def agent(match: Any, kind: str, *turns: Any) -> dict[str, Any]:
    return {"match": match, "kind": kind, "turns": list(turns)}


def say(text: str) -> dict[str, Any]:
    return {"say": text}


def calls(*made: Any, **find: str) -> dict[str, Any]:
    return {"calls": list(made), **({"find": find} if find else {})}


class Tree:
    """One recursive run: its store, its events, its traces by kind."""

    def __init__(self, folder: Path, turns: list[Any], agents: list[Any], **config: Any) -> None:
        (folder / "a.md").write_text("one\ntwo\n")
        self.store = InMemoryStore()
        script = {"turns": turns, "agents": agents}
        self.config = RunConfig(
            provider="scripted",
            preset=config.pop("preset", "recursive"),
            workspace=str(folder),
            provider_options={"script": script, "speed": 0},
            **config,
        )
        self.events: list[Event] = []
        self.heard: list[tuple[str, Event]] = []

    async def go(
        self,
        messages: Any = MISSION,
        control: Control | None = None,
        control_for: Callable[[str], Control] | None = None,
        **arguments: Any,
    ) -> Tree:
        runner = await build_runner(
            self.config,
            store=self.store,
            environment={},
            control=control,
            control_for=control_for,
            heard=lambda trace, event: self.heard.append((trace, event)),
        )
        if "trace_id" not in arguments and self.config.preset == "recursive":
            arguments.setdefault("root_task_anchor", ANCHOR)
        async for event in runner.run(messages, self.config, **arguments):
            self.events.append(event)
        return self

    @property
    def done(self) -> Done:
        last = self.events[-1]
        assert isinstance(last, Done)
        return last

    async def traces(self, kind: str = "") -> list[TraceState]:
        """The traces of this kind ("" the root's own), in the order in which they were made."""
        found = [t.state for t in await self.store.tree(self.done.trace)]
        return [t for t in found if spawned(t).get("kind", "") == kind]

    async def texts(self, trace_id: str) -> list[str]:
        return [m.text for m in await self.store.path(trace_id)]
