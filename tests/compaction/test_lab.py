"""The lab on traces written by hand, with the arithmetic done by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberagent.compaction.lab import (
    at_equal_tokens,
    default_window,
    lab_policies,
    lab_policy,
    lab_subject,
    replayed,
)
from cyberagent.compaction.policy import POLICIES
from cyberagent.compaction.recall import IDENTIFIER, NextUse, identifiers
from cyberagent.core.errors import InvalidConfig, InvalidInput
from cyberagent.core.types import Message, Reasoning, Text, ToolCall, TraceState
from cyberagent.core.window import Window
from tests.compaction.histories import call, result, says, user, work

KEYS = {
    "peak_tokens", "mean_tokens", "passes", "summary_calls", "prefix_share", "price", "recall",
    "user_messages_kept", "violations", "seconds",
}  # fmt: skip


def subject(*messages: Message, **config: Any):
    """The messages as one path, numbered from 1. Their token counts are those given."""
    made = {
        n: replace(m, sequence=n, parent_sequence=n - 1 or None, depth=n)
        for n, m in enumerate(messages, 1)
    }
    state = TraceState(
        id="t", mission="m", status="completed", head_sequence=len(made), config=config
    )
    return lab_subject(state, made)


def sized(tokens: int, *messages: Message) -> list[Message]:
    return [replace(m, tokens=tokens) for m in messages]


def run(name: str, made, window: int, **options: Any):
    return replayed(made, lab_policy(name, window, made.segmented), window, **options)


# Tokens, prefix, price -------------------------------------------------------------------------


def test_off_measures_the_raw_windows():
    """Five messages of 100 tokens, answers at the places 1, 3 and 4: windows of 100, 300, 400."""
    made = subject(*sized(100, user("a"), *work("c1"), says("b"), says("c")))
    report = run("off", made, 10_000)
    assert report.calls == 3
    assert report.peak_tokens == 400
    assert report.mean_tokens == 266.7  # 800 / 3
    # Second window: 100 of 300 stood in the first. Third: 300 of 400.
    assert report.prefix_share == round((100 / 300 + 300 / 400) / 2, 4)
    # 100 written; 100 read and 200 written; 300 read and 100 written.
    assert report.price == 125 + (10 + 250) + (30 + 125)
    assert (report.passes, report.summary_calls, report.violations) == (0, 0, 0)
    assert (report.hidden, report.shortened, report.overflows) == (0, 0, 0)


def test_system_prompt_and_schemas_count_in_every_window():
    state = TraceState(
        id="t", mission="", status="completed", head_sequence=2, system_prompt="You are kind."
    )
    path = sized(100, user("a"), says("b"))
    made = {n: replace(m, sequence=n, parent_sequence=n - 1 or None) for n, m in enumerate(path, 1)}
    with_prompt = lab_subject(state, made)
    assert with_prompt.fixed == 4  # You, are, kind, full stop
    assert run("off", with_prompt, 10_000).peak_tokens == 104
    tools = [{"name": "look", "description": "", "parameters": {}}]
    assert lab_subject(state, made, tools).fixed > 4


def test_a_closed_goal_leaves_the_window_under_cyber():
    """Window 1,000: a pass is due over 500. After the goal's end 581 tokens stand: its turn of
    two messages (380) goes; its plan calls, the newest turn and the user's message stay."""
    add = call("g1", "goal", json.dumps({"add": ["Look"], "focus": "1"}))
    done = call("g2", "goal", json.dumps({"done": "1", "summary": "it works"}))
    made = subject(
        replace(user("begin"), tokens=1),
        *sized(50, says(add), result("g1", "ok", name="goal")),
        *sized(190, *work("c1", "1")),
        *sized(50, says(done, goal="1"), result("g2", "ok", "1", name="goal")),
        *sized(50, says("then"), user("and?")),
        replace(says("end"), tokens=5),
    )
    assert made.segmented == "goals"
    report = run("cyber", made, 1000)
    assert (report.passes, report.summary_calls) == (1, 0)
    assert [(p.call, p.tokens_before, p.tokens_after) for p in report.log] == [(4, 581, 201)]
    assert (report.hidden, report.shortened) == (2, 0)
    assert (report.user_messages, report.user_messages_kept) == (2, 2)
    # Windows: 1, 101, 481, 201 and, with two more messages of 50, 301.
    assert (report.peak_tokens, report.mean_tokens) == (481, 217.0)
    assert run("off", made, 1000).peak_tokens == 681


