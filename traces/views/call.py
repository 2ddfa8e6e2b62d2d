"""One model call: its exact payload, what it is made of, how it differs from the call before.

Source: docs/pages.md, "The call page".
"""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from cyberagent.core.errors import NotFound
from cyberagent.core.window import BrokenManifest
from cyberagent.trace.plan_text import flat
from traces import access, fragments, rendering
from traces.models import ModelCall, Trace
from traces.views.base import html, page
from traces.windows import WindowView, window_of

VIEWS = ("items", "pretty", "bytes")
LONGEST = 400_000
"""Characters of a payload that the page shows; the download has all of it."""

MOST_ITEMS = 400


@require_safe
@page
def call(request: HttpRequest, trace_id: str, number: int) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    found = _call(trace, number)
    view = request.GET.get("view", "items")
    view = view if view in VIEWS else "items"
    may_see = access.has_role(request.user, "operator")
    context: dict[str, Any] = {
        "trace": trace,
        "call": found,
        "bar": fragments.bar_of(found, trace),
        "view": view,
        "may_see": may_see,
        "before": number - 1 if number > 1 else None,
        "after": number + 1 if number < trace.last_call else None,
    }
    try:
        window = window_of(trace, number, compare=True)
    except (BrokenManifest, NotFound) as error:
        return html(request, "traces/call.html", context | {"broken": str(error)})
    context |= {"window": window, "changes": _changes(window), "size": len(window.payload)}
    if view == "items":
        context["items"] = [_item(i) for i in window.now.window.items[:MOST_ITEMS]]
        context["more_items"] = max(0, len(window.now.window.items) - MOST_ITEMS)
    elif may_see:
        context["payload"] = _payload(window.payload, pretty=view == "pretty")
    return html(request, "traces/call.html", context)


@require_safe
@page
def payload(request: HttpRequest, trace_id: str, number: int) -> HttpResponse:
    """The payload's exact bytes, as a file."""
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    _call(trace, number)
    response = HttpResponse(window_of(trace, number).payload, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{trace.pk}-call-{number}.json"'
    return response


def _call(trace: Trace, number: int) -> ModelCall:
    found = trace.calls.filter(number=number).first()
    if found is None:
        raise NotFound("call", number)
    return found


def _payload(data: bytes, *, pretty: bool) -> dict[str, Any]:
    text = data.decode()
    if pretty:
        text = json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    shown = rendering.page_text(text[:LONGEST])
    return {"text": shown, "cut": len(text) > LONGEST, "length": len(text)}


def _item(item: Any) -> dict[str, Any]:
    """One message of the window as a line."""
    message = item.message
    calls = ", ".join(c.name for c in message.tool_calls)
    return {
        "sequence": message.sequence if item.kind != "inserted" else 0,
        "role": message.role,
        "name": message.name,
        "text": flat(message.text[:2000], 200),
        "calls": calls,
        "tokens": message.tokens,
        "kind": item.kind,
        "strategy": item.strategy,
        "why": item.why,
    }


def _changes(window: WindowView) -> list[dict[str, Any]] | None:
    """The difference to the call before, as lines; None for the first call."""
    if window.difference is None:
        return None
    return [
        {"what": change.what} | (_item(change.item) if change.item else {})
        for change in window.difference.changes
    ]
