"""The compaction lab over real sessions of other agents, as Markdown tables.

    python -m benchmarks.lab_corpus              print them
    python -m benchmarks.lab_corpus --write      and put them into docs/lab.md

The sessions are read from the corpus beside the project; one that is absent, or whose format
cannot be read, is named and left out. Two tables: each policy under its own trigger, and the
policies' next-use recall at equal mean tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cyberagent.compaction.lab import (
    Report,
    Subject,
    at_equal_tokens,
    default_window,
    lab_policy,
    lab_subject,
    replayed,
)
from cyberagent.compaction.policy import POLICIES
from cyberagent.core.errors import CyberAgentError
from cyberagent.trace.formats import TraceBundle, read_transcript

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "corpus"
PAGE = ROOT / "docs" / "lab.md"
BEGIN, END = "<!-- made by benchmarks/lab_corpus.py -->", "<!-- end -->"
WITHIN = 0.02
OTHERS = ("cyber_recent", "opencode", "layered")
PAIRS = tuple((one, other) for one in ("cyber", "cyber_recent") for other in OTHERS if one != other)

SESSIONS: tuple[tuple[str, str, int], ...] = (
    ("claude-code A", "claude-code/*258c7280-ae70-4798-800f-63464d01a85d.jsonl", 1),
    ("claude-code B", "claude-code/*fa812bfe-b295-4cca-9c2f-fdf01028cb46.jsonl", 1),
    ("claude-code C", "claude-code/*fe5e1c67-53e7-4862-81ae-d0e013e3270b.jsonl", 3),
    ("claude-code D", "claude-code/*fa812bfe*agent-aa84377.jsonl", 1),
    ("pi", "pi/*before-compaction.jsonl", 1),
    ("tau-bench", "chat-completions/*tau-bench*.json", 2),
    ("mini-swe", "mini-swe-agent/*django-11138.traj.json", 1),
)
"""Name, file, and how many of its longest conversations (sub-agents among them)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/lab.md")
    write = parser.parse_args().write
    found = list(sessions(CORPUS))
    if not found:
        sys.exit(f"no session of the corpus is there: {CORPUS}")
    text = "\n\n".join((natural(found), equal(found)))
    print(text)
    if write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def sessions(folder: Path) -> Iterator[tuple[str, Subject]]:
    for name, pattern, most in SESSIONS:
        files = sorted(folder.glob(pattern))
        if not files:
            print(f"{name}: not there", file=sys.stderr)
            continue
        try:
            imported = read_transcript(files[0])
        except CyberAgentError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        bundles = [b for one in imported for b in one.trace.walk()]
        bundles.sort(key=lambda b: -len(b.messages))
        for number, bundle in enumerate(bundles[:most], 1):
            yield f"{name}{number}" if most > 1 else name, _subject(bundle)


def _subject(bundle: TraceBundle) -> Subject:
    return lab_subject(bundle.state, {m.sequence: m for m in bundle.messages})


# Each policy under its own trigger -----------------------------------------------------------


def natural(found: Sequence[tuple[str, Subject]]) -> str:
    rows = [
        "| session | policy | peak | mean | passes | summaries | prefix | price | recall | users "
        "| rules broken |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, subject in found:
        window, _ = default_window(subject)
        goals = len(subject.plan_of(len(subject.messages)))
        about = (
            f"**{name}**: {len(subject.calls)} calls, {goals} "
            f"goal{'' if goals == 1 else 's'} by {subject.segmented}, "
            f"window {window:,}"
        )
        for policy in POLICIES:
            r = replayed(subject, lab_policy(policy, window, subject.segmented), window)
            rows.append(f"| {about} | {policy} | {_cells(r)} |")
            about = ""
    return "### Under each policy's own trigger\n\n" + "\n".join(rows)


def _cells(r: Report) -> str:
    failed = f" (+{r.failed_passes} failed)" if r.failed_passes else ""
    return " | ".join(
        (
            f"{r.peak_tokens:,}", f"{r.mean_tokens:,.0f}", f"{r.passes}{failed}",
            str(r.summary_calls), f"{r.prefix_share:.1%}", f"{r.price:,.0f}", _recall(r),
            f"{r.user_messages_kept}/{r.user_messages}", str(r.violations),
        )
    )  # fmt: skip


def _recall(r: Report) -> str:
    return "-" if r.recall is None else f"{r.recall:.3f}"


# At equal tokens -----------------------------------------------------------------------------


def equal(found: Sequence[tuple[str, Subject]]) -> str:
    """Every policy brought to the mean tokens of ``cyber``, and who recalls more."""
    rows = [
        "| session | window | mean | cyber | " + " | ".join(OTHERS) + " |",
        "| --- | ---: | ---: | ---: |" + " ---: |" * len(OTHERS),
    ]
    beaten = {pair: [0, 0, 0] for pair in PAIRS}
    for name, subject in found:
        for window in (subject.raw_peak, subject.raw_peak // 2):
            own = lab_policy("cyber", window, subject.segmented)
            base = replayed(subject, own, window, problems_of=None)
            reports = {"cyber": base}
            for other in OTHERS:
                policy = lab_policy(other, window, subject.segmented)
                reports[other] = at_equal_tokens(
                    subject, policy, window, base.mean_tokens, within=WITHIN
                )
            cells = [_compared(r, base) for r in reports.values()]
            rows.append(
                "| " + " | ".join([name, f"{window:,}", f"{base.mean_tokens:,.0f}", *cells]) + " |"
            )
            for one, other in PAIRS:
                _count(reports[one], reports[other], base, beaten[one, other])
    told = [
        f"{one} against {other}: ahead in {won}, level in {level}, behind in {lost}."
        for (one, other), (won, level, lost) in beaten.items()
    ]
    return (
        "### Next-use recall at equal mean tokens\n\n" + "\n".join(rows) + "\n\n" + " ".join(told)
    )


def _is_equal(r: Report, base: Report) -> bool:
    return abs(r.mean_tokens / base.mean_tokens - 1) <= WITHIN


def _compared(r: Report, base: Report) -> str:
    """The recall, and the mean where it could not be made equal."""
    if _is_equal(r, base):
        return _recall(r)
    return f"{_recall(r)} (at {r.mean_tokens / base.mean_tokens:.0%} of the tokens)"


def _count(one: Report, other: Report, base: Report, counts: list[int]) -> None:
    """Runs that could not be made equal are shown, not counted."""
    if _is_equal(one, base) and _is_equal(other, base):
        mine, its = one.recall or 0.0, other.recall or 0.0
        counts[1 if abs(mine - its) < 0.0005 else 0 if mine > its else 2] += 1


if __name__ == "__main__":
    main()
