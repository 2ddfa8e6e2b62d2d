"""Rows of the tree as lines of the page: what a row is called, which sign it has, where it leads.

Source: docs/pages.md, "The tree".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from cyberagent.trace.rows import CallRow, MessageRow, Note, SummaryRow
from traces.below import Below
from traces.rendering import page_text
from traces.telling import (
    agent_name,
    marks_of,
    status_name,
    verdict_name,
    verdict_style,
)
from traces.templatetags.pages import compact, duration, steps, strategy_name
from traces.treerows import Hanging, ShownRow


@dataclass(frozen=True, slots=True)
class RowView:
    """One line of the tree. ``key`` names it in the page; ``opens``: where what is below it is
    fetched; ``out``: what came of it; ``marks``: tags with their colour. Of a sub-agent also its
    id (``child``), how new the line is (``clock``) and its status with a word for it."""

    key: str
    url: str
    kind: str
    icon: str
    label: str
    lead: str = ""
    text: str = ""
    out: str = ""
    meta: str = ""
    tags: tuple[str, ...] = ()
    marks: tuple[tuple[str, str], ...] = ()
    gone: bool = False
    opens: str = ""
    hung: tuple[RowView, ...] = ()
    is_call: bool = False
    child: str = ""
    clock: int = 0
    status: tuple[str, str] = ("", "")


def row_views(trace_id: str, rows: Sequence[ShownRow], *, prefix: str = "") -> list[RowView]:
    """``prefix`` tells rows of another trace from those of the page's own."""
    views = [_row_view(trace_id, shown) for shown in rows]
    return [replace(v, key=f"{prefix}{v.key}") for v in views] if prefix else views


def rows_html(trace_id: str, rows: Sequence[ShownRow]) -> str:
    return page_text(render_to_string("traces/_rows.html", {"rows": row_views(trace_id, rows)}))


def child_html(child: Below) -> str:
    """The line of a sub-agent alone, as it stands below the row that asked for it."""
    context = {"r": child_view(child), "hung": True}
    return page_text(render_to_string("traces/_row.html", context))


def _row_view(trace_id: str, shown: ShownRow) -> RowView:
    row = shown.row
    key = f"{row.sequence}.{row.part}" if row.part else str(row.sequence)
    url = reverse("message", args=[trace_id, row.sequence])
    if row.part:
        url += f"?part={row.part}"
    common: dict[str, Any] = {
        "key": key,
        "url": url,
        "gone": shown.gone,
        "tags": (strategy_name(shown.strategy),) if shown.strategy else (),
        "hung": tuple(_hung_view(trace_id, h) for h in shown.hanging),
    }
    if isinstance(row, CallRow):
        below = any(h.child for h in shown.hanging)
        return RowView(**common, **_call_parts(row, below))
    if isinstance(row, SummaryRow):
        opens = reverse("open_rows", args=[trace_id]) + f"?summary={row.sequence}"
        return RowView(**common, **_summary_parts(row), opens=opens if row.messages else "")
    return RowView(**common, **_message_parts(row))


def _call_parts(row: CallRow, below: bool) -> dict[str, Any]:
    """``below``: sub-agents hang below it, whose lines say how far it is."""
    waits = row.status == "waiting" and not below
    out = _MARKUP.sub("", row.outcome) or (_("running…") if waits else "")
    kind, icon, label = "tool", "tool", _("Tool")
    if row.made_by == "framework":
        kind, icon, label = "framework", "insert", _("Injected by the framework")
    if row.status in ("error", "orphan"):
        kind, icon, label = f"{kind} bad", "warn", _("Tool, failed")
    return {
        "kind": kind,
        "icon": icon,
        "label": label,
        "lead": row.name,
        "is_call": True,
        "text": f"({row.arguments})" if row.status != "orphan" else "",
        "out": out,
        "marks": marks_of(row.notes),
        "meta": _meta(row.result or row.sequence, row.duration_ms),
    }


def _summary_parts(row: SummaryRow) -> dict[str, Any]:
    text = row.text
    if row.messages:
        text = ngettext(
            "Summary stands for %(n)d message, %(before)s → %(after)s tokens",
            "Summary stands for %(n)d messages, %(before)s → %(after)s tokens",
            row.messages,
        ) % {
            "n": row.messages,
            "before": compact(row.tokens_before),
            "after": compact(row.tokens_after),
        }
    return {
        "kind": "summary", "icon": "lines", "label": _("Summary"), "text": text,
        "meta": _meta(row.sequence, None),
    }  # fmt: skip


_MARKUP = re.compile(r"\*\*|`|(?:^|(?<=\s))#{1,6} ")
"""Signs of Markdown that a row of plain text is easier to read without."""

_WHO: dict[str, tuple[str, str]] = {
    "user": ("person", "user"),
    "operator": ("say", "operator"),
    "framework": ("insert", "framework"),
    "assistant": ("dot", "assistant"),
    "system": ("lines", "system"),
    "tool": ("tool", "tool"),
}


