"""What operators do that changes what the model sees: rewind, edit, fork, compact, inject,
another policy. Each opens in a dialog that says first what it would mean.

Source: docs/pages.md, "Acts".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from cyberagent.compaction.policy import POLICIES
from cyberagent.core.errors import CyberAgentError, NotFound
from traces import access, acts, fragments, ports, rewind, telling, treerows, undone
from traces.models import Command, Trace
from traces.views.base import done, html, page, wants_part
from traces.views.lab import policy_names

asks_and_acts = require_http_methods(["GET", "HEAD", "POST"])


@asks_and_acts
@page
def go_back(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = _for_operator(request, trace_id)
    if request.method != "POST":
        to = _sequence(request.GET, "to")
        return _asked(request, trace, "rewind", lambda: _receipt(trace, to))
    to, head = _sequence(request.POST, "to"), _sequence(request.POST, "head")
    why = request.POST.get("why", "").strip()[:500]

    def act() -> HttpResponse:
        command = acts.rewind(trace, to, by=request.user, why=why, expected_head=head)
        trace.refresh_from_db()
        text = _("Gone back to message %(n)d. What was after it is kept beside the path.")
        undo = {"to": head, "head": trace.head_sequence}
        return _told(request, trace, command, text % {"n": trace.head_sequence}, undo=undo)

    return _acted(request, trace, act)


def _receipt(trace: Trace, to: int) -> dict[str, Any]:
    receipt = rewind.preview(trace, to)
    done_goals, goals = receipt.plan.progress()
    focused = receipt.plan.focused
    plan = {
        "done": done_goals,
        "total": goals,
        "current": f"{focused.id} {focused.description}" if focused else "",
    }
    return {
        "receipt": receipt,
        "to": to,
        "plan": plan,
        "moved": receipt.to != receipt.head,
        "undone": _undone(trace, receipt.to),
    }


def _undone(trace: Trace, to: int) -> list[dict[str, Any]]:
    """What the rewind would undo of the recursive protocol, by kind."""
    found = undone.undone(trace, to)
    if found is None:
        return []
    verdict = [telling.verdict_name(found.verdict)] if found.verdict else []
    refs = [f"{found.refs:,}"] if found.refs else []
    told = [
        (_("Verdict left"), verdict),
        (_("Review open again"), found.due),
        (_("Not asked for there"), found.gone),
        (_("Stopped"), found.ended),
        (_("Refs no longer held"), refs),
    ]
    return [{"name": name, "items": items} for name, items in told if items]


@asks_and_acts
@page
def edit(request: HttpRequest, trace_id: str) -> HttpResponse:
    """A message in other words, put in its place, and the run goes on from there."""
    trace = _for_operator(request, trace_id)
    if request.method != "POST":
        at = _sequence(request.GET, "at")
        return _asked(request, trace, "edit", lambda: _edited(trace, at))
    at, head = _sequence(request.POST, "at"), _sequence(request.POST, "head")
    text = request.POST.get("text", "")

    def act() -> HttpResponse:
        command = acts.edit(trace, at, text, by=request.user, expected_head=head)
        told = _("The message stands in its new words, and the run goes on from it.")
        return _told(request, trace, command, told)

    return _acted(request, trace, act)


def _edited(trace: Trace, at: int) -> dict[str, Any]:
    """The message's words, and the receipt of going back to before it."""
    message = treerows.read_message(trace, at)
    return _receipt(trace, message.parent_sequence or 0) | {"at": at, "text": message.text}


