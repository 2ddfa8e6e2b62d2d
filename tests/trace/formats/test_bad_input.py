"""Files as they come: cut, padded, mis-encoded, hostile. Nothing crashes; what is lost is told."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberagent.core.errors import ImportRefused, InvalidInput
from cyberagent.core.types import stored_json
from cyberagent.trace.formats import (
    FORMATS,
    MAX_BYTES,
    Imported,
    detect,
    read_transcript,
)
from cyberagent.trace.formats.reading import trimmed
from cyberagent.trace.formats.values import Notes
from tests.trace.formats.claude import Session, call, text

HUMAN = b'{"type":"user","message":{"role":"user","content":%s}}\n'


def session(*, words="hello"):
    s = Session()
    s.human(words)
    s.says(text("hi"))
    return "".join(line + "\n" for line in s.lines).encode()


def saved(tmp_path, data, name="s.jsonl"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def nested(levels):
    return HUMAN % (b"[" * levels + b"]" * levels)


GOOD = session()
FIRST, SECOND = GOOD.splitlines(keepends=True)

# What is done to the file; messages then; lines skipped; a word of the first reason.
TABLE = {
    "as it is": (GOOD, 2, 0, ""),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, 2, 0, ""),
    "CRLF": (GOOD.replace(b"\n", b"\r\n"), 2, 0, ""),
    "NUL padding": (GOOD + b"\0" * 4096, 2, 0, ""),
    "empty lines": (b"\n\n" + FIRST + b"\n  \n" + SECOND, 2, 0, ""),
    "no newline at the end": (GOOD.rstrip(b"\n"), 2, 0, ""),
    "a last line that is cut off": (GOOD + FIRST[:60], 2, 1, "cut off"),
    "a broken line": (FIRST + b"{oops\n" + SECOND, 2, 1, "not JSON"),
    "JSON that is no object": (FIRST + b"[1]\n7\nnull\n" + SECOND, 2, 3, "list"),
    "a message that is a text": (GOOD + b'{"type":"user","message":"x"}\n', 2, 1, "not an obj"),
    "a message that is missing": (GOOD + b'{"type":"assistant"}\n', 2, 1, "not an object"),
    "too deep for the parser": (GOOD + nested(100_000), 2, 1, "nested"),
    "too deep for us": (GOOD + nested(150), 2, 1, "nested"),
    "deep but readable": (GOOD + nested(50), 3, 0, ""),
    "a number of 5,000 digits": (GOOD + HUMAN % (b"9" * 5_000), 2, 1, ""),
    "content that is a number": (GOOD + HUMAN % b"7", 3, 0, ""),
    "content that is null": (GOOD + HUMAN % b"null", 3, 0, ""),
    "blocks that are no objects": (GOOD + HUMAN % b'[1, null, "x"]', 3, 0, ""),
    "fields of the wrong type": (
        GOOD + b'{"type":"assistant","uuid":7,"parentUuid":[],"timestamp":{},"isSidechain":"x",'
        b'"requestId":[],"agentId":{},"message":{"id":3,"model":[],"usage":[],"stop_reason":{},'
        b'"content":[{"type":[]},{"type":"tool_use","name":5},{"type":"text","text":{}}]}}\n',
        3, 0, "",
    ),
    "a type that is no text": (GOOD + b'{"type":{"a":1}}\n{"type":["user"]}\n{}\n', 2, 0, ""),
    "script in every field": (
        GOOD + b'{"type":"<script>alert(1)</script>","sessionId":"<img src=x>"}\n', 2, 0, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_a_session_with(case, tmp_path):
    data, messages, skipped, why = TABLE[case]
    [one] = read_transcript(saved(tmp_path, data))
    one.trace.checked()
    assert (one.messages, one.skipped_lines) == (messages, skipped)
    assert skipped == 0 or why in one.skipped[0].why
    for message in one.trace.messages:
        stored_json(message.to_json())  # every row can be stored
    json.dumps(one.report())


def test_nul_and_lone_surrogates_are_kept_as_they_are(tmp_path):
    [one] = read_transcript(saved(tmp_path, session(words="a\0b \ud800 去")))
    assert one.trace.messages[0].text == "a\0b \ud800 去"
    assert one.trace.state.mission == "a\ufffdb \ufffd 去"


def test_bytes_that_are_not_utf8_are_replaced_with_a_warning(tmp_path):
    [one] = read_transcript(saved(tmp_path, GOOD.replace(b"hello", b"h\xe9llo")))
    assert one.trace.messages[0].text == "h\ufffdllo"
    assert one.warnings == ("bytes that are not UTF-8 were replaced",)


def test_numbers_that_json_does_not_have_are_read_as_null(tmp_path):
    s = Session()
    s.human("go")
    s.says(call("a", x=1.5, y=2.5, z=3.5))
    data = "\n".join(s.lines).replace("1.5", "NaN").replace("2.5", "-Infinity")
    [one] = read_transcript(saved(tmp_path, data.replace("3.5", "1e999").encode()))
    assert one.trace.messages[1].tool_calls[0].parsed() == {"x": None, "y": None, "z": None}
    assert "NaN is not a JSON number and was read as null" in one.warnings


def test_a_line_of_two_megabytes_is_read(tmp_path):
    [one] = read_transcript(saved(tmp_path, session(words="x" * 2_000_000)))
    assert len(one.trace.messages[0].text) == 2_000_000


def test_a_million_broken_lines_give_a_count_and_a_hundred_reasons(tmp_path):
    [one] = read_transcript(saved(tmp_path, GOOD + b"{\n" * 20_000))
    assert one.skipped_lines == 20_000
    assert len(one.skipped) == 100
    assert one.skipped[0].line == 3


def test_kinds_that_a_file_makes_up_are_bounded():
    notes = Notes()
    for number in range(1_000):
        notes.ignore(f"kind {number}" + "x" * 1_000)
    assert len(notes.ignored) == 101
    assert notes.ignored["other"] == 900
    assert max(map(len, notes.ignored)) == 60


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"   \n\n", "without any text"),
        (b"\0" * 100, "without any text"),
        (b"hello there", "no transcript; line 1: .*not JSON"),
        (GOOD.decode().encode("utf-16"), "UTF-16"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "no transcript"),
        (b'{"type":"session_meta","payload":{}}', "unknown form .*type, payload"),
        (b"[[[]]]", "unknown form"),
        (b"[" * 100_000, "no transcript"),
        (b'"text"', "unknown form"),
    ],
)
def test_what_is_no_transcript_is_refused_with_what_was_found(data, words, tmp_path):
    with pytest.raises(ImportRefused, match=words) as caught:
        read_transcript(saved(tmp_path, data))
    assert "s.jsonl" in str(caught.value)


def test_a_file_over_the_limit_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # sparse: it takes no room
    for format in ("auto", "claude_code", "openai_chat"):
        with pytest.raises(ImportRefused, match="at most 100 MB"):
            read_transcript(path, format)


def test_sub_agent_files_count_towards_the_limit(tmp_path):
    path = saved(tmp_path, GOOD)
    beside = tmp_path / "s" / "subagents" / "agent-a.jsonl"
    beside.parent.mkdir(parents=True)
    with beside.open("wb") as file:
        file.truncate(MAX_BYTES)
    with pytest.raises(ImportRefused, match="at most 100 MB"):
        read_transcript(path)


def test_what_is_not_there_or_no_file_is_refused(tmp_path):
    with pytest.raises(ImportRefused, match=r"there is no file gone\.jsonl"):
        read_transcript(tmp_path / "gone.jsonl")
    with pytest.raises(ImportRefused, match="not a trace folder"):
        read_transcript(tmp_path)
    with pytest.raises(InvalidInput, match=f"known are {', '.join(FORMATS)}"):
        read_transcript(saved(tmp_path, GOOD), "docx")


def test_the_format_is_found_by_content_not_by_name(tmp_path):
    assert detect(saved(tmp_path, GOOD, "chat.zip")) == "claude_code"
    chat = b'[{"role": "user", "content": "hi"}]'
    assert detect(saved(tmp_path, chat, "x.jsonl")) == "openai_chat"
    pretty = json.dumps(json.loads(chat), indent=2).encode()
    assert detect(saved(tmp_path, b"\xef\xbb\xbf" + pretty, "y")) == "openai_chat"


def test_trimming_keeps_small_values_and_names_what_it_left_out():
    assert trimmed({"a": [1, {"b": "c"}]}) == {"a": [1, {"b": "c"}]}
    large = {"code": 3, "note": "n" * 200, "text": "t" * 3_000, "list": [1], 5: "five"}
    assert trimmed(large) == {
        "code": 3, "note": "n" * 200, 5: "five", "left_out": ["text", "list"],
    }  # fmt: skip
    assert trimmed("x" * 9_000) == {"left_out": ["str"]}
    deep = [[[[[[[[1]]]]]]]]
    assert trimmed(deep) == {"left_out": ["list"]}


def test_a_report_is_plain_json_with_every_count(tmp_path):
    [one] = read_transcript(saved(tmp_path, GOOD + b"{\n"))
    assert isinstance(one, Imported)
    assert one.report() == {
        "format": "claude_code", "mission": "hello", "messages": 2, "tool_calls": 0,
        "side_branches": 0, "children": 0, "skipped_lines": 1,
        "skipped": [{"line": 3, "why": one.skipped[0].why}], "ignored": {}, "warnings": [],
    }  # fmt: skip


# Anything at all, in the places where these formats keep something ---------------------------

KEYS = (
    "type", "uuid", "parentUuid", "isSidechain", "isMeta", "isCompactSummary", "agentId",
    "timestamp", "message", "content", "id", "name", "input", "tool_use_id", "toolUseResult",
    "role", "tool_calls", "function", "function_call", "arguments", "tool_call_id", "usage",
    "input_tokens", "text", "thinking", "source", "data", "media_type", "image_url", "url",
    "subtype", "compactMetadata", "sourceToolUseID", "messages", "traj", "tools", "response",
    "choices", "todos", "status", "prompt", "sessionId", "totalDurationMs",
)  # fmt: skip
WORDS = (
    "user", "assistant", "system", "tool", "function", "text", "tool_use", "tool_result",
    "thinking", "image", "compact_boundary", "u1", "u2", "t1", "TodoWrite", "Task", "goal",
    "2026-01-05T10:00:00Z", "pending", "base64", "{}", "\0", "\ud800", "",
)  # fmt: skip
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.sampled_from(WORDS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["user", "assistant", "system"]) | anything,
        "uuid": st.sampled_from(["u1", "u2", "u3"]),
        "parentUuid": st.sampled_from(["u1", "u2", None]),
        "isSidechain": st.booleans(),
        "message": st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool"]), "content": anything},
            optional={"id": st.sampled_from(["m1", "m2"]) | anything, "tool_calls": anything},
        )
        | anything,
    },
    optional={"isCompactSummary": st.booleans(), "toolUseResult": anything, "agentId": anything},
)


@settings(max_examples=300)
@given(st.lists(entries | anything, max_size=6), st.sampled_from(["claude_code", "openai_chat"]))
def test_whatever_a_file_says_it_is_read_or_refused(tmp_path_factory, lines, format):
    path = tmp_path_factory.mktemp("any") / "s.jsonl"
    rows = lines
    if format == "openai_chat":
        rows = [r.get("message", r) if isinstance(r, dict) else r for r in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        found = read_transcript(path, format)
    except ImportRefused:
        return
    for one in found:
        for trace in one.trace.walk():
            trace.checked()
            trace.main_path()
            for message in trace.messages:
                stored_json(message.to_json())
