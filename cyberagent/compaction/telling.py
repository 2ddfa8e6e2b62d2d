"""A pass as its event tells it. Source: docs/compaction.md, "In a run"."""

from __future__ import annotations

from collections.abc import Sequence

from cyberagent.compaction.values import Edit
from cyberagent.core.events import Compacted
from cyberagent.core.guards import Breaker
from cyberagent.core.types import Json


def compacted(
    policy: str,
    edits: Sequence[Edit],
    *,
    before: int,
    after: int,
    trigger: str,
    breaker: Breaker,
) -> Compacted:
    touched = sorted({n for e in edits for n in e.sequences})
    return Compacted(
        policy=policy,
        level=max((e.level for e in edits), default=0),
        strategy=", ".join(dict.fromkeys(e.strategy for e in edits)),
        trigger=trigger,
        tokens_before=before,
        tokens_after=after,
        first=touched[0] if touched else 0,
        last=touched[-1] if touched else 0,
        removed=sum(len(e.sequences) for e in edits if e.what == "removed"),
        edits=tuple(edit_json(e) for e in edits),
        breaker=breaker.state,
    )


def edit_json(edit: Edit) -> dict[str, Json]:
    return {
        "strategy": edit.strategy,
        "level": edit.level,
        "what": edit.what,
        "messages": ranges(edit.sequences),
        "count": len(edit.sequences),
        "why": edit.why,
        "tokens_saved": edit.tokens_saved,
    }


def ranges(numbers: Sequence[int]) -> list[list[int]]:
    """``[[3, 7], [9, 9]]``: neighbours as one range, so that a ledger row stays small."""
    found: list[list[int]] = []
    for n in sorted(set(numbers)):
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return found
