import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import ImportRefused
from cyberagent.core.types import Image, Message, Reasoning, Text, ToolCall
from cyberagent.trace.formats import read_transcript, write_export
from cyberagent.trace.formats.openai_export import export, export_text

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "transcripts"


def read(value, tmp_path, name="chat.json"):
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    found = read_transcript(path)
    for one in found:
        one.trace.checked()
    return found


def asks(*calls, **fields):
    """An assistant message with calls given as (id, name, arguments)."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
            for i, n, a in calls
        ],
        **fields,
    }


def test_a_list_with_calls_reasoning_and_an_image_is_read_whole():
    [one] = read_transcript(FIXTURES / "chat-tools.json")
    trace = one.trace
    system, *rest = trace.messages
    assert (system.role, system.text) == ("system", "You answer questions about the weather.")
    assert trace.state.mission == "Do I need an umbrella in Oslo or in Rome?"
    assert trace.state.context["imported"]["tools"][0]["function"]["name"] == "forecast"
    user, asked, rome, oslo, last = rest
    assert user.parts[1] == Image("image/png", "aGVsbG8=")
    assert asked.parts == (
        Reasoning("Two cities, two calls."),
        ToolCall("call_1", "forecast", '{"city": "Oslo"}'),
        ToolCall("call_2", "forecast", '{"city": "Rome"}'),
    )
    assert [(m.tool_call_id, m.name, m.text) for m in (rome, oslo)] == [
        ("call_2", "forecast", "sun"),
        ("call_1", "forecast", "rain"),
    ]
    assert last.text == "In Oslo, yes."


def test_the_old_form_with_functions_and_object_arguments_is_read():
    [one] = read_transcript(FIXTURES / "chat-lines.jsonl")
    _, asked, result, _ = one.trace.messages
    [call] = asked.tool_calls
    assert (call.name, call.parsed()) == ("multiply", {"a": 6, "b": 7})
    assert result.tool_call_id == call.id != ""
    assert (result.role, result.text) == ("tool", "42")


def test_ids_used_again_pair_by_order(tmp_path):
    talk = [
        {"role": "user", "content": "go"},
        asks(("0", "first", {})),
        {"role": "tool", "tool_call_id": "0", "content": "1st"},
        asks(("0", "second", {}), ("1", "third", {})),
        {"role": "tool", "tool_call_id": "gone", "content": "2nd"},
        {"role": "tool", "tool_call_id": "1", "content": "3rd"},
    ]
    [one] = read(talk, tmp_path)
    results = [(m.text, m.name, m.tool_call_id) for m in one.trace.messages if m.role == "tool"]
    assert results == [("1st", "first", "0"), ("2nd", "second", "0"), ("3rd", "third", "1")]
    assert one.warnings == ()


def test_several_conversations_in_a_file_are_several_traces(tmp_path):
    talk = [{"role": "user", "content": "hi"}]
    assert len(read([{"traj": talk, "task_id": 4}, {"traj": talk}], tmp_path)) == 2
    lines = "\r\n".join(json.dumps({"messages": talk}) for _ in range(3))
    found = read(lines, tmp_path, "chat.jsonl")
    assert [one.trace.state.mission for one in found] == ["hi"] * 3


def test_facts_of_a_record_are_kept(tmp_path):
    talk = [{"role": "user", "content": "hi"}]
    [one] = read({"messages": talk, "task_id": 4, "reward": 0.5}, tmp_path)
    assert one.trace.state.context == {"imported": {"task_id": 4, "reward": 0.5}}


def test_system_messages_stay_where_they_were(tmp_path):
    talk = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
    ]
    [one] = read(talk, tmp_path)
    assert [(m.role, m.text) for m in one.trace.messages] == [
        ("system", "a"), ("system", "b"), ("user", "hi"), ("system", "c"),
    ]  # fmt: skip


def test_lists_in_the_shape_of_the_messages_api_are_read(tmp_path):
    talk = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "ls", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "a b", "is_error": True},
            {"type": "text", "text": "now stop"},
        ]},
    ]  # fmt: skip
    [one] = read(talk, tmp_path)
    assert [(m.role, m.text, m.is_error) for m in one.trace.messages] == [
        ("user", "go", False), ("assistant", "", False), ("tool", "a b", True),
        ("user", "now stop", False),
    ]  # fmt: skip
    assert one.trace.messages[1].tool_calls == (ToolCall("t1", "ls", "{}"),)


def test_messages_that_are_none_are_skipped_with_their_place(tmp_path):
    talk = [{"role": "user", "content": "hi"}, 5, {"role": "narrator", "content": "x"}]
    [one] = read(talk, tmp_path)
    assert [(s.line, s.why) for s in one.skipped] == [
        (2, "a message with the role 'None'"),
        (3, "a message with the role 'narrator'"),
    ]


def test_todo_lists_become_goals(tmp_path):
    todos = json.dumps({"todos": [{"content": "Parse", "status": "in_progress"}]})
    talk = [
        {"role": "user", "content": "go"},
        asks(("1", "todo_write", todos)),
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
        {"role": "assistant", "content": "parsing"},
    ]
    [one] = read(talk, tmp_path)
    assert [m.goal_id for m in one.trace.messages] == ["", "", "", "1"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"messages_display": "user: hi"}, "unknown form"),
        ({"ticks": []}, "unknown form"),
        ({"messages": "hi"}, "unknown form"),
        ([], "unknown form"),
        ([[], {}], "unknown form"),
        (7, "unknown form"),
    ],
)
def test_what_is_no_list_of_messages_is_refused(value, words, tmp_path):
    with pytest.raises(ImportRefused, match=words):
        read(value, tmp_path)


def test_a_format_that_was_named_says_why_it_does_not_fit(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"ticks": []}')
    with pytest.raises(ImportRefused, match="voice simulation"):
        read_transcript(path, "openai_chat")
    path.write_text('{"messages_display": "x"}')
    with pytest.raises(ImportRefused, match="one text for people"):
        read_transcript(path, "openai_chat")


def test_an_export_is_what_chat_programs_expect():
    [one] = read_transcript(FIXTURES / "chat-tools.json")
    given_ = json.loads((FIXTURES / "chat-tools.json").read_text())["messages"]
    exported = export(one.trace.state.system_prompt, one.trace.main_path())
    for message in exported:
        message.pop("name", None)  # the fixture's results do not repeat the tool's name
    assert exported == given_


def test_only_the_main_path_is_exported(tmp_path):
    [one] = read_transcript(FIXTURES / "claude-rewind.jsonl")
    path = write_export(one.trace, tmp_path / "out" / "chat.json", "openai_chat")
    assert [m["content"] for m in json.loads(path.read_text())] == [
        "Suggest a name for the search page.",
        '"Find" is short and clear.',
        "Too short. Another one?",
        '"Find on this site".',
    ]
    assert [p.name for p in path.parent.iterdir()] == ["chat.json"]


# Round trip ----------------------------------------------------------------------------------

words = st.text(min_size=1, max_size=30).map(lambda s: json.loads(json.dumps(s)))
texts = words.map(Text)
images = st.one_of(
    st.builds(Image, media_type=st.just("image/png"), data=st.just("aGVsbG8=")),
    st.builds(Image, url=st.just("https://e.example/a,b.png")),
)
users = st.lists(st.one_of(texts, images), max_size=3)
arguments = st.dictionaries(words, st.one_of(st.integers(), words), max_size=2).map(json.dumps)


@st.composite
def conversations(draw):
    """Messages as chat-completions can hold them: text, then calls, each with its result."""
    messages = [Message(role="user", source="user", parts=tuple(draw(users)))]
    for number in range(draw(st.integers(0, 4))):
        count = draw(st.integers(0, 3))
        # Ids repeat from turn to turn, as some providers' do.
        calls = [ToolCall(f"c{i}", draw(words), draw(arguments)) for i in range(count)]
        thought = [Reasoning(draw(words))] if draw(st.booleans()) else []
        said = draw(st.lists(texts, max_size=2))
        parts = (*thought, *said, *calls)
        messages.append(Message(role="assistant", source="model", parts=parts))
        for call in draw(st.permutations(calls)):
            result = tuple(draw(st.lists(texts, max_size=2)))
            messages.append(
                Message(
                    role="tool", source="tool", parts=result, tool_call_id=call.id, name=call.name
                )
            )
        if number % 2:
            messages.append(Message(role="user", source="user", parts=tuple(draw(users))))
    return messages


def core(message):
    return message.role, message.parts, message.tool_call_id, message.name


@given(conversations(), words)
def test_what_is_exported_is_read_back_the_same(tmp_path_factory, messages, system):
    path = tmp_path_factory.mktemp("chat") / "chat.json"
    path.write_bytes(export_text(system, messages))
    [one] = read_transcript(path)
    first = [("system", (Text(system),), "", "")] if system else []
    assert [core(m) for m in one.trace.messages] == first + [core(m) for m in messages]


def test_text_that_utf8_cannot_hold_is_exported_and_read_back(tmp_path):
    message = Message(role="user", source="user", parts=(Text("half \ud83d of 去 \0"),))
    path = tmp_path / "chat.json"
    path.write_bytes(export_text("", [message]))
    [one] = read_transcript(path)
    assert one.trace.messages[0].text == "half \ud83d of 去 \0"
