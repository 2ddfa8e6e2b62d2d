"""What hangs on the tree and what is found in it: opened rows, the search, the timeline.

Source: docs/pages.md, "The tree".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from cyberagent.core.errors import NotFound
from cyberagent.core.types import Message
from cyberagent.trace.tree import stands_for
from traces import access, find, marks, paths, rowviews, timeline, treerows
from traces.models import Trace
from traces.telling import verdict_name
from traces.templatetags.pages import compact
from traces.views.base import html, page

PAGE = 50
"""Messages of one page of opened rows; the next page takes its place."""


@require_safe
@page
def open_rows(request: HttpRequest, trace_id: str) -> HttpResponse:
    """The messages behind a summary, a ghost, a side branch, or of a sub-agent, by pages."""
    trace = access.find_trace(request.user, trace_id)
    what, value = next(
        ((n, request.GET[n]) for n in ("summary", "ghost", "branch", "child") if n in request.GET),
        ("", ""),
    )
    start = _whole(request.GET.get("start", "0"))
    shown_trace = access.find_trace(request.user, value) if what == "child" else trace
    messages, total = _messages(shown_trace, what, _whole(value), start)
    rows = treerows.beside_page(shown_trace, messages)
    end = start + len(messages)

    def at(place: int) -> str:
        here = reverse("open_rows", args=[trace.pk])
        return f"{here}?{urlencode({what: value, 'start': place})}"

    context = {
        "rows": rowviews.row_views(
            shown_trace.pk, rows, prefix=f"{shown_trace.pk}:" if what == "child" else ""
        ),
        "first": start + 1,
        "last": end,
        "total": total,
        "before": at(max(0, start - PAGE)) if start else "",
        "after": at(end) if end < total else "",
        "child": shown_trace if what == "child" else None,
    }
    return html(request, "traces/_open_rows.html", context)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _messages(trace: Trace, what: str, value: int, start: int) -> tuple[Sequence[Message], int]:
    """A page of messages from place ``start`` on, and how many there are. Raises NotFound."""
    if what == "child":
        return _whole_turns(paths.page(trace, start + 1, start + 2 * PAGE)), trace.head_depth
    if what == "summary":
        return _behind_summary(trace, value, start)
    beside = paths.ghosts(trace) if what == "ghost" else paths.side_branches(trace)
    found = next((b for b in beside if b.first_sequence == value), None)
    if found is None:
        raise NotFound(what or "branch", value)
    first = found.span[1] + start
    return _whole_turns(paths.span_messages(found.span, first, first + 2 * PAGE)), found.count


def _behind_summary(trace: Trace, sequence: int, start: int) -> tuple[Sequence[Message], int]:
    summary = treerows.read_message(trace, sequence)
    last = stands_for(summary).get("last")
    if not isinstance(last, int):
        raise NotFound("summary", sequence)
    end = treerows.read_message(trace, last).depth
    first = summary.depth + start
    found = paths.page(trace, first, min(end, first + 2 * PAGE), head=last)
    return _whole_turns(found), end - summary.depth + 1


def _whole_turns(messages: Sequence[Message]) -> Sequence[Message]:
    """The first messages up to a page, with the results that their last calls wait for."""
    if len(messages) <= PAGE:
        return messages
    end = PAGE
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return messages[:end]


@require_safe
@page
def find_in_run(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    words = request.GET.get("q", "").strip()[:200]
    hits, more = find.in_trace(trace, words) if words else ([], False)
    context = {"trace": trace, "words": words, "hits": hits, "more": more}
    return html(request, "traces/_found.html", context)


@require_safe
@page
def show_timeline(request: HttpRequest, trace_id: str) -> HttpResponse:
    trace = access.find_trace(request.user, trace_id)
    found = marks.of(trace)
    names = mark_names()
    context = {
        "trace": trace,
        "line": timeline.of(trace),
        "marks": [_mark_view(trace, mark) for mark in found],
        "kinds": [(k, names[k]) for k in marks.KINDS if any(m.kind == k for m in found)],
    }
    return html(request, "traces/_timeline.html", context)


def mark_names() -> dict[marks.MarkKind, str]:
    return {
        "level1": _("Level 1"),
        "level2": _("Level 2"),
        "rewound": _("Rewind"),
        "verdict": _("Verdict"),
        "injected": _("Injection"),
        "child": _("Sub-agent"),
    }


_LEDGERS: dict[marks.MarkKind, str] = {
    "level1": "compactions", "level2": "compactions", "injected": "injections",
    "verdict": "agents", "child": "agents",
}  # fmt: skip


def _mark_view(trace: Trace, mark: marks.Mark) -> dict[str, Any]:
    """A mark with where it leads and what it says: of several, of the first."""
    first = mark.first
    if mark.kind == "rewound":
        url = reverse("message", args=[trace.pk, first.message]) if first.message else ""
        url = url or reverse("run", args=[trace.pk])
    else:
        ledger = reverse(_LEDGERS[mark.kind], args=[trace.pk])
        url = f"{ledger}?at={first.number}#event-{first.number}"
    title = mark_names()[mark.kind]
    if mark.count > 1:
        title = ngettext("%(what)s, %(n)d time", "%(what)s, %(n)d times", mark.count) % {
            "what": title,
            "n": mark.count,
        }
    elif mark.kind in ("level1", "level2"):
        title += f": {compact(first.before_tokens)} → {compact(first.after_tokens)}"
    elif mark.kind == "verdict":
        title += f": {verdict_name(first.what).lower()}"
    elif first.what:
        title += f": {first.what}"
    after = _("after call %(n)d") % {"n": first.after}
    return {
        "kind": mark.kind,
        "x": mark.x,
        "y": 11 if mark.lane else 1,
        "url": url,
        "title": f"{title}, {after}",
    }
