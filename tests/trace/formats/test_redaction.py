import json
from dataclasses import replace

from cyberagent.core.events import ToolResult
from cyberagent.core.types import (
    CallRecord,
    Message,
    Reasoning,
    Text,
    ToolCall,
    TraceState,
    sha256,
)
from cyberagent.trace.formats import TraceBundle, write_export
from cyberagent.trace.formats.redaction import redacted
from cyberagent.trace.formats.trace_folder import files_of, read_bundle

SECRET = "sk-hunter2"


def clean(text):
    return text.replace(SECRET, "[secret]")


def a_trace():
    message = Message(
        role="assistant", source="model", sequence=1, depth=1, tool_call_id=SECRET,
        parts=(
            Text(f"key {SECRET}"),
            Reasoning(f"use {SECRET}", "m", {"signature": "x", "thinking": SECRET}),
            Reasoning("fine", "m", {"signature": "y"}),
            ToolCall("c1", "curl", json.dumps({"key": SECRET})),
        ),
        full_output=f"{SECRET}!", metadata={"note": [SECRET]},
    )  # fmt: skip
    told, plain = f'{{"system":"{SECRET}"}}'.encode(), b'{"params":{}}'
    call = CallRecord(
        number=1, provider="p", model="m", projection="p/1", manifest={}, sha256="0" * 64,
        estimated_tokens=1, exact=True, error=f"401 for {SECRET}",
    )  # fmt: skip
    state = TraceState(
        id="t", mission=f"use {SECRET}", status="completed", head_sequence=1, last_sequence=1,
        system_prompt=SECRET, config={"provider_options": {"x": SECRET}},
    )  # fmt: skip
    child = TraceBundle(state=replace(state, id="k", head_sequence=0, last_sequence=0))
    return TraceBundle(
        state=state, messages=(message,), calls=(call,),
        events=(ToolResult(number=1, id="c1", name="curl", status="ok", preview=SECRET),),
        blobs={sha256(told): told, sha256(plain): plain},
        goals={"mission": SECRET}, children=(child,),
    )  # fmt: skip


def test_a_secret_is_in_no_file_of_the_export():
    trace = a_trace()
    message = replace(trace.messages[0], tool_call_id="c1")
    files = files_of(redacted(replace(trace, messages=(message,)), clean))
    assert [name for name, data in files if SECRET.encode() in data] == []


def test_ids_stay_and_signatures_go_with_what_was_taken_from_their_text():
    [message] = redacted(a_trace(), clean).messages
    assert message.tool_call_id == SECRET
    assert message.parts == (
        Text("key [secret]"),
        Reasoning("use [secret]", "m"),
        Reasoning("fine", "m", {"signature": "y"}),
        ToolCall("c1", "curl", '{"key": "[secret]"}'),
    )


def test_only_window_contents_with_a_secret_are_left_out(tmp_path):
    trace = redacted(a_trace(), clean)
    assert list(trace.blobs.values()) == [b'{"params":{}}']
    assert read_bundle(write_export(trace, tmp_path / "out")).calls == trace.calls


def test_a_trace_without_secrets_stays_as_it_is():
    assert redacted(a_trace(), lambda text: text) == a_trace()
