"""The scripted and the replayed model: their own answers, real calls, clear refusals."""

from __future__ import annotations

import asyncio
import json
import shutil
import types
from pathlib import Path

import pytest
import yaml

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidInput, InvalidScript, NotFound
from cyberagent.core.ports import Answer, Delta, ModelRequest, ToolContext
from cyberagent.core.tokens import counter_for
from cyberagent.core.types import (
    BranchType,
    Json,
    Message,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    canonical_json,
)
from cyberagent.core.window import Item, Window
from cyberagent.providers.replay import RECORDING_OVER, ReplayProvider, model_turns
from cyberagent.providers.scripted import (
    SCRIPT_OVER,
    ScriptedProvider,
    load_script,
)
from cyberagent.tools.builtin import files
from cyberagent.tools.builtin.goal import goal, todo_write
from cyberagent.tools.builtin.terminal import terminal
from cyberagent.tools.registry import Registry
from cyberagent.trace.goals import GoalTree, replay

SCRIPT = """
turns:
  - think: First the plan.
    say: I will read.
    calls:
      - goal: {add: "Read, Report"}
      - read_file: {path: 读.md}
  - say: Done.
branches:
  reflection:
    - say: Learned something.
"""


async def ask(
    provider: ScriptedProvider | ReplayProvider,
    answers_before: int,
    *,
    branch: BranchType = "",
    payload: bytes = b"{}",
    call: int = 1,
) -> tuple[list[Delta], Answer]:
    request = ModelRequest(
        payload=payload, answers_before=answers_before, branch_type=branch, call=call
    )
    items = [item async for item in provider.stream(request)]
    deltas = [i for i in items if isinstance(i, Delta)]
    (answer,) = [i for i in items if isinstance(i, Answer)]
    assert items[-1] is answer
    return deltas, answer


async def test_a_turn_has_its_thought_its_text_and_its_calls_in_order():
    _, answer = await ask(ScriptedProvider(load_script(SCRIPT), speed=0), 0, call=7)
    assert answer.parts == (
        Reasoning("First the plan.", model="scripted"),
        Text("I will read."),
        ToolCall("call_turn_7_1_1", "goal", '{"add":"Read, Report"}'),
        ToolCall("call_turn_7_1_2", "read_file", '{"path":"读.md"}'),
    )
    assert answer.finish_reason == "tool_calls"


async def test_the_turn_follows_from_the_answers_before():
    provider = ScriptedProvider(load_script(SCRIPT), speed=0)
    assert (await ask(provider, 1))[1].parts == (Text("Done."),)
    assert (await ask(provider, 0))[1].finish_reason == "tool_calls"
    assert (await ask(provider, 2))[1].parts == (Text(SCRIPT_OVER),)


async def test_a_side_branch_has_turns_of_its_own():
    provider = ScriptedProvider(load_script(SCRIPT), speed=0)
    assert (await ask(provider, 0, branch="reflection"))[1].parts == (Text("Learned something."),)
    assert (await ask(provider, 0, branch="compression"))[1].parts == (Text(SCRIPT_OVER),)


async def test_deltas_are_small_and_make_up_the_text():
    script = load_script({"turns": [{"think": "thinking " * 5, "say": "answer " * 10}], "speed": 1})
    deltas, answer = await ask(ScriptedProvider(script, speed=20_000), 0)
    for stream, part in zip(("reasoning", "text"), answer.parts, strict=True):
        assert isinstance(part, Text | Reasoning)
        assert "".join(d.text for d in deltas if d.stream == stream) == part.text
    slow = ScriptedProvider(script, speed=100.0)
    first = await anext(aiter(slow.stream(ModelRequest(payload=b"{}"))))
    assert isinstance(first, Delta) and len(first.text) == 5  # 100 a second, every 50 ms


