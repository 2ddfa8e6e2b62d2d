"""Prune, snip, micro and identity, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from cyberagent.compaction.layered import Identity, Micro, Snip
from cyberagent.compaction.policy import STRATEGIES
from cyberagent.compaction.prune import Prune
from cyberagent.compaction.values import Items
from cyberagent.core.guards import Budget
from cyberagent.core.window import Item
from tests.compaction.histories import (
    call,
    facts,
    history,
    operator,
    plan,
    result,
    says,
    texts,
    user,
    work,
)

ANY = Budget()


def with_tokens(items: Items, tokens: int) -> Items:
    """Each tool result is given this count, so that sums can be done in the head."""
    return tuple(
        Item(replace(i.message, tokens=tokens)) if i.message.role == "tool" else i for i in items
    )


def replaced(items: Items) -> list[int]:
    return [i.message.sequence for i in items if i.kind == "replaced"]


# Prune ----------------------------------------------------------------------------------------


def ten_thousands(*, tail: int = 2, count: int = 8, name: str = "read_file") -> Items:
    """``count`` results of 10,000 tokens at sequences 3, 5 …, then ``tail`` users' turns."""
    turns = [m for n in range(count) for m in work(f"c{n}", name=name)]
    last = [m for n in range(tail) for m in (user(f"and {n}"), says("ok"))]
    return with_tokens(history(user("x"), turns, last), 10_000)


def test_prune_protects_the_newest_40_000_tokens_of_tool_output():
    step = Prune().apply(ten_thousands(), ANY, facts())
    assert replaced(step.items) == [3, 5, 7, 9]
    assert texts(step.items)[2] == "[tool] [Old tool result content cleared]"


def test_prune_acts_only_if_more_than_20_000_tokens_go():
    assert Prune().apply(ten_thousands(count=6), ANY, facts()).edits == ()
    assert replaced(Prune().apply(ten_thousands(count=7), ANY, facts()).items) == [3, 5, 7]


def test_prune_needs_more_than_the_minimum_and_counts_what_the_placeholders_cost():
    items = ten_thousands()
    placeholder = Prune().apply(items, ANY, facts()).items[2].message.tokens
    gone = 4 * (10_000 - placeholder)
    assert Prune(minimum_tokens=gone).apply(items, ANY, facts()).edits == ()
    (edit,) = Prune(minimum_tokens=gone - 1).apply(items, ANY, facts()).edits
    assert edit.tokens_saved == gone


def test_prune_skips_the_last_two_turns_of_the_user():
    assert Prune().apply(ten_thousands(tail=0), ANY, facts()).edits == ()
    assert Prune().apply(ten_thousands(tail=1), ANY, facts()).edits == ()


def test_prune_leaves_skills_and_errors_alone():
    assert Prune().apply(ten_thousands(name="skill"), ANY, facts()).edits == ()
    items = ten_thousands()
    failed = tuple(
        Item(replace(i.message, is_error=True)) if i.message.role == "tool" else i for i in items
    )
    assert Prune().apply(failed, ANY, facts()).edits == ()


def test_prune_passes_over_messages_marked_as_summary():
    items = list(ten_thousands())
    items[2] = Item(replace(items[2].message, source="summary", role="assistant"))
    assert replaced(Prune().apply(tuple(items), ANY, facts()).items) == [5, 7, 9]


# Snip -----------------------------------------------------------------------------------------


def chatter(count: int, words: str = "some thoughts about it ") -> list:
    return [says(f"{n}: {words * 8}") for n in range(count)]


def test_snip_leaves_three_a_placeholder_and_forty_six():
    items = history(user("x"), chatter(80))
    step = Snip().apply(items, ANY, facts())
    assert len(step.items) == 50
    assert [i.message.sequence for i in step.items[:3]] == [1, 2, 3]
    assert step.items[3].message.text == (
        "[32 messages in the middle of the conversation were cut out here.]"
    )
    assert [i.message.sequence for i in step.items[4:]] == list(range(36, 82))
    assert Snip().apply(step.items, ANY, facts()).edits == ()


def test_snip_does_nothing_at_fifty_messages():
    assert Snip().apply(history(user("x"), chatter(49)), ANY, facts()).edits == ()


def test_snip_quotes_what_people_said_in_the_part_cut_out():
    items = history(user("x"), chatter(20), user("use\nport 81"), operator("no cache"), chatter(60))
    after = Snip().apply(items, ANY, facts()).items
    assert after[3].message.text.split("\n")[2:] == [
        "Message 22, word for word:",
        "> use",
        "> port 81",
        "Message 23, word for word:",
        "> no cache",
    ]


def test_a_second_snip_takes_up_the_quotations_of_the_first():
    items = history(user("x"), chatter(20), user("use port 81"), chatter(60))
    once = Snip().apply(items, ANY, facts()).items
    more = tuple(
        Item(replace(i.message, sequence=n)) for n, i in enumerate(history(chatter(30)), 100)
    )
    twice = Snip().apply((*once, *more), ANY, facts()).items
    assert len(twice) == 50
    assert twice[3].message.text.startswith("[63 messages ")
    assert "> use port 81" in twice[3].message.text


def test_snip_never_separates_a_call_from_its_result():
    turns = [m for n in range(40) for m in work(f"c{n}", text="output " * 30)]
    after = Snip().apply(history(user("x"), turns, says("y")), ANY, facts()).items
    calls = [c.id for i in after for c in i.message.tool_calls]
    assert calls == [i.message.tool_call_id for i in after if i.message.role == "tool"]


# Micro ----------------------------------------------------------------------------------------


def test_micro_keeps_the_newest_eight_results():
    turns = [m for n in range(12) for m in work(f"c{n}", text="output " * 30)]
    step = Micro().apply(history(user("x"), turns), ANY, facts())
    assert replaced(step.items) == [3, 5, 7, 9]
    assert step.items[2].message.text == "[Previous: used read_file]"
    assert step.items[2].why == "older than the newest 8 results"


def test_aggressive_micro_keeps_two():
    turns = [m for n in range(5) for m in work(f"c{n}", text="output " * 30)]
    step = STRATEGIES["aggressive"].apply(history(user("x"), turns), ANY, facts())
    assert replaced(step.items) == [3, 5, 7]  # type: ignore[union-attr]


def test_micro_never_puts_a_placeholder_that_is_longer_than_the_result():
    turns = [m for n in range(12) for m in work(f"c{n}", text="ok")]
    assert Micro().apply(history(user("x"), turns), ANY, facts()).edits == ()


def test_micro_names_the_tool_by_its_call_where_the_result_does_not():
    long = "output " * 30
    first = [says(call("a", "search_files")), result("a", long, name="")]
    step = Micro(keep_recent=1).apply(history(user("x"), first, work("b"), says("z")), ANY, facts())
    assert step.items[2].message.text == "[Previous: used search_files]"


# Identity -------------------------------------------------------------------------------------


def test_identity_is_said_once_where_at_most_four_messages_are_left():
    known = facts(plan("Find the leak"))
    four = history(user("x"), says("a"), user("y"), says("b"))
    after = Identity().apply(four, ANY, known).items
    assert "Find the leak" in after[1].message.text
    assert after[1].message.text.startswith("[Identity]")
    assert Identity().apply(after, ANY, known).edits == ()
    five = history(user("x"), says("a"), user("y"), says("b"), user("z"))
    assert Identity().apply(five, ANY, known).edits == ()
