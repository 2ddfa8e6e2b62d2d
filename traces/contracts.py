"""What a recursive trace works under and what it handed in, as its page shows it: the anchor's
revisions, the versions of its contract with what came of each, the refs that it holds.

Values in, values out. Source: docs/pages.md, "Task".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from cyberagent.core.anchor import ANCHOR_FIELDS, AnchorRevision
from cyberagent.core.briefs import BRIEF_FIELDS, TaskBrief
from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.normal import canonical_text
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import Briefed, Reported, Reviewed, Validated
from cyberagent.core.refs import Grant
from cyberagent.core.reports import TaskReport
from cyberagent.core.types import Json
from cyberagent.core.verdicts import TaskReview, ValidationResult
from traces.board import Read

# Differences -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A field in which two versions differ: items that only one of them has, as texts."""

    field: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


def changes(
    old: dict[str, Json], new: dict[str, Json], fields: Sequence[str]
) -> tuple[Change, ...]:
    """What differs between two versions of a value, field by field. Of a list whose order alone
    differs all items are told."""
    found: list[Change] = []
    for name in fields:
        before, after = _items(old.get(name)), _items(new.get(name))
        if before == after:
            continue
        added = tuple(i for i in after if i not in before)
        removed = tuple(i for i in before if i not in after)
        if not added and not removed:
            added, removed = tuple(after), tuple(before)
        found.append(Change(name, added, removed))
    return tuple(found)


def _items(value: Json) -> list[str]:
    if value is None or value == "":
        return []
    items = cast("list[Json]", value) if isinstance(value, list) else [value]
    return [i if isinstance(i, str) else canonical_text(i, "value") for i in items]


# The anchor ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Revision:
    """Version ``number`` of the anchor, with what it changed."""

    number: int
    revision: AnchorRevision
    changes: tuple[Change, ...] = ()


def revisions(anchors: Sequence[AnchorRevision]) -> list[Revision]:
    """The anchor's versions, the newest first."""
    found: list[Revision] = []
    old: AnchorRevision | None = None
    for number, new in enumerate(anchors, 1):
        before = old.anchor.to_json() if old else None
        told = changes(before, new.anchor.to_json(), ANCHOR_FIELDS) if before else ()
        found.append(Revision(number, new, told))
        old = new
    return found[::-1]


# Contracts -------------------------------------------------------------------------------------

Origin = Literal["anchor", "parent", "own"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """``origin``: who set it first; ``late``: a revision of the anchor added it to a contract that
    had been given already."""

    text: str
    origin: Origin
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One version of a trace's contract and what came of it. Of a root, which has no contract,
    there is one without ``brief``. Messages are of the trace, ``reviewed_at`` of its parent.
    ``problem``: why what the anchor adds has no room in the contract, "" where it has."""

    number: int = 0
    brief: TaskBrief | None = None
    given_at: int = 0
    constraints: tuple[Constraint, ...] = ()
    problem: str = ""
    changes: tuple[Change, ...] = ()
    report: TaskReport | None = None
    report_at: int = 0
    verdict: ValidationResult | None = None
    verdict_at: int = 0
    review: TaskReview | None = None
    reviewed_at: int = 0


@dataclass(slots=True)
class _Heard:
    """What the entries say of one contract."""

    brief: TaskBrief | None = None
    given_at: int = 0
    report: tuple[TaskReport, int] | None = None
    verdict: tuple[ValidationResult, int] | None = None


def rounds(
    state: ProtocolState, parent: ProtocolState | None, anchors: Sequence[AnchorRevision]
) -> list[Round]:
    """The versions of a trace's contract, the newest first, each with its report, verdict and
    review. ``parent``: the state of the trace above."""
    heard = _heard(state)
    reviews = list(_reviews(parent, state.trace_id)) if parent else []
    found: list[Round] = []
    old: TaskBrief | None = None
    for number, one in enumerate(heard, 1):
        report, verdict = one.report, one.verdict
        review = reviews[number - 1] if number <= len(reviews) else None
        newest = number == len(heard)
        found.append(
            Round(
                number=number,
                brief=one.brief,
                given_at=one.given_at,
                constraints=constraints(one.brief, state if newest else None, parent, anchors),
                problem=_problem(state) if newest else "",
                changes=_brief_changes(old, one.brief),
                report=report[0] if report else None,
                report_at=report[1] if report else 0,
                verdict=verdict[0] if verdict else None,
                verdict_at=verdict[1] if verdict else 0,
                review=review[0] if review else None,
                reviewed_at=review[1] if review else 0,
            )
        )
        old = one.brief
    return found[::-1]


def _heard(state: ProtocolState) -> list[_Heard]:
    found: list[_Heard] = []
    for noted in state.entries:
        match noted.entry:
            case Briefed(brief=brief):
                found.append(_Heard(brief, noted.sequence))
            case Reported(report=report):
                _last(found).report = report, noted.sequence
            case Validated(result=result):
                _last(found).verdict = result, noted.sequence
            case _:
                pass
    return found or [_Heard()]


def _last(found: list[_Heard]) -> _Heard:
    if not found:
        found.append(_Heard())
    return found[-1]


def _reviews(parent: ProtocolState, child: str) -> Iterator[tuple[TaskReview, int]]:
    for noted in parent.entries:
        if isinstance(noted.entry, Reviewed) and noted.entry.child == child:
            yield noted.entry.review, noted.sequence


def _brief_changes(old: TaskBrief | None, new: TaskBrief | None) -> tuple[Change, ...]:
    return changes(old.to_json(), new.to_json(), BRIEF_FIELDS) if old and new else ()


def constraints(
    brief: TaskBrief | None,
    state: ProtocolState | None,
    parent: ProtocolState | None,
    anchors: Sequence[AnchorRevision],
) -> tuple[Constraint, ...]:
    """The constraints of a contract with where each comes from. ``state``: where the contract is
    the one in force, with what a later revision of the anchor added to it."""
    if brief is None:
        return ()
    of_anchor = {c for revision in anchors for c in revision.anchor.constraints}
    above = {c for v in (parent.briefs if parent else ()) for c in v.brief.constraints}
    now = state.anchor.constraints if state else ()
    late = [c for c in now if c not in brief.constraints]

    def origin(text: str) -> Origin:
        return "anchor" if text in of_anchor else "parent" if text in above else "own"

    given = [Constraint(text, origin(text)) for text in brief.constraints]
    return (*given, *(Constraint(text, "anchor", late=True) for text in late))


def _problem(state: ProtocolState) -> str:
    """A contract that nobody works on any more does not keep the anchor from being revised."""
    try:
        _ = state.brief
    except InvalidTaskValue as error:
        return str(error)
    return ""


# Refs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """A ref that a trace holds, and where it read it."""

    grant: Grant
    reads: tuple[Read, ...] = ()


def refs(state: ProtocolState, reads: Sequence[Read]) -> list[Held]:
    """The refs of the catalogue, oldest first."""
    return [
        Held(grant, tuple(r for r in reads if r.ref == grant.snapshot.ref))
        for grant in state.catalogue.grants
    ]
