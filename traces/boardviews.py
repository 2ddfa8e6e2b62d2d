"""The board of sub-agents as HTML. Source: docs/pages.md, "Board"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import translation

from cyberagent.core import events
from cyberagent.core.events import AnchorRevised, ChildEnded, ChildStarted, Reviewed, Verdict
from cyberagent.core.verdicts import TaskReview
from traces import fragments, telling, trees
from traces.below import Below, below
from traces.board import Board, BoardRow
from traces.members import board_of
from traces.models import LIVE_STATUSES, Event, Trace, ValidationResult
from traces.rendering import page_text
from traces.rows import EVENT_COLUMNS, event_from, held

PAGE = 30
"""Lines of the log at a time."""

DEEPEST = 6
"""Steps of indentation; what is deeper stands at the last one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the board with its words. ``indent``: steps from the left."""

    row: BoardRow
    name: str
    status: str
    indent: int
    alarms: tuple[tuple[str, str], ...]
    is_top: bool = False

    @property
    def verdict_style(self) -> str:
        return telling.verdict_style(self.row.verdict.verdict) if self.row.verdict else ""

    @property
    def verdict_name(self) -> str:
        return telling.verdict_name(self.row.verdict.verdict) if self.row.verdict else ""

    @property
    def judging(self) -> bool:
        """Whether a validator is at work on it."""
        return any(v.is_live for v in self.row.validators)

    @property
    def decision(self) -> str:
        return telling.decision_name(self.row.review.decision) if self.row.review else ""

    @property
    def reviewer(self) -> str:
        """An operator's name; "" where the trace above reviewed it itself."""
        return _operator(self.row.review)

    @property
    def against(self) -> str:
        word = self.row.review.against_verdict if self.row.review else ""
        return telling.against_verdict(word) if word else ""


def _operator(review: TaskReview | None) -> str:
    return review.reviewer.id if review and review.reviewer.kind == "operator" else ""


def board_html(trace: Trace) -> str:
    return _html(trace, board_of(trace))


def _html(trace: Trace, found: Board) -> str:
    lines = [_line(row) for row in found.rows]
    top = _line(found.top, is_top=True)
    agents = [line.row.member for line in lines]
    context = {
        "trace": trace,
        "lines": [top, *lines] if found.top.verdict or top.judging else lines,
        "agents": len(agents),
        "working": sum(m.status in LIVE_STATUSES for m in agents),
        "alarms": found.alarms,
        "contracts": any(r.brief or r.member.protocol for r in (found.top, *found.rows)),
    }
    return page_text(render_to_string("traces/_board.html", context))


def _line(row: BoardRow, *, is_top: bool = False) -> Line:
    return Line(
        row=row,
        name=telling.agent_name(row.member.kind),
        status=telling.status_name(row.member.status),
        indent=min(DEEPEST, max(0, row.level - 1)),
        alarms=tuple((a, telling.alarm_sentence(a)) for a in row.alarms),
        is_top=is_top,
    )


# What happened ---------------------------------------------------------------------------------

_OF_A_CHILD = (ChildStarted, ChildEnded, Reviewed)


def told_of(trace: Trace) -> QuerySet[Event]:
    """The events of a trace that its log has words for."""
    return trace.events.filter(kind__in=[kind.kind for kind in telling.TOLD])


def log_html(trace: Trace, told: Sequence[events.Event]) -> str:
    """The log of these events."""
    context = {"trace": trace, "told": _told(trace, told)}
    return page_text(render_to_string("traces/_log.html", context))


def _told(trace: Trace, told: Sequence[events.Event]) -> list[dict[str, Any]]:
    """Events with their words; ``subject``: the mission of the sub-agent that each names, ``url``:
    where it leads."""
    named = {e.child for e in told if isinstance(e, _OF_A_CHILD)}
    known = Trace.objects.filter(pk__in=named, parent_trace=trace).values_list("pk", "mission")
    missions = {pk: held(mission) for pk, mission in known}
    judged = ValidationResult.objects.filter(trace=trace).values_list("sequence", "pk")
    verdict_at: dict[int | None, int] = dict(judged)
    lines: list[dict[str, Any]] = []
    for event in told:
        url, subject = "", ""
        if isinstance(event, _OF_A_CHILD):
            subject = missions.get(event.child, event.child)
            url = reverse("run", args=[event.child]) if event.child in missions else ""
        elif isinstance(event, Verdict) and event.message in verdict_at:
            url = reverse("verdict", args=[verdict_at[event.message]])
        elif isinstance(event, AnchorRevised):
            url = reverse("task", args=[trace.pk])
        why = getattr(event, "why", "")
        text = telling.sentence(event)
        lines.append({"event": event, "text": text, "why": why, "url": url, "subject": subject})
    return lines


# Live ------------------------------------------------------------------------------------------


def clock_of(trace_id: str, found: list[Below] | None = None) -> str:
    """What the board of a trace was made from: another text is another board."""
    found = below(trace_id) if found is None else found
    last, parent = Trace.objects.values_list("last_event", "parent_trace").get(pk=trace_id)
    clock = f"{last}.{sum(one.clock for one in found if one.level == 0)}"
    if parent is None:
        return clock
    # Of a sub-agent's board: who is an orphan hangs on whether the run at the root is at work.
    status = trees.root(trace_id).values_list("status", flat=True).get()
    return f"{clock}.{status}"


def status_of(trace_id: str) -> str:
    return Trace.objects.filter(pk=trace_id).values_list("status", flat=True).get()


@lru_cache(maxsize=64)
def live_json(trace_id: str, clock: str, language: str, acts: bool = False) -> str:
    """The board for those who watch it, its newest log and the facts on top of the page, made
    once per state and language in each process. ``acts``: with the buttons, for an operator."""
    trace = Trace.objects.select_related("owner").get(pk=trace_id)
    newest = told_of(trace).order_by("-number").values(*EVENT_COLUMNS)[:PAGE]
    with translation.override(language):
        body = {
            "board": board_html(trace),
            "log": log_html(trace, [event_from(row) for row in newest]),
            "html": fragments.facts_partial(trace)
            + (fragments.acts_partial(trace) if acts else ""),
            "clock": clock,
        }
    return json.dumps(body)