@asks_and_acts
@page
def fork(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = _for_operator(request, trace_id)
    if request.method != "POST":
        at = _sequence(request.GET, "at") or trace.head_sequence
        return _asked(request, trace, "fork", lambda: _fork(trace, at))
    at = _sequence(request.POST, "at")

    def act() -> HttpResponse:
        made = acts.fork(trace, at, by=request.user)
        to = reverse("run", args=[made.pk])
        if not wants_part(request):
            return redirect(to)
        response = HttpResponse(status=200)
        response["HX-Redirect"] = to
        return response

    return _acted(request, trace, act)


def _fork(trace: Trace, at: int) -> dict[str, Any]:
    rewind.check_forks(trace)
    return {"at": at}


# The window ------------------------------------------------------------------------------------


@asks_and_acts
@page
def compact(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The dialog; with a policy named, what a pass under it would do."""
    trace = _for_operator(request, trace_id)
    if request.method != "POST":
        if "policy" in request.GET:
            return _previewed(request, trace, _policy(request.GET))
        return _asked(request, trace, "compact", lambda: _choice(trace))
    policy = _policy(request.POST)

    def act() -> HttpResponse:
        command = acts.compact(trace, policy, by=request.user)
        return _told(request, trace, command, _("Compacted."))

    return _acted(request, trace, act)


def _previewed(request: HttpRequest, trace: Trace, policy: str) -> HttpResponse:
    try:
        preview = acts.compaction_preview(trace, policy)
    except CyberAgentError as error:
        return html(request, "traces/_compaction_preview.html", {"why": str(error)})
    context = {"trace": trace, "preview": preview}
    return html(request, "traces/_compaction_preview.html", context)


@asks_and_acts
@page
def policy(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = _for_operator(request, trace_id)
    if request.method != "POST":
        return _asked(request, trace, "policy", lambda: _choice(trace))
    name = _policy(request.POST)

    def act() -> HttpResponse:
        command = acts.set_policy(trace, name, by=request.user)
        told = _("From the next call on, the policy is %(name)s.") % {"name": name}
        return _told(request, trace, command, told)

    return _acted(request, trace, act)


def _choice(trace: Trace) -> dict[str, Any]:
    return {"policies": policy_names(), "now": fragments.policy_of(trace)}


def _policy(given: Any) -> str:
    name = given.get("policy", "")
    if name not in POLICIES:
        raise Http404("no such policy")
    return name


@asks_and_acts
@page
def inject(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = _for_operator(request, trace_id)
    if request.method != "POST":
        return _asked(request, trace, "inject", lambda: {"skills": _skills(trace)})
    name = request.POST.get("skill", "")

    def act() -> HttpResponse:
        command = acts.inject_skill(trace, name, by=request.user)
        told = _("The skill %(name)s is loaded when the run goes on.")
        return _told(request, trace, command, told % {"name": name})

    return _acted(request, trace, act)


def _skills(trace: Trace) -> list[dict[str, Any]]:
    """Each skill, and what the newest window has of it: whole, changed, gone or never."""
    loaded = json.loads(trace.context).get("injected_skills", {})
    marks = treerows.newest_window(trace)

    def state(name: str) -> str:
        sequence = loaded.get(name, {}).get("sequence")
        if sequence is None:
            return "never"
        if sequence in marks.changed:
            return "changed"
        return "gone" if marks.gone(sequence) else "whole"

    with transaction.atomic():
        known = ports.current_skills()
    return [
        {
            "name": name,
            "about": known[name].description,
            "state": state(name),
            "sequence": loaded.get(name, {}).get("sequence"),
        }
        for name in sorted(known)
    ]


# How each is asked for and answered ----------------------------------------------------------


def _for_operator(request: HttpRequest, trace_id: str) -> Trace:
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    return trace


def _asked(
    request: HttpRequest, trace: Trace, name: str, context: Callable[[], dict[str, Any]]
) -> HttpResponse:
    """The dialog of an act. Without a script there is no dialog: the run's page it is."""
    if not wants_part(request):
        return redirect("run", trace.pk)
    try:
        found = context()
    except NotFound as error:
        raise Http404(str(error)) from None
    except CyberAgentError as error:
        return html(request, "traces/act_refused.html", {"why": str(error)})
    return html(request, f"traces/act_{name}.html", {"trace": trace} | found)


def _acted(request: HttpRequest, trace: Trace, act: Callable[[], HttpResponse]) -> HttpResponse:
    """Do it; what the domain refuses is said in its own words and changes nothing."""
    try:
        return act()
    except NotFound as error:
        raise Http404(str(error)) from None
    except CyberAgentError as error:
        return done(request, str(error), reverse("run", args=[trace.pk]), status=409)


def _told(
    request: HttpRequest, trace: Trace, command: Command, text: str, **more: Any
) -> HttpResponse:
    """The stored command with its outcome, and what to do next."""
    command.refresh_from_db()
    if not wants_part(request):
        return done(request, command.result or text, reverse("run", args=[trace.pk]))
    context = {"trace": trace, "command": command, "text": text} | more
    return html(request, "traces/_acted.html", context)


def _sequence(given: Any, name: str) -> int:
    text = given.get(name, "0")
    if not text.isdecimal() or len(text) > 9:
        raise Http404("no such message")
    return int(text)
