"""What going back would undo of the recursive protocol, for the dialog that asks for it.

Source: docs/rewind.md, "Rewind".
"""

from __future__ import annotations

from dataclasses import dataclass

from cyberagent.core.errors import CyberAgentError
from cyberagent.core.family import ENDED
from cyberagent.core.protocol import ProtocolState
from traces import paths
from traces.models import Trace
from traces.protocols import protocol_of
from traces.rows import held


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """``due``: missions of the sub-agents whose review is open again; ``gone``: of those that
    were asked for later; ``ended``: of those that would be stopped, since their call is left.
    ``refs``: how many pairs the trace could no longer read or pass on. ``verdict``: the word on
    its own work that counts no more, "" for none."""

    due: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    refs: int = 0
    verdict: str = ""


def undone(trace: Trace, to: int) -> Undone | None:
    """What a rewind to the safe point ``to`` would undo; None where the trace is not recursive,
    or its records are damaged. Nothing is written."""
    try:
        now = protocol_of(trace)
        then = protocol_of(trace, to) if to else now and now.rewound(0)
    except CyberAgentError:
        return None
    if now is None or then is None:
        return None
    due = {c.id for c in then.reviews_due} - {c.id for c in now.reviews_due}
    gone = now.children.keys() - then.children.keys()
    known = Trace.objects.filter(parent_trace=trace.pk).order_by("created_at", "pk")
    left = _left(trace, to)
    children = list(known.values_list("pk", "mission", "status", "parent_message"))
    return Undone(
        due=tuple(held(m) for pk, m, _, _ in children if pk in due),
        gone=tuple(held(m) for pk, m, _, _ in children if pk in gone),
        ended=tuple(held(m) for _, m, s, at in children if s not in ENDED and at in left),
        refs=len(now.catalogue.refs - then.catalogue.refs),
        verdict=_verdict(now, then),
    )


def _left(trace: Trace, to: int) -> set[int]:
    """The messages that would be on the path no more."""
    kept = {m.sequence for m in paths.page(trace, head=to)} if to else set[int]()
    return {m.sequence for m in paths.page(trace)} - kept


def _verdict(now: ProtocolState, then: ProtocolState) -> str:
    return now.result.verdict if now.result and now.result != then.result else ""
