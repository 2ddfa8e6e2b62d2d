"""No sequence of delegating, revising, reviewing and rewinding lets a trace read what the rules
deny: random histories against a naive reference that knows the rules and none of the code."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from cyberagent.core.context_policy import normalize_task_brief
from cyberagent.core.errors import ProtocolRefused
from cyberagent.core.protocol import ProtocolState, replay_protocol
from cyberagent.core.refs import ContextRef
from cyberagent.core.types import Message, text_message
from tests.core.protocol_values import anchor, brief_json, report, result, review

ANCHOR = anchor()


@dataclass
class Told:
    """One thing that happened to a trace, as the reference remembers it."""

    sequence: int
    what: str
    child: str = ""
    pairs: set[ContextRef] = field(default_factory=set[ContextRef])


class Rules:
    """The rules, read off the description: who may read which pair at this moment."""

    def __init__(self) -> None:
        self.told: dict[str, list[Told]] = {"root": []}
        self.parent: dict[str, str] = {}

    def own_copies(self, trace: str) -> tuple[set[ContextRef], set[ContextRef]]:
        """What was handed to it with its newest contract, and its own reviewed results since."""
        handed: set[ContextRef] = set()
        results: set[ContextRef] = set()
        for one in self.told[trace]:
            if one.what == "contract":
                handed, results = set(one.pairs), set()
            elif one.what == "result":
                results |= one.pairs
        return handed, results

    def passes_on(self, trace: str, child: str) -> set[ContextRef]:
        given: set[ContextRef] = set()
        contracts: set[ContextRef] = set()
        for one in self.told[trace]:
            if one.what == "gave" and one.child == child:
                given = set(one.pairs)
            elif one.what == "wants revised" and one.child == child:
                given = set()
            elif one.what == "contract text":
                contracts |= one.pairs
        return given & (self.may_read(trace) | contracts)

    def may_read(self, trace: str) -> set[ContextRef]:
        handed, results = self.own_copies(trace)
        if trace in self.parent:
            handed &= self.passes_on(self.parent[trace], trace)
        return handed | results

    def rewind(self, trace: str, to: int) -> None:
        self.told[trace] = [one for one in self.told[trace] if one.sequence <= to]


class World:
    """A tree of traces driven through the code under test, with paths as a store keeps them."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.paths: dict[str, list[Message]] = {"root": []}
        self.last: dict[str, int] = {"root": 0}
        self.known: list[ContextRef] = [ContextRef("made-up", "0" * 64)]

    def state(self, trace: str) -> ProtocolState:
        """As a run opens a trace: by replay, under its parent as that is now."""
        own = replay_protocol(self.paths[trace], trace_id=trace, anchor=ANCHOR)
        parent = self.rules.parent.get(trace)
        return own.under_parent(self.state(parent)) if parent else own

    def next(self, trace: str) -> int:
        self.last[trace] += 1
        return self.last[trace]

    def store(self, trace: str, sequence: int, state: ProtocolState) -> None:
        told = json.loads(json.dumps(state.newest))
        self.paths[trace].append(
            text_message(
                "user", "m", source="framework", sequence=sequence, metadata={"protocol": [told]}
            )
        )

    # What happens

    def call_agent(self, trace: str, child: str, value: dict[str, Any]) -> bool:
        state, sequence = self.state(trace), self.next(trace)
        brief = normalize_task_brief(value, ANCHOR, state.brief)
        contract = {ContextRef(f"task_brief:{trace}", state.brief.sha256)} if state.brief else set()
        passed = {ContextRef(**r) for r in value["context_refs"]}
        pairs = passed | contract
        allowed = passed <= self.rules.may_read(trace) and len(pairs) <= 8
        try:
            state, access = state.delegated(sequence, child, brief)
        except ProtocolRefused:
            assert not allowed
            return False
        assert allowed
        assert {s.ref for s in access} == pairs
        self.store(trace, sequence, state)
        self.rules.told[trace].append(Told(sequence, "gave", child, pairs))
        self._contract(trace, child, brief, access)
        return True

    def _contract(self, trace: str, child: str, brief: Any, access: Any) -> None:
        if child not in self.paths:
            self.paths[child], self.last[child] = [], 0
            self.rules.told[child], self.rules.parent[child] = [], trace
        sequence = self.next(child)
        self.store(
            child, sequence, self.state(child).briefed(sequence, brief, access, parent=trace)
        )
        pairs = {s.ref for s in access}
        digest = hashlib.sha256(brief.text.encode()).hexdigest()
        text = ContextRef(f"task_brief:{child}", digest)
        self.rules.told[child] += [
            Told(sequence, "contract", pairs=pairs),
            Told(sequence, "contract text", pairs={text}),
        ]
        self.known.append(text)

    def review(self, trace: str, child: str, next_brief: dict[str, Any] | None) -> None:
        state, sequence = self.state(trace), self.next(trace)
        state = state.child_ended(sequence, child, report(summary=child), result("failed"))
        self.store(trace, sequence, state)
        asked = {"decision": "ABANDON"}
        if next_brief is not None:
            asked = {"decision": "REVISE_CHILD", "next_brief": next_brief}
        made = review(root=ANCHOR, verdict="failed", own=state.brief, **asked)
        handed, results = self.rules.own_copies(trace)
        state, warning = state.reviewed(self.next(trace), child, made)
        sequence = self.last[trace]
        self.store(trace, sequence, state)
        text = json.dumps(
            {
                "report": report(summary=child).to_json(),
                "result": result("failed").to_json(),
                "review": made.to_json(),
            },
            sort_keys=True,
            ensure_ascii=False,
            separators=(",", ":"),
        )
        pair = ContextRef(
            f"reviewed_task_result:{child}", hashlib.sha256(text.encode()).hexdigest()
        )
        room = len(handed | results | {pair}) <= 8
        assert bool(warning) is not room
        if room:
            self.rules.told[trace].append(Told(sequence, "result", pairs={pair}))
        if next_brief is not None:
            self.rules.told[trace].append(Told(sequence, "wants revised", child))
        self.known.append(pair)

    def rewind(self, trace: str, to: int) -> None:
        expected = self.state(trace).rewound(to)
        self.paths[trace] = [m for m in self.paths[trace] if m.sequence <= to]
        self.rules.rewind(trace, to)
        assert self.state(trace) == expected

    def check(self) -> None:
        for trace in self.paths:
            assert self.state(trace).catalogue.refs == self.rules.may_read(trace), trace


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "review", "revise", "revise", "rewind"]),
        st.integers(0, 30),
        st.integers(0, 30),
        st.lists(st.integers(0, 30), max_size=3),
        st.booleans(),
    ),
    max_size=14,
)