def test_after_a_pass_only_the_common_head_was_cached():
    made = subject(
        *sized(100, user("begin")),
        *sized(300, *work("c1"), *work("c2")),
        *sized(10, says("end")),
    )
    micro = replace(lab_policy("micro+snip", 2000), compression_threshold=0.4)
    # Windows of 100 and 700 tokens, then 1,300: a pass empties the first result. What both have
    # in common are the user's message and the first turn, 400.
    report = replayed(made, _keeping(micro, 1), 2000, problems_of=None)
    assert report.passes == 1
    after = report.log[0].tokens_after
    assert report.log[0].tokens_before == 1300
    assert report.prefix_share == round((100 / 700 + 400 / after) / 2, 4)
    assert report.price == round(125 + 10 + 750 + 40 + 1.25 * (after - 400), 2)


def _keeping(policy, count: int):
    return replace(
        policy,
        strategies=tuple(
            replace(s, keep_recent=count) if s.name == "micro" else s for s in policy.strategies
        ),
    )


def test_a_summary_is_paid_for_and_is_a_stub():
    """Window 1,000 and nothing closed: before the answer 601 tokens stand, over 500."""
    made = subject(
        replace(user("begin"), tokens=1), *sized(300, *work("c1")), replace(says("x"), tokens=9)
    )
    report = run("cyber", made, 1000)
    assert (report.passes, report.summary_calls) == (1, 1)
    own = report.log[0].tokens_after
    # Call 1: one token written. Call 2: one token read, the rest of its window written. So the
    # rest of the price is the summary's: one token read, 600 and the instruction written, and
    # its own text at 5.
    rest = report.price - 1.25 - (0.1 + 1.25 * (own - 1))
    assert rest > 0.1 + 1.25 * 600
    assert report.hidden == 2


def test_the_same_trace_gives_the_same_report():
    made = subject(user("a"), *[m for n in range(40) for m in work(f"c{n}", text="word " * 50)])
    first, second = run("layered", made, 4000), run("layered", made, 4000)
    assert first.passes > 0
    assert replace(first, seconds=0) == replace(second, seconds=0)


# Recall ----------------------------------------------------------------------------------------


def test_recall_is_what_is_still_there_of_what_is_used_next():
    """Two files were read; the pass empties the older result. Both names are used after it; the
    call that read ``src/old.py`` does not name it, so only ``src/new.py`` is left."""
    made = subject(
        *sized(100, user("begin")),
        *sized(300, says(call("c1")), result("c1", "see src/old.py")),
        *sized(300, says(call("c2")), result("c2", "see src/new.py")),
        *sized(10, says("src/old.py and src/new.py")),
    )
    micro = _keeping(replace(lab_policy("micro+snip", 2000), compression_threshold=0.4), 1)
    report = replayed(made, micro, 2000, problems_of=None)
    # Call 1: nothing was there before. Call 2: read_file, src/old.py are used again: both are
    # there. Call 3: of src/old.py and src/new.py one is.
    assert report.recall == round((1 + 1 / 2) / 2, 4)
    assert run("off", made, 2000).recall == 1.0


def test_a_placeholder_does_not_count_as_kept():
    """``[Previous: used read_file]`` names the tool, but the strategy wrote that."""
    made = subject(
        *sized(10, user("begin")),
        *sized(400, says("look"), result("", "read_file src/a.py", name="read_file")),
        *sized(10, says("so"), user("next")),
        *sized(10, says("read_file src/a.py")),
    )
    policy = _keeping(lab_policy("micro+snip", 1000), 0)
    report = replayed(made, policy, 1000, problems_of=None)
    assert report.passes == 1 and report.shortened == 1
    # Both names are used at the last answer, and there was nothing but the placeholder.
    assert report.recall is not None and report.recall < 1


def test_recall_is_none_where_nothing_is_used_again():
    assert run("off", subject(user("a"), says("b")), 100).recall is None


def test_following_a_window_equals_counting_it_anew():
    """Against a direct count, with a window that loses and regains items."""
    names = [frozenset({f"a_{n % 7}", f"b_{n % 11}", f"c_{n}"}) for n in range(120)]
    use, window = NextUse(names), set[int]()
    for place in range(len(names)):
        seen = set().union(*names[:place])
        used = seen & set().union(*names[place : place + 40])
        held = set().union(*(names[n] for n in window))
        assert (use.used, use.held) == (len(used), len(used & held))
        use.append(place)
        window.add(place)
        if place % 5 == 4:
            for n in (place - 4, place - 2):
                use.drop(names[n])
                window.discard(n)
        if place % 20 == 19:
            use.keep(names[place - 4])
            window.add(place - 4)


def test_identifiers_and_paths():
    text = (
        "src/app.ts ./run.sh /usr/lib https://host.org/p os.path notes.md my_var MAX_SIZE "
        "camelCase deadbeef1 but not word Word 1/2/2024 1234567 v1 打开src/核心.py、my_file.py。"
    )
    assert set(IDENTIFIER.findall(text)) == {
        "src/app.ts", "./run.sh", "/usr/lib", "https://host.org/p", "os.path", "notes.md",
        "my_var", "MAX_SIZE", "camelCase", "deadbeef1", "my_file.py",
    }  # fmt: skip


