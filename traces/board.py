"""The board of sub-agents: what each was given, what it handed in, what became of that, and what
is wrong.

Values in, values out; ``traces.members`` reads them from rows. Source: docs/pages.md, "Board".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import (
    Briefed,
    ChildEnded,
    Entry,
    Reported,
    Reviewed,
    Validated,
)
from cyberagent.core.protocol_view import Child
from cyberagent.core.refs import ContextRef
from cyberagent.core.reports import TaskReport
from cyberagent.core.types import Json
from cyberagent.core.verdicts import TaskReview, ValidationResult

LIVE = ("queued", "running")
ENDED = ("completed", "failed", "stopped", "interrupted")

# What is known of a tree ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A trace read characters ``start`` to ``end`` of a ref; ``sequence``: of the result."""

    ref: ContextRef
    sequence: int
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One trace of a tree. ``asked_at``: the message of ``parent`` that asked for it;
    ``protocol``: its state, None where it is not recursive; ``problem``: why there is none though
    it is; ``reads``: on its main path.

    ``on_path``: ``asked_at`` is on the parent's main path; ``waited``: the call that asked for its
    present work has no result there yet; ``answered``: the message that is its result, of traces
    without a contract; 0 while there is none.
    """

    id: str
    parent: str = ""
    asked_at: int = 0
    level: int = 0
    kind: str = ""
    mission: str = ""
    status: str = ""
    why: str = ""
    steps: int = 0
    tokens: int = 0
    cost: float | None = None
    goal: str = ""
    protocol: ProtocolState | None = None
    problem: str = ""
    reads: tuple[Read, ...] = ()
    on_path: bool = True
    waited: bool = True
    answered: int = 0

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def is_validator(self) -> bool:
        return self.kind == "validator"


# The board -----------------------------------------------------------------------------------

Alarm = Literal["orphan", "undelivered", "review_due", "against_verdict", "no_ref", "waits"]
"""``orphan``: it works though the whole run does not, or though its parent waits for it no more;
``undelivered``: it ended, and its parent goes on without its result; ``review_due``;
``against_verdict``: it was accepted though its verdict is not passed; ``no_ref``: its reviewed
result is over a limit, so nobody can read it; ``waits``: it is paused while its parent is live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRef:
    """A ref that a trace was handed with its contract. ``withheld``: its parent no longer holds
    it; ``reads``: results of reading it."""

    ref: ContextRef
    kind: str
    characters: int
    withheld: bool = False
    reads: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    """One trace below another, as far as its present contract has come.

    ``brief``: number of the contract's version, 0 for none, with ``brief_sha256`` and the message
    ``brief_at`` that brought it. ``report_at`` and ``verdict_at`` are messages of the trace,
    ``delivered`` (the result of its call) and ``acknowledged`` (the review) of its parent; 0: not
    yet. ``other_reads``: of refs that it no longer holds. ``verdict_id``: key of the stored
    verdict, 0 where there is none. ``validators``: those that looked at it, oldest first.
    """

    member: Member
    level: int = 0
    brief: int = 0
    brief_sha256: str = ""
    brief_at: int = 0
    refs: tuple[GivenRef, ...] = ()
    other_reads: tuple[Read, ...] = ()
    report: TaskReport | None = None
    report_at: int = 0
    verdict: ValidationResult | None = None
    verdict_at: int = 0
    verdict_id: int = 0
    validators: tuple[Member, ...] = ()
    review: TaskReview | None = None
    delivered: int = 0
    acknowledged: int = 0
    alarms: tuple[Alarm, ...] = ()

    @property
    def met(self) -> int:
        """Criteria that its report says are met."""
        return sum(c.met for c in self.report.criteria) if self.report else 0

    @property
    def reads(self) -> int:
        """How many of the refs that it was given it really read."""
        return sum(bool(r.reads) for r in self.refs)

    def to_json(self) -> dict[str, Json]:
        return row_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """``top``: the trace itself; ``rows``: all below it but validators, which stand with whom
    they judged."""

    top: BoardRow
    rows: tuple[BoardRow, ...] = ()

    @property
    def alarms(self) -> int:
        return sum(len(row.alarms) for row in self.rows)


