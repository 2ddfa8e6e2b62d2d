"""Nudges of a turn: each once, only the highest, the last ones final."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.budget import nudge_due
from cyberagent.core.config import Limits
from cyberagent.core.events import Nudge
from cyberagent.core.rebuild import rebuilt
from cyberagent.providers.projections import PROJECTIONS
from tests.core.test_runner import Run, assert_every_window_holds

LAYERED = Limits(max_steps=8, token_soft_limit=32_000, token_hard_limit=40_000)


@pytest.mark.parametrize(
    ("spent", "told", "expected"),
    [
        (25_599, "", ""),
        (25_600, "", "near_soft"),  # 80 % of 32,000
        (31_999, "near_soft", ""),
        (32_000, "near_soft", "over_soft"),
        (39_999, "over_soft", ""),
        (40_000, "over_soft", "over_hard"),
        (90_000, "", "over_hard"),  # only the highest that applies
        (33_000, "over_hard", ""),
    ],
)
def test_each_level_is_told_once_and_only_the_highest(spent: int, told: str, expected: str):
    assert nudge_due(LAYERED, steps=1, spent=spent, told=told) == expected


def test_no_limits_mean_no_nudges():
    none = Limits(max_steps=0)
    assert nudge_due(none, steps=10**6, spent=10**9, told="") == ""


async def test_at_the_hard_limit_the_model_answers_without_tools_and_a_new_turn_begins_anew(
    tmp_path: Path,
):
    reading: dict[str, Any] = {"calls": [{"read_file": {"path": "notes.md"}}]}
    limits = Limits(token_soft_limit=4_000, token_hard_limit=7_000)
    # A call reads some 3,000 tokens: the first passes 80 % of 4,000 or the limit, the third 7,000.
    turns = [reading, reading, reading, {"say": "Told to."}, reading, {"say": "Again."}]
    run = Run(tmp_path, turns, limits=limits)
    await run.go()
    told = [e.what for e in run.events if isinstance(e, Nudge)]
    assert told[-1] == "over_hard" and len(set(told)) == len(told)
    trace = await run.store.trace(run.done.trace)
    last = await rebuilt(run.store, trace.id, trace.last_call, PROJECTIONS)
    assert last.payload["tool_choice"] == "none"
    await run.go([{"role": "user", "content": "Go on."}], trace_id=trace.id)
    following = await rebuilt(run.store, trace.id, trace.last_call + 1, PROJECTIONS)
    assert "tool_choice" not in following.payload or following.payload["tool_choice"] != "none"
    await assert_every_window_holds(run)
