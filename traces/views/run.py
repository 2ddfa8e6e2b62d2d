"""The run page, its pieces, and the operator's acts on it.

Source: docs/pages.md, "The run page".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from traces import access, commands, fragments, rowviews, telling, treerows, trees, treeview
from traces.compare import forked_from
from traces.models import Trace
from traces.rendering import page_text
from traces.transfer import export_text
from traces.treerows import Where
from traces.views.base import acted, html, page, wants_part
from traces.views.inspect import inspector_context

LONGEST_PAGE = 200
"""Rows of one request."""


@require_safe
@page
def run(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    return html(request, "traces/run.html", run_context(request, trace))


@require_safe
@page
def message(request: HttpRequest, trace_id: str, sequence: int) -> HttpResponse:
    """A message's own address: the run page with it selected, or the inspector alone."""
    trace = access.find_trace(request.user, trace_id)
    place = treerows.where(trace, sequence, _number(request, "part", 0))
    inspected = inspector_context(trace, place, raw=request.GET.get("view") == "raw")
    inspected["can_act"] = access.has_role(request.user, "operator")
    if wants_part(request):
        return html(request, "traces/_inspector.html", inspected)
    return html(request, "traces/run.html", run_context(request, trace, place) | inspected)


def run_context(request: HttpRequest, trace: Trace, place: Where | None = None) -> dict[str, Any]:
    tree = treeview.tree_of(trace)
    return head_context(request, trace, "tree") | {
        "goals_html": fragments.goals_html(trace, tree),
        "window_html": fragments.window_html(trace),
        "place": json.dumps(place_json(trace, place)) if place else "",
        "selected": _key(place) if place else "",
    }


def head_context(request: HttpRequest, trace: Trace, tab: str) -> dict[str, Any]:
    """What every page of a run begins with: facts, acts, tabs."""
    can_act = access.has_role(request.user, "operator")
    return {
        "trace": trace,
        "can_act": can_act,
        "facts_html": fragments.facts_html(trace),
        "acts_html": fragments.acts_html(trace, can_act=can_act),
        "tab": tab,
        "forks": _forks(request, trace),
        "forked_from": _forked_from(request, trace),
        "lineage": _lineage(trace),
    }


def _lineage(trace: Trace) -> list[dict[str, Any]]:
    """The traces above a sub-agent, the root first, each with the message that asked for what is
    below it, what that is, and how deep it stands."""
    found: list[dict[str, Any]] = []
    child = trace
    for above in trees.above(trace.pk) if trace.parent_trace_id else ():
        at = [above.pk, child.parent_message or 1]
        name = telling.agent_name(str(trees.made_for(child).get("kind", "")))
        found.append({"above": above, "url": reverse("message", args=at), "name": name})
        child = above
    return found[::-1]


SHOWN_FORKS = 5


def _forks(request: HttpRequest, trace: Trace) -> list[str]:
    """The newest forks of a trace that this person may see."""
    asked = trace.commands.filter(name="fork", status="applied").order_by("-pk")
    told = asked.values_list("arguments", flat=True)[:SHOWN_FORKS]
    made = [str(json.loads(arguments).get("trace", "")) for arguments in told]
    return [fork for fork in made if _may_see(request, fork)]


def _forked_from(request: HttpRequest, trace: Trace) -> tuple[str, int] | None:
    found = forked_from(trace)
    return found if found and _may_see(request, found[0]) else None


def _may_see(request: HttpRequest, trace_id: str) -> bool:
    trace = Trace.objects.filter(pk=trace_id).first()
    return trace is not None and access.can_see(request.user, trace)


def place_json(trace: Trace, place: Where) -> dict[str, Any]:
    """Where a row is, for the page's script: the goals to open, its list, its place there."""
    above: list[str] = []
    goal = place.goal_id
    parents = dict(trace.goals.values_list("goal_id", "parent_goal_id"))
    while goal and goal not in above:
        above.insert(0, goal)
        goal = parents.get(goal, "")
    url = reverse("message", args=[trace.pk, place.sequence])
    return {
        "sequence": _key(place),
        "goal": place.goal_id,
        "open": above,
        "row": place.row,
        "url": url + (f"?part={place.part}" if place.part else ""),
    }


def _key(place: Where) -> str:
    return f"{place.sequence}.{place.part}" if place.part else str(place.sequence)


# Pieces that the page fetches ------------------------------------------------------------------


@require_safe
@page
def rows(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    count = min(_number(request, "count", 50), LONGEST_PAGE)
    shown = treerows.goal_page(
        trace, request.GET.get("goal", ""), _number(request, "start", 0), count
    )
    return _piece(rowviews.rows_html(trace.pk, shown))


@require_safe
@page
def goals(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The goals' structure: all of it anew, what is below one goal, or the earlier ones."""
    trace = access.find_trace(request.user, trace_id)
    under = request.GET.get("under")
    if under is not None:
        below = treeview.children_of(trace, under)
        return html(request, "traces/_goal_list.html", {"trace": trace, "goals": below})
    if request.GET.get("earlier"):
        first = treeview.tree_of(trace)
        everything = treeview.tree_of(trace, everything=True)
        shown = everything.goals[: first.earlier]
        return html(request, "traces/_goal_list.html", {"trace": trace, "goals": shown})
    return _piece(fragments.goals_html(trace, treeview.tree_of(trace)))


@require_safe
@page
def where(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    text, _dot, part = request.GET.get("sequence", "").partition(".")
    if not text.isdecimal() or len(text) > 9:
        raise Http404("no such message")
    place = treerows.where(trace, int(text), int(part) if part.isdecimal() else 0)
    return JsonResponse(place_json(trace, place))


def _piece(text: str) -> HttpResponse:
    response = HttpResponse(page_text(text))
    response["Cache-Control"] = "private, no-cache"
    return response


def _number(request: HttpRequest, name: str, default: int) -> int:
    text = request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default


# Acts ------------------------------------------------------------------------------------------

_ACTS: dict[str, Callable[..., Any]] = {
    "pause": commands.pause,
    "resume": commands.resume,
    "stop": commands.stop,
}


@require_POST
@page
def act(request: HttpRequest, trace_id: str, name: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    if name not in _ACTS:
        raise Http404("no such act")
    told = {
        "pause": _("The run pauses at its next safe point."),
        "resume": _("The run goes on."),
        "stop": _("The run is being stopped."),
    }[name]
    to = reverse("run", args=[trace.pk])
    return acted(request, lambda: _ACTS[name](trace, by=request.user), told, to)


@require_POST
@page
def say(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    text = request.POST.get("text", "")
    return acted(
        request,
        lambda: commands.say(trace, text, by=request.user),
        _("Said. The model hears it at the next safe point."),
        reverse("run", args=[trace.pk]),
    )


@require_safe
@page
def export(request: HttpRequest, trace_id: str, format: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    if format not in ("trace", "openai"):
        raise Http404("no such format")
    kind, ending = ("application/zip", "zip") if format == "trace" else ("application/json", "json")
    response = HttpResponse(export_text(trace, format), content_type=kind)
    response["Content-Disposition"] = f'attachment; filename="trace-{trace.pk}.{ending}"'
    return response


def to_runs(request: HttpRequest) -> HttpResponse:
    return redirect("runs")