def board(
    members: Sequence[Member],
    *,
    verdicts: Mapping[tuple[str, int], int] | None = None,
    root_is_live: bool = True,
) -> Board:
    """The board of ``members[0]`` and all below it, parents before their children. ``verdicts``:
    keys of stored verdicts by trace and message; ``root_is_live``: of the whole tree's root."""
    tree = _Tree({m.id: m for m in members}, verdicts or {}, root_is_live)
    top, *below = members
    judges: dict[str, list[Member]] = {}
    for member in members:
        if member.is_validator:
            judges.setdefault(member.parent, []).append(member)
    return Board(
        top=tree.row(top, judges.get(top.id, ())),
        rows=tuple(tree.row(m, judges.get(m.id, ())) for m in below if not m.is_validator),
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    members: Mapping[str, Member]
    verdicts: Mapping[tuple[str, int], int]
    root_is_live: bool

    def row(self, member: Member, validators: Sequence[Member]) -> BoardRow:
        own = _own(member)
        parent = self.members.get(member.parent)
        known = _known_above(member, parent) if parent else _Known()
        verdict_at = _at(member, Validated) if own.verdict else 0
        refs, other_reads = _refs(member)
        return BoardRow(
            member=member,
            level=member.level,
            brief=own.brief,
            brief_sha256=own.brief_sha256,
            brief_at=own.brief_at,
            refs=refs,
            other_reads=other_reads,
            report=own.report or known.report,
            report_at=_at(member, Reported) if own.report else 0,
            verdict=own.verdict or known.verdict,
            verdict_at=verdict_at,
            verdict_id=self.verdicts.get((member.id, verdict_at), 0),
            validators=tuple(validators),
            review=known.review,
            delivered=known.delivered or member.answered,
            acknowledged=known.acknowledged,
            alarms=tuple(self._alarms(member, parent, known)),
        )

    def _alarms(self, member: Member, parent: Member | None, known: _Known) -> Iterator[Alarm]:
        if parent is None:
            return
        if member.is_live and not (self.root_is_live and member.on_path and member.waited):
            yield "orphan"
        delivered = known.delivered or member.answered
        if member.status in ENDED and member.on_path and not delivered and not member.waited:
            yield "undelivered"
        if known.due:
            yield "review_due"
        if known.review is not None and known.review.against_verdict:
            yield "against_verdict"
        if known.no_ref:
            yield "no_ref"
        if member.status in ("paused", "waiting") and parent.is_live:
            yield "waits"


# What a trace says of itself -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Own:
    brief: int = 0
    brief_sha256: str = ""
    brief_at: int = 0
    report: TaskReport | None = None
    verdict: ValidationResult | None = None


def _own(member: Member) -> _Own:
    state = member.protocol
    if state is None:
        return _Own()
    newest = state.briefs[-1] if state.briefs else None
    return _Own(
        brief=newest.number if newest else 0,
        brief_sha256=newest.brief.sha256 if newest else "",
        brief_at=newest.given_at_sequence if newest else 0,
        report=state.report,
        verdict=state.result,
    )


def _at(member: Member, kind: type[Entry]) -> int:
    """The newest message of a trace's path that records an entry of this kind."""
    entries = member.protocol.entries if member.protocol else ()
    return next((n.sequence for n in reversed(entries) if isinstance(n.entry, kind)), 0)


def _refs(member: Member) -> tuple[tuple[GivenRef, ...], tuple[Read, ...]]:
    """The refs of the contract in force, and what was read beyond them."""
    state = member.protocol
    if state is None:
        return (), member.reads
    held = state.catalogue.refs
    given = next((n.entry for n in reversed(state.entries) if isinstance(n.entry, Briefed)), None)
    refs = tuple(
        GivenRef(
            ref=s.ref,
            kind=s.kind,
            characters=len(s.text),
            withheld=s.ref not in held,
            reads=tuple(r for r in member.reads if r.ref == s.ref),
        )
        for s in (given.access if given else ())
    )
    known = held | {r.ref for r in refs}
    return refs, tuple(r for r in member.reads if r.ref not in known)


# What its parent knows of it -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """Of the present contract only: a parent that asked for a revision knows nothing of it
    before it ended."""

    report: TaskReport | None = None
    verdict: ValidationResult | None = None
    review: TaskReview | None = None
    delivered: int = 0
    acknowledged: int = 0
    due: bool = False
    no_ref: bool = False


def _known_above(member: Member, parent: Member) -> _Known:
    child = parent.protocol.children.get(member.id) if parent.protocol else None
    if child is None or not _is_of_present_contract(member, child):
        return _Known()
    ended, reviewed, no_ref = 0, 0, False
    for noted in parent.protocol.entries if parent.protocol else ():
        match noted.entry:
            case ChildEnded(child=name) if name == member.id:
                ended = noted.sequence
            case Reviewed(child=name) if name == member.id:
                reviewed = noted.sequence
                no_ref = noted.entry.ref is None and child.report is not None
            case _:
                pass
    return _Known(
        report=child.report,
        verdict=child.result,
        review=child.review,
        delivered=ended if child.result else 0,
        acknowledged=reviewed if child.review else 0,
        due=child.review_is_due,
        no_ref=no_ref if child.review else False,
    )


def _is_of_present_contract(member: Member, child: Child) -> bool:
    own = member.protocol.briefs if member.protocol else ()
    return not own or own[-1].brief.text == child.brief.text


# As JSON ---------------------------------------------------------------------------------------


def row_json(row: BoardRow) -> dict[str, Json]:
    """A row for programs. Texts of models are as they were stored."""
    member = row.member
    out: dict[str, Json] = {
        name: getattr(member, name)
        for name in (
            "id", "parent", "asked_at", "kind", "mission", "status", "steps", "tokens", "cost",
            "on_path",
        )
    }  # fmt: skip
    return out | {
        "level": row.level,
        "status_why": member.why,
        "current_goal": member.goal,
        "brief": {"version": row.brief, "sha256": row.brief_sha256, "message": row.brief_at}
        if row.brief
        else None,
        "refs": [_ref_json(r) for r in row.refs],
        "report": _report_json(row) if row.report else None,
        "verdict": _verdict_json(row) if row.verdict else None,
        "validators": [m.id for m in row.validators],
        "review": row.review.to_json() | {"message": row.acknowledged} if row.review else None,
        "delivered": row.delivered or None,
        "alarms": list(row.alarms),
        "problem": member.problem,
    }


def _ref_json(given: GivenRef) -> dict[str, Json]:
    return {
        **given.ref.to_json(),
        "kind": given.kind,
        "characters": given.characters,
        "withheld": given.withheld,
        "read_in": [r.sequence for r in given.reads],
    }


def _report_json(row: BoardRow) -> dict[str, Json]:
    report = row.report
    assert report is not None
    return {
        "status": report.status,
        "met": row.met,
        "criteria": len(report.criteria),
        "message": row.report_at or None,
    }


def _verdict_json(row: BoardRow) -> dict[str, Json]:
    verdict = row.verdict
    assert verdict is not None
    return {
        "id": row.verdict_id or None,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "message": row.verdict_at or None,
    }