async def test_a_slow_answer_can_be_stopped_in_the_middle():
    script = load_script({"turns": [{"say": "x", "delay": 3_600}]})
    task = asyncio.ensure_future(ask(ScriptedProvider(script, speed=1), 0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_usage_is_counted_over_the_payload():
    provider = ScriptedProvider(load_script(SCRIPT), speed=0)
    window = Window(
        system="You are kind.",
        items=(Item(Message(role="user", source="user", parts=(Text("hello"),))),),
        params=provider.params,
    )
    payload = provider.project(window)
    assert provider.problems(payload) == []
    body = canonical_json(payload)
    _, answer = await ask(provider, 1, payload=body)
    count = counter_for("scripted", "").count
    assert answer.usage == Usage(prompt=count(body.decode()), completion=count("Done."))
    assert provider.cost(answer.usage) == 0.0


# Refusals ------------------------------------------------------------------------------------

DEEP = "[" * 5_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("turns: [\n", "not YAML"),
        ("- a\n- b\n", "the script must be a mapping"),
        ("turns: []\n", "at least one turn"),
        ("turns:\n - say: hi\nturn: 1\n", "unknown key 'turn'"),
        ("turns:\n - say: hi\n - sya: hi\n", "turn 2: unknown key 'sya'"),
        ("turns:\n - say: 3\n", "turn 1, say: must be a text, not 3"),
        ("turns:\n - think: hm\n", "turn 1 says nothing and calls nothing"),
        ("turns:\n - say: hi\n   delay: .nan\n", "turn 1, delay: must be a number"),
        ("turns:\n - say: hi\n   delay: -1\n", "turn 1, delay"),
        ("turns:\n - say: hi\nspeed: .inf\n", "the script, speed"),
        ("turns:\n - calls: {a: {}}\n", "turn 1, calls: must be a list"),
        ("turns:\n - calls: [{a: {}, b: {}}]\n", "turn 1, call 1: must be one tool"),
        ("turns:\n - calls: [{a: [1]}]\n", "turn 1, call 1, a: arguments must be a mapping"),
        ("turns:\n - calls: [{a: {n: .nan}}]\n", r"turn 1, call 1, a\.n: nan"),
        ("turns:\n - calls: [{a: {d: 2024-01-01}}]\n", r"turn 1, call 1, a\.d: .* must be quoted"),
        ("turns:\n - calls: [{a: {d: 2024-99-99}}]\n", "cannot be read"),
        ("turns:\n - calls: [{a: {1: x}}]\n", "key 1 must be a text"),
        ('turns:\n - calls: [{a: {b: "\\ud800"}}]\n', "turn 1, call 1, a"),
        ("turns:\n - say: hi\nbranches: {other: []}\n", "branches: unknown key 'other'"),
        (
            "turns:\n - say: hi\nbranches: {reflection: [{}]}\n",
            "reflection turn 1 says nothing",
        ),
        ("turns:\n - say: &a hi\n - say: *a\n", "alias in line 3"),
        ("turns:\n - say: hi\n   say: ho\n", "'say' twice in line 3"),
        (f"turns: {DEEP}\n", "nested too deeply"),
        ("turns:\n - say: hi\n   ? [a]\n   : b\n", "no text in line 3"),
    ],
)
def test_a_malformed_script_is_refused_by_turn_and_field(text: str, words: str):
    with pytest.raises(InvalidScript, match=words):
        load_script(text)


def test_a_name_is_never_taken_for_a_path(tmp_path: Path):
    file = tmp_path / "script.yaml"
    file.write_text(SCRIPT, encoding="utf-8-sig")
    with pytest.raises(InvalidScript, match="must be a mapping"):
        load_script(str(file))
    with pytest.raises(NotFound):
        load_script("script")
    assert len(load_script(file).turns) == 2
    with pytest.raises(InvalidScript, match=r"missing\.yaml cannot be read"):
        load_script(tmp_path / "missing.yaml")


def test_a_script_that_is_no_text_is_refused(tmp_path: Path):
    file = tmp_path / "script.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidScript, match="not UTF-8"):
        load_script(file)


def test_a_script_of_another_type_is_refused():
    with pytest.raises(InvalidScript, match="not 3"):
        load_script(3)  # type: ignore[arg-type]


def test_a_speed_that_is_no_number_is_refused():
    with pytest.raises(InvalidScript, match="speed"):
        ScriptedProvider(load_script(SCRIPT), speed=float("nan"))


# Replay --------------------------------------------------------------------------------------


def recorded(*parts: Json, **more: Json) -> Message:
    return Message(role="assistant", source="model", parts=parts, **more)


async def test_a_recording_is_played_turn_by_turn():
    usage = Usage(prompt=10, completion=2)
    path = [
        Message(role="user", source="user", parts=(Text("go"),)),
        recorded(Text("look"), ToolCall("x1", "ls", '{"a": 1}'), usage=usage),
        Message(role="tool", source="tool", parts=(Text("ok"),), tool_call_id="x1"),
        recorded(Text("done")),
    ]
    provider = ReplayProvider(model_turns(path))
    _, first = await ask(provider, 0)
    assert (first.parts, first.finish_reason, first.usage) == (path[1].parts, "tool_calls", usage)
    assert (await ask(provider, 1))[1].parts == (Text("done"),)
    assert (await ask(provider, 2))[1].parts == (Text(RECORDING_OVER),)


