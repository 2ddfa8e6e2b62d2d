import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberagent.core import events
from cyberagent.core.errors import ImportRefused, InvalidInput
from cyberagent.core.types import (
    CallRecord,
    File,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    TraceState,
    Usage,
    canonical_json,
    sha256,
)
from cyberagent.core.window import Item, Recorder, Window, chain, expand, rebuild
from cyberagent.trace.formats import (
    TraceBundle,
    export_bytes,
    read_transcript,
    trace_folder,
    write_export,
)
from cyberagent.trace.formats.trace_folder import files_of, read_bundle

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "cyberagent" / "prompts" / "samples" / "claude-code-sample.jsonl"


def payload(window):
    """Stands for a provider's projection: everything of the window, as bytes."""
    return canonical_json(
        {
            "system": window.system,
            "tools": list(window.tools),
            "params": dict(window.params),
            "items": [[i.message.to_json(), i.kind, i.strategy] for i in window.items],
        }
    )


def recorded(messages):
    """A call after each message, as a run would have stored it; the windows fold and insert."""
    recorder, calls, blobs = Recorder(), [], {}
    for number, last in enumerate(messages, 1):
        items = [Item(m) for m in messages[:number]]
        folded = replace(items[0].message, parts=(Text("folded"),))
        items[0] = Item(folded, "replaced", "level_1", "older")
        extra = Message(role="user", source="framework", parts=(Text("the plan"),))
        items.append(Item(extra, "inserted", "plan", "periodic"))
        window = Window(system="Be brief.", items=tuple(items), params={"model": "m"})
        record = recorder.record(number, window)
        blobs.update(record.blobs)
        calls.append(
            CallRecord(
                number=number, provider="scripted", model="m", projection="test/1",
                manifest=record.manifest, sha256=sha256(payload(window)), estimated_tokens=9,
                exact=True, composition={"system": 2}, after_sequence=last.sequence, status="ok",
                message_sequence=last.sequence, usage=Usage(prompt=9, completion=1), cost=0.25,
            )
        )  # fmt: skip
    return tuple(calls), blobs


def a_bundle(**changes):
    messages = (
        Message(
            role="user", source="user", sequence=1, depth=1, parts=(Text("go \x00 \u2028 去"),)
        ),
        Message(
            role="assistant", source="model", sequence=2, parent_sequence=1, depth=2, turn=1,
            parts=(Reasoning("hm", "m", {"sig": "x"}), ToolCall("c", "ls", '{"a"', extra=[1])),
            usage=Usage(prompt=5), goal_id="1", tokens=7, created_at="2026-01-05T10:00:00Z",
        ),
        Message(
            role="tool", source="tool", sequence=3, parent_sequence=2, depth=3, tool_call_id="c",
            name="ls", is_error=True, parts=(Text("short"),), full_output="the whole output",
            duration_ms=12, metadata={"exit": 1, "deep": [{"x": None}]},
        ),
        Message(
            role="assistant", source="model", sequence=4, parent_sequence=3, depth=4,
            branch_type="reflection", branch_id="b1", parts=(File("a.txt", data="aGk="),),
        ),
        Message(role="user", source="summary", sequence=5, depth=1, parts=(Image(url="u"),)),
    )  # fmt: skip
    calls, blobs = recorded(messages[:3])
    state = TraceState(
        id="abc123", mission="Go", status="completed", head_sequence=5, last_sequence=5,
        last_event=3, last_call=3, turn=1, config={"preset": "cyber"}, context={"skills": ["x"]},
        system_prompt="Be brief.", created_at="2026-01-05T10:00:00Z",
    )  # fmt: skip
    child = TraceBundle(
        state=TraceState(
            id="child1", mission="Look", status="failed", parent_trace="abc123", parent_message=2
        )
    )
    stored = (
        events.MessageStored(number=1, message=1, role="user", at="2026-01-05T10:00:00Z"),
        events.GoalChanged(number=2, changes=("added 1", "focus 1"), current="1", total=1),
        events.ToolResult(number=3, id="c", name="ls", status="error", message=3),
    )
    bundle = TraceBundle(
        state=state, messages=messages, events=stored, calls=calls, blobs=blobs,
        goals={"mission": "Go", "goals": []}, children=(child,),
    )  # fmt: skip
    return replace(bundle, **changes)


