"""The lab's page: policies side by side on one trace. Source: docs/pages.md, "Lab"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from cyberagent.compaction.lab import Report
from cyberagent.compaction.policy import POLICIES
from cyberagent.compaction.subject import LARGEST_WINDOW
from cyberagent.core.errors import CyberAgentError, InvalidInput
from traces import access
from traces.lab import LabResult, policies_in
from traces.labjobs import job_for
from traces.models import Trace
from traces.views.base import html, page, wants_part
from traces.views.run import head_context

SHOWN_PASSES = 50
"""Passes of one policy that the page lists."""


@require_safe
@page
def lab(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The form; with policies named, the replay: started, asked after, or its table."""
    trace = access.find_trace(request.user, trace_id)
    context = _outcome(request, trace) if "policies" in request.GET else {}
    if wants_part(request):
        return html(request, "traces/_lab_result.html", context | {"trace": trace})
    chosen = request.GET.getlist("policies") or list(POLICIES)
    form = {
        "choices": [(name, about, name in chosen) for name, about in policy_names()],
        "own": next((p for p in chosen if p not in POLICIES), ""),
        "window": request.GET.get("window", ""),
    }
    return html(request, "traces/lab.html", head_context(request, trace, "lab") | form | context)


def _outcome(request: HttpRequest, trace: Trace) -> dict[str, Any]:
    query = request.GET.copy()
    query["poll"] = "1"
    try:
        names = policies_in(",".join(filter(str.strip, request.GET.getlist("policies"))))
        window = _window(request.GET.get("window", ""))
        job = job_for(trace, names, window, anew="poll" not in request.GET)
    except CyberAgentError as error:
        return {"error": str(error)}
    done = [report.policy for report in job.reports]
    return {
        "error": job.error,
        "progress": [(name, name in done) for name in names],
        "poll": query.urlencode(),
        "part": len(done),
        "whole": len(names),
        "result": _table(job.result) if job.result else None,
    }


def _window(text: str) -> int | None:
    text = text.strip().replace(",", "")
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text[:12]) <= LARGEST_WINDOW:
        raise InvalidInput(_("The context window is a whole number of tokens above 0."))
    return int(text)


def policy_names() -> list[tuple[str, str]]:
    """Each policy with what it does."""
    told = {
        "cyber": _("Closed goals first, then a summary"),
        "cyber_recent": _(
            "Closed goals first, then a summary that leaves the newest turns as they are"
        ),
        "opencode": _("Old tool output first, then a summary of all"),
        "layered": _("Five layers, from cheap to costly"),
        "off": _("Nothing, ever"),
    }
    return [(name, told.get(name, "")) for name in POLICIES]


# The table -----------------------------------------------------------------------------------


def _table(result: LabResult) -> dict[str, Any]:
    """Rows of cells ``(key, text, is the best)``. The best is told among policies whose windows
    all fitted, where they differ."""
    fitting = [r for r in result.reports if not r.overflows] or list(result.reports)
    best = {key: _best(fitting, value, wins) for key, value, wins in _COLUMNS}
    rows = [
        {
            "policy": report.policy,
            "cells": [
                (key, _text(report, key), value(report) == best[key] and report in fitting)
                for key, value, _wins in _COLUMNS
            ],
            "report": report,
            "log": report.log[:SHOWN_PASSES],
            "more": max(0, len(report.log) - SHOWN_PASSES),
        }
        for report in result.reports
    ]
    return {"rows": rows, "lab": result, "calls": result.reports[0].calls, "why": _why(result)}


_Value = Callable[[Report], float | None]
_COLUMNS: tuple[tuple[str, _Value, str], ...] = (
    ("peak", lambda r: r.peak_tokens, "least"),
    ("mean", lambda r: round(r.mean_tokens), "least"),
    ("passes", lambda r: r.passes, ""),
    ("summaries", lambda r: r.summary_calls, "least"),
    ("prefix", lambda r: round(r.prefix_share, 3), "most"),
    ("price", lambda r: round(r.price), "least"),
    ("recall", lambda r: None if r.recall is None else round(r.recall, 3), "most"),
    ("users", lambda r: r.user_messages_kept, "most"),
    ("broken", lambda r: r.violations, "least"),
    ("seconds", lambda r: round(r.seconds, 2), "least"),
)


def _best(reports: Sequence[Report], value: _Value, wins: str) -> float | None:
    values = {v for r in reports if (v := value(r)) is not None}
    if not wins or len(values) < 2:
        return None
    return min(values) if wins == "least" else max(values)


def _text(report: Report, key: str) -> str:
    failed = _(" (+%(n)d failed)") % {"n": report.failed_passes} if report.failed_passes else ""
    return {
        "peak": f"{report.peak_tokens:,}",
        "mean": f"{report.mean_tokens:,.0f}",
        "passes": f"{report.passes}{failed}",
        "summaries": f"{report.summary_calls}",
        "prefix": f"{report.prefix_share:.1%}",
        "price": f"{report.price:,.0f}",
        "recall": "–" if report.recall is None else f"{report.recall:.3f}",
        "users": f"{report.user_messages_kept}/{report.user_messages}",
        "broken": f"{report.violations}",
        "seconds": f"{report.seconds:.2f}",
    }[key]


def _why(result: LabResult) -> str:
    """Where the context window comes from, as the page says it."""
    if result.why == "asked for":
        return _("as asked for")
    if result.why == "the trace's own":
        return _("the run’s own")
    if result.why.startswith("half"):
        return _("half of this run’s largest window: under its own no policy would act")
    return _("usual, since the run names none")
