"""The root anchor of a tree of runs: what it is now, and the revisions that admins make of it.

A revision is stored with who, when and why, told as an event on every trace of the tree that has
not ended, and given to those that are driven as a command, so that they hear it at their next
safe point. Agents have no way to it. Source: docs/protocol.md, "RootTaskAnchor"; docs/access.md,
"Root anchors".
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from django.db import OperationalError, transaction

from cyberagent.core import events
from cyberagent.core.anchor import AnchorRevision, RootTaskAnchor
from cyberagent.core.context_policy import read_root_task_anchor, revise_anchor
from cyberagent.core.errors import Conflict, InvalidInput, InvalidTaskValue, NotFound
from cyberagent.core.family import ENDED as FINISHED
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.types import Json
from traces import access, lease, models, rows, write
from traces.acting import ENDED, name_of, pending
from traces.models import Trace
from traces.protocols import Look, protocol_of, root_of
from traces.trees import in_order, is_asked, is_recursive, read_anchors

COMMAND = "anchor"
"""Name of the command by which a driven run hears that its anchor was revised."""

MAX_WHY = 2_000
"""Characters of a revision's reason."""

PATIENCE_SECONDS = 5.0
"""How long a revision waits until no trace of the tree is being written."""


# What there is -------------------------------------------------------------------------------


def revisions(root: Trace) -> list[models.AnchorRevision]:
    """The versions of a root trace's anchor, the oldest first. Raises NotFound where it has
    none."""
    found = list(models.AnchorRevision.objects.filter(trace=root).order_by("number"))
    if not found:
        raise NotFound("root anchor of run", root.pk)
    return found


def anchor_in(row: models.AnchorRevision) -> RootTaskAnchor:
    """The anchor that a stored revision holds."""
    return read_root_task_anchor(row.text)


