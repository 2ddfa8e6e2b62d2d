"""The protocol state of one trace: an immutable value that the trace's main path gives again.

    state, access = state.delegated(57, "child-1", brief)   # checked, or an error and no change
    state = replay_protocol(path, trace_id=…, anchor=…)     # the same value, from what is stored

All there is, is the list of what happened, each with the sequence of its message; what is in
force follows from it. So a rewind is to leave out what came after the cut. Source:
docs/protocol.md, "Protocol state".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief
from cyberagent.core.context_policy import (
    brief_under,
    build_child_context_access,
    contract_ref_id,
    differences,
    inherited_constraints,
    matches,
    normalize_task_brief,
)
from cyberagent.core.errors import InvalidTaskValue, ProtocolRefused
from cyberagent.core.protocol_entries import (
    ENTRY,
    Briefed,
    ChildEnded,
    Delegated,
    Entry,
    Reported,
    Reviewed,
    Validated,
    entry_from_json,
    entry_to_json,
)
from cyberagent.core.protocol_view import (
    Approved,
    BriefVersion,
    Child,
    Noted,
    View,
    result_snapshot,
    view_of,
)
from cyberagent.core.refs import Catalogue, ContextRef, Snapshot
from cyberagent.core.reports import TaskReport
from cyberagent.core.types import Json, Message
from cyberagent.core.verdicts import TaskReview, ValidationResult


@dataclass(frozen=True, kw_only=True)
class ProtocolState:
    """``entries`` in order. ``handed_down``: the pairs that the parent, as it is now, lets this
    trace have (:meth:`under_parent`); None where there is no parent to ask."""

    trace_id: str
    anchor: RootTaskAnchor
    entries: tuple[Noted, ...] = ()
    handed_down: frozenset[ContextRef] | None = None

    @cached_property
    def _view(self) -> View:
        return view_of(self.entries)

    # What is in force

    @property
    def briefs(self) -> tuple[BriefVersion, ...]:
        """Every version of this trace's contract, as it was given; the newest is in force."""
        return tuple(self._view.briefs)

    @cached_property
    def brief(self) -> TaskBrief | None:
        """The contract in force, with what a later revision of the anchor added. None: root."""
        briefs = self._view.briefs
        return brief_under(briefs[-1].brief, self.anchor) if briefs else None

    @cached_property
    def catalogue(self) -> Catalogue:
        """What this trace may read and pass on."""
        allowed = self.handed_down
        return Catalogue(
            tuple(
                g
                for g in self._view.grants
                if not g.granted_by or allowed is None or g.snapshot.ref in allowed
            )
        )

    @property
    def children(self) -> Mapping[str, Child]:
        return dict(self._view.children)

    @property
    def reviews_due(self) -> tuple[Child, ...]:
        return tuple(c for c in self._view.children.values() if c.review_is_due)

    @property
    def approved(self) -> tuple[Approved, ...]:
        """Briefs that reviews approved and that are not carried out yet."""
        return tuple(self._view.approved)

    @property
    def report(self) -> TaskReport | None:
        """This trace's own report under its present contract."""
        return self._view.report

    @property
    def result(self) -> ValidationResult | None:
        """The verdict on :attr:`report`, or on the root's candidate answer."""
        return self._view.result

    # What happens. Each is a new state, or an error and no change.

    def briefed(
        self, sequence: int, brief: TaskBrief, access: Iterable[Snapshot], *, parent: str
    ) -> ProtocolState:
        """This trace gets a contract, its first or a revised one; earlier grants are cleared.
        ``access``: as the parent's :meth:`delegated` gave it."""
        missing = [c for c in self.anchor.constraints if c not in brief.constraints]
        if missing:
            raise ProtocolRefused(f"the brief lacks the constraint {missing[0]!r:.200}")
        return self._with(sequence, Briefed(brief, parent, tuple(access)))

    def delegated(
        self, sequence: int, child: str, brief: TaskBrief
    ) -> tuple[ProtocolState, tuple[Snapshot, ...]]:
        """``child`` gets ``brief``; also the copies that go with it.

        A child that is known already must be one whose revision was approved. Raises
        ProtocolRefused where a review approved another brief, inherited constraints are missing,
        or this trace has handed in its report; RefRefused for a ref that is not in the catalogue.
        """
        if self.report is not None:
            raise ProtocolRefused("the report was handed in already: nothing more can be delegated")
        needed = inherited_constraints(self.anchor, self.brief)
        if brief.constraints[: len(needed)] != needed:
            raise ProtocolRefused("the brief does not begin with the inherited constraints")
        self._check_approved(child, brief)
        access = build_child_context_access(
            self.catalogue, brief, parent_trace=self.trace_id, parent_brief=self.brief
        )
        entry = Delegated(child, brief, tuple(s.ref for s in access))
        return self._with(sequence, entry), access

    def _check_approved(self, child: str, brief: TaskBrief) -> None:
        revised = child if child in self._view.children else ""
        due = [a for a in self._view.approved if a.child == revised]
        if not due:
            if revised:
                raise ProtocolRefused(f"no review asked for a revision of the child {child}")
            return
        # The anchor may have been revised since: what was approved is held to it as well.
        approved = normalize_task_brief(due[0].brief.to_json(), self.anchor, self.brief)
        if not matches(approved, brief):
            names = ", ".join(differences(approved, brief))
            raise ProtocolRefused(
                f"a review approved another next brief; this one differs in: {names}"
            )

    def reported(self, sequence: int, report: TaskReport) -> ProtocolState:
        """This trace hands in its report. Raises ProtocolRefused where it has no contract, or
        has handed in already."""
        if self.brief is None:
            raise ProtocolRefused("this run has no task brief to report on")
        if self.report is not None:
            raise ProtocolRefused("the report was handed in already")
        return self._with(sequence, Reported(report))

    def validated(self, sequence: int, result: ValidationResult) -> ProtocolState:
        return self._with(sequence, Validated(result))

    def child_ended(
        self, sequence: int, child: str, report: TaskReport | None, result: ValidationResult
    ) -> ProtocolState:
        """``child`` is at its end; its review is due."""
        found = self._child(child)
        if found.result is not None:
            raise ProtocolRefused(f"the child {child} has ended already")
        return self._with(sequence, ChildEnded(child, report, result))

    def reviewed(self, sequence: int, child: str, review: TaskReview) -> tuple[ProtocolState, str]:
        """``child`` is reviewed; also a warning, "" mostly: where its result is over a limit
        the review stands all the same, but there is no ref to it."""
        found = self._child(child)
        if not found.review_is_due:
            raise ProtocolRefused(f"no review of the child {child} is due")
        against = found.result.verdict if found.result and review.decision == "ACCEPT" else ""
        if review.against_verdict != ("" if against == "passed" else against):
            raise ProtocolRefused("the review was made for another verdict")
        snapshot = result_snapshot(replace(found, review=review))
        held = Catalogue(tuple(self._view.grants))  # Also what is withheld just now takes room.
        why = held.problem(snapshot) if snapshot else "it has no report"
        ref = snapshot.ref if snapshot and not why else None
        warning = f"the result of {child} cannot be passed on: {why}" if why else ""
        return self._with(sequence, Reviewed(child, review, ref)), warning

    def after(self, message: Message) -> ProtocolState:
        """The state once ``message``, the next one of its path, is stored. A summary's snapshot
        stands for all before it. Raises InvalidTaskValue where a record is malformed."""
        entries = self.entries
        if (snapshot := _snapshot(message)) is not None:
            entries = tuple(_read_snapshot(snapshot))
        added = [Noted(message.sequence, entry_from_json(v)) for v in _recorded(message)]
        if not added and entries is self.entries:
            return self
        return replace(self, entries=(*entries, *added))

    def rewound(self, to_sequence: int) -> ProtocolState:
        """The state at message ``to_sequence`` of this path: whatever a later message brought
        or took is undone, grants by their ``granted_at_sequence``."""
        kept = tuple(n for n in self.entries if n.sequence <= to_sequence)
        return replace(self, entries=kept)

    def under(self, anchor: RootTaskAnchor) -> ProtocolState:
        """The state under a revised anchor. Raises InvalidTaskValue where its constraints do
        not fit into the contract in force."""
        state = replace(self, anchor=anchor)
        _ = state.brief
        return state

    # Between parent and child

    def handed_down_to(self, child: str) -> frozenset[ContextRef]:
        """The pairs that this trace gave ``child`` with its present contract and still holds
        itself. Its own contract, in any version, is always its to give."""
        found = self._view.children.get(child)
        if found is None:
            return frozenset()
        # One that a revision of the anchor made in between stands nowhere but with the child.
        own = {r for r in found.access if r.ref_id == contract_ref_id(self.trace_id)}
        return found.access & (self.catalogue.refs | own)

    def under_parent(self, parent: ProtocolState) -> ProtocolState:
        """This state without what ``parent`` no longer hands down: who loses a ref takes it
        from everybody below at once. ``parent`` has to be under its own parent."""
        return replace(self, handed_down=parent.handed_down_to(self.trace_id))

    # In and out

    @property
    def newest(self) -> dict[str, Json]:
        """The last entry as JSON, to be stored in its message's ``metadata["protocol"]``."""
        return entry_to_json(self.entries[-1].entry)

    def newer_than(self, other: ProtocolState) -> list[dict[str, Json]]:
        """What was noted since ``other``, as :attr:`newest`."""
        return [entry_to_json(n.entry) for n in self.entries[len(other.entries) :]]

    def to_json(self) -> dict[str, Json]:
        """All entries, for the snapshot that a summary carries. The anchor is not in it: the
        root trace holds the only copy that counts."""
        return {
            "entries": [{"sequence": n.sequence, **entry_to_json(n.entry)} for n in self.entries]
        }

    def _child(self, child: str) -> Child:
        if child not in self._view.children:
            raise ProtocolRefused(f"this run has no child {child[:80]!r}")
        return self._view.children[child]

    def _with(self, sequence: int, entry: Entry) -> ProtocolState:
        if self.entries and sequence < self.entries[-1].sequence:
            raise ProtocolRefused(
                f"message {sequence} comes before message {self.entries[-1].sequence}, which is "
                "on record already"
            )
        return replace(self, entries=(*self.entries, Noted(sequence, entry)))


