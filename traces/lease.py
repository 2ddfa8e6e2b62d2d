"""Who drives a trace: at most one owner, who says again and again that it is alive.

A tree of traces is driven as one, under the lease of its root. Taking is one UPDATE with the old
owner in its WHERE: no row changed means that somebody was faster, which is no error. Times are
the database rows' own, by this process's clock; clocks of machines that share a database must
agree within some seconds. Source: docs/running.md, "Lease".
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from cyberagent.core.events import StatusChanged
from traces import rows, trees, write
from traces.models import Trace

LEASE_SECONDS: float = getattr(settings, "LEASE_SECONDS", 10.0)
"""How long an owner that is silent keeps a trace."""

BEAT_SECONDS: float = getattr(settings, "BEAT_SECONDS", 2.0)
"""How often an owner says that it is alive."""

TAKEOVERS = 3
"""A run whose owners died this often is interrupted instead of being taken over again."""

DRIVEN = ("queued", "running")


def take(trace_id: str, owner: str, seconds: float = LEASE_SECONDS) -> bool:
    """Whether ``owner`` drives the trace now: it was free, its lease ran out, or it was the
    owner's already. A run that a dead owner left is taken over at most ``TAKEOVERS`` times in
    a row; after that it becomes ``interrupted`` and is nobody's. Sub-agents are never taken."""
    now = rows.now()
    until = now + timedelta(seconds=seconds)
    found = Trace.objects.filter(pk=trace_id, status__in=DRIVEN, parent_trace=None)
    mine = found.filter(Q(lease_owner="") | Q(lease_owner=owner))
    if mine.update(lease_owner=owner, lease_until=until):
        return True
    expired = found.filter(lease_until__lt=now)
    if expired.filter(takeovers__gte=TAKEOVERS).exists():
        _interrupt(trace_id, now)
        return False
    return bool(
        expired.filter(takeovers__lt=TAKEOVERS).update(
            lease_owner=owner, lease_until=until, takeovers=F("takeovers") + 1
        )
    )


def beat(trace_id: str, owner: str, seconds: float = LEASE_SECONDS) -> bool:
    """Hold the lease for longer. False: it was lost, the owner must stop at once."""
    until = rows.now() + timedelta(seconds=seconds)
    return bool(Trace.objects.filter(pk=trace_id, lease_owner=owner).update(lease_until=until))


def release(trace_id: str, owner: str) -> bool:
    """Give the lease back in peace, with all sub-agents: what is left to do is done by whoever
    comes next, and no takeover is counted."""
    mine = Trace.objects.filter(pk=trace_id, lease_owner=owner)
    if not mine.update(lease_owner="", lease_until=None, takeovers=0):
        return False
    trees.below(trace_id).filter(lease_owner=owner).update(lease_owner="")
    return True


def adopt(trace_id: str, owner: str) -> None:
    """Give all sub-agents of a trace to its new owner: what a former one still writes to them
    is refused from here on, as it is on the trace itself."""
    trees.below(trace_id).exclude(lease_owner=owner).update(lease_owner=owner)


def free(trace_id: str) -> None:
    """Take the whole tree of a trace from whoever had it: an owner that was silent for too long
    finds its lease gone."""
    tree = trees.whole(trace_id)
    tree.update(lease_owner="", lease_until=None, takeovers=0)


def due(limit: int = 100) -> list[str]:
    """Traces that somebody should drive, the oldest first: queued or running, with no owner or
    with one whose lease has run out. Sub-agents are driven by the run at their root."""
    free = Q(lease_owner="") | Q(lease_until__lt=rows.now())
    found = Trace.objects.filter(free, status__in=DRIVEN, parent_trace=None)
    return list(found.order_by("created_at").values_list("pk", flat=True)[:limit])


def is_free(trace_id: str) -> bool:
    """Whether nobody alive drives the trace, or the run at the root of its tree."""
    free = Q(lease_owner="") | Q(lease_until__lt=rows.now())
    return trees.root(trace_id).filter(free).exists()


def _interrupt(trace_id: str, now: datetime) -> None:
    """End a run whose owners keep dying; only if nobody took it meanwhile."""
    why = f"its process died {TAKEOVERS + 1} times in a row; resume it to try again"
    with transaction.atomic():
        freed = Trace.objects.filter(pk=trace_id, status__in=DRIVEN, lease_until__lt=now).update(
            lease_owner="", lease_until=None, takeovers=0
        )
        if freed:
            event = StatusChanged(status="interrupted", why=why)
            write.append(trace_id, [], [event], status="interrupted")