def without_origin(bundle):
    """The bundle as it was before it was exported: an import adds the id it had there."""
    context = {k: v for k, v in bundle.state.context.items() if k != "original_id"}
    return replace(
        bundle,
        state=replace(bundle.state, context=context),
        children=tuple(without_origin(c) for c in bundle.children),
    )


@pytest.mark.parametrize("format", ["trace", "trace_zip"])
def test_a_trace_comes_back_without_loss(tmp_path, format):
    path = write_export(a_bundle(), tmp_path / "out", format)
    [one] = read_transcript(path)
    assert without_origin(one.trace) == a_bundle()
    assert one.trace.state.context["original_id"] == "abc123"
    assert (one.messages, one.tool_calls, one.side_branches, one.children) == (5, 1, 1, 1)


def test_every_window_is_rebuilt_to_its_hash_after_an_import(tmp_path):
    bundle = read_bundle(write_export(a_bundle(), tmp_path / "out"))
    manifests = {c.number: c.manifest for c in bundle.calls}
    messages = {m.sequence: m for m in bundle.messages}
    assert len(bundle.calls) == 3
    for call in bundle.calls:
        expanded = expand(chain(call.number, manifests.__getitem__))
        window = rebuild(expanded, messages, bundle.blobs)
        assert sha256(payload(window)) == call.sha256


def test_exporting_an_imported_trace_gives_the_same_files_but_for_the_id(tmp_path):
    first = dict(files_of(a_bundle()))
    back = read_bundle(write_export(a_bundle(), tmp_path / "out"))
    new = replace(back, state=replace(back.state, id="other9"))
    again = dict(files_of(new))
    metas = [json.loads(files.pop("meta.json")) for files in (first, again)]
    assert [m.pop("id") for m in metas] == ["abc123", "other9"]
    assert metas[0] == metas[1]
    assert metas[0]["original_id"] == "abc123"
    assert first == again


def test_equal_traces_make_equal_zips():
    assert export_bytes(a_bundle(), "trace_zip") == export_bytes(a_bundle(), "trace_zip")


def test_the_layout_is_the_documented_one(tmp_path):
    folder = write_export(a_bundle(), tmp_path / ".trace" / "abc123")
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    blobs = {f"blobs/{name}" for name in a_bundle().blobs}
    own = {"meta.json", "goal.json", "messages.jsonl", "events.jsonl", "calls.jsonl"}
    assert names == own | blobs | {f"children/child1/{name}" for name in own}
    assert json.loads((folder / "goal.json").read_text())["mission"] == "Go"
    assert [p.name for p in folder.parent.iterdir()] == ["abc123"]


def test_an_older_export_is_replaced_whole(tmp_path):
    folder = write_export(a_bundle(), tmp_path / "out")
    (folder / "stray").write_text("x")
    write_export(a_bundle(children=()), folder)
    assert not (folder / "stray").exists()
    assert not (folder / "children").exists()


def test_a_value_that_cannot_be_written_leaves_the_old_export_alone(tmp_path):
    folder = write_export(a_bundle(), tmp_path / "out")
    bad = replace(a_bundle().messages[0], metadata={"x": float("nan")})
    with pytest.raises(InvalidInput, match="abc123"):
        write_export(a_bundle(messages=(bad,)), folder)
    assert without_origin(read_bundle(folder)) == a_bundle()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_import_of_another_format_can_be_exported_and_read_again(tmp_path):
    [sample] = read_transcript(SAMPLE)
    back = read_bundle(write_export(sample.trace, tmp_path / "out"))
    assert [m.to_json() for m in back.messages] == [m.to_json() for m in sample.trace.messages]
    [child], [before] = back.children, sample.trace.children
    assert child.messages == before.messages
    assert child.state.parent_message == before.state.parent_message


# Any tree ------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=()), max_size=12).map(
    lambda s: json.loads(json.dumps(s))
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False,
              allow_infinity=False), words),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(words, inner, max_size=2)),
    max_leaves=4,
)  # fmt: skip
parts = st.one_of(
    st.builds(Text, words),
    st.builds(Image, words, words, words),
    st.builds(File, words, words, words, words),
    st.builds(Reasoning, words, words, values),
    st.builds(ToolCall, words, words, words, st.sampled_from(["model", "framework"]), values),
)


