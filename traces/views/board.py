"""What a run's page shows of its tree: the board of its sub-agents, and its own task.

Source: docs/pages.md, "Board", "Task".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.types import Json
from traces import access, boardviews, contracts, rendering, telling, trees, verdicts
from traces.contracts import Change, Round
from traces.members import task_of
from traces.models import Trace, ValidationResult
from traces.rows import EVENT_COLUMNS, event_from
from traces.views.base import html, page, wants_part
from traces.views.ledgers import page_of
from traces.views.run import head_context


@require_safe
@page
def agents(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The board, and below it what happened in the tree, newest first."""
    trace = access.find_trace(request.user, trace_id)
    clock = boardviews.clock_of(trace.pk)
    board = boardviews.board_html(trace)
    if wants_part(request):
        return HttpResponse(board)
    found, pager = page_of(request, boardviews.told_of(trace), "number")
    told = [event_from(row) for row in found.values(*EVENT_COLUMNS)]
    context = head_context(request, trace, "agents") | pager
    context |= {"board_html": board, "clock": clock, "log_html": boardviews.log_html(trace, told)}
    return html(request, "traces/agents.html", context)


# The task --------------------------------------------------------------------------------------


@require_safe
@page
def task(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The root anchor, this trace's contract with what came of it, and the refs that it holds."""
    trace = access.find_trace(request.user, trace_id)
    context = head_context(request, trace, "task") | {"older": 0, "newest": True}
    if not trees.is_recursive(trace):
        return html(request, "traces/task.html", context)
    own, above = task_of(trace)
    root = trees.root_id(trace.pk)
    anchors = trees.read_anchors(root)
    context |= {"root": root, "revisions": _revisions(anchors), "problem": own.problem}
    if own.protocol is not None:
        found = contracts.rounds(own.protocol, above, anchors)
        context |= {
            "rounds": [_round(trace, one) for one in found],
            "refs": contracts.refs(own.protocol, own.reads),
            "approved": [
                _approved(one.child, one.brief.to_json()) for one in own.protocol.approved
            ],
        }
    return html(request, "traces/task.html", context)


def _revisions(anchors: Sequence[AnchorRevision]) -> list[dict[str, Any]]:
    return [
        {"told": one, "anchor": one.revision.anchor, "changes": _changes(one.changes)}
        for one in contracts.revisions(anchors)
    ]


def _round(trace: Trace, one: Round) -> dict[str, Any]:
    row = ValidationResult.objects.filter(trace=trace, sequence=one.verdict_at).first()
    brief = one.brief.to_json() if one.brief else {}
    return {
        "round": one,
        "brief": one.brief,
        "changes": _changes(one.changes),
        "constraints": [(c, telling.origin_name(c.origin)) for c in one.constraints],
        "findings": _texts(brief.get("parent_findings")),
        "findings_html": _value(brief.get("parent_findings")),
        "context": _value(brief.get("context")),
        "verdict": row,
        "verdict_name": telling.verdict_name(one.verdict.verdict) if one.verdict else "",
        "artifacts": verdicts.view_of(row).artifacts if row and one.report else (),
        "decision": telling.decision_name(one.review.decision) if one.review else "",
        "against": telling.against_verdict(one.review.against_verdict)
        if one.review and one.review.against_verdict
        else "",
    }


def _texts(value: Json) -> list[str]:
    """The items of a list that holds nothing but texts."""
    items = value if isinstance(value, list) else []
    return items if all(isinstance(i, str) for i in items) else []


def _value(value: Json) -> SafeString | str:
    """Any JSON of a contract: a text as it is, all else as a tree that folds."""
    if not value:
        return ""
    return rendering.plain(value) if isinstance(value, str) else rendering.json_html(value)


def _approved(child: str, brief: dict[str, Json]) -> dict[str, Any]:
    return {"child": child, "objective": brief["objective"], "html": rendering.json_html(brief)}


def _changes(found: tuple[Change, ...]) -> list[dict[str, Any]]:
    return [{"name": telling.field_name(c.field), "change": c} for c in found]