def beginning() -> World:
    """A root that passes a reviewed result on to a child, which passes it on to its own."""
    world = World()
    world.call_agent("root", "done", brief_json(context_refs=[]))
    world.review("root", "done", None)
    refs = [r.to_json() for r in world.rules.may_read("root")]
    assert world.call_agent("root", "child", brief_json(context_refs=refs))
    assert world.call_agent("child", "grandchild", brief_json(context_refs=refs))
    assert len(world.rules.may_read("grandchild")) == 2
    return world


def refs_to_pass(world: World, trace: str, picks: list[int], honest: bool) -> list[Any]:
    """Some refs for a brief: of those that the trace holds, or of all that exist anywhere."""
    choice = sorted(world.rules.may_read(trace)) if honest else world.known
    return [choice[p % len(choice)].to_json() for p in picks] if choice else []


def step(world: World, number: int, drawn: Any) -> str:
    """One random thing; a word for what came of it."""
    what, a, b, picks, honest = drawn
    traces = list(world.paths)
    trace = traces[a % len(traces)]
    refs = refs_to_pass(world, trace, picks, honest)
    if what == "rewind":
        world.rewind(trace, b % (world.last[trace] + 1))
        return "rewound"
    if what == "call":
        value = brief_json(reason=str(b % 3), context_refs=refs)
        done = world.call_agent(trace, f"t{number}", value)
        return f"{'called' if done else 'call refused'} with refs {bool(refs)}"
    running = [c.id for c in world.state(trace).children.values() if c.result is None]
    if not running:
        return "nothing to review"
    child = running[b % len(running)]
    following = brief_json(reason="better", context_refs=refs)
    world.review(trace, child, following if what == "revise" else None)
    if what == "review":
        return "reviewed"
    world.check()
    done = world.call_agent(trace, child, following)
    return f"{'revised' if done else 'revision refused'} with refs {bool(refs)}"


# Without the explain phase, which would take minutes to say little of such long histories.
@settings(
    deadline=None,
    max_examples=80,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(STEPS)
def test_no_history_lets_a_trace_read_what_the_rules_deny(steps: list[Any]) -> None:
    world = beginning()
    world.check()
    for number, drawn in enumerate(steps):
        event(step(world, number, drawn))
        world.check()
