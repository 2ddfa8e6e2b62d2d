"""Pieces of the run page as HTML: rows, goals, the facts on top, the window's bar.

The page's first load, the pages that it fetches and the live updates are made of the very same
pieces. What is sent live is made once per stretch of events, language and role in each process,
however many watch. Source: docs/pages.md, "Live".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from cyberagent import presets
from cyberagent.compaction.policy import policy_for
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig
from cyberagent.core.guards import reserve
from cyberagent.core.measure import KINDS
from cyberagent.core.types import Json
from traces import treerows, trees, treeview
from traces.acting import ENDED
from traces.below import Below
from traces.models import Event, ModelCall, Trace
from traces.rendering import page_text
from traces.rowviews import child_html, rows_html
from traces.runs import environment
from traces.treeview import Tree

# Goals, facts, window ----------------------------------------------------------------------


def goals_html(trace: Trace, tree: Tree) -> str:
    return page_text(render_to_string("traces/_goals.html", {"trace": trace, "tree": tree}))


def facts_html(trace: Trace) -> str:
    return page_text(render_to_string("traces/_facts.html", {"trace": trace}))


def acts_html(trace: Trace, *, can_act: bool) -> str:
    """Nothing is offered that could only be refused: a validator hears nothing but its packet,
    and a sub-agent that has ended hears nothing."""
    judges = trees.is_validator(trace)
    over = trace.parent_trace_id is not None and trace.status in ENDED
    context = {
        "trace": trace,
        "can_act": can_act,
        "hears": (trace.origin == "run" or trace.is_live) and not judges and not over,
        "is_steered": trace.origin == "run" and not judges,
    }
    return page_text(render_to_string("traces/_acts.html", context))


def window_html(trace: Trace) -> str:
    number = treerows.newest_call(trace)
    call = ModelCall.objects.get(trace=trace, number=number) if number else None
    context = {"trace": trace, "call": call, "bar": bar_of(call, trace) if call else None}
    return page_text(render_to_string("traces/_window.html", context))


@dataclass(frozen=True, slots=True)
class Segment:
    """``x`` and ``width`` in thousandths of the bar."""

    kind: str
    css: str
    name: str
    tokens: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """``limit``: the context window in tokens; None: unknown, the bar is then the window
    itself. ``threshold``: tokens above which the run's policy compacts, ``mark`` its place on the
    bar; None: it never does."""

    segments: list[Segment]
    total: int
    limit: int | None
    threshold: int | None = None
    mark: float | None = None


_CSS = {
    "system": "system", "schemas": "tools", "anchor": "anchor", "plan": "plan",
    "skills": "skill", "injected": "injected", "memory": "memory", "summary": "summary",
    "user": "user", "assistant": "assistant",
    "tool": "result",
}  # fmt: skip


def kind_name(kind: str) -> str:
    names = {
        "system": _("system"), "schemas": _("tools’ schemas"), "anchor": _("anchor"),
        "plan": _("plan"), "skills": _("skills"), "injected": _("injected"),
        "memory": _("memory"), "summary": _("summaries"), "user": _("user"),
        "assistant": _("assistant"), "tool": _("tool results"),
    }  # fmt: skip
    return names.get(kind, kind)


def bar_of(call: ModelCall, trace: Trace) -> Bar:
    """The call's window by kind, as parts of the context window."""
    stored: dict[str, int] = json.loads(call.composition)
    order = {kind: place for place, kind in enumerate(KINDS)}
    parts = {k: stored[k] for k in sorted(stored, key=lambda k: order.get(k, len(order)))}
    total = sum(parts.values()) or call.estimated_tokens
    limit, threshold = _window_and_threshold(trace.config, _chosen(trace))
    whole = max(total, limit or 0) or 1
    segments: list[Segment] = []
    x = 0.0
    for kind, tokens in parts.items():
        width = 1000 * tokens / whole
        css, name = _CSS.get(kind, "other"), kind_name(kind)
        segments.append(Segment(kind, css, name, tokens, round(x, 2), round(width, 2)))
        x += width
    mark = None if threshold is None else round(1000 * threshold / whole, 2)
    return Bar(segments, total, limit, threshold, mark if mark and mark < 1000 else None)


