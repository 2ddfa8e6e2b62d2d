"""Whole trees at random: agents that delegate, report, review and read, rewinds of any of them,
revised anchors, crashes and compactions. After every step, and before every call of every model,
the protocol state that is opened from the store is the one that the run held, and the one that a
naive reading of the messages gives."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.config import RunConfig
from cyberagent.core.control import ManualControl, NoControl
from cyberagent.core.events import Compacted, Done, Event
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.lineage import is_recursive, open_protocol, spawned
from cyberagent.core.parts import Branching, Parts
from cyberagent.core.ports import Answer, Control, Delta, ModelRequest
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.runner import AgentRunner
from cyberagent.core.state import RunState
from cyberagent.core.types import Message, Part, Text, ToolCall, Usage
from cyberagent.core.window import Window
from cyberagent.presets import build_runner
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import project_openai
from cyberagent.trace.tree import safe_point
from tests.core.protocol_values import anchor
from tests.core.protocol_values import brief as value_brief
from tests.core.trees import ANCHOR, MISSION, agent, brief, calls, report, say, verdict
from tests.core.watching import WatchedSpawner, WatchedTree
from tests.examples import examples
from tests.peers.provider_server import Call as ServerCall
from tests.peers.provider_server import ProviderServer, Turn

MOST_TRACES, MOST_DEPTH = 9, 2
Pair = tuple[str, str]

# What is drawn -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Go:
    """A run of the root to its end, or to the event at which the process dies. ``choices``: what
    the agents decide, one number each; with none left all come to their end. ``operator``: what
    she does about reviews that are due; ``revised_at``: the call before which she revises the
    anchor."""

    choices: tuple[int, ...] = ()
    dies_at: int | None = None
    says: bool = False
    operator: int = 0
    revised_at: int | None = None


@dataclass(frozen=True)
class Rewind:
    """Of the ``which``-th agent, by ``back`` messages or a few more."""

    which: int
    back: int


@dataclass(frozen=True)
class Revise:
    """An operator's new anchor."""

    constraint: int


Step = Go | Rewind | Revise

GO = st.builds(
    Go,
    choices=st.lists(st.integers(0, 999), min_size=12, max_size=80).map(tuple),
    dies_at=st.none() | st.integers(1, 120),
    says=st.booleans(),
    operator=st.integers(0, 4),
    revised_at=st.none() | st.integers(1, 15),
)
STEPS = st.lists(
    st.one_of(
        GO,
        st.builds(Rewind, st.integers(0, 8), st.integers(0, 12)),
        st.builds(Revise, st.integers(0, 3)),
    ),
    min_size=1,
    max_size=6,
)


# The models --------------------------------------------------------------------------------------


