"""``agent``, ``submit_report``, ``review_child``: the recursive task protocol as tools.

Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

from typing import Any

from cyberagent.core.delegation import delegate
from cyberagent.core.errors import ProtocolRefused
from cyberagent.core.events import Reviewed, Verdict
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.core.protocol_entries import Reported, Validated, entry_to_json
from cyberagent.core.reports import normalize_task_report
from cyberagent.core.reviewing import BY_PARENT, reviewed
from cyberagent.core.state import RunState
from cyberagent.core.types import utc_now
from cyberagent.core.validating import briefly, judge
from cyberagent.core.verdicts import Reviewer
from cyberagent.core.wording import label
from cyberagent.tools.registry import tool


@tool(framework=True, idempotent=True, parallel_safe=True, delegates=True)
async def agent(context: ToolContext, task_brief: dict[str, Any], child: str = "") -> ToolOutcome:
    """Give a part of the work to a sub-agent, and wait until it has handed in its report.

    It sees the root task, the brief, and the context refs that the brief names; nothing else of
    what you know. The result has its id, report and verdict; review it with review_child.

    Args:
        task_brief: objective, completion_criteria and expected_outputs are needed; reason,
            parent_findings, context, constraints and context_refs may be given.
        child: The sub-agent that is to go on after REVISE_CHILD, with exactly the next brief that
            was approved. Empty: a new one.
    """
    return await delegate(context, task_brief, child.strip())


@tool(framework=True, idempotent=True, delegates=True)
async def submit_report(context: ToolContext, report: dict[str, Any]) -> ToolOutcome:
    """Hand in your report. It is validated by somebody else, and your work ends with it.

    Args:
        report: status (completed, partial, failed), summary, criteria (a list of criterion, met,
            evidence: sequences of messages or names of outputs), outputs (a list of name with
            artifact, a path, or text), open_issues, knowledge.
    """
    state: RunState = context.state
    if context.family is None or state.protocol is None:
        raise ProtocolRefused("this run has nobody to report to")
    if due := [c.id for c in state.protocol.reviews_due]:
        raise ProtocolRefused(f"review your sub-agents first: {', '.join(due)}")
    brief = state.protocol.brief
    value = normalize_task_report(report, brief.completion_criteria if brief else None)
    state.protocol.reported(state.trace.last_sequence + 1, value)
    judged = await judge(
        context.family, state, call=context.call, message=context.message, report=value
    )
    verdict = judged.result
    text = label(context.config.language, "report_taken").format(
        verdict=verdict.verdict, reason=briefly(verdict.reason) or "-"
    )
    record = [entry_to_json(Reported(value)), entry_to_json(Validated(verdict))]
    told = Verdict(
        verdict=verdict.verdict, why=verdict.reason, validator=judged.validator, message=-1
    )
    return ToolOutcome(
        text=text,
        shorten=False,
        metadata={"protocol": record, **judged.metadata()},
        events=(told,),
    )


@tool(framework=True, idempotent=True)
def review_child(
    context: ToolContext,
    child: str,
    decision: str,
    reason: str = "",
    next_brief: dict[str, Any] | None = None,
) -> ToolOutcome:
    """Decide about a sub-agent that has ended. Its result can be passed on only after that.

    Args:
        child: The sub-agent's id.
        decision: ACCEPT, REVISE_CHILD (it goes on with next_brief), REPLACE (a new one gets
            next_brief) or ABANDON.
        reason: Why; needed to accept a verdict that is failed or unknown.
        next_brief: The whole brief for REVISE_CHILD and REPLACE. Call agent with exactly it.
    """
    state: RunState = context.state
    if state.protocol is None:
        raise ProtocolRefused("this run has no sub-agents to review")
    given = {"decision": decision, "reason": reason, "next_brief": next_brief}
    review, record, warning = reviewed(
        state.protocol,
        child.strip(),
        {k: v for k, v in given.items() if v not in ("", None)},
        reviewer=Reviewer(kind="trace", id=state.trace.id),
        at=utc_now(),
        sequence=state.trace.last_sequence + 1,
    )
    language = context.config.language
    lines = [label(language, f"review_{review.decision.lower()}").format(child=child.strip())]
    lines += [label(language, "ref_made").format(**ref) for ref in record[0]["ref"]]
    lines += [warning] if warning else []
    told = Reviewed(
        child=child.strip(),
        decision=review.decision,
        by=BY_PARENT,
        why=review.reason,
        message=-1,
    )
    return ToolOutcome(
        text="\n".join(lines),
        shorten=False,
        metadata={"protocol": record},
        events=(told,),
    )
