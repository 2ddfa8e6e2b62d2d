"""Which result belongs to which call, which turn is the newest, and how edits are told."""

from __future__ import annotations

from dataclasses import replace

from cyberagent.compaction.values import (
    edited,
    edits_between,
    held,
    inserted,
    link,
    newest_turn,
    opening,
)
from cyberagent.core.types import Text
from tests.compaction.histories import (
    SIGNED,
    call,
    facts,
    history,
    operator,
    result,
    says,
    user,
    work,
)


def owners(*groups) -> list[int | None]:
    """For each message the place of the turn that it answers."""
    return [None if caller < 0 else caller for caller in link(history(*groups)).caller]


def stand_in(call_id: str):
    return result(call_id, "(gone)", metadata={"placeholder": True})


# Links ----------------------------------------------------------------------------------------


def test_results_belong_to_their_calls_in_any_order():
    batch = [says(call("a"), call("b")), result("b", "o"), result("a", "o")]
    assert owners(user("x"), batch, work("a")) == [None, None, 1, 1, None, 4]


def test_a_placeholder_and_the_late_result_after_it_belong_to_the_same_call():
    assert owners(says(call("a")), stand_in("a"), user("y"), result("a", "late")) == [
        None, 0, None, 0,
    ]  # fmt: skip


def test_a_placeholder_goes_with_the_older_call_where_the_newer_one_of_its_id_is_answered():
    path = [says(call("a")), *work("a"), stand_in("a"), result("a", "late")]
    assert owners(path) == [None, None, 1, 0, 0]


def test_a_result_that_comes_twice_goes_with_the_call_both_times():
    assert owners(work("a"), result("a", "again")) == [None, 0, 0]


def test_a_result_without_an_id_goes_with_the_turn_before_it():
    assert owners(work("a"), says(call("b")), result("", "whose?")) == [None, 0, None, 2]


def test_a_result_that_nobody_asked_for_belongs_to_nothing():
    assert owners(work("a"), result("z", "stray")) == [None, 0, None]


def test_turns_that_wait_are_open_and_held_with_the_results_they_have():
    items = history(user("x"), says(call("a"), call("b")), result("a", "o"), work("c"))
    links = link(items)
    assert links.open == {1}
    assert held(items, links, facts()) == {1, 2}


def test_a_pinned_result_holds_its_whole_batch():
    batch = [says(call("a"), call("b")), result("a", "o"), result("b", "o")]
    items = history(user("x"), batch, work("c"))
    assert held(items, link(items), facts(pinned=frozenset({4}))) == {1, 2, 3}


# Turns ----------------------------------------------------------------------------------------


def test_the_newest_turn_starts_at_the_models_last_message():
    injected = says(call("k", "skill", made_by="framework"), source="framework")
    assert newest_turn(history(user("x"), work("a"), work("b"), user("y"))) == 3
    assert newest_turn(history(user("x"), work("a"), injected, result("k", "t"))) == 1
    assert newest_turn(history(user("x"), injected, result("k", "t"))) == 1
    assert newest_turn(history(user("x"), says("s", source="summary"), user("y"))) == 3


def test_what_opened_a_history_is_the_first_word_of_a_person_or_a_brief_before_any_turn():
    brief = replace(user("brief"), source="framework")
    assert opening(history(brief, work("a"), user("x"))).message.text == "brief"
    assert opening(history(says("a"), brief, operator("x"))).message.text == "x"
    assert opening(history(says("a"), brief)) is None


# Edits ----------------------------------------------------------------------------------------


def test_an_edited_turn_has_no_thinking_and_carries_nothing_that_only_the_store_needs():
    whole = says(SIGNED, "text", call("a"))
    whole = replace(whole, full_output="long", duration_ms=5, metadata={"call": 1})
    (item,) = history(whole)
    new = edited(item, whole.parts[0:2], facts(), strategy="micro", why="because")
    assert new.message.parts == (Text("text"),)
    assert (new.message.full_output, new.message.duration_ms, new.message.metadata) == (
        None, None, {},
    )  # fmt: skip
    assert (new.kind, new.strategy, new.why, new.message.sequence) == (
        "replaced", "micro", "because", 1,
    )  # fmt: skip
    # Four around each message and one for the word.
    assert new.message.tokens == 5


def test_edits_name_what_went_what_changed_and_what_came():
    items = history(user("x"), work("a"), work("b"))
    new = edited(items[2], (Text("short"),), facts(), strategy="s", why="w")
    came = inserted("a note", facts(), strategy="s", why="w")
    after = (items[0], came, items[1], new)
    told = edits_between(items, after, strategy="s", level=1, why="w")
    assert [(e.what, e.sequences) for e in told] == [
        ("removed", (4, 5)),
        ("replaced", (3,)),
        ("inserted", ()),
    ]
    assert [e.tokens_saved for e in told] == [
        items[3].message.tokens + items[4].message.tokens,
        items[2].message.tokens - new.message.tokens,
        -came.message.tokens,
    ]
    assert edits_between(items, items, strategy="s", level=1, why="w") == ()