@lru_cache(maxsize=256)
def _window_and_threshold(config: str, policy: str) -> tuple[int | None, int | None]:
    """The context window of a run with this configuration, and where its policy acts."""
    run = _resolved(config)
    if run is None:
        return None, None
    if policy:
        run = run.with_(policy=policy)
    kept = reserve(run.context_window, run.max_output_tokens)
    return run.context_window, policy_for(run).threshold(run.context_window, kept)


def _resolved(config: str) -> RunConfig | None:
    try:
        return presets.resolve(RunConfig.from_json(json.loads(config)), environment())
    except InvalidConfig:  # of an imported trace, or of a version that knew other settings
        return None


def _chosen(trace: Trace) -> str:
    return str(json.loads(trace.context).get("policy", ""))


def policy_of(trace: Trace) -> str:
    """The compaction policy that the run is under now: its own, or the one an operator chose."""
    if chosen := _chosen(trace):
        return chosen
    run = _resolved(trace.config)
    return policy_for(run).name if run else ""


def list_row_html(trace: Trace, user: Any) -> str:
    return page_text(render_to_string("traces/_runs_row.html", {"trace": trace, "user": user}))


# Live: one batch of updates -------------------------------------------------------------------

LONGEST_BATCH = 500
"""Events; who is further behind loads the tree anew."""

_GOALS_CHANGE = frozenset({"GoalChanged", "BranchEnded", "StatusChanged", "Done"})
_ROWS_CHANGE = frozenset({"ChildStarted", "ChildEnded", "Verdict", "Reviewed", "AnchorRevised"})
"""Beside new messages: they change what hangs on the row of theirs."""

_WINDOW_CHANGES = frozenset({"CallStarted", "Usage"})
_ACTS_CHANGE = frozenset({"StatusChanged", "Command", "Done", "Session"})


@dataclass(frozen=True, slots=True)
class _Batch:
    """``newest``: of each kind of event in it the last one's number; ``messages``: new ones;
    ``changed``: older ones on which something hangs now that did not, or that changed."""

    after: int
    upto: int
    newest: Mapping[str, int]
    messages: tuple[int, ...] = field(default=())
    changed: tuple[int, ...] = field(default=())

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self.newest)


def batch(trace_id: str, after: int, language: str, can_act: bool) -> tuple[int, str]:
    """What a watcher that has seen event ``after`` is sent to be up to date, and the number of
    the last event in it; ``(after, "")`` if it is up to date."""
    last = Trace.objects.filter(pk=trace_id).values_list("last_event", flat=True).first()
    if last is None or last <= after:
        return after, ""
    return last, _batch_json(trace_id, after, last, language, can_act)


@lru_cache(maxsize=64)
def _batch_json(trace_id: str, after: int, upto: int, language: str, can_act: bool) -> str:
    trace = Trace.objects.select_related("owner").get(pk=trace_id)
    with translation.override(language):
        found = _read(trace_id, after, upto)
        if found is None or "Rewound" in found.kinds:
            body = _anew(trace, can_act)
        else:
            body = _body(trace, found, can_act)
    return json.dumps({"after": after, "upto": upto} | body)


_ALL = _WINDOW_CHANGES | _ACTS_CHANGE


@lru_cache(maxsize=256)
def _read(trace_id: str, after: int, upto: int) -> _Batch | None:
    """None where it is too much."""
    if upto - after > LONGEST_BATCH:
        return None
    events = Event.objects.filter(trace=trace_id, number__gt=after, number__lte=upto)
    found = list(events.order_by("number").values_list("kind", "number", "message"))
    messages = dict.fromkeys(m for kind, _, m in found if kind == "MessageStored" and m)
    changed = dict.fromkeys(
        m for kind, _, m in found if kind in _ROWS_CHANGE and m and m not in messages
    )
    newest = {kind: number for kind, number, _ in found}
    return _Batch(after, upto, newest, tuple(messages), tuple(changed))


