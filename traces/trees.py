"""A tree of traces: a run, its sub-agents, theirs. Where it begins, what is in it, what is asked.

Reading only; one statement each, however deep the tree is. Source: docs/rows.md, "Trees".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.errors import NotFound
from cyberagent.core.lineage import (
    LINEAGE,
    SPAWNED,
    is_brought_by_open_call,
    open_calls,
)
from cyberagent.core.ports import TreeTrace
from cyberagent.core.protocol import replay_protocol
from cyberagent.core.types import Json, Message
from traces import models, records, rows, sql

# Statements ----------------------------------------------------------------------------------

_UP = """
WITH RECURSIVE up(id, parent, height) AS (
    SELECT t.id, t.parent_trace_id, 0 FROM traces_trace t WHERE t.id = %s
    UNION ALL
    SELECT t.id, t.parent_trace_id, up.height + 1
    FROM traces_trace t JOIN up ON t.id = up.parent
)"""

_ROOT = f"{_UP} SELECT id FROM up WHERE parent IS NULL"

_ALL = f"""{_UP}, found(id, depth) AS (
    SELECT id, 0 FROM up WHERE parent IS NULL
    UNION ALL
    SELECT t.id, found.depth + 1 FROM traces_trace t JOIN found ON t.parent_trace_id = found.id
)"""

_BELOW = """
WITH RECURSIVE found(id) AS (
    SELECT t.id FROM traces_trace t WHERE t.parent_trace_id = %s
    UNION ALL
    SELECT t.id FROM traces_trace t JOIN found ON t.parent_trace_id = found.id
) SELECT id FROM found"""

_STATE_NAMES = (*rows.STATE_COLUMNS, "steps", "cost")
_READ = f"""{_ALL}
SELECT {sql.columns(_STATE_NAMES, "t")}
FROM found JOIN traces_trace t ON t.id = found.id
ORDER BY found.depth, t.created_at, t.id"""


def _fetch(statement: str, value: str | int) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [value])
        return cursor.fetchall()


# Where a trace stands ------------------------------------------------------------------------


def root_id(trace_id: str) -> str:
    """The id of the trace at the root of the tree. Raises NotFound."""
    found = _fetch(_ROOT, trace_id)
    if not found:
        raise NotFound("trace", trace_id)
    return found[0][0]


def root(trace_id: str) -> QuerySet[models.Trace]:
    """The root of the tree of that trace, as a queryset of one."""
    return _of(_ROOT, trace_id)


def below(trace_id: str) -> QuerySet[models.Trace]:
    """All sub-agents of a trace, theirs included, in no order."""
    return _of(_BELOW, trace_id)


def whole(trace_id: str) -> QuerySet[models.Trace]:
    """All traces of the tree of that trace, in no order."""
    return _of(f"{_ALL} SELECT id FROM found", trace_id)


def _of(statement: str, trace_id: str) -> QuerySet[models.Trace]:
    ids = RawSQL(statement, [trace_id])  # noqa: S611 - a statement of this module
    return models.Trace.objects.filter(pk__in=ids)


def above(trace_id: str) -> list[models.Trace]:
    """The traces above a sub-agent, the nearest first; none for a root."""
    found = {t.pk: t for t in _of(f"{_UP} SELECT id FROM up WHERE height > 0", trace_id)}
    nearest = set(found) - {t.parent_trace_id for t in found.values()}
    chain: list[models.Trace] = []
    name = next(iter(nearest), None)
    while name is not None:
        chain.append(found[name])
        name = found[name].parent_trace_id
    return chain


def in_order(trace_id: str) -> list[models.Trace]:
    """All traces of the tree of that trace: parents before their children, those of one parent
    in the order in which they were made."""
    return _in_order([state["id"] for state in _states(trace_id)])


def _in_order(ids: list[str]) -> list[models.Trace]:
    found = models.Trace.objects.in_bulk(ids)
    return [found[name] for name in ids]


def read_tree(trace_id: str) -> list[TreeTrace]:
    """:meth:`cyberagent.core.ports.Store.tree`. Raises NotFound."""
    found = _states(trace_id)
    if not found:
        raise NotFound("trace", trace_id)
    return [
        TreeTrace(state=rows.state_from(row), steps=row["steps"], cost=row["cost"]) for row in found
    ]


def _states(trace_id: str) -> list[dict[str, Any]]:
    return [dict(zip(_STATE_NAMES, row, strict=True)) for row in _fetch(_READ, trace_id)]


def read_anchors(trace_id: str) -> tuple[AnchorRevision, ...]:
    """:meth:`cyberagent.core.ports.Store.anchors`."""
    found = models.AnchorRevision.objects.filter(trace_id=trace_id).order_by("number")
    return tuple(map(rows.anchor_from, found.values(*rows.ANCHOR_COLUMNS)))


# At rest ---------------------------------------------------------------------------------------


def at_rest(trace_ids: Iterable[str]) -> list[str]:
    """The roots of those traces, each once, that are neither live nor wait for an approval."""
    roots = dict.fromkeys(map(root_id, trace_ids))
    busy = (*models.LIVE_STATUSES, models.Trace.Status.WAITING)
    found = models.Trace.objects.filter(pk__in=roots).exclude(status__in=busy)
    resting = set(found.values_list("pk", flat=True))
    return [name for name in roots if name in resting]


_AT_WORK = """
WITH RECURSIVE up(id, parent) AS (
    SELECT t.id, t.parent_trace_id FROM traces_trace t
    WHERE t.parent_trace_id IS NOT NULL AND t.status IN ('queued', 'running')
    UNION
    SELECT t.id, t.parent_trace_id FROM traces_trace t JOIN up ON t.id = up.parent
)
SELECT t.id FROM traces_trace t JOIN up ON t.id = up.id
WHERE up.parent IS NULL AND t.status NOT IN ('queued', 'running', 'waiting')
LIMIT %s"""


def left_at_work(limit: int = 100) -> list[str]:
    """Roots at rest that have sub-agents which are live: their run ended without them."""
    return [name for (name,) in _fetch(_AT_WORK, limit)]


# What a sub-agent is for -----------------------------------------------------------------------


def is_recursive(trace: models.Trace) -> bool:
    return LINEAGE in json.loads(trace.context)


def made_for(trace: models.Trace) -> Mapping[str, Json]:
    """What a sub-agent was made for, as ``cyberagent.core.lineage.spawned``."""
    return cast("Mapping[str, Json]", json.loads(trace.context).get(SPAWNED) or {})


def is_validator(trace: models.Trace) -> bool:
    return made_for(trace).get("kind") == "validator"


def is_asked(child: models.Trace) -> bool:
    """Whether the trace above waits for this sub-agent: the call that it answers (of a revised
    contract: the one that brought it) has no result yet on the main path, or the message that
    asked for it is the newest there."""
    above = models.Trace.objects.filter(pk=child.parent_trace_id)
    head = above.values_list("head_sequence", flat=True).first()
    if not head:
        return False
    batch = records.newest_batch(str(child.parent_trace_id))
    contract = _contract(child) if is_recursive(child) else None
    if contract is not None:
        return is_brought_by_open_call(contract, batch)
    if not made_for(child) or child.parent_message not in (head, *(m.sequence for m in batch[:1])):
        return False
    return child.parent_message == head or made_for(child).get("call") in open_calls(batch)


def _contract(child: models.Trace) -> Message | None:
    """The message that brought a sub-agent its present contract, also where a summary stands
    for it."""
    anchors = read_anchors(root_id(child.pk))
    path = records.recorded(child.pk)
    if not anchors:
        return None
    state = replay_protocol(path, trace_id=child.pk, anchor=anchors[-1].anchor)
    if not state.briefs:
        return None
    found = models.Message.objects.filter(
        trace_id=child.pk, sequence=state.briefs[-1].given_at_sequence
    )
    return next(map(rows.message_from, found.values(*rows.MESSAGE_COLUMNS)), None)
