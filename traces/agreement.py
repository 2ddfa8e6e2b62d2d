"""How often validators and people agree: counts, shares and Cohen's kappa.

Source: docs/verdicts.md, "Agreement".
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import OuterRef, Q, QuerySet, Subquery

from cyberagent.core.verdicts import WORDS
from traces.models import ValidationResult, VerdictReview
from traces.rows import held
from traces.verdict_queue import criteria_of

Pair = tuple[str, str]
"""The validator's word and the person's on the same thing."""

MOST_CRITERIA = 200
"""Criteria of one answer: those with the most words first."""


def kappa(pairs: Sequence[Pair]) -> float | None:
    """Cohen's kappa: 1 where all agree, 0 where they agree as often as by chance. None where it
    is not defined: there is no pair, or both sides used one and the same word throughout."""
    n = len(pairs)
    agreed = sum(a == b for a, b in pairs)
    ours, theirs = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    # n² times the agreement by chance: whole numbers as long as possible.
    chance = sum(count * theirs[word] for word, count in ours.items())
    if chance == n * n:
        return None
    return (n * agreed - chance) / (n * n - chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """``name``: a model or a criterion. ``table``: how often a validator's word (outer) met a
    person's (inner); ``kappa``: None where it is not defined."""

    name: str
    n: int
    agreed: int
    kappa: float | None
    table: Mapping[str, Mapping[str, int]]

    @property
    def share(self) -> float | None:
        return self.agreed / self.n if self.n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreements:
    """Of verdicts on the whole, ``by_model``; and ``by_criterion`` those with the most words,
    ``criteria`` being how many there are."""

    all: Agreement
    by_model: tuple[Agreement, ...]
    by_criterion: tuple[Agreement, ...]
    criteria: int


def agreed(name: str, pairs: Sequence[Pair]) -> Agreement:
    met = Counter(pairs)
    return Agreement(
        name=name,
        n=len(pairs),
        agreed=sum(a == b for a, b in pairs),
        kappa=kappa(pairs),
        table={a: {b: met[a, b] for b in WORDS} for a in WORDS},
    )


def agreement(verdicts: QuerySet[ValidationResult]) -> Agreements:
    """Over the newest review of each of ``verdicts`` that has one and that a validator gave here
    (docs/verdicts.md, "Agreement"); of criteria those that decided."""
    whole: defaultdict[str, list[Pair]] = defaultdict(list)
    single: defaultdict[str, list[Pair]] = defaultdict(list)
    for review in _newest(verdicts):
        row, theirs = review.result, json.loads(review.criteria)
        whole[held(row.model)].append((row.verdict, review.word))
        for one in criteria_of(row):
            if one.decides and one.id in theirs:
                single[one.criterion].append((one.word, theirs[one.id]))
    by_criterion = _most_first(single)
    return Agreements(
        all=agreed("", [pair for pairs in whole.values() for pair in pairs]),
        by_model=tuple(_most_first(whole)),
        by_criterion=tuple(by_criterion[:MOST_CRITERIA]),
        criteria=len(by_criterion),
    )


def _newest(verdicts: QuerySet[ValidationResult]) -> Iterable[VerdictReview]:
    """The newest review of each verdict that has one."""
    newest = VerdictReview.objects.filter(result=OuterRef("result")).order_by("-pk").values("pk")
    found = VerdictReview.objects.filter(
        result__in=given_here(verdicts).order_by().values("pk"), pk=Subquery(newest[:1])
    )
    needed = ("word", "criteria", *(f"result__{name}" for name in _RESULT))
    return found.select_related("result").only(*needed).iterator()


def given_here(verdicts: QuerySet[ValidationResult]) -> QuerySet[ValidationResult]:
    """Without those of imported runs, and without the copies that forks hold: a copy names the
    packet that was judged, but no validator's trace is below it. An import of our own format
    keeps its origin, and is known by the id that it had before."""
    imported = Q(trace__context__contains='"original_id":') | ~Q(trace__origin="run")
    copied = ~Q(packet_sha256="") & Q(validator__isnull=True)
    return verdicts.exclude(imported).exclude(copied)


_RESULT = ("model", "verdict", "criteria", "is_root")


def _most_first(pairs: Mapping[str, Sequence[Pair]]) -> list[Agreement]:
    found = [agreed(name, those) for name, those in pairs.items()]
    return sorted(found, key=lambda a: (-a.n, a.name))