# Replay ----------------------------------------------------------------------------------------

PROTOCOL_TOOLS = frozenset({"agent", "submit_report", "review_child"})


def replay_protocol(
    path: Sequence[Message], *, trace_id: str, anchor: RootTaskAnchor
) -> ProtocolState:
    """The state at the end of a path, from the newest snapshot on it
    (``metadata["snapshot"]["protocol"]`` of a summary) and the entries after that.

    Only what stands on user and framework messages and on results of the protocol's own tools
    counts, never on a model's message or on another tool's result.
    Raises InvalidTaskValue where a record is malformed.
    """
    state = ProtocolState(trace_id=trace_id, anchor=anchor)
    for message in path:
        state = state.after(message)
    return state


def _recorded(message: Message) -> list[Json]:
    if message.role == "tool":
        is_ours = message.name in PROTOCOL_TOOLS
    else:
        is_ours = message.role == "user" or message.source == "framework"
    found: Json = message.metadata.get("protocol", []) if is_ours else []
    if not isinstance(found, list):
        raise InvalidTaskValue(ENTRY, "protocol", f"of message {message.sequence} is not a list")
    return cast("list[Json]", found)


def _snapshot(message: Message) -> Json:
    snapshot = message.metadata.get("snapshot") if message.source == "summary" else None
    if not isinstance(snapshot, Mapping):
        return None
    return cast("Mapping[str, Json]", snapshot).get("protocol")


def _read_snapshot(value: Json) -> list[Noted]:
    listed: Json = cast("Mapping[str, Json]", value).get("entries") if _is_object(value) else None
    if not isinstance(listed, list):
        raise InvalidTaskValue(ENTRY, "entries", "of a snapshot are missing")
    found: list[Noted] = []
    for item in cast("list[Json]", listed):
        entry: dict[str, Json] = dict(item) if _is_object(item) else {}
        sequence = entry.pop("sequence", None)
        if not isinstance(sequence, int):
            raise InvalidTaskValue(ENTRY, "sequence", "of an entry in a snapshot is missing")
        found.append(Noted(sequence, entry_from_json(entry)))
    return found


def _is_object(value: Json) -> bool:
    return isinstance(value, Mapping)
