"""What a run learnt, and people's word on it. Source: docs/compaction.md, "Knowledge"."""

from __future__ import annotations

import json
from typing import Literal

from django.db import transaction

from cyberagent.core import events
from cyberagent.core.errors import Conflict, NotFound
from traces import rows, write
from traces.acting import Person, locked, name_of
from traces.models import Knowledge, Trace

PENDING = "pending_knowledge"
"""Where a trace's context keeps the entries that the next evaluation is asked about."""


def find(trace: Trace, name: str) -> Knowledge:
    """Raises NotFound."""
    found = Knowledge.objects.filter(trace=trace, name=rows.hold(name)).first()
    if found is None:
        raise NotFound("knowledge entry", name)
    return found


def judge(
    entry: Knowledge, status: Literal["accepted", "rejected"], *, by: Person, why: str = ""
) -> Knowledge:
    """Accept or reject an entry, also against an earlier judgement; no model overrules it. Raises
    Conflict where the entry is not any more as ``entry`` says."""
    with transaction.atomic():
        trace = locked(entry.trace)
        now = find(trace, rows.held(entry.name))
        if (now.status, now.judge, now.text) != (entry.status, entry.judge, entry.text):
            raise Conflict(f"{rows.held(now.name)} has changed meanwhile: it is {_told(now)}")
        if now.status == status and now.judged_by_id:
            raise Conflict(f"{rows.held(now.name)} is {_told(now)} already")
        told = events.Knowledge(
            entry=rows.held(now.name),
            status=status,
            text=rows.held(now.text),
            sources=tuple(json.loads(now.sources)),
            goal_id=rows.held(now.goal_id),
            by=name_of(by),
            why=why,
        )
        write.append(trace.pk, [], [told], context=_without(trace, told.entry))
        if by is not None:
            Knowledge.objects.filter(pk=now.pk).update(judged_by=by)
        return Knowledge.objects.select_related("judged_by").get(pk=now.pk)


def _told(row: Knowledge) -> str:
    return f"{row.status} by {rows.held(row.judge)}" if row.judge else row.status


def _without(trace: Trace, name: str) -> dict[str, object] | None:
    """The context of a trace at rest without the entry among those that wait. A live run has it
    in its own hands; what its evaluation says comes too late then (``traces.projection``)."""
    context = json.loads(trace.context)
    waiting = context.get(PENDING, [])
    left = [entry for entry in waiting if entry.get("name") != name]
    if trace.is_live or len(left) == len(waiting):
        return None
    return context | {PENDING: left}
