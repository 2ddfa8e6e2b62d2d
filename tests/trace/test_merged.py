"""The merged view: rows of one message, and the whole as text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.types import (
    INTERRUPTED_RESULT,
    Image,
    Json,
    Message,
    Reasoning,
    Text,
    ToolCall,
)
from cyberagent.trace.goals import GoalOperation, GoalTree
from cyberagent.trace.merged import happened, merged_text
from cyberagent.trace.rows import (
    CallRow,
    ChildRow,
    MessageRow,
    Note,
    SummaryRow,
    cut_to_width,
    notes_of,
    row_count,
    rows_of,
    short_arguments,
    terminal_safe,
)
from cyberagent.trace.tree import Branch


def call(call_id: str, name: str, **arguments: Json) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


def answer(*parts: Text | ToolCall | Reasoning, **more: Json) -> Message:
    return Message(role="assistant", source="model", parts=parts, **more)


def result(call_id: str, text: str = "ok", **more: Json) -> Message:
    return Message(role="tool", source="tool", parts=(Text(text),), tool_call_id=call_id, **more)


# Rows ----------------------------------------------------------------------------------------


def test_a_text_with_two_calls_makes_three_rows_and_results_none():
    message = answer(Text("look"), call("a", "ls"), call("b", "ls"), sequence=7, goal_id="1")
    results = [
        result("b", "two\nlines", sequence=9, is_error=True, duration_ms=5),
        result("a", sequence=8),
    ]
    text, first, second = rows_of(message, results)
    assert isinstance(text, MessageRow)
    assert (text.sequence, text.part, text.text, text.goal_id) == (7, 0, "look", "1")
    assert isinstance(first, CallRow) and isinstance(second, CallRow)
    assert (first.part, first.status, first.result) == (1, "ok", 8)
    assert (second.status, second.outcome, second.result) == ("error", "two lines", 9)
    assert second.duration_ms == 5
    assert [row_count(m) for m in (message, *results)] == [3, 0, 0]


def test_a_call_waits_until_its_result_is_there():
    (row,) = rows_of(answer(call("a", "ls")))
    assert isinstance(row, CallRow)
    assert (row.status, row.result) == ("waiting", 0)


def test_calls_with_one_id_take_their_results_in_order():
    message = answer(call("a", "ls"), call("a", "cat"))
    rows = rows_of(message, [result("a", sequence=1), result("a", sequence=2)])
    assert [r.result for r in rows if isinstance(r, CallRow)] == [1, 2]


def test_a_real_result_is_shown_rather_than_its_placeholder():
    results = [result("a", INTERRUPTED_RESULT, sequence=2), result("a", "real", sequence=3)]
    (row,) = rows_of(answer(call("a", "ls")), results)
    assert isinstance(row, CallRow)
    assert (row.outcome, row.result) == ("real", 3)


def test_an_orphan_makes_a_row_of_its_own():
    assert row_count(result("")) == 1
    assert row_count(result("a"), orphan=True) == 1
    (row,) = rows_of(result("a", "late"))
    assert isinstance(row, CallRow)
    assert (row.status, row.outcome) == ("orphan", "late")


def test_an_answer_of_thoughts_alone_makes_one_row():
    (row,) = rows_of(answer(Reasoning("hm")))
    assert isinstance(row, MessageRow)
    assert (row.is_thought, row.text) == (True, "hm")


def test_a_summary_says_how_much_it_stands_for():
    told = {"first": 2, "last": 213, "messages": 212, "tokens_before": 91_000,
            "tokens_after": 1_800}  # fmt: skip
    message = Message(
        role="user", source="summary", parts=(Text("What was done"),), metadata={"stands_for": told}
    )
    (row,) = rows_of(message)
    assert isinstance(row, SummaryRow)
    assert (row.messages, row.tokens_before, row.tokens_after) == (212, 91_000, 1_800)
    assert row_count(message) == 1
    odd = replace(message, metadata={"stands_for": {"messages": "many"}})
    assert isinstance(rows_of(odd)[0], SummaryRow)


PARTS = st.one_of(
    st.builds(Text, st.text(max_size=5)),
    st.builds(Reasoning, st.text(max_size=5)),
    st.builds(ToolCall, st.sampled_from("ab"), st.just("ls"), st.text(max_size=5)),
    st.just(Image(url="x")),
)


@given(
    st.sampled_from(["user", "assistant", "system"]),
    st.sampled_from(["model", "user", "summary", "framework"]),
    st.lists(PARTS, max_size=6),
)
def test_the_count_told_beforehand_is_the_number_of_rows(role: Json, source: Json, parts: Json):
    message = Message(role=role, source=source, parts=tuple(parts))
    assert row_count(message) == len(rows_of(message))
    assert row_count(message) >= 1


# Arguments and terminals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "short"),
    [
        ({"path": "models/user.py"}, '"models/user.py"'),
        ({"path": "app.py", "edits": [1, 2, 3]}, '"app.py", 3 hunks'),
        ({"path": "a", "offset": 10}, '"a", offset=10'),
        ({"pattern": "**/user*.py"}, '"**/user*.py"'),
        ({"done": "1.1", "summary": "a\nb"}, 'done="1.1", summary: 2 lines'),
        ({"add": None, "focus": ""}, ""),
        ({"path": 'say "hi"'}, r'"say \"hi\""'),
        ({"path": "用户.py"}, '"用户.py"'),
        ({"options": {"a": 1}, "all": True}, "options={…}, all=true"),
        ({"task_brief": {"objective": "Write it", "reason": "x"}}, 'task_brief="Write it"'),
    ],
)
def test_short_arguments(arguments: dict[str, Json], short: str):
    assert short_arguments(call("a", "x", **arguments)) == short


def test_arguments_that_are_no_object_are_shown_as_written():
    assert short_arguments(ToolCall("a", "x", '{"path": ')) == '{"path":'
    assert len(short_arguments(ToolCall("a", "x", "[" * 100_000))) == 60
    assert len(short_arguments(call("a", "x", path="p" * 1_000))) < 70


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[2J", "␛[2J"),
        ("a\rb\x00\x7f", "a␍b␀␡"),
        ("\x9b31m", "\ufffd31m"),
        ("\u202egpj.exe", "\ufffdgpj.exe"),
        ("\ud800", "\ufffd"),
        ("two\n\tlines 中文", "two\n\tlines 中文"),
    ],
)
def test_a_terminal_is_never_acted_upon(text: str, safe: str):
    assert terminal_safe(text) == safe


def test_a_wide_character_takes_two_columns():
    assert cut_to_width("中文中文", 8) == "中文中文"
    assert cut_to_width("中文中文", 7) == "中文中…"
    assert cut_to_width("abcdef", 4) == "abc…"


# The text ------------------------------------------------------------------------------------


def example() -> tuple[GoalTree, list[Message]]:
    tree = GoalTree(mission="Implement user authentication")
    for operation in (
        GoalOperation(add="Analyse code, Plan A, Test", focus="1"),
        GoalOperation(done="user model in models/user.py", focus="2"),
        GoalOperation(abandon="2", summary="needs Redis", add="Plan B", after="2", focus="2'"),
    ):
        tree, _ = tree.apply(operation)
    calls = [
        call("1", "glob_files", pattern="**/user*.py"),
        call("2", "read_file", path="models/user.py"),
        call("3", "read_file", path="a.py"),
        call("4", "read_file", path="b.py"),
        call("5", "read_file", path="c.py"),
    ]
    path: list[Message] = []
    for one in calls:
        path += [answer(one, goal_id="1", duration_ms=200), result(one.id, goal_id="1",
                                                                   duration_ms=40)]  # fmt: skip
    edit = call("6", "edit_file", path="app.py")
    path += [answer(edit, goal_id="2'"), result("6", goal_id="2'")]
    return tree, [replace(m, sequence=n) for n, m in enumerate(path, start=1)]


def test_the_text_form():
    tree, path = example()
    assert list(merged_text(tree, path)) == [
        "Mission: Implement user authentication",
        "[✓] 1. Analyse code (5 steps, 1.2s)",
        "    → user model in models/user.py",
        '    ├─ glob_files("**/user*.py")',
        '    ├─ read_file("models/user.py")',
        "    └─ [3 steps folded]",
        "[✗] 2. Plan A (abandoned) → needs Redis",
        "[→] 2'. Plan B  ← current",
        '    └─ edit_file("app.py")',
        "[ ] 3. Test",
        "Progress: 1/3 goals | Current: 2'",
    ]


def test_the_text_form_in_chinese():
    tree, path = example()
    text = list(merged_text(tree, path, language="zh"))
    assert text[0] == "任务: Implement user authentication"
    assert text[1] == "[✓] 1. Analyse code (5 步, 1.2s)"
    assert text[5] == "    └─ [3 步已折叠]"
    assert text[-1] == "进度: 1/3 个目标 | 当前: 2'"


def test_unfolded_every_step_is_there():
    tree, path = example()
    text = list(merged_text(tree, path, fold=False))
    assert [line for line in text if "read_file" in line] == [
        '    ├─ read_file("models/user.py")',
        '    ├─ read_file("a.py")',
        '    ├─ read_file("b.py")',
        '    └─ read_file("c.py")',
    ]


def test_messages_without_a_known_goal_stand_under_the_mission():
    tree = GoalTree(mission="m")
    path = [
        Message(role="user", source="user", parts=(Text("do it"),), sequence=1),
        answer(Text("done"), sequence=2, goal_id="9"),
    ]
    assert list(merged_text(tree, path)) == [
        "Mission: m",
        "├─ user: do it",
        "└─ assistant: done",
        "Progress: 0/0 goals",
    ]


def test_what_hangs_on_a_message_stands_below_it():
    path = [answer(call("a", "explore"), sequence=1), answer(Text("done"), sequence=2)]
    text = list(
        merged_text(
            GoalTree(mission="m"),
            path,
            children=[ChildRow(sequence=1, trace_id="c1", mission="look", status="completed")],
            branches=[
                Branch(left_from=1, sequences=(3, 4), branch_id="r", branch_type="reflection")
            ],
            ghosts=[Branch(left_from=2, sequences=(5, 6, 7))],
        )
    )
    assert text[1:-1] == [
        "├─ explore() …",
        "│  └─ sub-agent c1 (completed): look",
        "├─ side branch reflection (2 messages)",
        "├─ assistant: done",
        "└─ left behind by a rewind (3 messages)",
    ]


def test_sub_agents_stand_below_their_calls_and_theirs_below_them():
    path = [
        answer(Text("go"), call("a", "agent"), call("b", "agent"), sequence=1),
        answer(Text("done"), sequence=2),
    ]
    below = {"sequence": 1, "agent": "agent", "status": "completed"}
    children = [
        ChildRow(trace_id="c1", mission="first", call="a", steps=3, verdict="passed", **below),
        ChildRow(trace_id="c2", mission="inner", call="a", level=1, steps=1, **below),
        ChildRow(trace_id="c3", mission="inmost", call="a", level=2, **below),
        ChildRow(
            sequence=1, trace_id="v", mission="Validate", call="a", level=1, agent="validator",
            status="completed", verdict="failed", why="no evidence",
        ),
        ChildRow(
            sequence=1, trace_id="c4", mission="second", call="b", agent="explore",
            status="running", goal="2 Look",
        ),
    ]  # fmt: skip
    assert list(merged_text(GoalTree(mission="m"), path, children=children))[1:-1] == [
        "├─ assistant: go",
        "├─ agent() …",
        "│  └─ agent c1 (completed, 3 steps): first [verdict: passed]",
        "│     ├─ agent c2 (completed, 1 step): inner",
        "│     │  └─ agent c3 (completed): inmost",
        "│     └─ verdict of validator v: failed — no evidence",
        "├─ agent() …",
        "│  └─ explorer c4 (running): second — 2 Look",
        "└─ assistant: done",
    ]


def test_only_what_the_framework_recorded_is_told_of_a_message():
    verdict = {"entry": "validated", "result": {"verdict": "passed", "criteria": []}}
    metadata = {"protocol": [verdict, {"entry": "?"}]}
    told = [Note(what="verdict", word="passed")]
    ours = Message(role="user", source="framework", parts=(Text("x"),), metadata=metadata)
    assert list(notes_of(ours)) == told
    assert list(notes_of(result("a", name="submit_report", metadata=metadata))) == told
    for message in (
        answer(Text("x"), metadata=metadata),
        result("a", name="read_file", metadata=metadata),
        replace(ours, source="user"),
    ):
        assert notes_of(message) == ()


def test_a_line_says_what_happens_without_a_row():
    begun = {"event": "ChildStarted", "child": "c1", "agent": "agent", "mission": "x\x1b[0m"}
    assert happened(begun) == "    ↳ agent c1 begins: x␛[0m"
    assert happened(begun | {"resumed": True}) == "    ↳ agent c1 goes on: x␛[0m"
    ended = {"event": "ChildEnded", "child": "c1", "agent": "explore", "status": "failed"}
    assert happened(ended | {"why": "no\nmodel"}) == "    ↳ explorer c1 ended: failed — no model"
    assert happened(ended, language="zh") == "    ↳ 探索者 c1 结束: 失败"
    assert happened({"event": "MessageStored"}) == ""


def test_steps_and_time_of_a_goal_include_those_below_it():
    tree, _ = GoalTree(mission="m").apply(GoalOperation(add="a", focus="1"))
    tree, _ = tree.apply(GoalOperation(add="b", focus="1.1"))
    tree, _ = tree.apply(GoalOperation(done="1.1"))
    tree, _ = tree.apply(GoalOperation(done="1"))
    path = [
        answer(Text("x"), goal_id="1", sequence=1, duration_ms=60_000),
        answer(Text("y"), goal_id="1.1", sequence=2, duration_ms=5_000),
    ]
    text = list(merged_text(tree, path))
    assert "[✓] 1. a (2 steps, 1m 05s)" in text
    assert "    [✓] 1.1 b (1 step, 5.0s)" in text


def test_nothing_of_a_model_reaches_the_terminal_as_a_command():
    evil = "\x1b]0;owned\x07\x9b\n\r"
    tree, _ = GoalTree(mission=evil).apply(GoalOperation(add=f"g{evil}", focus="1"))
    path = [
        answer(Text(evil), ToolCall("a", evil, evil), goal_id="1", sequence=1),
        result("a", evil, is_error=True, sequence=2),
    ]
    for line in merged_text(tree, path, width=40):
        assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in line)


def test_colour_is_ours_alone():
    tree, path = example()
    plain = list(merged_text(tree, path))
    coloured = list(merged_text(tree, path, color=True))
    assert coloured[1] == f"\x1b[32m{plain[1]}\x1b[0m"
    assert coloured[3] == plain[3]
