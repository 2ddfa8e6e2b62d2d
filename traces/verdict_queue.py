"""The queue of verdicts, and what a row of it says. Source: docs/verdicts.md, "The queue"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.core.reports import Evidence as Named
from cyberagent.core.verdicts import WORDS, PlannedCriterion, Word
from traces import access, paging, trees
from traces.models import ValidationResult, VerdictReview

LARGEST = 2**31 - 1
STATES = ("waiting", "confirmed", "overruled")
PAGE = 50

# The queue ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Empty fields do not filter. ``review``: one of STATES; ``run``: a trace, with everything
    below it; ``since`` and ``until``: days, both inclusive, in UTC."""

    verdict: str = ""
    review: str = ""
    model: str = ""
    run: str = ""
    since: str = ""
    until: str = ""
    search: str = ""


def visible(user: access.Person) -> QuerySet[ValidationResult]:
    """The verdicts of traces that this person may see."""
    if access.has_role(user, "admin"):
        return ValidationResult.objects.all()
    return ValidationResult.objects.filter(trace__in=access.visible_traces(user))


def narrowed(found: QuerySet[ValidationResult], wanted: Filter) -> QuerySet[ValidationResult]:
    """Raises InvalidInput, which names the filter."""
    for name in Filter.__dataclass_fields__:
        if "\0" in getattr(wanted, name):
            raise InvalidInput(f"{name}: a filter must not hold NUL")
    if wanted.verdict:
        found = found.filter(verdict=_one_of("verdict", wanted.verdict, WORDS))
    if wanted.review:
        found = _in_state(found, _one_of("review", wanted.review, STATES))
    if wanted.model:
        found = found.filter(model=wanted.model)
    if wanted.run:
        found = found.filter(Q(trace=wanted.run) | Q(trace__in=trees.below(wanted.run)))
    for word in wanted.search.split():
        found = found.filter(task__icontains=word)
    return paging.until(paging.since(found, "since", wanted.since), "until", wanted.until)


def _in_state(found: QuerySet[ValidationResult], state: str) -> QuerySet[ValidationResult]:
    if state == "waiting":
        return found.filter(~Exists(_reviews()))
    newest = _reviews().order_by("-pk").values("confirms")[:1]
    return found.annotate(confirmed=Subquery(newest)).filter(confirmed=state == "confirmed")


def _reviews() -> QuerySet[VerdictReview]:
    return VerdictReview.objects.filter(result=OuterRef("pk"))


def _one_of(name: str, given: str, words: Sequence[str]) -> str:
    if given not in words:
        raise InvalidInput(f"{name} must be one of {', '.join(words)}, not {given!r:.60}")
    return given


def page(
    found: QuerySet[ValidationResult], wanted: Filter, *, cursor: str = "", limit: int = PAGE
) -> tuple[list[ValidationResult], str | None]:
    """At most ``limit`` verdicts, newest first, after ``cursor``; and the next cursor. Each has
    its newest review as ``newest`` (None: it waits). Raises InvalidInput."""
    queue = paging.older(narrowed(found, wanted), cursor)
    rows = list(_with_runs(queue.order_by("-created_at", "-pk"))[: limit + 1])
    more = len(rows) > limit
    with_newest(rows[:limit])
    return rows[:limit], paging.cursor_of(rows[limit - 1]) if more else None


def _with_runs(queue: QuerySet[ValidationResult]) -> QuerySet[ValidationResult]:
    """Their traces too, but not the long texts of these."""
    heavy = ("trace__config", "trace__system_prompt")
    return queue.select_related("trace").defer(*heavy)


def with_newest(rows: Sequence[ValidationResult]) -> None:
    """Give each row its newest review as ``newest``; one query for all."""
    found = VerdictReview.objects.filter(result__in=[r.pk for r in rows]).select_related("by")
    newest = {review.result_id: review for review in found.order_by("pk")}
    for row in rows:
        row.newest = newest.get(row.pk)  # type: ignore[attr-defined]


def waiting(user: access.Person, most: int = 100) -> int:
    """How many verdicts wait for this person, counted up to ``most``."""
    return _in_state(visible(user), "waiting").order_by()[:most].count()


def neighbours(
    found: QuerySet[ValidationResult], wanted: Filter, row: ValidationResult
) -> tuple[int | None, int | None]:
    """The verdicts before and after ``row`` in the queue, which it need not be in."""
    queue = narrowed(found, wanted)
    at, key = row.created_at, row.pk
    newer = queue.filter(Q(created_at__gt=at) | Q(created_at=at, pk__gt=key))
    before = newer.order_by("created_at", "pk").values_list("pk", flat=True).first()
    after = paging.after(queue, at, key).order_by("-created_at", "-pk")
    return before, after.values_list("pk", flat=True).first()


def find(user: access.Person, verdict_id: int) -> ValidationResult:
    """The verdict, if this person may see its run. Raises NotFound, in the same words whether
    it does not exist or is somebody else's."""
    row = None
    if 0 < verdict_id <= LARGEST:
        found = ValidationResult.objects.select_related("trace", "trace__owner", "validator")
        row = found.filter(pk=verdict_id).first()
    if row is None or not access.can_see(user, row.trace):
        raise NotFound("verdict", verdict_id)
    return row


# What a row says -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One criterion with the validator's word; ``decides``: about the verdict on the whole."""

    id: str
    criterion: str
    decides: bool
    word: Word
    reason: str
    evidence: tuple[Named, ...] = ()

    @property
    def planned(self) -> PlannedCriterion:
        return PlannedCriterion(id=self.id, criterion=self.criterion, decides=self.decides)


def criteria_of(row: ValidationResult) -> list[Judged]:
    """The criteria of a verdict. Those of the brief decide about a child, those of the root
    about the root's answer (docs/protocol.md, "ValidationPlan")."""
    return [
        Judged(
            id=one["id"],
            criterion=one["criterion"],
            decides=str(one["id"]).startswith("R") == row.is_root,
            word=one["verdict"],
            reason=one["reason"],
            evidence=tuple(one["evidence"]),
        )
        for one in json.loads(row.criteria)
    ]


def state_of_review(row: ValidationResult) -> str:
    """``waiting``, ``confirmed`` or ``overruled``, of a row that was given its newest review."""
    newest: VerdictReview | None = row.newest  # type: ignore[attr-defined]
    if newest is None:
        return "waiting"
    return "confirmed" if newest.confirms else "overruled"
