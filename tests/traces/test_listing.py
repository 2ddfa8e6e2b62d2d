"""The filters of the list of runs that look beyond a run's own columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cyberagent.core.errors import InvalidInput
from tests.traces.people import stored_trace
from traces import listing
from traces.models import Trace, ValidationResult

pytestmark = [pytest.mark.rows, pytest.mark.django_db]


def found(**wanted: str) -> list[str]:
    rows, _ = listing.page(Trace.objects.all(), listing.Filter(**wanted))
    return [r.pk for r in rows]


def judged(trace: str, *words: str) -> None:
    for sequence, word in enumerate(words, 1):
        ValidationResult.objects.create(trace_id=trace, sequence=sequence, verdict=word)


def test_the_newest_verdict_on_a_run_is_the_one_that_is_looked_for() -> None:
    put_right, spoilt, unjudged = stored_trace(), stored_trace(), stored_trace()
    judged(put_right, "failed", "passed")
    judged(spoilt, "passed", "failed")
    assert found(verdict="passed") == [put_right]
    assert found(verdict="failed") == [spoilt]
    assert found(verdict="unknown") == []
    assert unjudged in found()


def test_both_days_of_a_span_are_in_it() -> None:
    for day in (9, 10, 11, 12):
        last = datetime(2026, 3, day, 23, 59, 59, tzinfo=UTC)
        Trace.objects.filter(pk=stored_trace()).update(created_at=last, mission=f"day {day}")
    span = Trace.objects.filter(pk__in=found(since="2026-03-10", until="2026-03-11"))
    assert sorted(span.values_list("mission", flat=True)) == ["day 10", "day 11"]


@pytest.mark.parametrize(
    "wanted", [{"verdict": "great"}, {"since": "yesterday"}, {"until": "2026-02-30"}]
)
def test_what_cannot_be_looked_for_is_named(wanted: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wanted))):
        found(**wanted)
