"""Root anchors from the terminal: real processes that start a recursive run, show and revise."""

from __future__ import annotations

import json

import pytest

from cyberagent.core.context_policy import normalize_root_task_anchor
from tests.traces.anchored import ANCHOR, changed, of_characters
from tests.traces.terminal import Terminal

pytestmark = pytest.mark.xdist_group("terminal")

VALUE = normalize_root_task_anchor(ANCHOR)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "task.json").write_text(json.dumps(ANCHOR))
    (folder / "turns.yaml").write_text("speed: 0\nturns:\n  - say: It is moved.\n")
    return Terminal(folder, used=True)


@pytest.fixture(scope="module")
def moved(terminal: Terminal) -> str:
    """A run from the terminal with an anchor of its own; its trace's id."""
    done = terminal(
        "run", "Move the shop.", "--preset", "recursive", "--anchor", "task.json",
        "--script", "turns.yaml", "--children", "parallel", "--json",
    )  # fmt: skip
    # Its script has no validator: nobody found the answer passed, and it is said so.
    assert done.code == 0, done.err
    return done.lines()[-1]["trace"]


def test_the_terminal_starts_one_and_shows_its_anchor(terminal, moved):
    shown = terminal("anchor", "show", moved, "--json").json()
    assert (shown["trace"], shown["anchor"], shown["sha256"]) == (moved, ANCHOR, VALUE.sha256)
    (first,) = shown["revisions"]
    assert (first["number"], first["by"], first["why"]) == (1, "admin", "")
    text = terminal("anchor", "show", moved).out
    assert "  - No card number is logged" in text and VALUE.sha256 in text


def test_the_terminal_revises_it_after_a_dry_run(terminal, moved):
    value = changed(objective="Move \x1b[31mthe\x1b[0m shop by May")
    (terminal.folder / "new.json").write_text(json.dumps(value))
    dry = terminal("anchor", "revise", moved, "new.json", "--dry-run")
    assert dry.code == 0 and "nothing was changed" in dry.out and "\x1b" not in dry.out
    for more in ([], ["--why", " "], ["--why", "law", "--expect", "0" * 64]):
        refused = terminal("anchor", "revise", moved, "new.json", *more)
        assert (refused.code, refused.out) == (2, "") and refused.err.startswith("error: ")
    done = terminal("anchor", "revise", moved, "new.json", "--why", "the law", "--json")
    assert (done.json()["number"], done.json()["by"]) == (2, "admin")
    assert "already the same" in terminal("anchor", "revise", moved, "new.json", "--why", "x").err
    assert len(terminal("anchor", "show", moved, "--json").json()["revisions"]) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "RootTaskAnchor is not JSON"),
        (b'{"objective": NaN}', "NaN"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 5_000, "nested"),
        (b'{"objective": "x", "objective": "y"}', "twice"),
        (json.dumps(of_characters(4_001)).encode(), "4,001 characters"),
        (None, "No such file"),
    ],
    ids=range(7),
)
def test_a_file_that_is_no_anchor_starts_nothing(terminal, moved, content, words):
    file = terminal.folder / "odd.json"
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    more = ("--script", "turns.yaml", "--anchor", "odd.json")
    started = terminal("run", "Move.", "--preset", "recursive", *more)
    assert (started.code, started.out) == (2, "") and words in started.err
    revised = terminal("anchor", "revise", moved, "odd.json", "--why", "law")
    assert (revised.code, revised.out) == (2, "") and words in revised.err


def test_the_terminal_says_which_anchor_is_missing_or_too_much(terminal):
    own = ("--script", "turns.yaml")
    missing = terminal("run", "Move.", "--preset", "recursive", *own)
    assert (missing.code, missing.out) == (2, "") and "needs a root task anchor" in missing.err
    extra = terminal("run", "Move.", *own, "--anchor", "task.json")
    assert (extra.code, extra.out) == (2, "") and "takes no root task anchor" in extra.err
    unknown = terminal("anchor", "show", "0000")
    assert (unknown.code, unknown.out) == (2, "")


def test_without_a_mission_the_terminal_plays_the_demo_with_sub_agents(terminal):
    done = terminal("run", "--preset", "recursive", "--speed", "0", "--json")
    assert done.code == 0, done.err
    kinds = {e["agent"] for e in done.lines() if e["event"] == "ChildStarted"}
    assert {"agent", "validator", "explore"} <= kinds
