from pathlib import Path

import pytest

from cyberagent.core.errors import ImportRefused
from cyberagent.core.types import File, Image, Reasoning, Text, ToolCall
from cyberagent.trace.formats import find_claude_sessions, read_transcript
from cyberagent.trace.formats.claude_code import agent_files
from cyberagent.trace.tree import ghosts, unanswered
from tests.trace.formats.claude import Session, call, text

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "cyberagent" / "prompts" / "samples" / "claude-code-sample.jsonl"


def imported(session, tmp_path, name="session.jsonl"):
    [one] = read_transcript(session.save(tmp_path / name))
    one.trace.checked()
    return one


def shape(trace):
    """Role, text and parent of each message."""
    return [(m.role, m.text, m.parent_sequence) for m in trace.messages]


def test_lines_of_one_answer_are_one_message_even_with_a_result_between_them(tmp_path):
    s = Session()
    s.human("look")
    s.says({"type": "thinking", "thinking": "two files", "signature": "c2ln"}, id="m")
    s.says(text("Reading."), id="m")
    s.says(call("a", path="x"), id="m")
    s.result("a", "one")
    s.says(call("b", path="y"), id="m")
    s.result("b", [text("two"), text("three")])
    one = imported(s, tmp_path)
    answer = one.trace.messages[1]
    assert answer.parts == (
        Reasoning(
            "two files",
            "claude-x",
            {"type": "thinking", "thinking": "two files", "signature": "c2ln"},
        ),
        Text("Reading."),
        ToolCall("a", "Read", '{"path":"x"}'),
        ToolCall("b", "Read", '{"path":"y"}'),
    )
    assert shape(one.trace)[2:] == [("tool", "one", 2), ("tool", "two\nthree", 3)]
    assert [m.tool_call_id for m in one.trace.messages[2:]] == ["a", "b"]
    assert {m.name for m in one.trace.messages[2:]} == {"Read"}
    assert (one.messages, one.tool_calls) == (4, 2)


def test_usage_is_the_largest_value_of_each_count_once_for_an_answer(tmp_path):
    s = Session()
    s.human("hi")
    cached = {"cache_read_input_tokens": 500, "cache_creation_input_tokens": 40}
    s.says(text("a"), usage={"input_tokens": 10, "output_tokens": 1, **cached})
    s.says(text("b"), usage={"input_tokens": 10, "output_tokens": 77, **cached})
    s.says(text("c"), usage={"input_tokens": 10, "output_tokens": 8, **cached})
    usage = imported(s, tmp_path).trace.messages[1].usage
    assert (usage.prompt, usage.completion) == (550, 77)
    assert (usage.cached, usage.cache_write) == (500, 40)


def test_usage_of_zeros_is_not_reported_usage(tmp_path):
    s = Session()
    s.human("hi")
    s.says(text("a"), usage={"input_tokens": 0, "output_tokens": 0})
    assert imported(s, tmp_path).trace.messages[1].usage is None


def test_several_results_and_a_text_in_one_line_are_several_messages(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("a"), call("b"))
    s.human(
        [
            {"type": "tool_result", "tool_use_id": "b", "content": "B"},
            text("and stop"),
            {"type": "tool_result", "tool_use_id": "a", "content": "A", "is_error": True},
        ]
    )
    messages = imported(s, tmp_path).trace.messages[2:]
    assert [(m.role, m.text, m.is_error) for m in messages] == [
        ("tool", "B", False),
        ("tool", "A", True),
        ("user", "and stop", False),
    ]


def test_empty_texts_make_no_part(tmp_path):
    s = Session()
    s.human("")
    s.says(text(""), text("x"))
    messages = imported(s, tmp_path).trace.messages
    assert [m.parts for m in messages] == [(), (Text("x"),)]


def test_images_and_documents_become_parts(tmp_path):
    png = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    s = Session()
    s.human(
        [
            {"type": "image", "source": png},
            {"type": "image", "source": {"type": "url", "url": "https://e.example/x.png"}},
            {"type": "document", "source": {**png, "media_type": "application/pdf"}},
        ]
    )
    s.says(call("a"))
    s.result("a", [{"type": "image", "source": png}])
    first, _, last = imported(s, tmp_path).trace.messages
    assert first.parts == (
        Image("image/png", "aGk="),
        Image(url="https://e.example/x.png"),
        File("document", "application/pdf", data="aGk="),
    )
    assert last.parts == (Image("image/png", "aGk="),)