def test_what_a_framework_added_is_no_part_of_a_turn():
    ours = ToolCall("f", "get_current_context", made_by="framework")
    own = ToolCall("m", "ls")
    path = [
        recorded(own, ours),
        Message(role="assistant", source="framework", parts=(ours,)),
        recorded(ours),
    ]
    assert [t.parts for t in model_turns(path)] == [(own,)]


async def test_a_recorded_call_without_an_id_is_given_one():
    _, answer = await ask(ReplayProvider([recorded(ToolCall("", "ls"))]), 0, call=4)
    assert answer.parts == (ToolCall("replayed_4_1_1", "ls"),)


def test_only_a_models_turns_can_be_replayed():
    with pytest.raises(InvalidInput, match="message 3"):
        ReplayProvider([Message(role="user", source="user", sequence=3)])
    with pytest.raises(InvalidInput, match="speed"):
        ReplayProvider([], speed=float("nan"))


# The demo ------------------------------------------------------------------------------------


PROMPTS = Path(__file__).parents[2] / "cyberagent" / "prompts"


def copy_demo_workspace(folder: Path) -> None:
    shutil.copytree(PROMPTS / "demo_workspace", folder, dirs_exist_ok=True)


async def play(folder: Path) -> tuple[GoalTree, list[Message], list[str]]:
    """Every turn of the demo with its tools run on its workspace, as a runner would."""
    copy_demo_workspace(folder)
    tools = Registry(
        [goal, todo_write, files.read_file, files.glob_files, files.search_files,
         files.write_file, terminal]
    )  # fmt: skip
    state = types.SimpleNamespace(goals=GoalTree(mission="m"), terminal_cwd="")
    context = ToolContext(
        trace_id="t", config=RunConfig(workspace=str(folder)), state=state, workspace=folder
    )
    provider, path, errors = ScriptedProvider(load_script("demo"), speed=0), [], []
    for turn in range(100):
        _, answer = await ask(provider, turn, call=turn + 1)
        path.append(recorded(*answer.parts))
        if answer.finish_reason == "stop":
            break
        for call in path[-1].tool_calls:
            if call.name == "get_current_context":
                continue
            outcome = await tools.call(call.name, call.arguments, context)
            if outcome.status == "error":
                errors.append(f"{call.name}: {outcome.text}")
            path.append(
                Message(role="tool", source="tool", parts=(Text(outcome.text),),
                        tool_call_id=call.id, name=call.name, is_error=outcome.status == "error")
            )  # fmt: skip
    return state.goals, path, errors


async def test_the_demo_really_runs(tmp_path: Path):
    plan, path, errors = await play(tmp_path / "work")
    assert errors == []
    assert path[-1].text.startswith("**Done.**")
    assert plan.progress() == (4, 4)
    assert plan.current is None
    assert [(g.id, g.status) for g in plan.walk() if "'" in g.id or g.status == "abandoned"] == [
        ("3", "abandoned"),
        ("3'", "completed"),
    ]
    assert replay(path, "m") == plan


async def test_what_the_demo_says_of_its_files_is_true(tmp_path: Path):
    """The TODOs that the script reports are those that the files hold."""
    copy_demo_workspace(tmp_path)
    todos = {
        str(p.relative_to(tmp_path)): p.read_text().count("TODO") for p in tmp_path.rglob("*.py")
    }
    assert todos == {"notes.py": 2, "store.py": 1, "tests/check_notes.py": 1}
    told = [t.say for t in load_script("demo").turns][-1]
    assert "4 (`notes.py` 2, `store.py` 1, `tests/check_notes.py` 1)" in told


def test_a_person_can_watch_the_demo():
    script = load_script("demo")
    characters = sum(len(t.say) + len(t.think) for t in script.turns)
    seconds = characters / script.speed + sum(t.delay for t in script.turns)
    assert 35 <= seconds <= 60
    assert 14 <= len(script.turns) <= 18
    names = {name for t in script.turns for name, _ in t.calls}
    assert "get_current_context" in names
    assert any(len(t.calls) > 1 for t in script.turns)
    assert script.turns[-1].calls == ()


def test_the_demo_is_plain_yaml():
    value = yaml.safe_load((PROMPTS / "demo.yaml").read_text(encoding="utf-8"))
    arguments = [json.loads(a) for t in load_script("demo").turns for _, a in t.calls]
    written = [next(iter(c.values())) for t in value["turns"] for c in t.get("calls", ())]
    assert arguments == written
