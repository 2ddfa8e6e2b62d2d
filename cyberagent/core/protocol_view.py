"""What is in force in a trace's protocol after some entries: the fold behind ProtocolState.

Source: docs/protocol.md, "Protocol state".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cyberagent.core.briefs import TaskBrief
from cyberagent.core.normal import canonical_text
from cyberagent.core.protocol_entries import (
    Briefed,
    ChildEnded,
    Delegated,
    Entry,
    Reported,
    Reviewed,
    Validated,
)
from cyberagent.core.refs import ContextRef, Grant, Snapshot
from cyberagent.core.reports import TaskReport
from cyberagent.core.verdicts import TaskReview, ValidationResult


@dataclass(frozen=True, slots=True)
class Noted:
    """An entry and the message that it stands on."""

    sequence: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class BriefVersion:
    """``number`` counts from 1; ``given_at_sequence`` is the message that brought it."""

    number: int
    brief: TaskBrief
    given_at_sequence: int


@dataclass(frozen=True, slots=True)
class Child:
    """A child as its parent knows it: its present contract and what came of that. ``rounds``
    counts its contracts."""

    id: str
    brief: TaskBrief
    access: frozenset[ContextRef]
    rounds: int = 1
    report: TaskReport | None = None
    result: ValidationResult | None = None
    review: TaskReview | None = None

    @property
    def review_is_due(self) -> bool:
        return self.result is not None and self.review is None


@dataclass(frozen=True, slots=True)
class Approved:
    """The next brief that a review approved, until ``agent()`` is called with it. ``child``:
    who is to be revised; "" for a new child."""

    child: str
    brief: TaskBrief


def result_snapshot(child: Child) -> Snapshot | None:
    """A reviewed child's result as it may be read; None where it handed in no report."""
    if child.report is None or child.result is None or child.review is None:
        return None
    value = {
        "report": child.report.to_json(),
        "result": child.result.to_json(),
        "review": child.review.to_json(),
    }
    text = canonical_text(value, "reviewed_task_result")
    return Snapshot(f"reviewed_task_result:{child.id}", "reviewed_task_result", text)


@dataclass(slots=True)
class View:
    """What is in force after some entries."""

    briefs: list[BriefVersion] = field(default_factory=list[BriefVersion])
    grants: list[Grant] = field(default_factory=list[Grant])
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    approved: list[Approved] = field(default_factory=list[Approved])
    report: TaskReport | None = None
    result: ValidationResult | None = None

    def take(self, sequence: int, entry: Entry) -> None:
        match entry:
            case Briefed():
                number = len(self.briefs) + 1
                self.briefs.append(BriefVersion(number, entry.brief, sequence))
                self.grants = [Grant(s, sequence, entry.parent) for s in entry.access]
                self.report = self.result = None
            case Reported():
                self.report, self.result = entry.report, None
            case Validated():
                self.result = entry.result
            case Delegated():
                self._delegated(entry)
            case ChildEnded():
                if old := self.children.get(entry.child):
                    self.children[entry.child] = replace(
                        old, report=entry.report, result=entry.result, review=None
                    )
            case Reviewed():
                self._reviewed(sequence, entry)

    def _delegated(self, entry: Delegated) -> None:
        old = self.children.get(entry.child)
        for approved in self.approved:
            if approved.child == (entry.child if old else ""):
                self.approved.remove(approved)
                break
        rounds = old.rounds + 1 if old else 1
        access = frozenset(entry.access)
        self.children[entry.child] = Child(entry.child, entry.brief, access, rounds)

    def _reviewed(self, sequence: int, entry: Reviewed) -> None:
        old = self.children.get(entry.child)
        if old is None:
            return
        child = replace(old, review=entry.review)
        snapshot = result_snapshot(child)
        revised = entry.review.decision == "REVISE_CHILD"
        # From here on, until it has its new contract, it is handed nothing.
        self.children[child.id] = replace(child, access=frozenset()) if revised else child
        if entry.review.next_brief:
            self.approved.append(Approved(child.id if revised else "", entry.review.next_brief))
        held = {g.snapshot.ref for g in self.grants}
        if snapshot and snapshot.ref == entry.ref and entry.ref not in held:
            self.grants.append(Grant(snapshot, sequence))


def view_of(entries: Iterable[Noted]) -> View:
    view = View()
    for noted in entries:
        view.take(noted.sequence, noted.entry)
    return view