def test_a_call_without_an_id_gets_one_and_its_result_finds_it(tmp_path):
    s = Session()
    s.human("go")
    asked = s.says({"type": "tool_use", "name": "bash", "input": {}})
    s.human(
        [{"type": "tool_result", "content": "done"}],
        sourceToolAssistantUUID=asked,
        sourceToolUseID="not-in-this-file",
    )
    trace = imported(s, tmp_path).trace
    assert trace.messages[1].tool_calls[0].id != ""
    assert unanswered(trace.messages) == []
    assert trace.messages[2].name == "bash"


def test_a_call_without_a_result_is_kept_and_told(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("a"))
    one = imported(s, tmp_path)
    assert len(unanswered(one.trace.messages)) == 1
    assert one.warnings == ("a call has no result",)


def test_a_person_who_went_back_leaves_a_ghost(tmp_path):
    s = Session()
    first = s.human("plan it")
    plan = s.says(text("A plan."), id="m1")
    s.human("do plan A")
    s.says(text("Doing A."), id="m2")
    s.human("rather plan B", parent=plan)
    s.says(text("Doing B."), id="m3")
    trace = imported(s, tmp_path).trace
    assert [m.text for m in trace.main_path()] == [
        "plan it", "A plan.", "rather plan B", "Doing B.",
    ]  # fmt: skip
    [ghost] = ghosts({m.sequence: m for m in trace.messages}, trace.state.head_sequence)
    assert (ghost.left_from, ghost.sequences) == (2, (3, 4))
    assert [m.turn for m in trace.messages] == [1, 1, 2, 2, 2, 2]
    assert first


def test_a_word_between_parallel_results_is_no_rewind(tmp_path):
    s = Session()
    s.human("go")
    one = s.says(call("a"), id="m")
    two = s.says(call("b"), id="m")
    s.result("a", "A", parent=one)
    s.entry("progress", parent=two, data={"type": "hook_progress"})
    s.human("hurry", parent=two)
    s.result("b", "B", parent=two)
    trace = imported(s, tmp_path).trace
    assert len(trace.main_path()) == len(trace.messages) == 5


def test_a_parent_behind_progress_lines_is_still_the_tip(tmp_path):
    s = Session()
    s.human("go")
    s.says(text("done"))
    s.entry("progress", data={"type": "bash_progress"})
    s.entry("system", subtype="turn_duration")
    s.human("more")
    trace = imported(s, tmp_path).trace
    assert [m.parent_sequence for m in trace.messages] == [None, 1, 2]


def test_uuids_in_a_circle_or_shared_by_entries_hang_nothing_wrongly(tmp_path):
    s = Session()
    s.human("one", uuid="same", parent="same")
    s.says(text("a"), id="m1", uuid="same", parent="same")
    s.human("two", uuid="same", parent="same")
    s.says(text("b"), id="m2")
    s.human("three", parent="same")
    trace = imported(s, tmp_path).trace
    assert len(trace.main_path()) == 5


def compacted_session():
    s = Session()
    s.human("build it")
    s.says(call("t", "TodoWrite", todos=[
        {"content": "Parse", "status": "completed"},
        {"content": "Print", "status": "in_progress"},
    ]), id="m1")  # fmt: skip
    s.result("t", "ok")
    s.says(text("printing"), id="m2")
    s.entry(
        "system",
        parent=None,
        subtype="compact_boundary",
        compactMetadata={"trigger": "auto", "preTokens": 155_000},
    )
    s.human("Summary: parse is done.", isCompactSummary=True)
    s.says(text("going on"), id="m3", usage={"input_tokens": 9_000, "output_tokens": 5})
    return s


def test_a_compaction_is_a_new_root_that_says_what_it_stands_for(tmp_path):
    trace = imported(compacted_session(), tmp_path).trace
    summary = trace.messages[4]
    assert (summary.source, summary.role, summary.parent_sequence) == ("summary", "user", None)
    assert summary.metadata["compaction"] == {"trigger": "auto"}
    assert summary.metadata["stands_for"] == {
        "first": 1, "last": 4, "messages": 4, "tokens_before": 155_000, "tokens_after": 9_000,
    }  # fmt: skip
    assert [m.sequence for m in trace.main_path()] == [5, 6]


