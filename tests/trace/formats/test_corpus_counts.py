"""What other programs wrote, counted here by hand and compared with what was imported."""

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from cyberagent.core.errors import ImportRefused
from cyberagent.core.types import Reasoning, Text
from cyberagent.trace.formats import read_transcript
from cyberagent.trace.goals import replay
from cyberagent.trace.tree import branches, ghosts, stood_for

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT.parent / "shared" / "corpus"
needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"the corpus of real transcripts is not at {CORPUS.name}"
)
CLAUDE = sorted((CORPUS / "claude-code").glob("*.jsonl"))
CHATS = sorted((CORPUS / "chat-completions").glob("*.json*"))


def agents_of(path):
    return sorted((path.parent / path.stem / "subagents").glob("agent-*.jsonl"))


@pytest.fixture(params=CLAUDE, ids=lambda p: p.stem)
def session(request, tmp_path):
    return laid_out(request.param, tmp_path)


def laid_out(path, tmp_path):
    """A session as its own agent laid it out: sub-agents' files in a folder of their own, which
    the corpus writes into the names."""
    laid = tmp_path / path.name
    shutil.copy(path, laid)
    for beside in path.parent.glob(f"{path.stem}__subagents__agent-*.jsonl"):
        folder = tmp_path / path.stem / "subagents"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(beside, folder / beside.name.rpartition("__")[2])
    return laid


def claude_entries(path):
    """User and assistant entries of a session and of the sub-agent files that belong to it."""
    for file in [path, *agents_of(path)]:
        for line in file.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["type"] in ("user", "assistant"):
                yield file, entry


def count_claude(path):
    messages, calls, texts = 0, 0, 0
    answers = defaultdict(lambda: defaultdict(int))
    for file, entry in claude_entries(path):
        message = entry["message"]
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        kinds = [block["type"] for block in blocks]
        calls += kinds.count("tool_use")
        texts += sum(len(b["text"]) for b in blocks if b["type"] == "text")
        if entry["type"] == "user":
            results = kinds.count("tool_result")
            messages += results + (len(kinds) > results or not kinds)
            continue
        if "id" not in message:
            messages += 1
        # A chain is a file's main part or its side part: ids are not shared between them.
        key = message.get("id") or entry["uuid"]
        chain = (file, entry.get("isSidechain", False), key)
        for name, value in message.get("usage", {}).items():
            if isinstance(value, int):
                answers[chain][name] = max(answers[chain][name], value)
        if "id" in message:
            answers[chain]["seen"] = 1
    messages += sum(a["seen"] for a in answers.values())
    prompt = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return {
        "messages": messages,
        "tool_calls": calls,
        "texts": texts,
        "prompt": sum(a[name] for a in answers.values() for name in prompt),
        "completion": sum(a["output_tokens"] for a in answers.values()),
    }


@needs_corpus
@pytest.mark.parametrize("path", CLAUDE, ids=lambda p: p.stem)
def test_a_file_on_its_own_gives_what_that_file_holds(path):
    [imported] = read_transcript(path)
    counted = count_claude(path)
    assert imported.messages == counted["messages"]
    assert imported.tool_calls == counted["tool_calls"]


@needs_corpus
def test_a_claude_session_has_the_messages_calls_texts_and_tokens_that_its_files_hold(session):
    path = session
    [imported] = read_transcript(path)
    stored = [m for trace in imported.trace.walk() for m in trace.messages]
    usages = [m.usage for m in stored if m.usage]
    humans_and_answers = [m for m in stored if m.role != "tool"]
    assert count_claude(path) == {
        "messages": imported.messages,
        "tool_calls": imported.tool_calls,
        "texts": sum(
            len(p.text) for m in humans_and_answers for p in m.parts if isinstance(p, Text)
        ),
        "prompt": sum(u.prompt or 0 for u in usages),
        "completion": sum(u.completion or 0 for u in usages),
    }


@needs_corpus
def test_side_chains_and_sub_agents_are_those_of_the_files(session):
    path = session
    roots, mains, agents, compacts = 0, 0, 0, 0
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        roots += entry.get("isSidechain", False) and entry["parentUuid"] is None
        mains += entry["type"] in ("user", "assistant") and not entry.get("isSidechain", False)
    for beside in agents_of(path):
        is_compact = beside.name.startswith("agent-acompact-")
        compacts, agents = compacts + is_compact, agents + (not is_compact)
    if not mains:  # a sub-agent's own file: its side chain is the trace
        roots = 0
    [imported] = read_transcript(path)
    assert imported.side_branches == roots + compacts
    assert imported.children == roots + agents


@needs_corpus
def test_no_parallel_batch_is_taken_for_a_rewind(session):
    # None of these people went back: what is off the path was summarised, or is a side branch.
    [imported] = read_transcript(session)
    for trace in imported.trace.walk():
        messages = {m.sequence: m for m in trace.checked().messages}
        assert ghosts(messages, trace.state.head_sequence) == []