def _message_parts(row: MessageRow) -> dict[str, Any]:
    who = row.source if row.source in ("operator", "framework") else row.role
    icon, kind = _WHO.get(who, ("dot", "system"))
    labels = {
        "user": _("User"), "operator": _("Operator"), "framework": _("Framework"),
        "assistant": _("Model"), "system": _("System"), "tool": _("Tool"),
    }  # fmt: skip
    label = labels.get(who, who)
    lead = label if who in ("user", "operator", "system") else ""
    if row.is_thought:
        lead = _("Thinking")
    text = _MARKUP.sub("", row.text)
    for note in row.notes:
        icon, kind, lead, text = _noted(note, icon, kind, lead, text)
    extras = (
        ngettext("+%(n)d attachment", "+%(n)d attachments", row.extras) % {"n": row.extras}
        if row.extras
        else ""
    )
    return {
        "kind": f"{kind} thinking" if row.is_thought else kind,
        "icon": icon,
        "label": label,
        "lead": lead,
        "text": text,
        "out": extras,
        "marks": marks_of(row.notes),
        "meta": _meta(row.sequence, row.duration_ms),
    }


def _meta(sequence: int, milliseconds: int | None) -> str:
    return f"{sequence} · {duration(milliseconds)}" if milliseconds else str(sequence)


def _noted(note: Note, icon: str, kind: str, lead: str, text: str) -> tuple[str, str, str, str]:
    """What a message of the framework is called by what it records."""
    if note.what == "anchor":
        return "anchor", "anchor", _("Root anchor"), text
    if note.what == "contract":
        return "contract", "anchor", _("Contract"), text
    if note.what == "review":
        who = _("Review by %(who)s") % {"who": note.who} if note.who else _("Review")
        return "person", "operator", who, note.text
    return icon, kind, lead, text


def _hung_view(trace_id: str, hung: Hanging) -> RowView:
    if hung.child is not None:
        return child_view(hung.child)
    opens = reverse("open_rows", args=[trace_id])
    many = {"n": hung.count, "kind": hung.title}
    if hung.kind == "branch":
        text = ngettext(
            "Side branch %(kind)s: %(n)d message",
            "Side branch %(kind)s: %(n)d messages",
            hung.count,
        )
        icon, query = "branch", f"branch={hung.first}"
    else:
        text = ngettext(
            "Left by a rewind: %(n)d message", "Left by a rewind: %(n)d messages", hung.count
        )
        icon, query = "back", f"ghost={hung.first}"
    out = ""
    if hung.kind == "ghost" and hung.name:
        out = f"{hung.name} “{hung.title}”" if hung.title else hung.name
    return RowView(
        key="", url=reverse("message", args=[trace_id, hung.first]), kind=hung.kind, icon=icon,
        label=_("Beside the path"), text=text % many, out=out, meta=str(hung.first),
        opens=f"{opens}?{query}",
    )  # fmt: skip


# Sub-agents --------------------------------------------------------------------------------


def child_view(child: Below) -> RowView:
    """A sub-agent as one line: what it is, its mission, how far it is. A validator is shown by
    the verdict that it gave."""
    if child.is_validator and child.verdict:
        return _verdict_view(child)
    name = agent_name(child.kind)
    verdict = ((verdict_style(child.verdict), verdict_name(child.verdict)),)
    return RowView(
        key="",
        url=reverse("run", args=[child.id]),
        kind="child",
        icon="child",
        label=name,
        lead=name,
        text=_("looks at what was handed in") if child.is_validator else child.mission,
        out=_at_work(child),
        meta=steps(child.steps) if child.steps else "",
        marks=verdict if child.verdict else (),
        opens=f"{reverse('open_rows', args=[child.parent])}?child={child.id}",
        child=child.id,
        clock=child.clock,
        status=(child.status, status_name(child.status)),
    )


def _at_work(child: Below) -> str:
    """What a live sub-agent is at, and who works below it."""
    if not child.is_live:
        return ""
    told = [child.goal] if child.goal else []
    if child.judged:
        told.append(_("its report is being judged"))
    if child.working:
        told.append(ngettext("%(n)d below it works", "%(n)d below it work", child.working)
                    % {"n": child.working})  # fmt: skip
    return " · ".join(told)


def _verdict_view(child: Below) -> RowView:
    """A verdict, where its validator stands."""
    icons = {"passed": "check", "failed": "cross"}
    word = verdict_name(child.verdict)
    return RowView(
        key="",
        url=verdict_url(child.verdict_id),
        kind=f"verdict {child.verdict}",
        icon=icons.get(child.verdict, "none"),
        label=word,
        lead=_("Verdict: %(word)s") % {"word": word.lower()},
        text=child.why,
        child=child.id,
        clock=child.clock,
    )


def verdict_url(verdict_id: int) -> str:
    return reverse("verdict", args=[verdict_id])