_BELOW_CHANGES = frozenset({"ChildStarted", "ChildEnded", "Verdict"})


def stirs_below(trace_id: str, after: int, upto: int) -> bool:
    """Whether events of a trace may have changed what is shown of those below it: one came, or a
    validator's verdict is known."""
    found = _read(trace_id, after, upto)
    return found is None or bool(found.kinds & _BELOW_CHANGES)


def _anew(trace: Trace, can_act: bool) -> dict[str, Json]:
    """After a long absence, or where another path is the main one: the tree is loaded anew."""
    return {
        "reload": True,
        "html": _partials(trace, _ALL, can_act),
        "calls": trace.last_call,
        "answered": last_answered(trace.pk),
    }


def _body(trace: Trace, batch: _Batch, can_act: bool) -> dict[str, Json]:
    body: dict[str, Json] = {"html": _partials(trace, batch.kinds, can_act)}
    if batch.kinds & _WINDOW_CHANGES:
        body |= {"calls": trace.last_call, "answered": last_answered(trace.pk)}
    if "Compacted" in batch.kinds:
        body["passed"] = batch.newest["Compacted"]
    if "CallStarted" in batch.kinds:
        body["sent"] = batch.newest["CallStarted"]
    if batch.kinds & _GOALS_CHANGE:
        body["goals"] = goals_html(trace, treeview.tree_of(trace))
    elif batch.messages:
        body["html"] += _totals(trace)
    rows = _rows(trace, batch.messages)
    for sequence in batch.changed:
        rows += _rows(trace, [sequence])
    if rows:
        body["rows"] = rows
    return body


def last_answered(trace_id: str) -> int:
    """The newest call that is over: what was written of it is stored, or was dropped."""
    over = ModelCall.objects.filter(trace=trace_id).exclude(status=ModelCall.Status.SENT)
    return over.order_by("-number").values_list("number", flat=True).first() or 0


def _rows(trace: Trace, sequences: Sequence[int]) -> list[Json]:
    """The rows that new messages made or changed, for the lists that are in view. ``total``: of
    the goal's rows, as far as the batch knows."""
    return [
        {"goal": goal, "row": place, "total": place + 1, "html": rows_html(trace.pk, [row])}
        for goal, place, row in treerows.changed_rows(trace, sequences)
    ]


# Live: what happens below ----------------------------------------------------------------------


def children_json(found: Sequence[Below], language: str) -> list[Json]:
    """The lines of sub-agents, each made once per state and language in each process: a line
    with another ``clock`` is another state."""
    return [{"id": c.id, "clock": c.clock, "html": _child_html(c, language)} for c in found]


@lru_cache(maxsize=512)
def _child_html(child: Below, language: str) -> str:
    with translation.override(language):
        return child_html(child)


def _partials(trace: Trace, kinds: frozenset[str], can_act: bool) -> str:
    """Out-of-band pieces for what these kinds of events change."""
    pieces = {"#facts": facts_html(trace)}
    if kinds & _ACTS_CHANGE:
        pieces["#acts"] = acts_html(trace, can_act=can_act)
    if kinds & _WINDOW_CHANGES:
        pieces["#window"] = window_html(trace)
    return "".join(_partial(target, html) for target, html in pieces.items())


def facts_partial(trace: Trace) -> str:
    """The facts alone, for pages that are told of nothing else."""
    return _partial("#facts", facts_html(trace))


def acts_partial(trace: Trace) -> str:
    """What an operator may do, for pages that are told when the run's status changes."""
    return _partial("#acts", acts_html(trace, can_act=True))


def _totals(trace: Trace) -> str:
    """The goals' totals, as far as something was done for them."""
    html = ""
    for goal in treeview.tree_of(trace).walk():
        if goal.steps or goal.tokens:
            text = render_to_string("traces/_totals.html", {"goal": goal, "counted": True})
            html += _partial(f"#t-{goal.dom_id}", text)
    return html


def _partial(target: str, html: str) -> str:
    return f'<hx-partial hx-target="{target}" hx-swap="innerHTML">{html}</hx-partial>'
