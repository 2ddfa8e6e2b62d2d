"""Knowledge rows, kept as the newest events say. Source: docs/compaction.md, "Knowledge"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from cyberagent.core import events
from cyberagent.core.errors import InvalidInput
from traces import rows
from traces.models import Knowledge

EVALUATOR = "knowledge_eval"
"""The judge where it is a model on a side branch; every other one is a person."""


def knowledge_in(told: Iterable[events.Event]) -> list[events.Knowledge]:
    return [e for e in told if isinstance(e, events.Knowledge)]


def refresh(trace_id: str, told: Sequence[events.Knowledge], moment: datetime) -> None:
    """Make the trace's knowledge rows say what ``told``, in order, says; to be called in the
    transaction that stores it. Raises InvalidInput for what no row can hold."""
    names = {e.entry for e in told}
    stored = Knowledge.objects.filter(trace_id=trace_id, name__in=map(rows.hold, names))
    known = {row.name: row for row in stored}
    for event in told:
        name = _checked(event)
        row = known.get(name)
        if row is None:
            row = known[name] = Knowledge(trace_id=trace_id, name=name, created_at=moment)
        elif event.by == EVALUATOR and row.judge not in ("", EVALUATOR):
            continue
        _take(row, event, moment)
        row.save()


def _take(row: Knowledge, event: events.Knowledge, moment: datetime) -> None:
    is_pending = event.status == Knowledge.Status.PENDING
    row.status, row.judge, row.judged_by = event.status, rows.hold(event.by), None
    row.why = rows.hold(event.why)
    row.judged_at = None if is_pending else moment
    row.text = rows.hold(event.text)
    row.sources = rows.as_json(list(event.sources), "sources")
    row.goal_id = rows.hold(event.goal_id)


def _checked(event: events.Knowledge) -> str:
    """The name of its row. Raises InvalidInput: a file that is imported may say anything."""
    name = rows.hold(event.entry)
    texts = (event.entry, event.status, event.text, event.goal_id, event.by, event.why)
    if not all(isinstance(t, str) for t in texts) or not 0 < len(name) <= 64:
        raise InvalidInput("a knowledge entry is malformed")
    if event.status not in Knowledge.Status.values:
        raise InvalidInput(f"knowledge {event.entry!r} cannot be {event.status!r}")
    if len(rows.hold(event.goal_id)) > 100 or len(rows.hold(event.by)) > 200:
        raise InvalidInput(f"knowledge {event.entry!r}: the name of its goal or judge is too long")
    return name
