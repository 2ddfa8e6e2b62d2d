"""The guards of compaction: budget, floor, verdict, breaker, permission, calibration."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import InvalidInput, WindowTooLarge
from cyberagent.core.guards import (
    Breaker,
    Budget,
    Calibration,
    Progress,
    above_floor,
    judge,
    may_compact,
    reserve,
)
from cyberagent.core.types import Message
from cyberagent.core.window import Item

WINDOW = Budget(window=10_000, reserve=1_000, threshold=5_000, target=3_500)


def items(*tokens: int) -> tuple[Item, ...]:
    return tuple(Item(Message(role="user", source="user", tokens=t)) for t in tokens)


# Budget ---------------------------------------------------------------------------------------


def test_an_unknown_output_limit_reserves_an_eighth_and_never_nothing():
    assert reserve(16_000, None) == 2_000
    assert reserve(16_000, 4_000) == 4_000
    assert reserve(None, None) == 1
    assert reserve(4, 0) == 1


def test_a_size_counts_what_is_fixed_and_is_corrected_upwards():
    budget = Budget(fixed=100, ratio=1.5)
    assert budget.size(items(10, 20, 1)) == 197  # 131 × 1.5 = 196.5
    assert Budget(fixed=7).size(()) == 7


def test_a_window_that_cannot_be_sent_wants_a_pass_whatever_the_threshold():
    assert not WINDOW.is_due(5_000)
    assert WINDOW.is_due(5_001)
    high = Budget(window=10_000, reserve=1_000, threshold=20_000)
    assert high.is_due(9_001) and not high.is_due(9_000)
    assert not Budget(window=10, reserve=1, threshold=None).is_due(99)


def test_an_unknown_window_fits_anything():
    assert Budget().fits(10**9) and Budget().limit is None


# Floor ----------------------------------------------------------------------------------------


def test_a_floor_over_what_fits_is_an_error_with_the_numbers():
    with pytest.raises(WindowTooLarge) as caught:
        above_floor(WINDOW, 9_001, 12_000)
    error = caught.value
    assert (error.tokens, error.limit, error.floor) == (12_000, 9_000, 9_001)


def test_a_floor_under_the_threshold_changes_nothing_but_an_impossible_target():
    assert above_floor(WINDOW, 3_000, 6_000) == (WINDOW, False)
    raised, tight = above_floor(WINDOW, 4_000, 6_000)
    assert (raised.target, raised.threshold, tight) == (4_000, 5_000, False)


def test_a_floor_between_threshold_and_limit_waits_for_the_overflow():
    budget, tight = above_floor(WINDOW, 6_000, 7_000)
    assert tight
    assert budget.threshold == 9_000
    assert budget.target == 7_500  # half-way from 6,000 to 9,000
    assert not budget.is_due(7_000)


def test_a_floor_above_a_soft_limit_of_an_unknown_window_stops_passes():
    budget, tight = above_floor(Budget(threshold=100), 200, 300)
    assert tight and not budget.is_due(10**9)


# Verdict --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "success"),
    [
        (10_000, 9_500, False),  # 5 % fewer, but 9,000 fit
        (9_000, 8_550, True),  # exactly 5 %
        (9_000, 8_551, False),
        (9_000, 9_000, False),
        (9_000, 9_500, False),
        (50_000, 9_001, False),
        (50_000, 9_000, True),
        (0, 0, False),
    ],
)
def test_success_is_five_percent_fewer_tokens_that_fit(before: int, after: int, success: bool):
    judged = judge(before, after, WINDOW)
    assert judged.success is success
    assert bool(judged.why) is not judged.success


# Breaker --------------------------------------------------------------------------------------


def test_three_failures_in_a_row_open_the_breaker():
    breaker = Breaker().after_failure(1.0).after_failure(2.0)
    assert breaker.state == "closed" and breaker.can_attempt(2.0)
    breaker = breaker.after_failure(3.0)
    assert breaker.state == "open" and not breaker.can_attempt(3.0)


def test_a_success_between_failures_starts_the_count_anew():
    breaker = Breaker().after_failure(1.0).after_failure(2.0).after_success().after_failure(3.0)
    assert breaker == Breaker(failures=1)


def test_an_open_breaker_is_half_open_after_300_seconds():
    breaker = Breaker(state="open", failures=3, opened_at=1_000.0)
    assert breaker.at(1_299.9).state == "open"
    assert breaker.at(1_300.0).state == "half_open"
    assert breaker.can_attempt(1_300.0)


def test_one_try_decides_a_half_open_breaker():
    half = Breaker(state="open", failures=3, opened_at=0.0).at(300.0)
    assert half.after_success() == Breaker()
    assert Breaker(state="half_open").after_failure(1.0).state == "open"
    again = half.after_failure(300.0)
    assert again.state == "open" and again.at(599.0).state == "open"


def test_a_failure_of_the_try_opens_it_again_though_nobody_asked_for_its_state():
    again = Breaker(state="open", failures=3, opened_at=0.0).after_failure(400.0)
    assert (again.state, again.opened_at) == ("open", 400.0)


def test_a_clock_that_was_set_back_does_not_close_compaction_for_ever():
    breaker = Breaker(state="open", failures=3, opened_at=1_000_000.0).at(50.0)
    assert breaker.state == "open" and breaker.at(350.0).state == "half_open"


_breakers = st.builds(
    Breaker,
    state=st.sampled_from(["closed", "open", "half_open"]),
    failures=st.integers(0, 9),
    opened_at=st.floats(0, 2e9),
)


@given(_breakers)
def test_a_breaker_outlives_its_process(breaker: Breaker):
    assert Breaker.from_json(json.loads(json.dumps(breaker.to_json()))) == breaker


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"state": "ajar", "failures": 0, "opened_at": 0},
        {"state": "open", "failures": -1, "opened_at": 0},
        {"state": "open", "failures": True, "opened_at": 0},
        {"state": "open", "failures": 1, "opened_at": float("nan")},
        {"state": "open", "failures": 1, "opened_at": "now"},
    ],
)
def test_a_breaker_that_is_none_is_refused(value):
    with pytest.raises(InvalidInput):
        Breaker.from_json(value)


# Permission -----------------------------------------------------------------------------------

OPEN = Breaker(state="open", failures=3, opened_at=100.0)


def test_an_open_breaker_bars_automatic_passes_and_says_for_how_long():
    barred = may_compact(breaker=OPEN, now=150.0, compacting=False)
    assert not barred.allowed and "250 s" in barred.why
    assert may_compact(breaker=OPEN, now=400.0, compacting=False).allowed


def test_a_manual_pass_ignores_the_breaker_and_is_skipped_after_an_automatic_one():
    assert may_compact(breaker=OPEN, now=150.0, compacting=False, manual=True).allowed
    after = may_compact(
        breaker=Breaker(), now=0.0, compacting=False, manual=True, just_compacted=True
    )
    assert not after.allowed


@pytest.mark.parametrize("manual", [False, True])
def test_a_call_made_by_compaction_never_starts_compaction(manual: bool):
    now = {"breaker": Breaker(), "now": 0.0, "manual": manual}
    assert not may_compact(compacting=True, **now).allowed
    assert not may_compact(compacting=False, branch_type="compression", **now).allowed
    assert not may_compact(compacting=False, branch_type="reflection", **now).allowed


def test_passes_that_find_the_same_plan_and_no_new_writes_stall():
    progress = Progress()
    seen: list[bool] = []
    for mark in ["a", "a", "b", "b", "b", "b"]:
        progress = progress.after(mark)
        seen.append(progress.is_stalled)
    assert seen == [False, False, False, False, False, True]


# Calibration ----------------------------------------------------------------------------------


def test_reports_that_are_nothing_or_zero_are_unknown():
    for reported in (None, 0, -5):
        assert Calibration().after(1_000, reported, "m").ratio == 1.0
    assert Calibration().after(0, 100, "m").ratio == 1.0


def test_the_first_report_counts_whole_and_later_ones_half():
    first = Calibration().after(1_000, 1_200, "m")
    assert first.ratio == pytest.approx(1.2)
    assert first.after(1_000, 1_400, "m").ratio == pytest.approx(1.3)


def test_a_change_of_model_is_measured_anew():
    old = Calibration().after(1_000, 2_000, "old")
    assert old.for_model("old") == pytest.approx(2.0)
    assert old.for_model("new") == 1.0
    assert old.after(1_000, 1_500, "new").ratio == pytest.approx(1.5)
    assert old.after(1_000, None, "new") == Calibration(model="new")


def test_a_broken_report_is_cut_to_what_can_be():
    assert Calibration().after(10, 10**9, "m").ratio == 4.0
    assert Calibration().after(10**9, 1, "m").ratio == 0.5


@given(st.lists(st.tuples(st.integers(-5, 10**6), st.none() | st.integers(-5, 10**6))))
def test_a_ratio_stays_in_bounds_and_outlives_its_process(reports):
    calibration = Calibration()
    for estimate, reported in reports:
        calibration = calibration.after(estimate, reported, "m")
        assert 0.5 <= calibration.ratio <= 4.0
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


@pytest.mark.parametrize(
    "value", ["x", {"ratio": 9, "model": "m", "seen": 1}, {"ratio": 1.0, "model": 5, "seen": 1}]
)
def test_a_calibration_that_is_none_is_refused(value):
    with pytest.raises(InvalidInput):
        Calibration.from_json(value)


def test_nothing_stored_is_a_new_guard():
    assert Breaker.from_json(None) == Breaker()
    assert Calibration.from_json(None) == Calibration()


def test_a_smaller_prompt_that_would_be_dearer_is_no_success():
    # 2,000 of 30,000 tokens go; 27,000 behind them are cached and would be written anew:
    # 27,000 × 1.15 = 31,050 lost against 2,000 × 0.1 = 200 a call, so 156 calls to pay for it.
    roomy = Budget(window=128_000, reserve=8_000, threshold=29_000, target=20_000)
    verdict = judge(30_000, 28_000, roomy, rewritten=27_000)
    assert not verdict.success and verdict.dear and "156 calls" in verdict.why
    # At the end of the window it is cheap: 500 × 1.15 / 200 is under 3 calls.
    assert judge(30_000, 28_000, roomy, rewritten=500).success
    # A window that cannot be sent as it is must shrink, whatever that costs.
    full = Budget(window=37_000, reserve=8_000, threshold=29_000, target=20_000)
    assert judge(30_000, 28_000, full, rewritten=27_000).success