def test_the_plan_goes_on_after_a_compaction(tmp_path):
    trace = imported(compacted_session(), tmp_path).trace
    assert [m.goal_id for m in trace.messages] == ["", "", "", "2", "", "2"]
    goals = [(g["description"], g["status"]) for g in trace.goals["goals"]]
    assert goals == [("Parse", "completed"), ("Print", "in_progress")]
    snapshot = trace.messages[4].metadata["snapshot"]["goals"]
    assert snapshot["current_id"] == "2"


def test_a_refused_todo_list_changes_no_plan(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("t", "TodoWrite", todos=[{"content": "Parse", "status": "in_progress"}]))
    s.result("t", "no such tool", is_error=True)
    assert imported(s, tmp_path).trace.goals is None


def test_side_chains_in_the_file_are_child_traces_of_their_calls(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("one", "Task", prompt="count apples"), id="m1")
    s.says(call("two", "Task", prompt="count pears"), id="m1")
    s.human("count pears", parent=None, isSidechain=True)
    s.says(text("7 pears"), id="s1", isSidechain=True)
    s.human("count apples", parent=None, isSidechain=True)
    s.says(text("5 apples"), id="s2", isSidechain=True)
    s.result("one", "5")
    one = imported(s, tmp_path)
    assert (one.side_branches, one.children, one.messages) == (2, 2, 7)
    assert [c.messages[1].text for c in one.trace.children] == ["7 pears", "5 apples"]
    assert [c.state.parent_message for c in one.trace.children] == [2, 2]
    assert [c.state.mission for c in one.trace.children] == ["count pears", "count apples"]
    assert len(one.trace.messages) == 3


def test_a_side_chain_with_another_prompt_is_linked_by_order(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("one", "Task", prompt="count apples"))
    s.human("Count all apples.", parent=None, isSidechain=True)
    s.human("Warmup", parent=None, isSidechain=True)
    one = imported(s, tmp_path)
    how = [c.state.context["imported"].get("linked_by") for c in one.trace.children]
    assert how == ["order", None]
    assert [c.state.parent_message for c in one.trace.children] == [2, None]


def session_with_agents(folder):
    s = Session()
    s.human("go")
    s.says(call("t", "Task", prompt="look"))
    s.result("t", "seen", toolUseResult={"agentId": "a1", "totalDurationMs": 1500})
    asked = s.says(text("fine"), id="m2")
    s.entry("system", parent=None, subtype="compact_boundary", compactMetadata={})
    s.human("Summary.", isCompactSummary=True)
    s.save(folder / "main.jsonl")
    agent = Session(isSidechain=True, agentId="a1")
    agent.human("look", parent=None)
    agent.says(text("seen"), id="m-a")
    agent.save(folder / "main" / "subagents" / "agent-a1.jsonl")
    compact = Session(isSidechain=True, agentId="acompact-c1")
    compact.human("a hook said", parent="u-2", isMeta=True)
    compact.human("Summarise all.", parent=asked)
    compact.says(text("Summary."), id="m-c")
    compact.save(folder / "main" / "subagents" / "agent-acompact-c1.jsonl")
    return folder / "main.jsonl"


def test_sub_agent_files_beside_a_session_are_read_with_it(tmp_path):
    [one] = read_transcript(session_with_agents(tmp_path))
    [child] = one.trace.children
    assert child.state.parent_message == 2
    assert child.state.context["imported"] == {"agent_id": "a1", "linked_by": "agent id"}
    assert one.trace.messages[2].duration_ms == 1500
    assert (one.children, one.side_branches) == (1, 1)


def test_a_summarising_agent_is_a_side_branch_where_it_was_asked(tmp_path):
    [one] = read_transcript(session_with_agents(tmp_path))
    messages = one.trace.checked().messages
    branch = [m for m in messages if m.branch_id]
    assert [(m.sequence, m.text, m.branch_type) for m in branch] == [
        (5, "a hook said", "compression"),
        (6, "Summarise all.", "compression"),
        (7, "Summary.", "compression"),
    ]
    assert branch[0].parent_sequence == 4
    assert messages[7].source == "summary"
    assert messages[7].metadata["stands_for"]["last"] == 4


def test_a_summarising_agent_alone_is_a_trace(tmp_path):
    path = session_with_agents(tmp_path).parent / "main" / "subagents"
    [one] = read_transcript(path / "agent-acompact-c1.jsonl")
    assert (one.messages, one.side_branches, one.children) == (3, 0, 0)


