"""The verdict desk: the queue, one verdict, a person's word, corrections, agreement.

Source: docs/pages.md, "Verdicts".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from cyberagent.core.errors import CyberAgentError, InvalidInput, InvalidTaskValue
from cyberagent.core.normal import parse_json
from cyberagent.core.types import Json
from cyberagent.core.verdicts import DECISIONS, WITH_NEXT_BRIEF, WORDS
from traces import access, agreement, contracts, rendering, reviews, telling, verdict_queue
from traces.members import task_of
from traces.models import ValidationResult, Word
from traces.verdicts import Criterion, view_of
from traces.views.base import html, page, wants_part

FILTERS = ("verdict", "review", "model", "run", "since", "until", "search")
ANY = "all"
"""The filter ``review`` that shows verdicts in every state: the page begins with what waits."""

MOST_WAITING = 99

Given = dict[str, str]


# The queue -----------------------------------------------------------------------------------


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    given = _given(request)
    context: dict[str, Any] = {"given": given, "filtered": _narrow(given)}
    mine = verdict_queue.visible(request.user)
    cursor = request.GET.get("cursor", "")
    try:
        found, following = verdict_queue.page(mine, _filter(given), cursor=cursor)
        context |= {
            "rows": [_row(row) for row in found],
            "query": _query(given),
            "older": _query(given, cursor=following) if following else "",
        }
    except InvalidInput as error:
        context["error"] = str(error)
    context |= {"first": not cursor, "any": mine.exists() if not context.get("rows") else True}
    if wants_part(request):
        return html(request, "traces/_verdicts_table.html", context)
    models = set(mine.order_by().values_list("model", flat=True).distinct())
    context |= {
        "words": Word.choices,
        "states": _states(),
        "models": sorted({*models, given["model"]} - {""}),
    }
    return html(request, "traces/verdicts.html", context)


def _given(request: HttpRequest) -> Given:
    given = {name: request.GET.get(name, "")[:200] for name in FILTERS}
    return given | {"review": given["review"] or "waiting"}


def _narrow(given: Given) -> bool:
    """Whether anything but the state was asked for."""
    return any(value for name, value in given.items() if name != "review")


def _filter(given: Given) -> verdict_queue.Filter:
    review = "" if given["review"] == ANY else given["review"]
    return verdict_queue.Filter(**{**given, "review": review, "run": given["run"].strip()})


def _query(given: Given, **more: str) -> str:
    """The filters as a query string, without what is as it is anyway."""
    kept = {k: v for k, v in given.items() if v and (k, v) != ("review", "waiting")}
    return urlencode(kept | more)


def _states() -> list[tuple[str, str]]:
    return [
        ("waiting", _("Waiting")),
        ("confirmed", _("Confirmed")),
        ("overruled", _("Overruled")),
        (ANY, _("Any state")),
    ]


def _row(row: ValidationResult) -> dict[str, Any]:
    deciding = [one for one in verdict_queue.criteria_of(row) if one.decides]
    return {
        "row": row,
        "state": verdict_queue.state_of_review(row),
        "passed": sum(one.word == "passed" for one in deciding),
        "criteria": len(deciding),
    }


@require_safe
def waiting(request: HttpRequest) -> HttpResponse:
    """How many verdicts wait, for the navigation; nothing for who cannot review, or for none."""
    count = 0
    if access.has_role(request.user, "operator"):
        count = verdict_queue.waiting(request.user, MOST_WAITING + 1)
    if not count:
        return HttpResponse(status=204)
    context = {"count": count, "most": MOST_WAITING}
    return html(request, "traces/_verdicts_waiting.html", context)


@require_safe
def agreed(request: HttpRequest) -> HttpResponse:
    found = agreement.agreement(verdict_queue.visible(request.user))
    table = [
        (name, [(found.all.table[told][word], told == word) for word in WORDS])
        for told, name in Word.choices
    ]
    context = {"found": found, "words": Word.choices, "table": table}
    return html(request, "traces/agreement.html", context)


# One verdict ---------------------------------------------------------------------------------


@require_safe
@page
def verdict(request: HttpRequest, verdict_id: int) -> HttpResponse:
    row = verdict_queue.find(request.user, verdict_id)
    return _page(request, row)


def _page(
    request: HttpRequest,
    row: ValidationResult,
    given: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    status: int = 422,
) -> HttpResponse:
    view = view_of(row)
    asked = _given(request)
    mine = verdict_queue.visible(request.user)
    before, after = verdict_queue.neighbours(mine, _filter(asked), row)
    can_act = access.has_role(request.user, "operator")
    context: dict[str, Any] = {
        "view": view,
        "row": row,
        "trace": row.trace,
        "deciding": [_criterion(c, given) for c in view.criteria if c.judged.decides],
        "beside": [_criterion(c, given) for c in view.criteria if not c.judged.decides],
        "given": {"word": row.verdict} | dict(given or {}),
        "errors": errors or {},
        "words": Word.choices,
        "reasons": reviews.Reason.choices,
        "reviews": [(r, _words(r.criteria)) for r in view.reviews],
        "seen": view.newest.pk if view.newest else 0,
        "left": reviews.was_left(row),
        "can_act": can_act,
        "query": _query(asked),
        "before": before,
        "after": after,
        "answer": view.answer and rendering.prose(view.answer[1]),
        "anchor": view.anchor and _fields(view.anchor.to_json()),
        "brief": view.brief and _fields(view.brief.to_json()),
        "since": None if row.is_root else _since(row),
        "usage": view.usage and (_count(view.usage.prompt), _count(view.usage.completion)),
    }
    if can_act:
        context |= _acts(request, row, given or {})
    return html(request, "traces/verdict.html", context, status if errors else 200)


def _criterion(one: Criterion, given: Mapping[str, str] | None) -> dict[str, Any]:
    field = f"criterion-{one.judged.id}"
    return {"c": one, "field": field, "word": (given or {}).get(field, one.judged.word)}


def _since(row: ValidationResult) -> dict[str, Any] | None:
    """What came of the verdict on a sub-agent: the review of the run above it, and the newest
    version of its contract where that is another one; None where the verdict is on no path."""
    own, above = task_of(row.trace)
    rounds = contracts.rounds(own.protocol, above, ()) if own.protocol else []
    one = next((r for r in rounds if r.verdict_at == row.sequence), None)
    if one is None:
        return None
    review = one.review
    by = review.reviewer.id if review and review.reviewer.kind == "operator" else ""
    return {
        "review": review,
        "decision": telling.decision_name(review.decision) if review else "",
        "by": by,
        "reviewed_at": one.reviewed_at,
        "newer": rounds[0].number if rounds[0].number > one.number else 0,
    }


def _count(tokens: int | None) -> str:
    return "–" if tokens is None else f"{tokens:,}"


def _words(criteria: str) -> str:
    return ", ".join(f"{name} {word}" for name, word in json.loads(criteria).items())


def _acts(request: HttpRequest, row: ValidationResult, given: Mapping[str, str]) -> dict[str, Any]:
    """What an operator may do besides: send a correction, review the child."""
    child = reviews.due(row.trace)
    brief = child.brief.to_json() if child else None
    return {
        "plan": _plan(request, row, given.get("text", "")),
        "due": child,
        "decisions": DECISIONS,
        "next_brief": given.get("next_brief") or json.dumps(brief, ensure_ascii=False, indent=2),
    }


def _plan(request: HttpRequest, row: ValidationResult, text: str) -> dict[str, Any]:
    try:
        plan = reviews.plan_correction(row, text, by=request.user)
    except InvalidInput as error:
        plan = reviews.Correction(way="none", why=str(error))
    if not plan.arguments:
        return {"plan": plan}
    child = reviews.due(row.trace)
    now = child.brief.to_json() if child else {}
    return {"plan": plan, "brief": _fields(plan.arguments["next_brief"], now)}


def _fields(
    value: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """An anchor or a brief as people read it, without empty fields; what ``before`` has not is
    marked."""
    found: list[dict[str, Any]] = []
    for name in _ORDER:
        given = value.get(name)
        items = given if isinstance(given, list) else [given]
        known = before.get(name, ()) if before is not None else items
        shown = [_item(one, one not in known) for one in items if one not in ("", None)]
        if shown:
            found.append({"label": telling.field_name(name), "values": shown})
    return found


_ORDER = (
    "objective", "reason", "completion_criteria", "expected_outputs", "constraints",
    "parent_findings", "context", "context_refs",
)  # fmt: skip
"""In which a person reads the fields of an anchor or a contract."""


def _item(value: Json, is_new: bool) -> dict[str, Any]:
    text = value if isinstance(value, str) else ""
    return {"text": text, "html": "" if text else rendering.json_html(value), "new": is_new}


# Acts ----------------------------------------------------------------------------------------


@require_POST
@page
def review(request: HttpRequest, verdict_id: int) -> HttpResponse:
    """A person's word; with ``act`` confirm that of the validator on the whole, and on to the
    next verdict."""
    access.require(request.user, "operator")
    row = verdict_queue.find(request.user, verdict_id)
    given = dict(request.POST.items())
    confirms = given.get("act") == "confirm"
    prefix = "criterion-"
    words = {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}
    try:
        made = reviews.review(
            row,
            row.verdict if confirms else given.get("word", ""),
            by=request.user,
            criteria=words,
            reason=given.get("reason", ""),
            comment=given.get("comment", ""),
            expected=_seen(given),
        )
    except reviews.ReviewRefused as error:
        field = error.field if error.field in ("word", "reason", "comment") else "criteria"
        return _page(request, row, given, {field: _refusal(field, error)})
    except reviews.ReviewedSince as error:
        return _page(request, row, given, {"stale": _reviewed_since(error)}, 409)
    if confirms:
        return _onwards(request, row)
    if made.confirms:
        messages.success(request, _("Confirmed."))
        return redirect(_address(request, row.pk))
    messages.success(request, _("Overruled. The run can go on with a correction."))
    return redirect(_address(request, row.pk, "#correction"))


def _seen(given: Mapping[str, str]) -> int:
    """Id of the newest review on the page that was sent; -1, which there is none of, where the
    form does not say."""
    told = given.get("expected_review", "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 19 else -1


def _refusal(field: str, error: reviews.ReviewRefused) -> str:
    """Why a word is refused, as the form says it."""
    words = dict(Word.choices)
    told = {
        "choice": _("Choose one of those that are offered."),
        "unknown_criterion": _("This verdict has no criterion %(name)s."),
        "too_long": _("It has %(n)s characters; %(most)s fit."),
        "needed": _("A reason is needed to overrule the validator.")
        if field == "reason"
        else _("A comment is needed to overrule the validator."),
        "does_not_follow": _(
            "You say %(word)s on the whole, but from your words on the criteria that decide "
            "follows: %(follows)s."
        ),
    }
    values = {name: str(words.get(value, value)) for name, value in error.values.items()}
    return told[error.code] % values


def _reviewed_since(error: reviews.ReviewedSince) -> str:
    if error.newest is None:
        return _("The review that you saw is gone. Your word is not stored.")
    return _(
        "%(who)s has said %(word)s meanwhile. Your word is not stored: look at theirs, then store "
        "yours if it still holds."
    ) % {"who": error.newest.by.get_username(), "word": error.newest.get_word_display()}


def _onwards(request: HttpRequest, row: ValidationResult) -> HttpResponse:
    asked = _given(request)
    mine = verdict_queue.visible(request.user)
    before, after = verdict_queue.neighbours(mine, _filter(asked), row)
    told = _("Confirmed verdict %(n)d.") % {"n": row.pk}
    if following := after or before:
        messages.success(request, told + " " + _("This is the next one."))
        return redirect(_address(request, following))
    messages.success(request, told + " " + _("There is no other one in this queue."))
    query = _query(asked)
    return redirect(reverse("verdicts") + (f"?{query}" if query else ""))


def _address(request: HttpRequest, verdict_id: int, place: str = "") -> str:
    query = _query(_given(request))
    return reverse("verdict", args=[verdict_id]) + (f"?{query}" if query else "") + place


@require_POST
@page
def correct(request: HttpRequest, verdict_id: int) -> HttpResponse:
    """Send a correction, or with ``preview`` show what would be sent."""
    access.require(request.user, "operator")
    row = verdict_queue.find(request.user, verdict_id)
    text = request.POST.get("text", "")
    expected = request.POST.get("expected", "")
    if wants_part(request):
        context = _plan(request, row, text)
        return html(request, "traces/_verdict_correction.html", {"plan": context, "row": row})
    try:
        was_live = reviews.plan_correction(row, text, by=request.user).is_live
        command = reviews.correct(row, text, by=request.user, expected=expected)
    except reviews.PlanChanged:
        told = _(
            "What the correction does has changed since it was shown. Nothing was sent: look at "
            "it again, then send it."
        )
        return _page(request, row, {"text": text}, {"text": told}, 409)
    except CyberAgentError as error:
        return _page(request, row, {"text": text}, {"text": str(error)})
    messages.success(request, _sent(was_live))
    return redirect("run", command.trace_id)


def _sent(was_live: bool) -> str:
    if was_live:
        return _("Sent. The run hears it at its next safe point.")
    return _("Sent. The run goes on with the correction.")


@require_POST
@page
def review_child(request: HttpRequest, verdict_id: int) -> HttpResponse:
    """The review that is due of the judged sub-agent, in place of the run above it."""
    access.require(request.user, "operator")
    row = verdict_queue.find(request.user, verdict_id)
    given = dict(request.POST.items())
    parent = row.trace.parent_trace
    try:
        if parent is None:
            raise InvalidInput(_("Only a sub-agent is reviewed."))
        resume = bool(given.get("resume"))
        arguments = _arguments(row, given)
        command = reviews.review_child(parent, arguments, by=request.user, resume=resume)
    except CyberAgentError as error:
        return _page(request, row, given, {"child": str(error)})
    told = {
        "applied": _("The review is made."),
        "pending": _("The run above makes the review at its next safe point."),
    }
    messages.success(request, told.get(command.status, command.result))
    return redirect(_address(request, row.pk))


def _arguments(row: ValidationResult, given: Mapping[str, str]) -> dict[str, Json]:
    decision = given.get("decision", "")
    arguments: dict[str, Json] = {
        "child": row.trace_id,
        "decision": decision,
        "reason": given.get("child_reason", ""),
    }
    if decision in WITH_NEXT_BRIEF:
        brief = parse_json(given.get("next_brief", ""), "TaskBrief")
        if not isinstance(brief, dict):
            raise InvalidTaskValue("TaskBrief", "", "must be an object")
        arguments["next_brief"] = brief
    return arguments