def test_the_published_expression_is_the_one_in_use():
    page = (Path(__file__).parent.parent.parent / "docs" / "lab.md").read_text(encoding="utf-8")
    published = [line.strip() for line in page.splitlines()]
    for line in IDENTIFIER.pattern.splitlines():
        assert line.strip() in published


def test_identifiers_of_arguments_are_read_from_the_values():
    parts = (
        ToolCall("c", "edit_file", '{"text": "x\\nnew_name", "path": "a/b.py"}'),
        ToolCall("c", "x", "{broken_json"),
        Reasoning("thought_only"),
        Text("said_it"),
    )
    assert identifiers(parts) == {"edit_file", "new_name", "a/b.py", "broken_json", "said_it"}


# What is told ----------------------------------------------------------------------------------


def test_the_report_has_the_promised_keys_for_every_policy():
    made = subject(user("a"), *work("c1"), says("b"))
    for name in POLICIES:
        told = run(name, made, 10_000).to_json()
        assert told.keys() >= KEYS
        json.dumps(told, allow_nan=False)


def test_payloads_are_checked_after_each_pass_and_at_the_end():
    made = subject(user("a"), *[m for n in range(60) for m in work(f"c{n}", text="word " * 50)])
    seen: list[Window] = []

    def refuse(window: Window) -> list[str]:
        seen.append(window)
        return ["a rule is broken"]

    report = run("layered", made, 4000, problems_of=refuse)
    assert report.checked == len(seen) == report.violations >= report.passes + 1
    assert len(seen[-1].items) > 0 and seen[-1].tools  # calls are checked as calls
    assert run("layered", made, 4000).violations == 0


def test_a_trace_without_answers_is_no_error():
    report = run("cyber", subject(user("a")), 100)
    assert (report.calls, report.mean_tokens, report.price, report.recall) == (0, 0.0, 0.0, None)
    assert run("cyber", subject(), 100).calls == 0


def test_settings_of_another_program_are_no_error():
    made = subject(user("a"), says("b"), temperature_of_theirs="warm")
    assert run("cyber", made, 10_000).calls == 1


def test_what_nobody_can_remove_is_counted_and_not_raised():
    made = subject(*sized(5000, user("a")), *sized(10, says("b"), user("c"), says("d")))
    report = run("cyber", made, 1000)
    assert report.overflows == 2 and report.failed_passes >= 1 and report.passes == 0
    assert "floor" in report.log[0].why or "5,0" in report.log[0].why


def test_equal_tokens_are_found_by_moving_the_threshold():
    made = subject(user("a"), *[m for n in range(150) for m in work(f"c{n}", text="word " * 50)])
    wanted = run("cyber", made, 8000).mean_tokens
    found = at_equal_tokens(made, lab_policy("layered", 8000, made.segmented), 8000, wanted)
    assert abs(found.mean_tokens - wanted) <= 0.02 * wanted


# Windows and policies --------------------------------------------------------------------------


def test_triggers_scale_with_the_window():
    assert lab_policy("layered", 128_000).threshold(128_000, 16_000) == 32_000
    assert lab_policy("layered", 64_000).threshold(64_000, 8_000) == 16_000
    assert lab_policy("cyber", 64_000).threshold(64_000, 8_000) == 32_000
    assert lab_policy("opencode", 64_000).threshold(64_000, 8_000) == 56_000
    assert lab_policy("off", 64_000).threshold(64_000, 8_000) is None


def test_the_default_window_is_one_at_which_policies_act():
    long = subject(*sized(30_000, user("a"), says("b"), user("c")), says("d"))
    assert default_window(long)[0] == 128_000  # 90,000 is over half of it
    assert default_window(subject(*sized(30_000, user("a"), says("b"))))[0] == 15_000
    own = subject(*sized(30_000, user("a")), says("b"), context_window=50_000)
    assert default_window(own)[0] == 50_000


@pytest.mark.parametrize("names", [["nope"], ["cyber", "gssc"], [""], [], ["goal+nope"]])
def test_an_unknown_policy_is_a_clear_error(names: list[str]):
    with pytest.raises(InvalidConfig):
        lab_policies(names)


@pytest.mark.parametrize("window", [0, -5, 10**12])
def test_an_impossible_window_is_a_clear_error(window: int):
    with pytest.raises(InvalidInput, match="window"):
        lab_policy("cyber", window)


def test_policies_are_taken_once_and_in_order():
    assert lab_policies([" off", "cyber", "off"]) == ["off", "cyber"]