@needs_corpus
def test_the_plan_of_an_import_is_what_replay_of_its_path_gives(session):
    [imported] = read_transcript(session)
    for trace in imported.trace.walk():
        plan = replay(trace.main_path(), trace.state.mission)
        assert (trace.goals or {"goals": []})["goals"] == plan.to_json()["goals"]


@needs_corpus
@pytest.mark.parametrize(
    ("name", "tokens", "agent"),
    [("258c7280", 167_094, "acompact-fffbd0"), ("fa812bfe", 167_117, "acompact-70d8e7")],
)
def test_a_compaction_becomes_a_summary_that_stands_for_all_before(name, tokens, agent, tmp_path):
    path = next(p for p in CLAUDE if name in p.name and "subagents" not in p.name)
    trace = read_transcript(laid_out(path, tmp_path))[0].trace
    [summary] = [m for m in trace.messages if m.source == "summary"]
    messages = {m.sequence: m for m in trace.messages}
    assert summary.parent_sequence is None
    assert summary.metadata["compaction"] == {"trigger": "auto"}
    assert summary.metadata["stands_for"]["tokens_before"] == tokens
    before = stood_for(messages, summary)
    assert len(before) == summary.metadata["stands_for"]["messages"]
    [branch] = branches(messages)
    assert (branch.branch_id, branch.branch_type) == (agent, "compression")
    # Everything before it is stood for or in the branch; everything after is the main path.
    assert sorted([*before, *branch.sequences]) == list(range(1, summary.sequence))
    path_now = [m.sequence for m in trace.main_path()]
    assert path_now == list(range(summary.sequence, len(trace.messages) + 1))


@needs_corpus
def test_sub_agents_hang_under_the_call_with_their_prompt():
    path = CORPUS / "claude-code"
    [path] = path.glob("d-kimuson*fe5e1c67*.jsonl")
    trace = read_transcript(path)[0].trace
    for child in trace.children:
        spawner = trace.messages[child.state.parent_message - 1]
        prompts = [c.parsed().get("prompt") for c in spawner.tool_calls]
        assert child.messages[0].text in prompts


def chat_lists(path):
    """The lists of messages in a file, as the forms of the corpus keep them."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line)["messages"] for line in text.splitlines()]
    value = json.loads(text)
    if isinstance(value, dict) and "answer_generation" in value:
        return [value["answer_generation"]["train_messages"][-1]]
    if isinstance(value, dict):
        return [value["messages"] + [c["message"] for c in value["response"]["choices"][:1]]]
    return [value] if "role" in value[0] else [record["traj"] for record in value]


@needs_corpus
@pytest.mark.parametrize("path", CHATS, ids=lambda p: p.stem)
def test_a_chat_file_has_the_conversations_messages_and_calls_that_it_holds(path):
    lists = chat_lists(path)
    imported = read_transcript(path)
    assert len(imported) == len(lists)
    for one, messages in zip(imported, lists, strict=True):
        calls = sum(
            len(m.get("tool_calls") or ()) or bool(m.get("function_call")) for m in messages
        )
        assert one.messages == len(messages)
        assert one.tool_calls == calls
        results = [m for m in one.trace.messages if m.role == "tool"]
        assert all(m.tool_call_id and m.name for m in results)


@needs_corpus
def test_the_tokens_of_a_logged_answer_are_kept():
    [path] = (CORPUS / "chat-completions").glob("*llm-log*")
    last = read_transcript(path)[0].trace.messages[-1]
    assert (last.usage.prompt, last.usage.completion) == (6_729, 199)


@needs_corpus
def test_reasoning_keeps_its_signature():
    path = next(p for p in CLAUDE if p.name.endswith("short.jsonl"))
    signatures = [
        block["signature"]
        for _, entry in claude_entries(path)
        for block in entry["message"]["content"]
        if isinstance(block, dict) and block["type"] == "thinking"
    ]
    [imported] = read_transcript(path)
    parts = [p for m in imported.trace.messages for p in m.parts if isinstance(p, Reasoning)]
    assert [p.blob["signature"] for p in parts] == signatures
    assert signatures


OTHERS = [
    p for folder in ("codex-cli", "inspect", "pi", "gemini-cli", "atif", "langfuse", "aider")
    if (CORPUS / folder).is_dir() for p in sorted((CORPUS / folder).rglob("*")) if p.is_file()
]  # fmt: skip


@needs_corpus
def test_files_of_other_programs_are_refused_with_the_known_formats_named():
    assert OTHERS
    for path in OTHERS:
        with pytest.raises(ImportRefused, match=r"Known formats|meta\.json"):
            read_transcript(path)
