"""Trees of which every payload is kept: what each agent's model was really sent, byte for byte."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cyberagent.core.config import RunConfig
from cyberagent.core.control import ManualControl, NoControl
from cyberagent.core.family import AgentKind, Family, Runs, Spawner
from cyberagent.core.lineage import spawned
from cyberagent.core.parts import Parts, Writer
from cyberagent.core.ports import (
    Answer,
    Control,
    Delta,
    ModelRequest,
    Provider,
    Skill,
    ToolContext,
)
from cyberagent.core.rebuild import rebuilt
from cyberagent.core.runner import AgentRunner
from cyberagent.core.state import open_state
from cyberagent.core.tree import TreeBudget
from cyberagent.core.types import sha256
from cyberagent.presets import build_runner
from cyberagent.providers.projections import PROJECTIONS
from tests.core.trees import ANCHOR, MISSION, Tree

_CANARY = re.compile(r"canary\.(\w+)\.yranac")


def canary(place: str) -> str:
    """A text that stands in one place only, named after it."""
    return f"canary.{place}.yranac"


def canaries(text: str) -> set[str]:
    """The places whose canaries sing in ``text``."""
    return set(_CANARY.findall(text))


@dataclass(frozen=True)
class Sent:
    """A payload as a provider was handed it; ``branch``: of the side branch that asked."""

    trace: str
    call: int
    branch: str
    payload: bytes


class Watching:
    """A provider that keeps each payload and leaves the answer to the one behind it."""

    def __init__(self, behind: Provider, kept: list[Sent]) -> None:
        self._behind, self._kept = behind, kept
        self.name, self.projection, self.params = behind.name, behind.projection, behind.params
        self.project, self.problems, self.cost = behind.project, behind.problems, behind.cost
        self.aclose = behind.aclose

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta | Answer]:
        kept = Sent(request.trace_id, request.call, request.branch_type, request.payload)
        self._kept.append(kept)
        async for item in self._behind.stream(request):
            yield item


@dataclass
class WatchedSpawner:
    """A spawner whose agents' payloads are kept too."""

    behind: Spawner
    watch: Callable[[Parts], Parts]

    def settings(self, kind: AgentKind, parent: RunConfig) -> RunConfig:
        return self.behind.settings(kind, parent)

    def system_prompt(self, config: RunConfig) -> str:
        return self.behind.system_prompt(config)

    def read(self, config: RunConfig, path: str) -> bytes:
        return self.behind.read(config, path)

    async def runner(
        self, kind: AgentKind, config: RunConfig, control: Control, tree: TreeBudget
    ) -> Runs:
        runner = await self.behind.runner(kind, config, control, tree)
        assert isinstance(runner, AgentRunner)
        return AgentRunner(self.watch(runner.parts))


@dataclass
class Extras:
    """What the root is given beside its settings, as whoever embeds the engine may."""

    tools: tuple[Any, ...] = ()
    context_providers: tuple[Callable[..., Any], ...] = ()
    skills: Mapping[str, Skill] = field(default_factory=dict)
    inject_skills: tuple[str, ...] = ()
    say: str = ""


class WatchedTree(Tree):
    """A tree whose payloads are in ``sent``."""

    def __init__(
        self,
        folder: Path,
        turns: list[Any],
        agents: list[Any],
        *,
        branches: Any = None,
        **config: Any,
    ) -> None:
        super().__init__(folder, turns, agents, **config)
        self.sent: list[Sent] = []
        if branches:
            options = dict(self.config.provider_options)
            options["script"] = {**options["script"], "branches": branches}
            self.config = self.config.with_(provider_options=options)

    def watch(self, parts: Parts) -> Parts:
        assert parts.spawner is not None
        return replace(
            parts,
            provider=Watching(parts.provider, self.sent),
            spawner=WatchedSpawner(parts.spawner, self.watch),
        )

    async def go(
        self,
        messages: Any = MISSION,
        control: Any = None,
        control_for: Callable[[str], Control] | None = None,
        extras: Extras | None = None,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> WatchedTree:
        extras = extras or Extras()
        if extras.say:
            control = control or ManualControl()
            control.request("say", text=extras.say)
        built = await build_runner(
            self.config,
            store=self.store,
            environment=environment or {},
            control=control,
            control_for=control_for,
            skills=extras.skills or None,
            heard=lambda trace, event: self.heard.append((trace, event)),
        )
        parts = self.watch(built.parts)
        runner = AgentRunner(
            replace(
                parts,
                tools=built.parts.tools.with_(extras.tools),  # type: ignore[attr-defined]
                context_providers=extras.context_providers,
            )
        )
        if "trace_id" not in arguments and self.config.preset == "recursive":
            arguments.setdefault("root_task_anchor", ANCHOR)
        async for event in runner.run(
            messages, self.config, inject_skills=extras.inject_skills, **arguments
        ):
            self.events.append(event)
        return self

    # What was sent

    def payloads(self, traces: Iterable[str], *, side: bool | None = None) -> list[str]:
        """The payloads of these traces; ``side``: of side branches only, or of none."""
        wanted = set(traces)
        return [
            s.payload.decode()
            for s in self.sent
            if s.trace in wanted and (side is None or bool(s.branch) is side)
        ]

    def seen(self, *traces: str) -> set[str]:
        """The canaries in any payload of these traces."""
        return canaries("\n".join(self.payloads(traces)))

    async def labels(self, names: Mapping[str, str]) -> dict[str, str]:
        """Label → trace id. ``names``: objective or question → label; "root" is the root's, and
        whoever validates "x" is "x.v"."""
        found: dict[str, str] = {}
        for one in await self.store.tree(self.done.trace):
            trace, kind = one.state, spawned(one.state).get("kind", "")
            if not kind:
                found["root"] = trace.id
            elif kind != "validator":
                found[names[trace.mission]] = trace.id
            else:
                above = next(k for k, v in found.items() if v == trace.parent_trace)
                rounds = sum(k.startswith(f"{above}.v") for k in found)
                found[f"{above}.v" + (str(rounds + 1) if rounds else "")] = trace.id
        return found

    async def assert_every_call_was_watched(self) -> None:
        """What was kept is what the store says was sent, no call more or less."""
        kept = {(s.trace, s.call): sha256(s.payload) for s in self.sent}
        made: dict[tuple[str, int], str] = {}
        for one in await self.store.tree(self.done.trace):
            for number in range(1, one.state.last_call + 1):
                again = await rebuilt(self.store, one.state.id, number, PROJECTIONS)
                assert again.holds
                made[one.state.id, number] = again.sha256
        assert kept == made


async def at_work(tree: WatchedTree, trace_id: str) -> ToolContext:
    """The context in which the tools of this trace would run if it went on now."""
    runner = await build_runner(tree.config, store=tree.store, environment={})
    parts = runner.parts
    trace = await tree.store.trace(trace_id)
    assert parts.spawner is not None
    write = Writer(parts.store, parts.counter)
    return ToolContext(
        trace_id=trace_id,
        config=tree.config,
        state=await open_state(tree.store, trace, tree.config, parts),
        call="c1",
        message=trace.head_sequence,
        family=Family(parts.store, parts.spawner, NoControl(), write, parts.replay),
    )