def test_only_a_sessions_own_agent_files_are_opened(tmp_path):
    main = session_with_agents(tmp_path)
    outside = tmp_path / "outside.jsonl"
    outside.write_text("{}")
    (tmp_path / "main" / "subagents" / "agent-link.jsonl").symlink_to(outside)
    (tmp_path / "agent-named.jsonl").write_text("{}")
    (tmp_path / "agent-other.jsonl").write_text("{}")
    found = agent_files(main, {"named", "../outside"})
    assert [name for name, _ in found] == ["a1", "acompact-c1", "named"]


def test_two_agents_that_name_each_other_make_no_circle(tmp_path):
    s = Session()
    s.human("go")
    s.save(tmp_path / "main.jsonl")
    for name, other in (("a", "b"), ("b", "a")):
        agent = Session(isSidechain=True, agentId=name)
        agent.human(f"I am {name}", parent=None)
        agent.says(call(f"t-{name}", "Task", prompt="x"), id=f"m-{name}")
        agent.result(f"t-{name}", "ok", toolUseResult={"agentId": other})
        agent.save(tmp_path / "main" / "subagents" / f"agent-{name}.jsonl")
    [one] = read_transcript(tmp_path / "main.jsonl")
    assert (one.children, one.messages) == (2, 7)


def test_lines_that_are_no_conversation_are_counted_by_kind(tmp_path):
    s = Session()
    s.human("hi")
    s.entry("progress", data={"type": "hook_progress"})
    s.entry("progress", data={"type": "hook_progress"})
    s.entry("system", subtype="turn_duration")
    s.entry("from-the-future")
    assert imported(s, tmp_path).ignored == {
        "progress/hook_progress": 2,
        "system/turn_duration": 1,
        "from-the-future": 1,
    }


def test_large_details_of_a_result_are_left_out_by_name(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("a"), call("b"))
    s.result("a", "x", toolUseResult={"stdout": "y" * 5_000, "code": 0})
    s.result("b", "x", toolUseResult={"code": 0})
    a, b = imported(s, tmp_path).trace.messages[2:]
    assert a.metadata["tool_use_result"] == {"code": 0, "left_out": ["stdout"]}
    assert b.metadata["tool_use_result"] == {"code": 0}


def test_commands_are_no_mission(tmp_path):
    s = Session()
    s.human("<command-name>/clear</command-name>")
    s.human("Fix the \x00 bug \ud800")
    assert imported(s, tmp_path).trace.state.mission == "Fix the \ufffd bug \ufffd"


def test_a_session_without_any_message_is_refused_with_what_it_has(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"type": "summary", "summary": "x", "leafUuid": "y"}\n')
    with pytest.raises(ImportRefused, match=r"no message of a Claude Code session.*summary"):
        read_transcript(path)


def test_the_sample_that_is_shipped_shows_what_the_product_can_show():
    [one] = read_transcript(SAMPLE)
    one.trace.checked()
    assert (one.side_branches, one.children) == (1, 1)
    assert one.trace.children[0].state.context["imported"]["linked_by"] == "prompt"
    assert len([m for m in one.trace.messages if m.source == "summary"]) == 1
    assert max(len(m.tool_calls) for m in one.trace.messages) == 3
    assert {g["status"] for g in one.trace.goals["goals"]} == {"completed"}
    assert (one.skipped_lines, one.warnings) == (0, ())
    assert all(m.created_at for m in one.trace.messages)


def test_sessions_are_found_newest_first_by_name_and_size_alone(tmp_path):
    import os

    projects = tmp_path / ".claude" / "projects"
    for name, age in (("p/old", 100), ("p/new", 1), ("q/mid", 50)):
        path = projects / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not even JSON")
        os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
    (projects / "p" / "empty.jsonl").touch()
    (projects / "p" / "link.jsonl").symlink_to(projects / "p" / "new.jsonl")
    found = find_claude_sessions(tmp_path)
    assert [(f.project, f.path.name) for f in found] == [
        ("p", "new.jsonl"), ("q", "mid.jsonl"), ("p", "old.jsonl"),
    ]  # fmt: skip
    assert found[0].size == 13
    assert found[0].modified == "2023-11-14T22:13:19+00:00"
    assert len(find_claude_sessions(tmp_path, most=1)) == 1
    assert find_claude_sessions(tmp_path / "nobody") == []
