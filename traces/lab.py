"""The compaction lab on a stored trace, for terminal, API and page. Source: docs/lab.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cyberagent.compaction.lab import (
    Report,
    Subject,
    default_window,
    lab_policies,
    lab_policy,
    lab_subject,
    replayed,
)
from cyberagent.compaction.policy import POLICIES
from cyberagent.core.types import Json
from cyberagent.core.window import BrokenManifest
from traces.models import Message as MessageRow
from traces.models import Trace
from traces.rows import MESSAGE_COLUMNS, message_from
from traces.store import read_trace
from traces.windows import window_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LabResult:
    """Policies side by side over one trace, under a context window of ``window`` tokens.
    ``why``: where that window comes from; ``segmented``: where the goals come from."""

    trace: str
    window: int
    why: str
    segmented: str
    messages: int
    raw_peak: int
    reports: tuple[Report, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "trace": self.trace,
            "window": self.window,
            "window_from": self.why,
            "segmented": self.segmented,
            "messages": self.messages,
            "raw_peak_tokens": self.raw_peak,
            "policies": {r.policy: r.to_json() for r in self.reports},
        }


def policies_in(text: str) -> list[str]:
    """Names with commas between them; all policies where the text is empty. Raises
    InvalidConfig."""
    return lab_policies(text.split(",") if text.strip() else POLICIES)


def lab(
    trace: Trace,
    policies: Sequence[str] = POLICIES,
    window: int | None = None,
    done: Callable[[Report], None] = lambda _: None,
) -> LabResult:
    """Replay the trace under each policy; nothing of it is touched. ``window``: the context
    window in tokens; ``done`` is told of each policy as it ends. Raises InvalidConfig,
    InvalidInput."""
    names = lab_policies(policies)
    if window is not None:
        lab_policy(names[0], window)
    subject = subject_of(trace)
    size, why = default_window(subject) if window is None else (window, "asked for")
    reports: list[Report] = []
    for name in names:
        reports.append(replayed(subject, lab_policy(name, size, subject.segmented), size))
        done(reports[-1])
    return LabResult(
        trace=trace.pk,
        window=size,
        why=why,
        segmented=subject.segmented,
        messages=len(subject.messages),
        raw_peak=subject.raw_peak,
        reports=tuple(reports),
    )


def subject_of(trace: Trace) -> Subject:
    """The trace as the lab replays it, with all that is stored of its main path's past."""
    rows = MessageRow.objects.filter(trace=trace.pk, branch_type="").order_by("sequence")
    messages = map(message_from, rows.values(*MESSAGE_COLUMNS).iterator())
    return lab_subject(read_trace(trace.pk), {m.sequence: m for m in messages}, _tools(trace))


def _tools(trace: Trace) -> tuple[Json, ...]:
    """The schemas that the last call was sent; none where there is no call, or none that can
    still be opened."""
    if not trace.last_call:
        return ()
    try:
        return window_of(trace, trace.last_call).now.window.tools
    except BrokenManifest:
        return ()


# As a table ----------------------------------------------------------------------------------

COLUMNS = (
    "policy", "peak", "mean", "passes", "summaries", "prefix", "price", "recall", "users",
    "rules broken", "seconds",
)  # fmt: skip


def cells(report: Report) -> tuple[str, ...]:
    """A report as one row under COLUMNS."""
    failed = f" +{report.failed_passes} failed" if report.failed_passes else ""
    return (
        report.policy,
        f"{report.peak_tokens:,}",
        f"{report.mean_tokens:,.0f}",
        f"{report.passes}{failed}",
        str(report.summary_calls),
        f"{report.prefix_share:.1%}",
        f"{report.price:,.0f}",
        "-" if report.recall is None else f"{report.recall:.3f}",
        f"{report.user_messages_kept}/{report.user_messages}",
        str(report.violations),
        f"{report.seconds:.2f}",
    )


def notes(result: LabResult) -> list[str]:
    """What has to be known to read the table, one sentence each."""
    goals = {
        "goals": "the trace's own",
        "todos": "its todo lists",
        "user turns": "made of its users' turns",
    }[result.segmented]
    calls = result.reports[0].calls
    told = [
        f"{result.messages:,} messages, {calls:,} calls; context window {result.window:,} tokens "
        f"({result.why}); uncompacted {result.raw_peak:,}.",
        f"Goals: {goals}. Without a model a summary is a stub: the closed goals' own summaries.",
        "Price in tokens of uncached input: cache read 0.1, write 1.25, a summary's output 5.",
    ]
    for one in result.reports:
        if one.overflows:
            told.append(f"{one.policy}: {one.overflows:,} windows do not fit the context window.")
        told += [f"{one.policy}: {problem}" for problem in one.problems]
    return told


def lines(result: LabResult) -> Iterable[str]:
    """The table for a terminal, with its notes."""
    table = [COLUMNS, *map(cells, result.reports)]
    widths = [max(len(row[n]) for row in table) for n in range(len(COLUMNS))]
    for row in table:
        first, *rest = zip(row, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)])
    yield ""
    yield from notes(result)