@st.composite
def trees(draw):
    messages = []
    for sequence in range(1, draw(st.integers(1, 6)) + 1):
        parent = draw(st.none() | st.integers(1, sequence - 1)) if sequence > 1 else None
        messages.append(
            Message(
                role=draw(st.sampled_from(["user", "assistant", "tool", "system"])),
                source=draw(st.sampled_from(["user", "model", "tool", "framework", "summary"])),
                parts=tuple(draw(st.lists(parts, max_size=3))),
                sequence=sequence,
                parent_sequence=parent,
                depth=messages[parent - 1].depth + 1 if parent else 1,
                name=draw(words),
                usage=draw(st.none() | st.builds(Usage, st.none() | st.integers(0, 9))),
                full_output=draw(st.none() | words),
                metadata=draw(st.dictionaries(words, values, max_size=2)),
            )
        )
    return tuple(messages)


@settings(max_examples=60)
@given(trees(), words)
def test_any_tree_comes_back_without_loss(tmp_path_factory, messages, mission):
    state = TraceState(
        id="t1", mission=mission, status="completed", head_sequence=len(messages),
        last_sequence=len(messages),
    )  # fmt: skip
    bundle = TraceBundle(state=state, messages=messages)
    path = tmp_path_factory.mktemp("tree") / "t.zip"
    assert without_origin(read_bundle(write_export(bundle, path, "trace_zip"))) == bundle


# Folders and zips that are not as they should be -----------------------------------------------


