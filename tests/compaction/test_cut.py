"""Where a history may be cut, by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cyberagent.compaction.cut import find_safe_cut_point
from cyberagent.compaction.values import Items, link
from tests.compaction.histories import HISTORIES, call, history, result, says, user, work
from tests.compaction.test_properties import ANY


def messages(*groups):
    return [i.message for i in history(*groups)]


def test_a_cut_between_turns_stays_where_it_is():
    path = messages(user("x"), work("a"), work("b"), says("done"))
    assert find_safe_cut_point(path, 3) == 3


def test_a_cut_on_a_result_goes_back_to_its_call():
    path = messages(user("x"), work("a"), work("b"), says("done"))
    assert find_safe_cut_point(path, 2) == 3
    assert find_safe_cut_point(path, 4) == 1


def test_a_cut_inside_a_batch_keeps_the_whole_batch():
    batch = [says(call("a"), call("b"), call("c")), *(result(c, "o") for c in "abc")]
    path = messages(user("x"), batch, says("done"))
    assert [find_safe_cut_point(path, keep) for keep in (1, 2, 3, 4, 5)] == [5, 1, 1, 1, 1]


def test_a_turn_whose_results_are_still_missing_stays_on_the_kept_side():
    path = messages(user("x"), work("a"), says(call("b"), call("c")), result("b", "o"))
    assert find_safe_cut_point(path, 0) == 3
    assert find_safe_cut_point(messages(user("x"), says(call("a"))), 0) == 1


def test_a_call_that_died_long_ago_bars_no_later_cut():
    path = messages(user("x"), says(call("dead")), user("go on"), work("b"), says("done"))
    assert find_safe_cut_point(path, 1) == 5


def test_a_late_result_keeps_all_back_to_its_call():
    path = messages(user("x"), says(call("a")), user("y"), result("a", "late"), says("z"))
    assert find_safe_cut_point(path, 2) == 1


def test_keeping_more_than_there_is_cuts_nothing():
    assert find_safe_cut_point(messages(user("x")), 9) == 0
    assert find_safe_cut_point([], 3) == 0


@ANY
@given(HISTORIES, st.integers(0, 30))
def test_no_cut_separates_a_call_from_a_result(items: Items, keep: int):
    cut = find_safe_cut_point([i.message for i in items], keep)
    assert all(caller >= cut or caller == -1 for caller in link(items).caller[cut:])
    assert len(items) - cut >= min(keep, len(items))
