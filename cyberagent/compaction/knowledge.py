"""What reflection extracts, and what is said of it later. Source: docs/compaction.md,
"Knowledge"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from cyberagent.core.types import Json, clean_text

MAX_ENTRIES = 20
"""Entries that one reflection may bring."""

MAX_CHARS = 2_000
"""Characters of one entry."""

MAX_PENDING = 50
"""Entries of one trace that wait for a judgement; older ones are left to operators."""

_SOURCES = re.compile(r"\[(\d+)(?:\s*[-–]\s*(\d+))?\]")
_JUDGED = re.compile(r"^\W*(k[\d.]+)\W*[:：]\W*(accepted|rejected)\W*(.*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """``name``: ``k12.3`` is the third entry of the reflection that began when message 12 was the
    last one stored."""

    name: str
    text: str
    sources: tuple[int, ...] = ()
    goal_id: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "text": self.text,
            "sources": list(self.sources),
            "goal_id": self.goal_id,
        }


def entry_from_json(value: Json) -> Entry:
    fields: dict[str, Any] = dict(cast("dict[str, Any]", value))
    fields["sources"] = tuple(fields.get("sources", ()))
    return Entry(**fields)


def extracted(text: str, *, after: int, began: int, goal_id: str) -> list[Entry]:
    """The entries of a reflection's answer: a paragraph each, ``none`` for none. ``after``: the
    last message that it could have seen; sources beyond it are not taken. ``began``: the last
    message stored before it, which names it, as after a rewind ``after`` may come again."""
    paragraphs = [p.strip() for p in re.split(r"\n\s*\n", clean_text(text)) if p.strip()]
    found: list[Entry] = []
    for paragraph in paragraphs[:MAX_ENTRIES]:
        if paragraph.strip(" .`*").lower() in ("none", "无"):
            continue
        found.append(
            Entry(
                name=f"k{began}.{len(found) + 1}",
                text=paragraph[:MAX_CHARS],
                sources=_sources(paragraph, after),
                goal_id=goal_id,
            )
        )
    return found


def _sources(text: str, last: int) -> tuple[int, ...]:
    """Sequences that ``[12]`` and ``[12-15]`` name; of a range both ends."""
    named = {int(n) for match in _SOURCES.finditer(text) for n in match.groups() if n}
    return tuple(sorted(n for n in named if 0 < n <= last))


@dataclass(frozen=True, slots=True)
class Judged:
    entry: Entry
    status: Literal["accepted", "rejected"]
    why: str


def judged(text: str, pending: Sequence[Entry]) -> list[Judged]:
    """What an evaluation's answer says of the entries that wait; lines that name none of them,
    or say neither word, are passed over: such an entry goes on waiting."""
    waiting = {e.name: e for e in pending}
    found: dict[str, Judged] = {}
    for line in clean_text(text).splitlines():
        match = _JUDGED.match(line)
        if match and match[1].lower() in waiting:
            status = "accepted" if match[2].lower() == "accepted" else "rejected"
            found[match[1].lower()] = Judged(waiting[match[1].lower()], status, match[3][:300])
    return list(found.values())


def listed(pending: Sequence[Entry]) -> str:
    """The entries as an evaluation is shown them."""
    return "\n".join(f"- {e.name}: {' '.join(e.text.split())}" for e in pending)
