"""The terminal: run, show, window, import and export, as real processes on an empty database."""

import json
import os
import pty
import re
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from tests.traces.terminal import Terminal

pytestmark = pytest.mark.xdist_group("terminal")

SCRIPT = """
speed: 0
turns:
  - say: I plan.
    calls:
      - goal: {add: "Look, Write", focus: "1"}
  - calls:
      - read_file: {path: notes.txt}
  - calls:
      - goal: {done: "1", summary: "one line", focus: "2"}
  - say: All is written.
"""
ENDLESS = """
turns:
  - say: I think about it for a long while.
    delay: 600
"""


def furnished(folder):
    (folder / "work").mkdir()
    (folder / "work" / "notes.txt").write_text("milk\n")
    (folder / "turns.yaml").write_text(SCRIPT)
    return Terminal(folder, used=True)


@pytest.fixture
def terminal(tmp_path):
    return furnished(tmp_path)


def counts(terminal):
    """Traces and messages that are stored."""
    with closing(sqlite3.connect(terminal.folder / "rows.sqlite3")) as rows:
        return tuple(
            rows.execute(f"SELECT count(*) FROM traces_{table}").fetchone()[0]
            for table in ("trace", "message")
        )


def statuses(terminal):
    with closing(sqlite3.connect(terminal.folder / "rows.sqlite3")) as rows:
        return [row[0] for row in rows.execute("SELECT status FROM traces_trace")]


