"""Template tags of the pages: icons, numbers and times as people read them.

Source: docs/pages.md.
"""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from traces import rows
from traces.models import Trace

register = template.Library()


@register.simple_tag
def icon(name: str, label: str = "", kind: str = "") -> SafeString:
    """The sprite's symbol ``name``; with ``label`` it is an image with that text alternative."""
    classes = f"icon {kind}".strip()
    if label:
        return format_html(
            '<svg class="{}" role="img" aria-label="{}"><use href="#i-{}"/></svg>',
            classes, label, name,
        )  # fmt: skip
    return format_html(
        '<svg class="{}" aria-hidden="true"><use href="#i-{}"/></svg>', classes, name
    )


@register.filter
def compact(value: float | None) -> str:
    """999 → 999, 1234 → 1.2k, 91000 → 91k, 2500000 → 2.5M; nothing for None."""
    if value is None:
        return ""
    for size, suffix in ((1_000_000, "M"), (1_000, "k")):
        if abs(value) >= size:
            number = value / size
            text = f"{number:.1f}" if abs(number) < 99.95 else f"{number:.0f}"
            return f"{text.removesuffix('.0')}{suffix}"
    return f"{value:.0f}"


@register.filter
def duration(milliseconds: float | None) -> str:
    """12 ms, 0.1 s, 48 s, 3 min 20 s, 2 h 5 min; nothing for None."""
    if milliseconds is None:
        return ""
    if milliseconds < 100:
        return _("%(n)d ms") % {"n": milliseconds}
    seconds = milliseconds / 1000
    if seconds < 10:
        return _("%(n)s s") % {"n": f"{seconds:.1f}"}
    if seconds < 60:
        return _("%(n)s s") % {"n": f"{seconds:.0f}"}
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return _("%(m)d min %(s)d s") % {"m": minutes, "s": rest}
    hours, minutes = divmod(minutes, 60)
    return _("%(h)d h %(m)d min") % {"h": hours, "m": minutes}


@register.filter
def age(moment: datetime | None) -> str:
    """How long ago, in one unit: 5 s ago, 3 min ago, 2 h ago, 4 d ago; after a month the day."""
    if moment is None:
        return ""
    seconds = max(0, int((timezone.now() - moment).total_seconds()))
    if seconds >= 30 * 86_400:
        return f"{moment:%Y-%m-%d}"
    units = ((86_400, _("%(n)d d ago")), (3_600, _("%(n)d h ago")), (60, _("%(n)d min ago")))
    for size, one in units:
        if seconds >= size:
            return one % {"n": seconds // size}
    return _("%(n)d s ago") % {"n": seconds}


@register.filter
def clock(iso: str) -> str:
    """Date and time of an ISO 8601 text, in UTC, to the second."""
    return iso[:19].replace("T", " ")


@register.filter
def money(dollars: float | None) -> str:
    """US dollars to the cent, to a hundredth of one below ten cents; nothing for None."""
    if dollars is None:
        return ""
    return f"${dollars:.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.4f}"


@register.filter
def steps(count: int) -> str:
    return ngettext("%(n)d step", "%(n)d steps", count) % {"n": count}


@register.filter
def percent(part: float, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


@register.filter
def held(text: str) -> str:
    """The text that a row's column stands for."""
    return rows.held(text)


@register.filter
def first_line(text: str) -> str:
    """The first line with anything on it, at most 300 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 300 else line[:299] + "…"


@register.filter
def goal_share(trace: Trace, width: int) -> int:
    return round(width * trace.goals_done / trace.goals_total) if trace.goals_total else 0


@register.filter
def all_tokens(trace: Trace) -> int:
    return trace.prompt_tokens + trace.completion_tokens


@register.simple_tag(takes_context=True)
def current(context: template.Context, prefix: str) -> str:
    """``aria-current`` for the part of the site that the request is in."""
    path = context["request"].path if "request" in context else ""
    return SafeString('aria-current="page"') if path.startswith(prefix) else ""


@register.filter
def thousands(value: int) -> str:
    """12,345 in every language: these are exact numbers, to be compared with a provider's."""
    return f"{value:,}"


@register.filter
def is_number(value: object) -> bool:
    """Whether it is a whole number: of evidence, a message's sequence rather than a name."""
    return isinstance(value, int) and not isinstance(value, bool)


@register.filter
def plain_number(value: float) -> str:
    """For attributes of SVG, which know one decimal sign."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@register.filter
def end_of(x: float, width: float) -> str:
    return plain_number(x + width)


@register.filter
def strategy_name(strategy: str) -> str:
    """A compaction strategy as the pages call it; several with commas between."""
    names = {"goal": _("Level 1"), "summary": _("summary")}
    return ", ".join(names.get(one, one) for one in strategy.split(", "))


@register.filter
def less(tokens: int) -> str:
    """Tokens saved, with the sign of what they do to the window: −1,200, or +90 for added ones."""
    return f"−{tokens:,}" if tokens >= 0 else f"+{-tokens:,}"
