"""A goal's own address. Source: docs/pages.md, "Addresses"."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_safe

from cyberagent.core.errors import NotFound
from traces import access
from traces.treeview import dom_id
from traces.views.base import page


@require_safe
@page
def goal(request: HttpRequest, trace_id: str, goal_id: str) -> HttpResponse:
    """Leads to the goal's place on the run page."""
    trace = access.find_trace(request.user, trace_id)
    if not trace.goals.filter(goal_id=goal_id).exists():
        raise NotFound("goal", goal_id)
    return redirect(f"{reverse('run', args=[trace.pk])}#{dom_id(goal_id)}")
