"""``agent()``: a child gets a contract, works, and comes back with a report and a verdict.

Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cyberagent.core.briefs import TaskBrief
from cyberagent.core.context_policy import normalize_task_brief
from cyberagent.core.errors import ProtocolRefused
from cyberagent.core.events import Rewound
from cyberagent.core.family import ENDED, Ask, Family, Outcome
from cyberagent.core.lineage import (
    anchor_message,
    anchor_text,
    is_contract,
    lineage_of,
    open_protocol,
)
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import ChildEnded, Delegated, entry_to_json
from cyberagent.core.refs import Snapshot
from cyberagent.core.reports import TaskReport
from cyberagent.core.state import RunState
from cyberagent.core.types import Json, Message, TraceState
from cyberagent.core.verdicts import ValidationResult, plan_validation, unknown_result
from cyberagent.core.wording import label, wording

REPORT_CHARS = 16_000
"""Characters of a report that are shown with the result; the whole is read as a ref, once it was
reviewed."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What a child is to be given: ``access`` are its own copies of what it may read."""

    brief: TaskBrief
    access: tuple[Snapshot, ...]
    version: int = 1


async def delegate(context: ToolContext, task_brief: Json, child: str = "") -> ToolOutcome:
    """Give ``task_brief`` to a new child, or to ``child`` whose revision was approved, and wait
    for its end. Raises ProtocolRefused and what it draws from; Paused."""
    state: RunState = context.state
    family = context.family
    if family is None or state.protocol is None:
        raise ProtocolRefused("this run cannot delegate: it is not recursive")
    brief = normalize_task_brief(task_brief, state.protocol.anchor, state.protocol.brief)
    # Calls of one batch are checked one after the other: an approved brief is used once.
    name = child or f"new: {context.call}"
    _, access = _ahead(state).delegated(_last(state), name, brief)
    state.delegating[context.call] = name, brief
    try:
        outcome = await _attended(family, state, context, Contract(brief, access), child)
    finally:
        del state.delegating[context.call]
    return await _result(family, state, outcome, Contract(brief, access))


def _ahead(state: RunState) -> ProtocolState:
    """The protocol with what the calls of this batch do that have no result yet."""
    protocol = state.protocol
    assert protocol is not None
    for child, brief in state.delegating.values():
        protocol, _ = protocol.delegated(_last(state), child, brief)
    return protocol


def _last(state: RunState) -> int:
    return state.trace.last_sequence + 1


# The child -----------------------------------------------------------------------------------


async def _attended(
    family: Family, state: RunState, context: ToolContext, contract: Contract, child_id: str
) -> Outcome:
    config = family.spawner.settings("agent", state.config)
    ask = Ask(
        kind="agent",
        call=context.call,
        message=context.message,
        mission=contract.brief.objective,
        config=config,
        opening=(),
        brief=1,
    )
    if not child_id:
        opening = _contract_message(family, state, contract, context.call)
        ask = replace(ask, opening=(opening,))
        return await family.attend(state, ask)
    child = await family.store.trace(child_id)
    if child.parent_trace != state.trace.id:
        raise ProtocolRefused(f"{child_id} belongs to another run; give the brief to a new child")
    path = await family.store.path(child_id)
    if _given(path, context.call) is None:
        child, count = await _taken_back(family, state, child, path)
        contract = replace(contract, version=count + 1)
        opening = _contract_message(family, state, contract, context.call)
        await family.go_on(state, child, replace(ask, brief=contract.version), [opening])
    elif child.status not in ENDED:
        await family.go_on(state, child, replace(ask, brief=contract.version), ())
    return await family.outcome(state, child_id)


def _given(path: Sequence[Message], call: str) -> Message | None:
    """The contract that this call brought already, before the run was left."""
    return next((m for m in path if is_contract(m) and m.metadata.get("call") == call), None)


async def _taken_back(
    family: Family, state: RunState, child: TraceState, path: Sequence[Message]
) -> tuple[TraceState, int]:
    """The child where it stood when its parent last knew it, and how many contracts it had then:
    a parent that was rewound past a revision must not find that revision's work done."""
    assert state.protocol is not None
    rounds = state.protocol.children[child.id].rounds
    own = await open_protocol(family.store, child, path)
    briefs = own.briefs if own else ()
    if len(briefs) <= rounds:
        return child, len(briefs)
    later = briefs[rounds].given_at_sequence
    to = next(m.parent_sequence or 0 for m in path if m.sequence == later)
    kept = [m for m in path if m.sequence <= to]
    moved = await family.store.move_head(
        child.id,
        to,
        [
            Rewound(
                to_sequence=to,
                from_sequence=child.head_sequence,
                by="framework",
                why="the run above was rewound past the revision that came after it",
            )
        ],
        expected_head=child.head_sequence,
        goals=family.replay(kept, child.mission).to_json(),
    )
    return moved.trace, rounds