def run(terminal, *more):
    return terminal("run", "Look at it", "--script", "turns.yaml", "--workspace", "work", *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A terminal with one run that has ended, and the trace's id; for tests that add nothing
    which others would see."""
    terminal = furnished(tmp_path_factory.mktemp("finished"))
    return terminal, run(terminal, "--json").lines()[-1]["trace"]


# run ---------------------------------------------------------------------------------------


def test_run_says_what_happens_one_event_a_line_and_done_last(terminal):
    result = run(terminal, "--json")
    assert (result.code, result.err) == (0, "")
    events = result.lines()
    assert events[0]["event"] == "MessageStored"
    assert events[-1]["event"] == "Done"
    assert events[-1]["status"] == "completed"
    assert re.fullmatch("[0-9a-f]{12}", events[-1]["trace"])
    numbers = [e["number"] for e in events if "number" in e]
    assert numbers == list(range(1, len(numbers) + 1))
    kinds = [e["event"] for e in events]
    assert (kinds.count("CallStarted"), kinds.count("ToolCall")) == (4, 3)
    text = "".join(e["text"] for e in events if e["event"] == "TextDelta" and e["call"] == 4)
    assert text == "All is written."


def test_run_draws_the_merged_view_and_names_the_trace(terminal):
    result = run(terminal)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert "Mission: Look at it" in lines
    assert any(line.startswith("[✓] 1. Look") for line in lines)
    assert any(line.startswith("[→] 2. Write") and line.endswith("← current") for line in lines)
    assert "    → one line" in lines
    assert any(line.endswith('read_file("notes.txt")') for line in lines)
    assert lines[-2] == "completed"
    assert terminal("show", lines[-1]).code == 0


def test_run_draws_in_place_on_a_terminal(terminal):
    master, slave = pty.openpty()
    process = terminal.start(
        "run", "Look at it", "--script", "turns.yaml", "--workspace", "work", stdout=slave
    )
    os.close(slave)
    drawn = b""
    try:
        while chunk := os.read(master, 65536):
            drawn += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(master)
    assert process.wait(60) == 0, process.stderr.read()
    process.stderr.close()
    assert b"\x1b[J" in drawn
    assert "[✓] 1. Look".encode() in drawn


def test_the_demo_runs_with_no_option_at_all(terminal):
    result = terminal("run", "--speed", "0", "--json")
    assert result.code == 0, result.err
    trace = result.lines()[-1]["trace"]
    goals = terminal("show", trace, "--json").json()["goals"]
    statuses = [g["status"] for g in goals]
    assert len(statuses) >= 4
    assert "abandoned" in statuses
    assert any(g["goal_id"].endswith("'") for g in goals), "one was replaced"
    workspaces = list((terminal.folder / "data" / "workspaces").iterdir())
    assert [w.name.startswith("demo-") for w in workspaces] == [True]
    assert (workspaces[0] / "NOTES.md").is_file()


def test_ctrl_c_stops_the_run_and_the_stop_is_stored(terminal):
    (terminal.folder / "slow.yaml").write_text(ENDLESS)
    with terminal.start("run", "Think", "--script", "slow.yaml", "--json") as process:
        events = []
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "CallStarted":
                process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, process.stderr.read()
    assert (events[-1]["event"], events[-1]["status"]) == ("Done", "stopped")
    shown = terminal("show", events[-1]["trace"], "--json").json()
    assert shown["trace"]["status"] == "stopped"
    assert [m["role"] for m in shown["messages"]] == ["user"]


def test_a_run_that_fails_ends_with_exit_code_1(terminal):
    result = terminal(
        "run", "Say hello", "--provider", "openai", "--model", "m", "--json",
        "--base-url", "http://127.0.0.1:9/v1", "--max-steps", "1", "--context-window", "10",
    )  # fmt: skip
    assert result.code == 1, result.err
    assert (result.lines()[-1]["event"], result.lines()[-1]["status"]) == ("Done", "failed")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["x", "--script", "missing.yaml"], "missing.yaml"),
        (["x", "--script", "work/notes.txt"], "script"),
        (["x", "--workspace", "nowhere"], "--workspace: nowhere is not a folder"),
        (["x", "--provider", "openai"], "cannot be used: Set OPENAI_API_KEY"),
        (["x", "--provider", "openai", "--script", "turns.yaml"], "--script"),
        (["x", "--provider", "magic"], "magic"),
        (["x", "--preset", "../cyber"], "preset"),
        (["x", "--temperature", "nan"], "temperature"),
        (["x", "--context-window", "0"], "context_window"),
        (["x", "--skill", "no such"], "no such"),
        (["x", "--system-prompt", "missing.md"], "missing.md"),
        (["   "], "mission"),
        (["--provider", "openai", "--model", "m"], "say what the run is to do"),
        (["x", "--owner", "nobody"], "nobody"),
    ],
)
def test_a_run_that_cannot_start_says_why_in_one_line_and_stores_nothing(terminal, options, words):
    result = terminal("run", *options)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert len(result.err.splitlines()) == 1, result.err
    assert counts(terminal) == (0, 0)


# First use ---------------------------------------------------------------------------------


def test_several_that_start_at_once_on_no_database_all_work(terminal):
    (terminal.folder / "rows.sqlite3").unlink()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(terminal, "--json"), range(4)))
    assert [r.code for r in results] == [0] * 4, [r.err for r in results]
    assert len({r.lines()[-1]["trace"] for r in results}) == 4


def test_postgresql_is_set_up_on_first_use_by_whoever_comes_first(tmp_path, postgres_database):
    terminal = Terminal(tmp_path, DATABASE_URL=postgres_database)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda n: terminal("user", f"person{n}"), range(3)))
    assert [r.code for r in results] == [0] * 3, [r.err for r in results]


def test_a_database_that_cannot_be_used_is_told_in_one_line(tmp_path):
    (tmp_path / "rows.sqlite3").write_bytes(b"this is no database" * 100)
    result = Terminal(tmp_path)("show", "x")
    assert result.code == 2
    assert "database" in result.err
    assert len(result.err.splitlines()) == 1


def test_a_relative_database_url_is_a_file_where_one_stands(tmp_path):
    terminal = Terminal(tmp_path, DATABASE_URL="sqlite:///here.sqlite3")
    assert "no trace" in terminal("show", "x").err
    assert (tmp_path / "here.sqlite3").is_file()


# show and window ---------------------------------------------------------------------------


def test_show_gives_the_trace_its_goals_and_its_messages(finished):
    terminal, trace = finished
    shown = terminal("show", trace, "--json").json()
    assert shown["trace"]["id"] == trace
    assert [(g["goal_id"], g["status"]) for g in shown["goals"]] == [
        ("1", "completed"),
        ("2", "in_progress"),
    ]
    roles = [m["role"] for m in shown["messages"]]
    assert roles == ["user"] + ["assistant", "tool"] * 3 + ["assistant"]


def test_show_has_plain_text_for_files_and_pipes(finished):
    terminal, trace = finished
    result = terminal("show", trace)
    assert "\x1b" not in result.out
    assert result.out.splitlines()[-1] == "Progress: 1/2 goals | Current: 2"


def test_a_window_is_the_exact_payload_with_its_hash(finished):
    terminal, trace = finished
    for call in ("1", "2", "4"):
        window = terminal("window", trace, call, "--json").json()
        assert set(window) == {"sha256", "holds", "payload"}
        assert window["holds"] is True
        canonical = json.dumps(
            window["payload"], sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
        assert window["sha256"] == sha256(canonical.encode()).hexdigest()
    roles = [m["role"] for m in window["payload"]["messages"]]
    assert roles == ["system", "user"] + ["assistant", "tool"] * 3


WRONG = [
    ["show", "000000000000"],
    ["show", "../../etc/passwd"],
    ["show", "x" * 500],
    ["window", "000000000000", "1"],
    ["window", "{trace}", "99"],
    ["window", "{trace}", "0"],
    ["window", "{trace}", "99999999999999999999"],
    ["export_trace", "000000000000"],
]


def test_what_is_not_there_is_told_in_one_line(finished):
    terminal, trace = finished
    for arguments in WRONG:
        result = terminal(*[a.format(trace=trace) for a in arguments])
        assert (result.code, result.out) == (2, ""), arguments
        assert re.fullmatch(r"error: there is no (trace|call) .+\n", result.err), arguments


@pytest.mark.parametrize(
    "command",
    ["up", "run", "show", "window", "import_trace", "export_trace", "user", "token"],
)
def test_help_has_examples(terminal, command):
    result = terminal(command, "--help")
    assert result.code == 0
    assert f"  manage.py {command}" in result.out


# import and export -------------------------------------------------------------------------

CHAT = [
    {"role": "user", "content": "What is in it?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "cat", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "x"},
    {"role": "tool", "tool_call_id": "b", "content": "y"},
    {"role": "assistant", "content": "x and y"},
]


def test_an_import_says_what_it_found(terminal):
    (terminal.folder / "chat.json").write_text(json.dumps(CHAT))
    counts = terminal("import_trace", "chat.json", "--json").json()
    assert set(counts) == {
        "trace", "messages", "tool_calls", "side_branches", "children", "skipped_lines",
    }  # fmt: skip
    assert (counts["messages"], counts["tool_calls"]) == (5, 2)
    shown = terminal("show", counts["trace"], "--json").json()
    assert [m["role"] for m in shown["messages"]] == [m["role"] for m in CHAT]


def test_an_import_reads_standard_input(terminal):
    result = terminal("import_trace", "-", "--format", "openai", given=json.dumps(CHAT).encode())
    assert result.code == 0, result.err
    assert "5 messages, 2 tool calls" in result.out


def test_an_export_can_be_imported_without_loss(finished):
    terminal, trace = finished
    first = terminal("show", trace, "--all", "--json").json()["messages"]
    for target in ("whole", "whole.zip"):
        assert terminal("export_trace", trace, "--output", target).code == 0
        again = terminal("import_trace", target, "--json").json()["trace"]
        assert terminal("show", again, "--all", "--json").json()["messages"] == first


def test_an_export_has_the_layout_of_a_trace_folder_by_default(finished):
    terminal, trace = finished
    assert terminal("export_trace", trace).out == f".trace/{trace}\n"
    names = {p.name for p in (terminal.folder / ".trace" / trace).iterdir()}
    assert {"goal.json", "messages.jsonl", "meta.json"} <= names


def test_an_export_replaces_nothing_unasked(finished):
    terminal, trace = finished
    target = terminal.folder / "out.json"
    target.write_text("mine")
    refused = terminal("export_trace", trace, "--format", "openai", "--output", "out.json")
    assert refused.code == 2
    assert "exists already" in refused.err
    assert target.read_text() == "mine"
    forced = ["export_trace", trace, "--format", "openai", "--output", "out.json", "--force"]
    assert terminal(*forced).code == 0
    assert json.loads(target.read_text())


def test_an_export_never_replaces_a_folder_of_something_else(finished):
    terminal, trace = finished
    result = terminal("export_trace", trace, "--output", "work", "--force")
    assert result.code == 2
    assert (terminal.folder / "work" / "notes.txt").read_text() == "milk\n"


def test_an_export_goes_to_standard_output(finished):
    terminal, trace = finished
    result = terminal("export_trace", trace, "--format", "openai", "--output", "-")
    messages = result.json()
    messages = messages if isinstance(messages, list) else messages["messages"]
    assert [m["role"] for m in messages if m["role"] != "system"] == (
        ["user"] + ["assistant", "tool"] * 3 + ["assistant"]
    )


@pytest.mark.parametrize("path", ["missing.json", ".", "/dev/null", "\x01"])
def test_a_path_that_holds_no_file_is_told_in_one_line(terminal, path):
    result = terminal("import_trace", path)
    assert (result.code, len(result.err.splitlines())) == (2, 1)


def test_a_file_of_100_megabytes_is_answered_and_leaves_nothing_half_written(terminal):
    with (terminal.folder / "huge.json").open("wb") as file:
        file.write(b'[{"role": "user", "content": "')
        for _ in range(105):
            file.write(b"x" * (1 << 20))
        file.write(b'"}]')
    result = terminal("import_trace", "huge.json", "--json")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "at most 100 MB" in result.err
    assert counts(terminal) == (0, 0)


def test_a_closed_pipe_is_no_error(finished):
    terminal, trace = finished
    with terminal.start("show", trace, "--json") as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) in (0, 141)


def test_a_run_that_nobody_reads_any_more_is_stopped(terminal):
    (terminal.folder / "slow.yaml").write_text(ENDLESS)
    with terminal.start("run", "Think", "--script", "slow.yaml", "--json") as process:
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.wait(60) == 141, process.stderr.read()
    assert first["event"] == "MessageStored"
    [status] = statuses(terminal)
    assert status == "stopped"


def test_a_terminal_of_another_encoding_shows_what_it_can(finished):
    terminal, trace = finished
    other = Terminal(terminal.folder, PYTHONIOENCODING="ascii")
    result = other("show", trace)
    assert (result.code, result.err) == (0, "")
    assert "[?] 1. Look" in result.out


# user and token ----------------------------------------------------------------------------


def test_a_user_is_made_with_a_role_and_a_link(terminal):
    result = terminal("user", "mei", "--role", "operator", "--url", "https://agents.example/")
    assert "mei is operator" in result.out
    assert re.search(r"https://agents\.example/sign-in/[\w-]{40,}/", result.out)
    assert "mei is viewer" in terminal("user", "mei", "--role", "viewer").out


def test_a_password_comes_from_a_pipe_and_weak_ones_are_refused(terminal):
    weak = terminal("user", "mei", "--password", given=b"12345\n")
    assert (weak.code, weak.out) == (2, "")
    assert "mei" not in terminal("token", "--list").out
    assert terminal("user", "mei", "--password", given=b"four wet otters\n").code == 0


@pytest.mark.parametrize("name", ["", "a b", "<script>", "x" * 200, "a/b"])
def test_a_user_needs_a_plain_name(terminal, name):
    result = terminal("user", name)
    assert (result.code, len(result.err.splitlines())) == (2, 1)


def test_tokens_are_made_listed_and_revoked(terminal):
    terminal("user", "mei")
    token = terminal("token", "ci", "--user", "mei").out.strip()
    assert re.fullmatch(r"ca_[\w-]{40,}", token)
    listed = terminal("token", "--list").out
    assert token not in listed
    assert f"{token[:8]}…  mei  ci  valid  never used" in listed
    number = listed.split()[0]
    assert "revoked" in terminal("token", "--revoke", number).out
    assert terminal("token", "--revoke", "999").code == 2
    assert terminal("token", "x", "--user", "nobody").code == 2


def test_a_run_leaves_only_rows_and_data_behind(terminal):
    run(terminal)
    found = {
        p.name for p in Path(terminal.folder).iterdir() if not p.name.endswith(("-wal", "-shm"))
    }
    assert found <= {"work", "turns.yaml", "rows.sqlite3", "data", ".rows.sqlite3.migrate"}
