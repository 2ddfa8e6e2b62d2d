"""What the messages of a path hold of the recursive protocol, without reading all the others.

A state of the protocol is made from the messages that carry entries and from the newest batch of
calls; a path may have a hundred thousand others. Source: docs/rows.md, "Trees".
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence

from django.db.models import Q

from cyberagent.core.types import Message
from traces import models, paths
from traces.rows import MESSAGE_COLUMNS, message_from

MARK = '"protocol":'
"""Stands in the metadata of each message that carries entries, itself or in a snapshot."""

_ALL = Q()

_SPANS = 100
"""Spans of one query, as in ``traces.paths``."""


def recorded(trace_id: str, head: int | None = None) -> list[Message]:
    """The messages of a path that may carry entries, by depth. ``head``: where the path ends
    (None: at the trace's head). Raises NotFound."""
    return list(_recorded(paths.ranges(trace_id, head)))


def _recorded(spans: Sequence[paths.Span], also: Q = _ALL) -> Iterator[Message]:
    for i in range(0, len(spans), _SPANS):
        part = (Q(branch_id=b, depth__gte=s, depth__lte=e) for b, s, e in spans[i : i + _SPANS])
        found = models.Message.objects.filter(
            functools.reduce(operator.or_, part), also, metadata__contains=MARK
        )
        yield from map(message_from, found.order_by("depth").values(*MESSAGE_COLUMNS))


def contracts(trace_id: str, head: int | None = None) -> Iterator[Message]:
    """The messages of a path that may have brought it a contract, the newest first, read piece
    by piece: who stops at the first one has not read what stands before it. A summary's snapshot
    stands for all before it, so that nothing older follows one."""
    spans = paths.ranges(trace_id, head)
    last, size = (spans[-1][2] if spans else 0), _PIECE
    while last > 0:
        piece = _between(spans, last - size + 1, last)
        for message in reversed(list(_recorded(piece, _MAY_BRIEF))):
            yield message
            if message.source == "summary":
                return
        last, size = last - size, size * 4


_PIECE = 500
"""Messages of the first piece; each further one has four times as many."""

_MAY_BRIEF = Q(role="user") | Q(source__in=("framework", "summary"))


def _between(spans: Sequence[paths.Span], first: int, last: int) -> list[paths.Span]:
    return [(b, max(s, first), min(e, last)) for b, s, e in spans if s <= last and e >= first]


def newest_batch(trace_id: str, head: int | None = None) -> list[Message]:
    """The end of a path from its newest model's (or framework's) turn on: what tells which
    calls are open."""
    for branch, start, end in reversed(paths.ranges(trace_id, head)):
        found = models.Message.objects.filter(branch_id=branch, role="assistant")
        depths = found.filter(depth__gte=start, depth__lte=end).order_by("-depth")
        depth = depths.values_list("depth", flat=True).first()
        if depth is not None:
            return paths.page(trace_id, first=depth, head=head)
    return []


def protocol_path(trace_id: str, head: int | None = None) -> list[Message]:
    """The path as far as the protocol's state follows from it."""
    found = {m.sequence: m for m in recorded(trace_id, head)}
    found |= {m.sequence: m for m in newest_batch(trace_id, head)}
    return sorted(found.values(), key=lambda m: m.depth)
