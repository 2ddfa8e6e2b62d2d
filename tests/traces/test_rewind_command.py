"""``manage.py rewind``, as a person runs it."""

from __future__ import annotations

import pytest

from tests.traces.terminal import Terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    return Terminal(tmp_path_factory.mktemp("rewind"), used=True)


@pytest.fixture(scope="module")
def run(terminal: Terminal) -> str:
    """The demo, driven to its end; its id. Each test leaves its head where it was."""
    ended = terminal("run", "--speed", "0", "--json")
    assert ended.code == 0
    return ended.lines()[-1]["trace"]


def test_a_dry_run_shows_the_receipt_and_changes_nothing(terminal: Terminal, run: str):
    told = terminal("rewind", run, "3", "--dry-run")
    assert told.code == 0
    assert "nothing was changed" in told.out and "\nequal\n" in told.out
    again = terminal("rewind", run, "3", "--dry-run", "--json").json()
    assert again["command"] is None
    assert again["receipt"]["then_sha256"] == again["receipt"]["now_sha256"]
    assert again["receipt"]["then_sha256"] in told.out
    assert (
        again["receipt"]["head"] == terminal("show", run, "--json").json()["trace"]["head_sequence"]
    )


def test_a_rewind_is_done_told_and_can_be_undone_by_its_last_line(terminal: Terminal, run: str):
    before = [m["sequence"] for m in terminal("show", run, "--json").json()["messages"]]
    done = terminal("rewind", run, "3", "--why", "the wrong file")
    assert done.code == 0
    last = done.out.splitlines()[-1]
    assert last == f"to undo it: manage.py rewind {run} {before[-1]}"
    now = terminal("show", run, "--json").json()
    assert [m["sequence"] for m in now["messages"]] == [1, 2, 3]
    assert now["trace"]["status"] == "paused"
    undo = terminal(*last.split("manage.py ")[1].split(), "--json").json()
    assert undo["command"]["status"] == "applied"
    after = [m["sequence"] for m in terminal("show", run, "--json").json()["messages"]]
    assert after == before


def test_what_cannot_be_is_one_sentence(terminal: Terminal, run: str):
    for arguments, problem in (
        (("0000", "1"), "0000"),
        ((run, "9999"), "9999"),
        ((run, "-1"), "-1"),
    ):
        told = terminal("rewind", "--", *arguments)
        assert told.code == 2
        assert problem in told.err and told.err.count("\n") == 1
