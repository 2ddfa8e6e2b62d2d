"""The traces below one, as the lines that its pages show: sub-agents, theirs, and so on.

One statement for all of them, and one for their verdicts. Source: docs/pages.md, "Sub-agents".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from cyberagent.core.lineage import SPAWNED
from cyberagent.trace.rows import ChildRow
from traces import trees
from traces.models import LIVE_STATUSES, Trace, ValidationResult
from traces.rows import held

MOST = 500
"""Traces that are looked at below one: a run's own tree has at most 64, an imported one any."""

ENDED = (Trace.Status.COMPLETED, Trace.Status.FAILED, Trace.Status.STOPPED)
"""Statuses of a sub-agent that has come to its end; the call that asked for it goes on with any
other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """One trace below another. ``message`` of ``parent`` asked for it with ``call``; ``level``: 0
    for a direct sub-agent; ``kind``: agent, validator, explore or research, "" where that is not
    known; ``goal``: what it is at.

    ``clock`` grows with whatever happens in it or below it, so a line with a larger one is newer.
    ``agents`` counts the sub-agents below it without validators, ``working`` those that are live;
    ``judged``: a validator looks at what it handed in.
    ``verdict``, ``why`` and ``verdict_id`` are of the verdict that a validator gave, of others the
    newest on them, once they are at rest; "" and 0 where there is none.
    """

    id: str
    parent: str
    message: int
    call: str
    level: int
    kind: str
    mission: str
    status: str
    steps: int
    goal: str
    goals_done: int
    goals_total: int
    clock: int
    agents: int = 0
    working: int = 0
    judged: bool = False
    verdict: str = ""
    why: str = ""
    verdict_id: int = 0

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_STATUSES

    @property
    def is_validator(self) -> bool:
        return self.kind == "validator"

    def row(self, sequence: int, call: str, level: int) -> ChildRow:
        """It as a row of the trace that is drawn; ``sequence``, ``call``: where it hangs there."""
        return ChildRow(
            sequence=sequence,
            trace_id=self.id,
            mission=self.mission,
            status=self.status,
            agent=self.kind,
            call=call,
            level=level,
            steps=self.steps,
            goal=self.goal if self.is_live else "",
            verdict=self.verdict,
            why=self.why,
        )


def below(trace_id: str) -> list[Below]:
    """Every trace below ``trace_id``: a parent before its children, those of one parent in the
    order in which they were made, each with all below it."""
    found = trees.below(trace_id).order_by("created_at", "pk").values(*_COLUMNS)[:MOST]
    children: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        children.setdefault(row["parent_trace_id"], []).append(row)
    if not children:
        return []
    verdicts = _verdicts([row["id"] for rows in children.values() for row in rows])
    return [_below(*found, verdicts) for found in _walk(children, trace_id, verdicts)]


def child_rows(found: Sequence[Below]) -> list[ChildRow]:
    """The rows of what is below a trace, for its merged view as text."""
    rows: list[ChildRow] = []
    at: tuple[int, str] = 0, ""
    for one in found:
        if one.level == 0:
            at = one.message, one.call
        rows.append(one.row(*at, one.level))
    return rows


_COLUMNS = (
    "id", "parent_trace_id", "parent_message", "mission", "status", "steps", "current_goal",
    "goals_done", "goals_total", "last_event", "context",
)  # fmt: skip

_Rows = dict[str, list[dict[str, Any]]]
_Walked = tuple[dict[str, Any], int, int, int, int, bool]


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """The newest verdict on each trace, and the one that each validator gave."""

    on: dict[str, ValidationResult]
    by: dict[str, ValidationResult]


def _walk(children: _Rows, top: str, verdicts: _Verdicts, level: int = 0) -> Iterator[_Walked]:
    """Row, level, clock, agents, working and judged, in the order in which a tree shows them."""
    for row in children.get(top, ()):
        inner = list(_walk(children, row["id"], verdicts, level + 1))
        row["made_for"] = _made_for(row["context"])
        # A validator's verdict comes after its last event, with one of the trace it judged.
        clock = row["last_event"] + 1 + (row["id"] in verdicts.by)
        clock += sum(i[2] for i in inner if i[1] == level + 1)
        agents = [i[0] for i in inner if i[0]["made_for"].get("kind") != "validator"]
        working = sum(r["status"] in LIVE_STATUSES for r in agents)
        judges = (i[0] for i in inner if i[1] == level + 1 and i[0] not in agents)
        judged = any(r["status"] in LIVE_STATUSES for r in judges)
        yield row, level, clock, len(agents), working, judged
        yield from inner


def _made_for(context: str) -> dict[str, Any]:
    """An imported trace's context is its own file's word."""
    told = json.loads(context).get(SPAWNED)
    return told if isinstance(told, dict) else {}


def _below(
    row: dict[str, Any],
    level: int,
    clock: int,
    agents: int,
    working: int,
    judged: bool,
    verdicts: _Verdicts,
) -> Below:
    kind = str(row["made_for"].get("kind", ""))
    shown = verdicts.by if kind == "validator" else verdicts.on
    hidden = kind != "validator" and row["status"] in LIVE_STATUSES
    found = None if hidden else shown.get(row["id"])
    return Below(
        id=row["id"],
        parent=row["parent_trace_id"],
        message=row["parent_message"] or 0,
        call=str(row["made_for"].get("call", "")),
        level=level,
        kind=kind,
        mission=held(row["mission"]),
        status=row["status"],
        steps=row["steps"],
        goal=held(row["current_goal"]),
        goals_done=row["goals_done"],
        goals_total=row["goals_total"],
        clock=clock,
        agents=agents,
        working=working,
        judged=judged,
        verdict=found.verdict if found else "",
        why=held(found.reason) if found else "",
        verdict_id=found.pk if found else 0,
    )


def _verdicts(traces: Sequence[str]) -> _Verdicts:
    wanted = Q(trace__in=traces) | Q(validator__in=traces)
    found = ValidationResult.objects.filter(wanted).order_by("sequence", "pk")
    verdicts = _Verdicts({}, {})
    for result in found.only("trace_id", "validator_id", "verdict", "reason"):
        verdicts.on[result.trace_id] = result
        if result.validator_id:
            verdicts.by[result.validator_id] = result
    return verdicts