def _contract_message(family: Family, state: RunState, contract: Contract, call: str) -> Message:
    """The message that opens a child's work: anchor, lineage, contract and refs, and nothing
    else of its parent."""
    assert state.protocol is not None
    anchor, language = state.protocol.anchor, state.config.language
    lineage = [*lineage_of(state.trace), state.trace.id]
    text = wording(language, "child_task").format(
        anchor=anchor_text(anchor),
        lineage=" → ".join(lineage),
        version=contract.version,
        brief=contract.brief.text,
        refs=refs_text(contract.access, language),
    )
    plan = plan_validation(anchor, contract.brief, model=family.validator_of(state.config))
    briefed: Json = {
        "entry": "briefed",
        "brief": contract.brief.to_json(),
        "parent": state.trace.id,
        "access": [s.to_json() for s in contract.access],
    }
    return anchor_message(text, anchor, protocol=[briefed], call=call, plan=plan.to_json())


def refs_text(snapshots: Sequence[Snapshot], language: str) -> str:
    """The refs that a trace holds, one a line, without their contents."""
    lines = [
        f"- {s.ref_id} version {s.version} ({s.kind}, {len(s.text):,} characters)"
        for s in snapshots
    ]
    return "\n".join(lines) or label(language, "no_refs")


# What comes back -----------------------------------------------------------------------------


async def _result(
    family: Family, state: RunState, outcome: Outcome, contract: Contract
) -> ToolOutcome:
    """The result of the call: what the child handed in, its verdict, and the review that is due;
    with the records of both."""
    assert state.protocol is not None
    child, brief = outcome.trace.id, contract.brief
    own = await open_protocol(family.store, outcome.trace, outcome.path)
    report = own.report if own else None
    result = own.result if own else None
    if result is None:
        plan = plan_validation(
            state.protocol.anchor, brief, model=family.validator_of(state.config)
        )
        result = unknown_result(plan, f"no report was validated: {_no_report(outcome)}")
    record = [
        entry_to_json(Delegated(child, brief, tuple(s.ref for s in contract.access))),
        entry_to_json(ChildEnded(child, report, result)),
    ]
    return ToolOutcome(
        text=result_text(outcome, report, result, state.config.language),
        shorten=False,
        metadata={"protocol": record, "child": child},
    )


def _no_report(outcome: Outcome) -> str:
    if outcome.status == "completed":
        return "the sub-agent ended without handing one in"
    return f"the sub-agent {outcome.status}: {outcome.why or 'no reason is known'}"


def result_text(
    outcome: Outcome, report: TaskReport | None, result: ValidationResult, language: str
) -> str:
    """What the parent's model is told of a child that ended."""
    child = outcome.trace.id
    lines = [f"Child {child} ended: {outcome.status}. {activity(outcome, language)}"]
    lines.append(f"Verdict: {result.verdict}" + (f" — {result.reason}" if result.reason else ""))
    for one in result.criteria:
        evidence = f" [{', '.join(str(e) for e in one.evidence)}]" if one.evidence else ""
        lines.append(f"- {one.id} {one.verdict}: {one.criterion} — {one.reason}{evidence}")
    if report is None:
        lines.append(f"Report: none ({_no_report(outcome)})")
    else:
        shown = report.text[:REPORT_CHARS]
        more = len(report.text) - len(shown)
        lines.append(f"Report: {shown}" + (f" [{more:,} more characters]" if more else ""))
    lines.append(label(language, "review_due").format(child=child))
    return "\n".join(lines)


def activity(outcome: Outcome, language: str) -> str:
    """What a sub-agent did: its answers, and how often it used which tool."""
    calls = [c.name for m in outcome.path for c in m.tool_calls if c.made_by == "model"]
    used = ", ".join(f"{name} ×{count}" for name, count in Counter(calls).most_common())
    return label(language, "activity").format(
        steps=len(outcome.answers), tools=used or label(language, "no_tools")
    )