# What a revision would mean --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a revision does to the contract of one trace: constraints that it ``gets`` and
    ``loses`` (those that an earlier revision had added). ``problem``: why the new ones do not
    fit, "" where they do."""

    trace: str
    objective: str
    gets: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A revision that is not made yet. ``number``: the one that it would have; ``contracts``:
    those in force in the tree; ``told``: traces that would hear of it, root first."""

    root: str
    number: int
    old: RootTaskAnchor
    new: RootTaskAnchor
    contracts: tuple[Contract, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Why it cannot be made, "" where it can."""
        found = next((c for c in self.contracts if c.problem), None)
        if found is None:
            return ""
        return f"the contract of {found.trace} has no room for it: {found.problem}"

    def changes(self) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """Fields that differ: the name, what is added, what is taken away."""
        if self.new.objective != self.old.objective:
            yield "objective", (self.new.objective,), (self.old.objective,)
        for name in ("completion_criteria", "constraints"):
            new, old = getattr(self.new, name), getattr(self.old, name)
            if new != old:
                yield name, without(new, old), without(old, new)


def without(these: Sequence[str], those: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in these if one not in those)


def preview(root: Trace, value: object) -> Preview:
    """What a revision to ``value`` would mean; nothing is written. Raises as :func:`revise`,
    but for contracts that have no room: the preview says which."""
    # The reason is a person's, and not asked for before the preview was seen.
    return _preview(in_order(root.pk), _revised(root, value, by="-", why="-"))


def _preview(tree: Sequence[Trace], revised: Sequence[AnchorRevision]) -> Preview:
    new = revised[-1].anchor
    return Preview(
        root=tree[0].pk,
        number=len(revised),
        old=revised[-2].anchor,
        new=new,
        contracts=tuple(_contracts(tree, new)),
        told=tuple(t.pk for t in tree if _hears(t)),
    )


def _revised(root: Trace, value: object, *, by: str, why: str) -> tuple[AnchorRevision, ...]:
    """The revisions with the new one at the end."""
    if root.parent_trace_id is not None:
        raise InvalidInput(
            f"the root anchor stands on the run at the root, {root_of(root).pk}; revise it there"
        )
    return revise_anchor(read_anchors(root.pk), value, by=by, at=rows.iso(rows.now()), why=why)


def _contracts(tree: Sequence[Trace], anchor: RootTaskAnchor) -> Iterator[Contract]:
    """What happens to the contracts in force. ``tree``: parents before their children."""
    states: dict[str, ProtocolState] = {}
    look = Look()
    for trace in tree:
        above = states.get(trace.parent_trace_id or "")
        if not is_recursive(trace) or not _goes_on(trace, above):
            continue
        state = protocol_of(trace, look=look)
        assert state is not None
        states[trace.pk] = state
        if state.briefs:
            yield _contract(state, anchor)


def _goes_on(trace: Trace, above: ProtocolState | None) -> bool:
    """Whether a trace may still work under its contract: a root may always be spoken to; a
    sub-agent that has ended goes on where the call that asked for it is open, and is answered
    for where its review is due. ``above``: the state of the trace above, if that may go on."""
    if trace.parent_trace_id is None or trace.status not in FINISHED:
        return True
    if above is None:
        return False
    return any(c.id == trace.pk for c in above.reviews_due) or is_asked(trace)


def _contract(state: ProtocolState, anchor: RootTaskAnchor) -> Contract:
    given = state.briefs[-1].brief
    named = {"trace": state.trace_id, "objective": given.objective}
    try:
        now = state.brief or given
    except InvalidTaskValue:
        # A revision that came while nobody worked on it left it without room.
        now = given
    try:
        then = state.under(anchor).brief or given
    except InvalidTaskValue as error:
        gets = without(anchor.constraints, now.constraints)
        return Contract(**named, gets=gets, problem=str(error))
    gets = without(then.constraints, now.constraints)
    return Contract(**named, gets=gets, loses=without(now.constraints, then.constraints))


def _hears(trace: Trace) -> bool:
    """Whether the trace is told: the root, which keeps the record, and whoever has not ended."""
    return trace.parent_trace_id is None or trace.status not in ENDED


# Revising ------------------------------------------------------------------------------------


def revise(
    root: Trace, value: object, *, by: access.Person, why: str, expected_sha256: str | None = None
) -> models.AnchorRevision:
    """Give the tree of ``root`` another anchor. ``expected_sha256``: of the one that was seen.

    Raises RoleNeeded (not an admin), Conflict where the anchor is not the one that was seen, and
    InvalidInput where it is malformed or the same, there is no reason, the run is not a root or
    has no anchor, or a contract in force has no room for the new constraints; then nothing is
    stored.
    """
    access.require(by, "admin")
    if len(why) > MAX_WHY:
        raise InvalidInput(f"why: a reason has at most {MAX_WHY:,} characters")
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with transaction.atomic():
                return _revise(root, _held(root), value, by, why, expected_sha256)
        except _Busy:
            if time.monotonic() > until:
                raise Conflict("the run is being written all the time; try again") from None
            time.sleep(0.02)


def _revise(
    root: Trace,
    tree: Sequence[Trace],
    value: object,
    by: access.Person,
    why: str,
    expected: str | None,
) -> models.AnchorRevision:
    _expect(root, expected)
    revised = _revised(root, value, by=name_of(by), why=why)
    if problem := _preview(tree, revised).problem:
        raise InvalidInput(problem)
    new = revised[-1]
    write.add_anchor(root.pk, len(revised), new, by_id=by.pk)
    _tell(tree, new, by)
    return models.AnchorRevision.objects.get(trace=root, number=len(revised))


def _expect(root: Trace, sha256: str | None) -> None:
    """Raises Conflict where the newest revision is not the one that was seen."""
    newest = models.AnchorRevision.objects.filter(trace=root).order_by("-number").first()
    if sha256 is not None and newest is not None and newest.sha256 != sha256:
        by = rows.held(newest.by_name) or "the run's start"
        raise Conflict(
            f"the root anchor is another one meanwhile: revision {newest.number} by {by}, "
            f"{newest.sha256[:12]} and not {sha256[:12]!r}"
        )


def _tell(tree: Sequence[Trace], new: AnchorRevision, by: access.Person) -> None:
    """The event on all that hear of it, and where somebody drives the tree the command on all
    that are at work. A run at rest sees when it goes on that it was not told yet."""
    told = events.AnchorRevised(
        sha256=new.anchor.sha256, supersedes=new.supersedes, by=new.by, why=new.why
    )
    driven = not lease.is_free(tree[0].pk)
    for trace in tree:
        if _hears(trace):
            write.append(trace.pk, [], [told])
        if driven and trace.is_live and is_recursive(trace):
            pending(trace, COMMAND, by)


class _Busy(Exception):
    """A row of the tree is being written just now."""


_LOCK_NOT_AVAILABLE = "55P03"


def _held(root: Trace) -> list[Trace]:
    """The traces of the tree, all of them held until the transaction ends. Whoever writes for a
    run may hold several of them, in any order: to wait for one while holding another could make
    both wait for ever, so that all are taken at once or none. Raises _Busy."""
    locking = Trace.objects.select_for_update(nowait=True, no_key=True)
    ids = {t.pk for t in in_order(root.pk)}
    try:
        list(locking.filter(pk__in=ids).values_list("pk"))
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", "") == _LOCK_NOT_AVAILABLE:
            raise _Busy from None
        raise
    tree = in_order(root.pk)
    if {t.pk for t in tree} != ids:  # a sub-agent was born before its parent was held
        raise _Busy
    return tree


# As JSON -------------------------------------------------------------------------------------


def revision_json(row: models.AnchorRevision) -> dict[str, Json]:
    return {
        "number": row.number,
        "anchor": json.loads(row.text),
        "sha256": row.sha256,
        "supersedes": row.supersedes,
        "by": rows.held(row.by_name),
        "at": rows.iso(row.created_at),
        "why": rows.held(row.why),
    }


def preview_json(found: Preview) -> dict[str, Json]:
    return {
        "trace": found.root,
        "number": found.number,
        "anchor": found.new.to_json(),
        "sha256": found.new.sha256,
        "supersedes": found.old.sha256,
        "changes": [
            {"field": name, "added": list(added), "removed": list(removed)}
            for name, added, removed in found.changes()
        ],
        "contracts": [
            asdict(c) | {"gets": list(c.gets), "loses": list(c.loses)} for c in found.contracts
        ],
        "told": list(found.told),
        "problem": found.problem,
    }
