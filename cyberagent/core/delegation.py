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
    contract_in_force,
    lineage_of,
    open_protocol,
)
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import ChildEnded, Delegated, entry_to_json
from cyberagent.core.protocol_view import BriefVersion
from cyberagent.core.refs import Snapshot
from cyberagent.core.reports import TaskReport
from cyberagent.core.state import RunState
from cyberagent.core.types import Json, Message, TraceState
from cyberagent.core.validating import briefly
from cyberagent.core.verdicts import ValidationResult, plan_validation, unknown_result
from cyberagent.core.wording import label, wording

REPORT_CHARS = 16_000
"""Characters of a report that are shown with the result; the rest is read with
``read_conclusion``."""

MOST_TOOLS_NAMED = 12
TOOL_NAME_CHARS = 64
CRITERIA_CHARS, CRITERION_CHARS, EVIDENCE_CHARS = 12_000, 400, 200
"""Characters that are shown of all criteria of a verdict; of one's text; of its evidence."""


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
    if child and child not in state.protocol.children:
        # No look-up by trace id: what stands in the store does not matter.
        raise ProtocolRefused(f"this run has no sub-agent {child[:80]!r} that could be revised")
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
        opening = _contract_message(family, state, contract, context)
        ask = replace(ask, opening=(opening,))
        return await family.attend(state, ask)
    child = await family.store.trace(child_id)
    own = await open_protocol(family.store, child, await family.store.protocol_path(child_id))
    briefs = own.briefs if own else ()
    given = await contract_in_force(family.store, own) if own else None
    if given is not None and _answers(given, context):  # before the run was left
        if child.status not in ENDED:
            await family.go_on(state, child, replace(ask, brief=len(briefs)), ())
        else:
            await family.tell_end(state, child, ask)
    else:
        child, count = await _taken_back(family, state, child, briefs)
        contract = replace(contract, version=count + 1)
        opening = _contract_message(family, state, contract, context)
        await family.go_on(state, child, replace(ask, brief=contract.version), [opening])
    return await family.outcome(state, child_id)


def _answers(contract: Message, context: ToolContext) -> bool:
    """Whether this very call brought the contract."""
    told = contract.metadata
    return told.get("call") == context.call and told.get("message") == context.message


async def _taken_back(
    family: Family, state: RunState, child: TraceState, briefs: Sequence[BriefVersion]
) -> tuple[TraceState, int]:
    """The child where it stood when its parent last knew it, and how many contracts it had then:
    a parent that was rewound past a revision must not find that revision's work done."""
    assert state.protocol is not None
    rounds = state.protocol.children[child.id].rounds
    if len(briefs) <= rounds:
        return child, len(briefs)
    later = briefs[rounds].given_at_sequence
    to = (await family.store.messages(child.id, [later]))[later].parent_sequence or 0
    kept = await family.store.path(child.id, head=to)
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


def _contract_message(
    family: Family, state: RunState, contract: Contract, context: ToolContext
) -> Message:
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
    return anchor_message(
        text,
        anchor,
        protocol=[briefed],
        call=context.call,
        message=context.message,
        plan=plan.to_json(),
    )


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
    child = outcome.trace.id
    own = await open_protocol(family.store, outcome.trace, outcome.path)
    brief, access = contract.brief, tuple(s.ref for s in contract.access)
    if own and own.briefs:
        # As it was given: of a run that was left, the anchor may have been revised since.
        brief = own.briefs[-1].brief
        access = tuple(g.snapshot.ref for g in own.catalogue.grants if g.granted_by)
    report = own.report if own else None
    result = own.result if own else None
    if result is None:
        plan = plan_validation(
            state.protocol.anchor, brief, model=family.validator_of(state.config)
        )
        result = unknown_result(plan, f"no report was validated: {_no_report(outcome)}")
    record = [
        entry_to_json(Delegated(child, brief, access)),
        entry_to_json(ChildEnded(child, report, result)),
    ]
    return ToolOutcome(
        text=result_text(outcome, report, result, state.config.language),
        shorten=False,
        metadata={"protocol": record, "child": child},
    )


def _no_report(outcome: Outcome) -> str:
    if outcome.status == "completed":
        return f"the sub-agent completed: {outcome.why or 'it handed none in'}"
    return f"the sub-agent {outcome.status}: {briefly(outcome.why) or 'no reason is known'}"


def result_text(
    outcome: Outcome, report: TaskReport | None, result: ValidationResult, language: str
) -> str:
    """What the parent's model is told of a child that ended."""
    child = outcome.trace.id
    lines = [f"Child {child} ended: {outcome.status}. {activity(outcome, language)}"]
    reason = f" — {briefly(result.reason)}" if result.reason else ""
    lines.append(f"Verdict: {result.verdict}{reason}")
    lines += _criteria(result)
    if report is None:
        lines.append(f"Report: none ({_no_report(outcome)})")
    else:
        shown = report.text[:REPORT_CHARS]
        if more := len(report.text) - len(shown):
            shown += " " + label(language, "conclusion_cut").format(count=more, child=child)
        lines.append(f"Report: {shown}")
    lines.append(label(language, "review_due").format(child=child))
    return "\n".join(lines)


def _criteria(result: ValidationResult) -> list[str]:
    """The verdict's criteria, a line each, as far as they fit: their whole text is the brief's."""
    lines: list[str] = []
    room = CRITERIA_CHARS
    for one in result.criteria:
        criterion, reason = briefly(one.criterion, CRITERION_CHARS), briefly(one.reason)
        named = briefly(", ".join(str(e) for e in one.evidence), EVIDENCE_CHARS)
        evidence = f" [{named}]" if named else ""
        line = f"- {one.id} {one.verdict}: {criterion} — {reason}{evidence}"
        if len(line) > room:
            return [*lines, f"- … +{len(result.criteria) - len(lines)}"]
        lines.append(line)
        room -= len(line)
    return lines


def activity(outcome: Outcome, language: str) -> str:
    """What a sub-agent did: its answers, and how often it used which tool."""
    calls = [c.name for m in outcome.path for c in m.tool_calls if c.made_by == "model"]
    counts = Counter(calls).most_common()
    # A model can make up names of any kind: they are no way to write to the run above.
    used = [f"{name[:TOOL_NAME_CHARS]} ×{count}" for name, count in counts[:MOST_TOOLS_NAMED]]
    used += ["…"] if len(counts) > MOST_TOOLS_NAMED else []
    return label(language, "activity").format(
        steps=len(outcome.answers), tools=", ".join(used) or label(language, "no_tools")
    )
