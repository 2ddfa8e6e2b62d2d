"""The page of two runs side by side. Source: docs/pages.md, "Compare"."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from cyberagent.core.types import Message
from cyberagent.trace.plan_text import flat
from traces import access
from traces.compare import compared, own_verdict
from traces.models import Trace, Word
from traces.views.base import html, page


@require_safe
@page
def compare(request: HttpRequest, trace_id: str, other_id: str) -> HttpResponse:
    one = access.find_trace(request.user, trace_id)
    other = access.find_trace(request.user, other_id)
    found = compared(one, other)
    context = {
        "one": one,
        "other": other,
        "found": found,
        "words": Word.choices,
        "sides": [_side(one, found.one_next), _side(other, found.other_next)],
    }
    return html(request, "traces/compare.html", context)


def _side(trace: Trace, following: Message | None) -> dict[str, Any]:
    """A run, the verdict on it, and the message with which it goes its own way."""
    side: dict[str, Any] = {"trace": trace, "verdict": own_verdict(trace), "next": following}
    if following is not None:
        calls = ", ".join(call.name for call in following.tool_calls)
        side |= {"text": flat(following.text[:2000], 240), "calls": calls}
    return side
