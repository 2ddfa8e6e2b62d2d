"""The ledgers of a run, each a tab of its page: compactions, injections, knowledge, commands.

Newest first, by pages; ``?at=N`` begins at event N. Source: docs/pages.md, "Ledgers".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from cyberagent.core.errors import Conflict
from cyberagent.core.events import Compacted, Event, Injected
from traces import access, marks
from traces import knowledge as learnt
from traces.ledgers import described
from traces.models import Knowledge, Trace
from traces.rows import EVENT_COLUMNS, event_from
from traces.treeview import dom_id
from traces.views.base import done, html, page, wants_part
from traces.views.run import head_context

PAGE = 30


Row = dict[str, Any]


@require_safe
@page
def compactions(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    found, pager = page_of(request, trace.events.filter(kind=Compacted.kind), "number")
    rows = [_compaction(trace, event_from(row)) for row in found.values(*EVENT_COLUMNS)]
    return _ledger(request, trace, "compactions", rows, pager)


@require_safe
@page
def injections(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    found, pager = page_of(request, trace.events.filter(kind=Injected.kind), "number")
    told = [event_from(row) for row in found.values(*EVENT_COLUMNS)]
    rows: list[Row] = [
        {"told": one, "after": marks.calls_around(trace, one.number)[0]}
        for one in described(trace, [e for e in told if isinstance(e, Injected)])
    ]
    return _ledger(request, trace, "injections", rows, pager)


@require_safe
@page
def knowledge(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    found, pager = page_of(request, trace.knowledge.select_related("judged_by"), "pk")
    return _ledger(request, trace, "knowledge", [_entry(row) for row in found], pager)


@require_POST
@page
def judge(request: HttpRequest, trace_id: str, name: str) -> HttpResponse:
    """A person's word on an entry, which is then shown anew."""
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    status = request.POST.get("status", "")
    if status not in ("accepted", "rejected"):
        raise Http404("no such judgement")
    try:
        entry = learnt.judge(learnt.find(trace, name), status, by=request.user)
    except Conflict as error:
        refused = done(request, str(error), reverse("knowledge", args=[trace.pk]), status=409)
        refused["HX-Retarget"], refused["HX-Reswap"] = "#notice", "innerHTML"
        return refused
    if not wants_part(request):
        return redirect("knowledge", trace.pk)
    context = {"trace": trace, "r": _entry(entry), "can_act": True}
    return html(request, "traces/_knowledge.html", context)


@require_safe
@page
def commands(request: HttpRequest, trace_id: str) -> HttpResponse:
    """Who did what to the run, with what result."""
    trace = access.find_trace(request.user, trace_id)
    found, pager = page_of(request, trace.commands.select_related("by"), "pk")
    return _ledger(request, trace, "commands", list(found), pager)


# Parts -----------------------------------------------------------------------------------------


def page_of(request: HttpRequest, rows: Any, key: str) -> tuple[Any, Row]:
    """The newest rows, or those from ``?at=KEY`` on, and where the older ones begin."""
    at = request.GET.get("at", "")
    if at.isdecimal() and len(at) < 10:
        rows = rows.filter(**{f"{key}__lte": int(at)})
    found = rows.order_by(f"-{key}")
    older = found.values_list(key, flat=True)[PAGE : PAGE + 1]
    return found[:PAGE], {"older": next(iter(older), 0), "newest": not at}


def _ledger(
    request: HttpRequest, trace: Trace, tab: str, rows: Sequence[Any], pager: Row
) -> HttpResponse:
    context = head_context(request, trace, tab) | pager | {"rows": rows}
    return html(request, f"traces/{tab}.html", context)


def _compaction(trace: Trace, told: Event) -> Row:
    before, after = marks.calls_around(trace, told.number)
    row: Row = {"told": told, "call": before, "next": after, "share": 0}
    if isinstance(told, Compacted) and told.tokens_before:
        row["share"] = round(100 * (1 - told.tokens_after / told.tokens_before))
    return row


def _entry(row: Knowledge) -> Row:
    return {"row": row, "sources": json.loads(row.sources), "dom_id": dom_id(row.name)}