class DecidingModel:
    """The model of every agent of the tree. It takes its choices from the world's numbers, and
    knows no more than what its trace's state allows or forbids."""

    name, projection = "deciding", "openai/1"
    params: Mapping[str, Any] = {"model": "m", "dialect": "openai"}

    def __init__(self, world: World) -> None:
        self.world = world

    def project(self, window: Window) -> dict[str, Any]:
        return project_openai(window)

    def problems(self, payload: Any) -> list[str]:
        return problems_openai(payload, "openai")

    def cost(self, usage: Usage) -> float | None:
        return None

    async def aclose(self) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta | Answer]:
        world = self.world
        trace = await world.store.trace(request.trace_id)
        if request.branch_type:
            parts: tuple[Part, ...] = (Text("1. Facts [1-2] were found, and all goes on."),)
        elif spawned(trace).get("kind") == "validator":
            parts = (Text(self._verdict(request.payload.decode())),)
        else:
            path = await world.store.path(trace.id)
            state = await open_protocol(world.store, trace, path)
            assert state is not None
            parts = await self._decided(state, len(trace.context["lineage"]))
        calls = any(isinstance(p, ToolCall) for p in parts)
        yield Answer(parts=parts, finish_reason="tool_calls" if calls else "stop", model="m")

    def _verdict(self, payload: str) -> str:
        word = self.world.choose(("passed", "failed", "unknown", "It is great."), last="passed")
        packet = json.loads(payload)["messages"][-1]["content"]
        candidate = packet.split("# CandidateAnswer\n")[1].split("\n")[0]
        if candidate == "null":
            return verdict(word, "B1", evidence="out") if len(word) < 8 else word
        sequence = json.loads(candidate)["sequence"]
        return verdict(word, "R1", evidence=sequence) if len(word) < 8 else word

    async def _decided(self, state: ProtocolState, depth: int) -> tuple[Part, ...]:
        count = self.world.choose((1, 1, 2, 3), last=1)
        made = [await self._act(state, depth) for _ in range(count)]
        if any(call is None for call in made):
            return (Text("This is the answer."),)
        return tuple(self._call(*call) for call in made if call is not None)

    def _call(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        # Some providers give each batch's calls the same ids again.
        number = next(self.world.ids)
        number = number if self.world.unique_ids else number % 4
        return ToolCall(f"call_{number}", name, json.dumps(arguments))

    async def _act(self, state: ProtocolState, depth: int) -> tuple[str, dict[str, Any]] | None:
        """A tool and its arguments; None: an answer."""
        world = self.world
        what = world.choose(
            ("delegate",) * 3 + ("review",) * 4 + ("carry out",) * 4 + ("read",) * 2
            + ("report", "compact", "other", "answer"),
            last="",
        )  # fmt: skip
        if what in ("review", "carry out") and not (state.reviews_due or state.approved):
            what = "delegate"
        if what == "":
            what = "review" if state.reviews_due else "report" if state.brief else "answer"
        if what == "review" and state.reviews_due:
            return "review_child", self._review(state)
        if what == "carry out" and state.approved:
            approved = world.choose(state.approved)
            arguments = {"task_brief": approved.brief.to_json()}
            return "agent", arguments | ({"child": approved.child} if approved.child else {})
        if what == "delegate" and depth < MOST_DEPTH and len(world.store._traces) < MOST_TRACES:
            return "agent", {"task_brief": self._brief(state)}
        if what == "read":
            own = [(g.snapshot.ref_id, g.snapshot.version) for g in state.catalogue.grants]
            others = sorted(world.seen_pairs) or [("none", "0" * 64)]
            ref_id, version = world.choose(world.choose((own or others, others)))
            return "read_context_ref", {"ref_id": ref_id, "version": version}
        if what == "compact":
            return "compress_context", {}
        if what == "other":
            return "agent", {"task_brief": self._brief(state), "child": world.any_trace()}
        if what == "answer" or state.brief is None:
            return None
        told = {"status": "completed", "summary": f"report {next(world.ids)}"}
        return "submit_report", {"report": told | {"outputs": [{"name": "out", "text": "2"}]}}

    def _review(self, state: ProtocolState) -> dict[str, Any]:
        decisions = ("ACCEPT", "ACCEPT", "REVISE_CHILD", "REVISE_CHILD", "REPLACE", "ABANDON")
        decision = self.world.choose(decisions, last="ABANDON")
        value = {
            "child": self.world.choose(state.reviews_due).id,
            "decision": decision,
            "reason": "seen",
        }
        if decision in ("REVISE_CHILD", "REPLACE"):
            value["next_brief"] = self._brief(state)
        return value

    def _brief(self, state: ProtocolState) -> dict[str, Any]:
        """A brief that passes some of the refs on; now and then one that is another's."""
        world = self.world
        held = sorted((g.snapshot.ref_id, g.snapshot.version) for g in state.catalogue.grants)
        pairs = [p for p in held if world.choose((True, False), last=False)]
        if world.choose((False, False, False, True), last=False) and world.seen_pairs:
            pairs.append(world.choose(sorted(world.seen_pairs)))
        return {
            "objective": f"part {next(world.ids)}",
            "completion_criteria": ["it is there"],
            "expected_outputs": ["out"],
            "context_refs": [{"ref_id": r, "version": v} for r, v in pairs],
        }


@dataclass
class Peek:
    """A compaction that lets the world look at the state of each run before each call."""

    behind: Any
    world: World

    async def restored(self, *arguments: Any) -> Any:
        return await self.behind.restored(*arguments)

    async def manage(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        async for event in self.behind.manage(state, runner):
            yield event
        await self.world.before_a_call(state)

    async def reflect(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        async for event in self.behind.reflect(state, runner):
            yield event


# The world ---------------------------------------------------------------------------------------


@dataclass
class World:
    children: str = "serial"
    unique_ids: bool = True
    store: InMemoryStore = field(default_factory=InMemoryStore)
    root: str = ""
    choices: list[int] = field(default_factory=list)
    held: dict[str, RunState] = field(default_factory=dict)
    seen_pairs: set[Pair] = field(default_factory=set)
    looked: int = 0
    revised_at: int | None = None

    def __post_init__(self) -> None:
        self.ids = itertools.count(1)
        self.config = RunConfig(
            preset="recursive",
            tools=("agent", "review_child", "read_context_ref", "compress_context"),
            context_window=200_000,
            children=self.children,  # type: ignore[arg-type]
            provider_options={"script": {"turns": [{"say": "x"}]}, "speed": 0},
        )

    def choose(self, options: Sequence[Any], last: Any = None) -> Any:
        """The next number's choice; ``last``: where there is none left."""
        if not self.choices:
            return options[0] if last is None else last
        return options[self.choices.pop(0) % len(options)]

    def any_trace(self) -> str:
        return self.choose([*self.store._traces, "0" * 12])

    def watch(self, parts: Parts) -> Parts:
        assert parts.spawner is not None
        spawner = WatchedSpawner(parts.spawner, self.watch)
        peek = Peek(parts.compaction, self)
        return replace(parts, provider=DecidingModel(self), spawner=spawner, compaction=peek)

    # Steps

    async def do(self, step: Step) -> None:
        if isinstance(step, Go):
            await self._go(step)
        elif self.root and isinstance(step, Rewind):
            await self._rewind(step)
        elif self.root and isinstance(step, Revise):
            await self._revise(step)
        if self.root:
            await self.check()

    async def _go(self, go: Go) -> None:
        self.choices = list(go.choices)
        self.held.clear()
        # Where agents work side by side, one may be between being told and being asked just then.
        in_order = self.children == "serial" and go.revised_at
        self.revised_at = self.looked + in_order if in_order else None
        control = ManualControl(by="ann")
        if self.root and go.operator:
            self._operator(control, go.operator, await self.state(self.root))
        built = await build_runner(self.config, store=self.store, environment={}, control=control)
        runner = AgentRunner(self.watch(built.parts))
        says = go.says and not await self._has_open_calls()
        messages = MISSION if says or not self.root else []
        anchor = None if self.root else ANCHOR
        stream = runner.run(
            messages, self.config, trace_id=self.root or None, root_task_anchor=anchor
        )
        heard: list[Event] = []
        async for event in stream:
            heard.append(event)
            if not self.root:
                [self.root] = self.store._traces
            if len(heard) == go.dies_at:
                await stream.aclose()
                await _at_rest()
                return
        last = heard[-1]
        assert isinstance(last, Done) and last.status in ("completed", "failed"), last
        assert any(w in last.why for w in ("limit", "validator", "reviews are due")), last.why
        for trace_id, state in self.held.items():
            now = await self.state(trace_id)
            assert state.protocol is not None and state.protocol.entries == now.entries
            if trace_id == self.root and state.protocol.anchor == now.anchor:
                assert state.protocol == now

    async def _has_open_calls(self) -> bool:
        path = await self.store.path(self.root) if self.root else []
        return bool(path) and (path[-1].role == "tool" or bool(path[-1].tool_calls))

    @staticmethod
    def _operator(control: ManualControl, number: int, state: ProtocolState) -> None:
        for child in state.reviews_due:
            decision = ("ACCEPT", "ABANDON")[number % 2]
            control.request("review", child=child.id, decision=decision, reason="I looked")

    async def _rewind(self, rewind: Rewind) -> None:
        agents = [t.state for t in await self.store.tree(self.root) if is_recursive(t.state)]
        trace = agents[rewind.which % len(agents)]
        whole = await self.whole(trace.id)
        # The mission and the anchor, or the first contract, are where a trace begins.
        first = 1 if trace.parent_trace else 2
        targets = [m.sequence for m in whole][first - 1 :]
        if not targets:
            return
        target = targets[max(0, len(targets) - 1 - rewind.back)]
        path = await self.store.path(trace.id, head=target)
        to = max(safe_point(path, target), whole[first - 1].sequence)
        await self.store.move_head(trace.id, to, expected_head=trace.head_sequence)

    async def _revise(self, revise: Revise) -> None:
        newest = (await self.store.anchors(self.root))[-1].anchor
        constraints = [f"Keep to rule {revise.constraint}", *ANCHOR["constraints"]]
        if list(newest.constraints) != constraints:
            value = {**ANCHOR, "constraints": constraints}
            self.store.revise_anchor(self.root, value, by="ann", why="she said so")

    # What must hold

    async def state(self, trace_id: str) -> ProtocolState:
        trace = await self.store.trace(trace_id)
        path = await self.store.path(trace_id) if trace.head_sequence else []
        state = await open_protocol(self.store, trace, path)
        assert state is not None
        return state

    async def before_a_call(self, state: RunState) -> None:
        if state.protocol is None:
            return
        self.looked += 1
        self.held[state.trace.id] = state
        assert state.protocol == await self.state(state.trace.id), "what a run holds at work"
        await self.check()
        if self.looked == self.revised_at:
            await self._revise(Revise(self.looked))

    async def check(self) -> None:
        for one in await self.store.tree(self.root):
            if is_recursive(one.state):
                await self._check_trace(one.state.id)

    async def _check_trace(self, trace_id: str) -> None:
        state = await self.state(trace_id)
        naive = await self.naive(trace_id)
        pairs = {(r.ref_id, r.version) for r in state.catalogue.refs}
        assert pairs == naive.holds, "the refs that a trace holds"
        assert [c.id for c in state.reviews_due] == naive.due
        on_path = {m.sequence for m in await self.whole(trace_id)}
        assert {g.granted_at_sequence for g in state.catalogue.grants} <= on_path
        assert (state.report is not None) is naive.has_report
        anchor = (await self.store.anchors(self.root))[-1].anchor
        if state.brief is not None:
            assert set(anchor.constraints) <= set(state.brief.constraints)
        self.seen_pairs |= naive.holds

    async def whole(self, trace_id: str, head: int | None = None) -> list[Message]:
        """The path with what summaries stand for in their places."""
        if head is None:
            head = (await self.store.trace(trace_id)).head_sequence
        path = await self.store.path(trace_id, head=head) if head else []
        for place in range(len(path) - 1, -1, -1):
            if path[place].source == "summary":
                last = path[place].metadata["stands_for"]["last"]
                return [*await self.whole(trace_id, last), *path[place + 1 :]]
        return path

    async def naive(self, trace_id: str) -> Naive:
        """What holds for a trace by a plain reading of its messages and its parent's."""
        trace = await self.store.trace(trace_id)
        path = await self.whole(trace_id)
        parent = await self.naive(trace.parent_trace) if trace.parent_trace else None
        found = Naive(trace_id)
        contract: Message | None = None
        given: list[tuple[Pair, bool]] = []
        for message in path:
            for entry in message.metadata.get("protocol") or []:
                found.take(entry)
                if entry["entry"] == "briefed":
                    contract = message
                    given = [((s["ref_id"], s["version"]), True) for s in entry["access"]]
                if entry["entry"] == "reviewed":
                    given += [((r["ref_id"], r["version"]), False) for r in entry["ref"]]
        if path and path[-1].role in ("assistant", "tool"):
            found.asking = next(m for m in reversed(path) if m.role == "assistant")
            answered = [m.tool_call_id for m in path if m.sequence > found.asking.sequence]
            found.open = [c.id for c in found.asking.tool_calls if c.id not in answered]
        allowed: set[Pair] = set()
        if parent is not None and contract is not None:
            allowed = parent.gives(trace_id, contract, given)
        found.holds = {p for p, handed in given if not handed or p in allowed}
        return found


async def _at_rest() -> None:
    """Until all that a run left behind when it was cut off has been cleared away: generators that
    nobody asks any more are closed in a task of their own, one in the other."""
    me = asyncio.current_task()
    for _ in range(20):
        await asyncio.sleep(0)
        if others := [t for t in asyncio.all_tasks() if t is not me]:
            await asyncio.wait(others)


@dataclass
class Naive:
    """A trace as a plain reading has it. ``handed``: what it gave each child with its present
    contract; ``open``: its calls that wait."""

    trace: str
    holds: set[Pair] = field(default_factory=set)
    handed: dict[str, set[Pair]] = field(default_factory=dict)
    due: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    has_report: bool = False
    asking: Message | None = None
    open: list[str] = field(default_factory=list)

    def take(self, entry: Mapping[str, Any]) -> None:
        child = entry.get("child", "")
        match entry["entry"]:
            case "briefed":
                self.has_report = False
            case "reported":
                self.has_report = True
            case "delegated":
                self.order += [child] if child not in self.order else []
                self.handed[child] = {(r["ref_id"], r["version"]) for r in entry["access"]}
            case "child_ended":
                self.due = [c for c in self.order if c in {*self.due, child}]
            case "reviewed":
                self.due.remove(child)
                if entry["review"]["decision"] == "REVISE_CHILD":
                    self.handed[child] = set()

    def gives(self, child: str, contract: Message, given: list[tuple[Pair, bool]]) -> set[Pair]:
        """What ``child`` may have of what its contract gave it: what stands in this trace's
        record, or comes with a call that still waits; and is still held here, or is this trace's
        own contract."""
        at_work = (
            self.asking is not None
            and contract.metadata["message"] == self.asking.sequence
            and contract.metadata["call"] in self.open
        )
        handed = {p for p, from_above in given if from_above}
        granted = handed if at_work else self.handed.get(child, set())
        return {p for p in granted if p in self.holds or p[0] == f"task_brief:{self.trace}"}


# The tests ---------------------------------------------------------------------------------------


async def live(world: World, steps: Sequence[Step]) -> None:
    for step in steps:
        await world.do(step)


@examples(40)
@given(steps=STEPS, children=st.sampled_from(["serial", "parallel"]), unique=st.booleans())
def test_what_a_run_holds_is_what_its_messages_say_and_a_child_holds_nothing_more(
    steps: list[Step], children: str, unique: bool
):
    asyncio.run(live(World(children, unique), steps))


# What this has found, each by itself


ONCE = brief("Count it")
AGAIN = brief("Count it again", context_refs=[{"ref_id": "{ref}", "version": "{version}"}])
HELD = {"ref": "- {} version ", "version": "- {ref} version {} "}


async def test_a_revised_contract_is_in_force_after_a_compaction_took_it_off_the_path(
    tmp_path: Path,
):
    """The second contract is stood for by a summary; the run is left, and gone on with."""
    look, child = calls({"get_current_context": {}}), "Child {} ended"
    accept = {"review_child": {"child": "{id}", "decision": "ACCEPT", "reason": "r"}}
    revise = {
        "review_child": {"child": "{id}", "decision": "REVISE_CHILD", "reason": "r"}
        | {"next_brief": AGAIN}
    }
    turns = [
        calls({"agent": {"task_brief": brief("Note it")}}),
        calls(accept, id=child),
        calls({"agent": {"task_brief": ONCE}}),
        look,
        calls(revise, id=child, **HELD),
        look,
        calls({"agent": {"task_brief": AGAIN, "child": "{id}"}}, id=child,
              ref={"text": HELD["ref"], "nth": 2}, version=HELD["version"]),
        calls(accept, id=child),
        say("Counted."),
    ]  # fmt: skip
    read = calls({"read_context_ref": {"ref_id": "{ref}", "version": "{version}"}}, **HELD)
    again = [calls({"compress_context": {}}), read, read, submit("Count it again")]
    worker = agent("Count it", "agent", submit("Count it"), *again)
    worker["branches"] = {"compression": [say("1. It was counted once [2-3].")]}
    tree = WatchedTree(tmp_path, turns, [worker, agent("Note it", "agent", submit("Note it"))])
    control = ManualControl(by="ann")
    tree.heard = Ear(lambda event: isinstance(event, Compacted) and control.request("pause"))

    def control_for(trace: str) -> Control:
        return control if tree.store._traces[trace].state.mission == "Count it" else NoControl()

    await tree.go(control_for=control_for)
    assert tree.done.status == "paused"
    child_trace = (await tree.traces("agent"))[1]
    path = await tree.store.path(child_trace.id)
    kinds = [m.source for m in path]
    assert kinds == ["framework", "summary", "model", "tool"], "and the first of two reads"
    await tree.go([], trace_id=tree.done.trace)
    assert tree.done.answer == "Counted."
    # It was given its second contract once, could read what came with it, and is judged by it.
    rows = await tree.store.messages(child_trace.id, range(1, 100))
    contracts = [m for m in rows.values() if "call" in m.metadata and m.role == "user"]
    assert len(contracts) == 2
    reads = [m for m in rows.values() if m.name == "read_context_ref"]
    assert [m.is_error for m in reads] == [False, False]
    packets = tree.payloads([v.id for v in await tree.traces("validator")])
    plans = [json.loads(p)["messages"][-1]["content"].split("# ")[4] for p in packets]
    assert [("Count it again: done" in p) for p in plans] == [False, False, True, False]


async def test_a_call_whose_id_was_used_before_brings_a_contract_of_its_own(tmp_path: Path):
    """Some endpoints give the first call of every answer the same id."""

    def model(payload: Any) -> Turn:
        told, said = payload["messages"], [m for m in payload["messages"] if m["role"] == "user"]
        opening, results = said[0]["content"], [m for m in told if m["role"] == "tool"]
        if opening.startswith("# RootTaskAnchor"):
            return Turn(text="I cannot tell.")
        if opening.startswith("# Your contract"):
            done = report(f"{'Count it' if not results else 'Count it again'}: done")
            return Turn(
                calls=[ServerCall(name="submit_report", arguments={"report": done}, id="c")]
            )
        again = brief("Count it again")
        child = results[0]["content"].split()[1] if results else ""
        review = {"child": child, "decision": "REVISE_CHILD", "reason": "r", "next_brief": again}
        made: list[tuple[str, Any]] = [
            ("agent", {"task_brief": ONCE}),
            ("review_child", review),
            ("agent", {"task_brief": again, "child": child}),
            ("review_child", {"child": child, "decision": "ACCEPT", "reason": "r"}),
        ]
        if len(results) == len(made):
            return Turn(text="Counted.")
        name, arguments = made[len(results)]
        return Turn(calls=[ServerCall(name=name, arguments=arguments, id="c")])

    async with ProviderServer([model], repeat=True) as server:
        tree = WatchedTree(tmp_path, [say("x")], [])
        tree.config = tree.config.with_(
            provider="openai", model="m", provider_options={"base_url": server.url}
        )
        await tree.go()
    assert tree.done.answer == "Counted."
    [child] = await tree.traces("agent")
    path = await tree.store.path(child.id)
    assert {c.id for m in path for c in m.tool_calls} == {"c"}
    state = await open_protocol(tree.store, child, path)
    assert state is not None and state.report is not None
    assert [b.brief.objective for b in state.briefs] == ["Count it", "Count it again"]
    assert state.report.summary == "Done: Count it again: done"


async def test_who_answered_a_question_cannot_be_given_a_contract(tmp_path: Path):
    """It is told so, and the run goes on."""
    asked = calls({"explore": {"branches": ["Where?"], "background": "here"}})
    again = calls({"agent": {"task_brief": ONCE, "child": "{id}"}}, id="1. {}: It made")
    children = [agent("Where", "explore", say("There."))]
    tree = await WatchedTree(tmp_path, [asked, again, say("The end.")], children).go()
    [told] = [m for m in await tree.store.path(tree.done.trace) if m.name == "agent"]
    assert told.is_error and "no sub-agent" in told.text
    assert tree.done.answer == "The end."


async def test_a_child_of_a_path_that_was_left_cannot_be_given_a_contract(tmp_path: Path):
    children = [agent("Count it", "agent", submit("Count it"))]
    first = [calls({"agent": {"task_brief": ONCE}}), say("First.")]
    tree = await WatchedTree(tmp_path, first, children).go()
    [child], root = await tree.traces("agent"), await tree.store.trace(tree.done.trace)
    await tree.store.move_head(root.id, 2, expected_head=root.head_sequence)
    again = calls({"agent": {"task_brief": ONCE, "child": child.id}})
    tree.config = WatchedTree(tmp_path, [again, say("The end.")], children).config
    await tree.go([], trace_id=root.id)
    [told] = [m for m in await tree.store.path(root.id) if m.name == "agent"]
    assert told.is_error and "no sub-agent" in told.text
    assert tree.done.answer == "The end."


def test_a_child_keeps_its_parents_contract_whatever_becomes_of_the_anchor():
    """The version that it was given is one that a first revision made, and a second one undid."""
    root = anchor()
    state = ProtocolState(trace_id="a", anchor=root).briefed(1, value_brief(root), [], parent="r")
    state = state.under(anchor(constraints=["First"]))
    state, access = state.delegated(3, "b", value_brief(state.anchor, state.brief))
    below = ProtocolState(trace_id="b", anchor=state.anchor)
    below = below.briefed(1, state.children["b"].brief, access, parent="a")
    for constraints in (["First"], ["Second"], []):
        revised = state.under(anchor(constraints=constraints))
        assert below.under_parent(revised).catalogue.refs == {access[0].ref}


class Ear(list[tuple[str, Event]]):
    """A list of events that does something with each."""

    def __init__(self, act: Callable[[Event], object]) -> None:
        super().__init__()
        self._act = act

    def append(self, item: tuple[str, Event]) -> None:
        super().append(item)
        self._act(item[1])


def submit(objective: str) -> dict[str, Any]:
    return calls({"submit_report": {"report": report(f"{objective}: done")}})
