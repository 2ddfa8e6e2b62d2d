"""Going back: what a rewind would leave, whether the windows still hold, doing it, forking.

Nothing is deleted: the head moves, and what was after it stays as a ghost. Source:
docs/rewind.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from asgiref.sync import async_to_sync
from django.db import transaction

from cyberagent.core.anchor import AnchorRevision as Revision
from cyberagent.core.errors import Conflict, InvalidInput, NotFound
from cyberagent.core.events import Event, Rewound, StatusChanged
from cyberagent.core.family import ENDED as OVER
from cyberagent.core.injection import injected_skills
from cyberagent.core.lineage import LINEAGE
from cyberagent.core.ports import CommandEnd
from cyberagent.core.rebuild import Change, difference, rebuilt, recorded_window
from cyberagent.core.state import history_of
from cyberagent.core.types import Json, Message, canonical_json, sha256
from cyberagent.core.window import BrokenManifest
from cyberagent.providers.projections import PROJECTIONS
from cyberagent.trace.formats.values import TraceBundle
from cyberagent.trace.goals import GoalTree, replay
from cyberagent.trace.tree import safe_point
from traces import paths, rows, trees, write
from traces.acting import stop_with_all_below
from traces.bundle import bundle_of, store_bundle
from traces.models import AnchorRevision, Trace
from traces.models import Message as MessageRow
from traces.store import OrmStore

MOST_CALLS = 200
"""Calls whose windows one receipt rebuilds: the newest before the point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What going back to ``asked`` means. ``to``: the safe point it leads to; ``leaves``:
    messages of the main path that are left; ``brings_back``: messages that a summary stood for
    and that are on the path again.

    ``calls``: model calls made on the path up to there, of which the newest ``checked`` were
    rebuilt and ``held`` their hash; ``first_broken``: the first that did not. ``then``: the call
    that was made right there, its hash, and the hash of what would be sent there now;
    ``difference``: the first way in which the two differ.
    """

    asked: int
    to: int
    head: int
    leaves: int
    brings_back: int
    plan: GoalTree
    skills: tuple[str, ...] = ()
    calls: int = 0
    checked: int = 0
    held: int = 0
    first_broken: int | None = None
    then: int | None = None
    then_sha256: str = ""
    now_sha256: str = ""
    difference: str = ""

    @property
    def equal(self) -> bool | None:
        """Whether the next window is the one that was sent there; None: none was."""
        return None if self.then is None else self.then_sha256 == self.now_sha256

    @property
    def state(self) -> Literal["holds", "partial", "differs", "no_calls"]:
        if self.first_broken is not None or self.equal is False:
            return "differs"
        if not self.calls:
            return "no_calls"
        return "holds" if self.checked == self.calls else "partial"


def preview(trace: Trace, to: int) -> Receipt:
    """The receipt of going back to message ``to``; nothing is written. ``to`` 0 is before the
    first message. Raises NotFound, and Conflict for a message of a side branch, and for a
    sub-agent that nobody waits for."""
    receipt = aim(trace, to)
    return async_to_sync(_with_windows)(trace.pk, _path(trace, receipt.to), receipt)


def aim(trace: Trace, to: int) -> Receipt:
    """The receipt without its windows, which costs no more than reading the paths. Raises as
    :func:`preview`."""
    _check_asked(trace)
    if to:
        _on_a_main_path(trace, to)
    path = _path(trace, to)
    point = safe_point(path, to)
    path = [m for m in path if m.depth <= _depth(path, point)]
    now = {m.sequence for m in paths.page(trace)}
    kept = {m.sequence for m in path}
    return Receipt(
        asked=to,
        to=point,
        head=trace.head_sequence,
        leaves=len(now - kept),
        brings_back=len(kept - now),
        plan=replay(path, trace.mission),
        skills=tuple(injected_skills(path)),
    )


def _check_asked(trace: Trace) -> None:
    """Raises Conflict for a sub-agent whose call has its answer: it could not go on."""
    if trace.origin == "run" and trace.parent_trace_id and not trees.is_asked(trace):
        raise Conflict(
            "the call that asked for this sub-agent has its answer, so it could not go on: "
            f"rewind the run above it, {trace.parent_trace_id}"
        )


def _path(trace: Trace, head: int) -> list[Message]:
    return paths.page(trace, head=head) if head else []


def _on_a_main_path(trace: Trace, to: int) -> None:
    row = MessageRow.objects.filter(trace=trace, sequence=to).values("branch__kind").first()
    if row is None:
        raise NotFound("message", to)
    if row["branch__kind"]:
        raise Conflict(f"message {to} is on a side branch; the head cannot move there")


def _depth(path: Sequence[Message], sequence: int) -> int:
    return next((m.depth for m in path if m.sequence == sequence), 0)


async def _with_windows(trace_id: str, path: Sequence[Message], receipt: Receipt) -> Receipt:
    """The receipt with the calls of ``path`` rebuilt, and the next window compared."""
    store = OrmStore()
    places = {m.sequence for m in path}
    calls = [(n, after) for n, after in await store.main_calls(trace_id) if after in places]
    before = [n for n, after in calls if after != receipt.to]
    held, broken = 0, None
    for number in before[-MOST_CALLS:]:
        if await _holds(store, trace_id, number):
            held += 1
        elif broken is None:
            broken = number
    receipt = replace(
        receipt,
        calls=len(before),
        checked=min(len(before), MOST_CALLS),
        held=held,
        first_broken=broken,
    )
    here = [n for n, after in calls if after == receipt.to]
    return await _compared(store, trace_id, path, here[0], receipt) if here else receipt


async def _holds(store: OrmStore, trace_id: str, number: int) -> bool:
    try:
        return (await rebuilt(store, trace_id, number, PROJECTIONS)).holds
    except BrokenManifest:
        return False


async def _compared(
    store: OrmStore, trace_id: str, path: Sequence[Message], number: int, receipt: Receipt
) -> Receipt:
    """What a run that goes on from here would be made from, against what was sent here."""
    record, window = await recorded_window(store, trace_id, number)
    history = await history_of(store, trace_id, path)
    now = replace(window, items=tuple(history))
    project = PROJECTIONS[record.projection]
    found = difference(window, now)
    return replace(
        receipt,
        then=number,
        then_sha256=record.sha256,
        now_sha256=sha256(canonical_json(project(now))),
        difference=_told(found.changes[0]) if found.changes else "",
    )


def _told(change: Change) -> str:
    subject = f"message {change.sequence}" if change.sequence else "the window's own text"
    return f"{subject} is {change.what}"


# Doing it ------------------------------------------------------------------------------------


def move(trace: Trace, to: int, *, by: str, why: str = "", expected_head: int) -> Receipt:
    """:func:`apply` to message ``to``, with the whole receipt. Raises as :func:`preview`, and
    Conflict where the head is not ``expected_head`` any more."""
    receipt = preview(trace, to)
    apply(trace, receipt, by=by, why=why, expected_head=expected_head)
    return receipt


def apply(
    trace: Trace,
    receipt: Receipt,
    *,
    by: str,
    why: str = "",
    expected_head: int,
    messages: Sequence[Message] = (),
    told: Sequence[Event] = (),
    turn: int | None = None,
    command: CommandEnd | None = None,
) -> None:
    """Go back (or, to undo, to a former head) as ``receipt`` says, in one transaction: the head,
    the plan's rows, the injected skills' records, and the event; then ``messages`` below the new
    head, ``told`` and the end of ``command``. A run that had ended can then be resumed; sub-agents
    whose call is left end. Raises Conflict where the head is not ``expected_head`` any more, and
    for a sub-agent that nobody waits for: it could not go on."""
    _check_asked(trace)
    moved = Rewound(to_sequence=receipt.to, from_sequence=receipt.head, by=by, why=why)
    path = _path(trace, receipt.to)
    told = list(told)
    resumable = trace.origin == "run" and trace.status != "paused"
    if resumable:
        told.append(StatusChanged(status="paused", why=f"rewound by {by}"))
    with transaction.atomic():
        state = write.move_head(
            trace.pk,
            receipt.to,
            [moved],
            expected_head=expected_head,
            goals=receipt.plan.to_json(),
        ).trace
        write.append(
            trace.pk,
            messages,
            told,
            status="paused" if resumable else None,
            context={**state.context, "injected_skills": injected_skills(path)},
            turn=turn,
            command=command,
        )
        _stop_unasked(trace)


def _stop_unasked(trace: Trace) -> None:
    """End the sub-agents whose call is not on the main path any more, or has its answer there,
    with all below them: nothing goes on with them."""
    if not trees.below(trace.pk).exclude(status__in=OVER).exists():
        return
    for child in Trace.objects.filter(parent_trace=trace.pk).order_by("created_at", "pk"):
        if not trees.is_asked(child):
            why = f"message {child.parent_message} of the run above was rewound"
            stop_with_all_below(child, why)


def check_forks(trace: Trace) -> bool:
    """Whether it is the root of a recursive run. Raises InvalidInput for a sub-agent of one."""
    root = trace if trace.parent_trace_id is None else trees.root(trace.pk).get()
    recursive = trees.is_recursive(root)
    if recursive and root.pk != trace.pk:
        raise InvalidInput(
            f"a sub-agent of a recursive run has no fork of its own: fork the run {root.pk} that "
            "it belongs to"
        )
    return recursive


def fork(trace: Trace, at: int, *, owner: Any) -> Trace:
    """A new trace that shares all messages and calls up to the safe point at or before message
    ``at``, with their numbers; a run's fork is paused. Neither trace ever changes the other. A
    recursive run's fork has the newest revision of its anchor as its first.

    Raises NotFound, Conflict, InvalidInput where nothing would be left, and for a sub-agent of a
    recursive run."""
    recursive = check_forks(trace)
    _on_a_main_path(trace, at)
    point = safe_point(paths.page(trace, head=at), at)
    if not point:
        raise InvalidInput(f"message {at} has no safe point before it to fork from")
    whole = bundle_of(trace)
    answered = [c.number for c in whole.calls if 0 < (c.message_sequence or 0) <= point]
    calls = whole.calls[: max(answered, default=0)]
    context: dict[str, Json] = {"forked_from": {"trace": trace.pk, "message": point}}
    state = replace(
        whole.state,
        id="",
        status="paused" if trace.origin == "run" else "completed",
        head_sequence=point,
        last_sequence=point,
        last_event=0,
        last_call=len(calls),
        context=context | ({LINEAGE: []} if recursive else {}),
        parent_trace=None,
        parent_message=None,
    )
    prefix = TraceBundle(
        state=state,
        messages=whole.messages[:point],
        calls=calls,
        blobs=whole.blobs,
        anchors=(_anchor_of(trace, owner),) if recursive else (),
    )
    with transaction.atomic():
        made = store_bundle(prefix, owner)
        # The fork stays in the same hands: settings that an import leaves behind come along.
        Trace.objects.filter(pk=made.pk).update(config=trace.config)
        AnchorRevision.objects.filter(trace=made).update(by=owner)
        made.refresh_from_db()
    return made


def _anchor_of(trace: Trace, owner: Any) -> Revision:
    """The newest revision of a run's anchor as the first of its fork's."""
    newest = trees.read_anchors(trace.pk)[-1]
    return Revision(
        anchor=newest.anchor,
        by=owner.get_username() if owner is not None else "",
        at=rows.iso(rows.now()),
        why=f"forked from {trace.pk}",
    )