def edited(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def meta(**changes):
    return lambda data: json.dumps(json.loads(data) | changes).encode()


def message(number, **changes):
    def change(data):
        lines = data.split(b"\n")
        value = json.loads(lines[number - 1]) | changes
        lines[number - 1] = json.dumps(value).encode()
        return b"\n".join(lines)

    return change


BLOB = sorted(a_bundle().blobs)[0]

DAMAGE = [
    ("meta.json", lambda d: b"{", "not JSON"),
    ("meta.json", lambda d: b"[]", "not a JSON object"),
    ("meta.json", meta(version="cyberagent-trace/99"), "version"),
    ("meta.json", meta(head_sequence=9), "head 9"),
    ("meta.json", meta(head_sequence="5"), "head_sequence is '5'"),
    ("meta.json", meta(status="dancing"), "status is 'dancing'"),
    ("meta.json", meta(mission=None), "mission is None"),
    ("meta.json", meta(original_id=None), "original_id"),
    ("meta.json", meta(last_sequence=4), "4 messages expected, 5 found"),
    ("meta.json", meta(children=["../../etc"]), "malformed children"),
    ("meta.json", meta(children=["child1", "gone"]), "there is no children/gone/meta.json"),
    ("meta.json", meta(config=[]), "config is"),
    ("messages.jsonl", lambda d: d[:-20], "cut off"),
    ("messages.jsonl", lambda d: b"\n".join(d.split(b"\n")[:-2]) + b"\n", "it was cut"),
    ("messages.jsonl", lambda d: d + b'{"role":"user"}\n', "line 6"),
    ("messages.jsonl", lambda d: d.replace(b"go", b"\xff"), "not UTF-8"),
    ("messages.jsonl", message(1, role="wizard"), "role is 'wizard'"),
    ("messages.jsonl", message(1, parts=[{"type": "text", "text": 5}]), "text is 5"),
    ("messages.jsonl", message(1, parts=[{"type": "spell"}]), "unknown part type"),
    ("messages.jsonl", message(1, secret=1), "unexpected keyword"),
    ("messages.jsonl", message(1, sequence=True), "sequence is True"),
    ("messages.jsonl", message(2, sequence=3), "message 2 is numbered 3"),
    ("messages.jsonl", message(2, parent_sequence=4), "hangs on message 4"),
    ("messages.jsonl", message(3, depth=1), "depth 1, not 3"),
    ("messages.jsonl", message(2, tokens=float("nan")), "NaN"),
    ("messages.jsonl", lambda d: b"[" * 100_000 + b"\n" + d, "nested too deeply"),
    ("events.jsonl", lambda d: d.replace(b"GoalChanged", b"Exploded"), "unknown event"),
    ("events.jsonl", lambda d: d.replace(b'"role":"user"', b'"role":7'), "role is 7"),
    ("calls.jsonl", lambda d: d.replace(b'"status":"ok"', b'"status":"odd"'), "status is 'odd'"),
    ("calls.jsonl", lambda d: d.replace(b'"number":1', b'"nummer":1'), "nummer"),
    ("goal.json", lambda d: b"7", "not a JSON object"),
    (f"blobs/{BLOB}", lambda d: d + b" ", "was changed"),
    ("blobs/readme", None, "not named by a hash"),
]


@pytest.mark.parametrize(
    ("name", "change", "words"), DAMAGE, ids=lambda v: v[:40] if isinstance(v, str) else None
)
def test_a_damaged_folder_is_refused_with_the_place(tmp_path, name, change, words):
    folder = write_export(a_bundle(), tmp_path / "out")
    if change is None:
        (folder / name).write_text("x")
    else:
        edited(folder, name, change)
    with pytest.raises(ImportRefused, match=words):
        read_bundle(folder)


@pytest.mark.parametrize("name", ["goal.json", "messages.jsonl", "events.jsonl", "calls.jsonl"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = write_export(a_bundle(), tmp_path / "out")
    (folder / name).unlink()
    with pytest.raises(ImportRefused, match=f"there is no {name}"):
        read_bundle(folder)


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    folder = write_export(a_bundle(), tmp_path / "out")
    (folder / "events.jsonl").rename(tmp_path / "outside")
    (folder / "events.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(ImportRefused, match=r"there is no events\.jsonl"):
        read_bundle(folder)


def rezipped(tmp_path, extra):
    """A good export with more members, in a zip."""
    path = tmp_path / "t.zip"
    path.write_bytes(export_bytes(a_bundle(), "trace_zip"))
    with zipfile.ZipFile(path, "a") as archive:
        for name, data in extra.items():
            archive.writestr(name, data)
    return path


def test_a_zip_with_paths_that_climb_writes_nothing_anywhere(tmp_path):
    path = rezipped(tmp_path, {"../evil": b"x", "/abs": b"x", "blobs/../../evil": b"x"})
    assert without_origin(read_bundle(path)) == a_bundle()
    assert [p.name for p in tmp_path.iterdir()] == ["t.zip"]


def test_a_zip_whose_files_stand_in_a_folder_is_read(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files_of(a_bundle()):
            archive.writestr(f"my trace/{name}", data)
    path = tmp_path / "t.zip"
    path.write_bytes(out.getvalue())
    assert without_origin(read_bundle(path)) == a_bundle()


def test_a_zip_bomb_is_stopped_by_what_it_unpacks_to(tmp_path):
    path = rezipped(tmp_path, {})
    bomb = b" " * 5_000_000
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"blobs/{sha256(bomb)}", bomb)
    assert path.stat().st_size < 50_000
    reader = trace_folder._Reader(trace_folder._Zip(zipfile.ZipFile(path)), left=1_000_000)
    with pytest.raises(InvalidInput, match="unpacked"):
        reader.bundle("", 0)


def test_a_zip_that_is_no_trace_or_is_broken_is_refused(tmp_path):
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(ImportRefused, match=r"there is no meta\.json"):
        read_transcript(path)
    data = export_bytes(a_bundle(), "trace_zip")
    middle = len(data) // 3
    path.write_bytes(data[:middle] + b"\0" * 40 + data[middle + 40 :])
    with pytest.raises(ImportRefused):
        read_transcript(path)


def test_child_traces_nest_only_so_deep(tmp_path):
    leaf = a_bundle(children=())
    for _ in range(25):
        leaf = replace(leaf, children=(leaf,))
    with pytest.raises(ImportRefused, match="nest deeper"):
        read_bundle(write_export(leaf, tmp_path / "t.zip", "trace_zip"))


def test_children_with_odd_or_equal_ids_get_folders_of_their_own(tmp_path):
    state = a_bundle().children[0].state
    odd = [TraceBundle(state=replace(state, id=name)) for name in ("../x", "k", "k", "")]
    folder = write_export(a_bundle(children=tuple(odd)), tmp_path / "out")
    names = sorted(p.name for p in (folder / "children").iterdir())
    assert names == ["child-1", "child-3", "child-4", "k"]
    assert len(read_bundle(folder).children) == 4


def test_an_unknown_export_format_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="trace, trace_zip, openai_chat"):
        write_export(a_bundle(), tmp_path / "x", "pdf")
