"""``manage.py verdicts``, as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.traces.terminal import ROOT, Terminal

STORE = """
import django
django.setup()
from tests.traces import judged
from traces.access import local_admin
me = local_admin()
judged.judged_child(owner_id=me.pk)
judged.judged_root("unknown", sent=False, owner_id=me.pk)
judged.judged_child("passed", "passed", owner_id=me.pk)
"""
"""Verdicts 1 (failed), 2 (unknown, without a packet) and 3 (passed)."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    made = Terminal(tmp_path_factory.mktemp("verdicts"), used=True)
    settings = {"DJANGO_SETTINGS_MODULE": "cyberagent.settings", "PYTHONPATH": str(ROOT)}
    environment = made.environment | settings | {"PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", STORE], cwd=ROOT, env=environment, check=True)
    return made


def test_the_list_is_newest_first_and_narrowed_by_filters(terminal: Terminal) -> None:
    told = terminal("verdicts", "--limit", "2")
    assert told.code == 0
    first, second, more = told.out.splitlines()
    assert first.startswith("3  passed  waiting") and second.startswith("2  unknown  waiting")
    assert first.endswith("Write the refund call")
    rest = terminal("verdicts", *more.removeprefix("more: ").split())
    assert rest.out.startswith("1  failed") and rest.out.count("\n") == 1
    found = terminal("verdicts", "--verdict", "failed", "--json").lines()
    assert [v["id"] for v in found] == [1]
    assert "no verdict fits" in terminal("verdicts", "--search", "nothing").out


def test_one_verdict_is_shown_criterion_by_criterion(terminal: Terminal) -> None:
    told = terminal("verdicts", "show", "1").out
    for line in (
        "verdict 1: failed", "task: Write the refund call", "B2: The tests of refunds pass",
        "  claim: met [message 3, message 999 (missing)]",
        "  validator: failed: No test run is among the messages.", "R1 (told beside): Orders can",
        "holds", "nobody has reviewed it yet",
    ):  # fmt: skip
        assert line in told, line
    whole: Any = terminal("verdicts", "show", "1", "--json").json()
    packet = terminal("verdicts", "show", "1", "--packet").out
    assert packet.rstrip("\n") == whole["packet"]
    assert "packet: none was sent" in terminal("verdicts", "show", "2").out
    missing = terminal("verdicts", "show", "2", "--packet")
    assert (missing.code, missing.err.count("\n")) == (2, 1)


def test_a_word_is_said_and_counted(terminal: Terminal) -> None:
    told = terminal("verdicts", "confirm", "3", "--comment", "Quite so.")
    assert told.out == "verdict 3 (passed) is confirmed\n"
    refused = terminal(
        "verdicts", "overrule", "1", "--word", "passed", "--reason", "other", "--comment", "No."
    )
    assert refused.code == 2 and "failed follows from the criteria that decide" in refused.err
    made = terminal(
        "verdicts", "overrule", "1", "--word", "passed", "--criterion", "B2=passed",
        "--reason", "done_elsewhere", "--comment", "CI ran them.", "--json",
    ).json()  # fmt: skip
    assert (made["word"], made["by"], made["criteria"]["B2"]) == ("passed", "admin", "passed")
    assert "overruled as passed by admin" in terminal("verdicts", "show", "1").out
    agreed = terminal("verdicts", "agreement")
    # (passed, passed), (failed, passed): pe = (1·2 + 1·0) / 4 = po = 0.5.
    assert "all models: 1 of 2 agree (50 %), kappa 0.00" in agreed.out
    assert terminal("verdicts", "agreement", "--json").json()["all"]["agreed"] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("show", "99"), "99"),
        (("confirm", "0"), "0"),
        (("--since", "soon"), "since"),
        (("--cursor", "x"), "cursor"),
        (("--limit", "0"), "limit"),
        (("confirm", "2", "--criterion", "R1"), "R1"),
        (("confirm", "2", "--criterion", "R9=passed"), "R9"),
        (("confirm", "2", "--user", "nobody"), "nobody"),
        (("overrule", "2", "--word", "unknown", "--reason", "other", "--comment", "x"), "unknown"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    terminal: Terminal, arguments: tuple[str, ...], problem: str
) -> None:
    told = terminal("verdicts", *arguments)
    assert told.code == 2
    assert problem in told.err and told.err.count("\n") == 1
