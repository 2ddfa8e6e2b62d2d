"""Scripted runs over rows, for tests of what operators do to them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

from cyberagent.core.config import RunConfig
from traces import commands, paths, runs
from traces.models import Command, Event, Trace

TURNS: list[Any] = [
    {"calls": [{"goal": {"add": "Read, Report", "focus": "1"}}]},
    {"calls": [{"read_file": {"path": "f0.txt"}}, {"read_file": {"path": "f1.txt"}}]},
    {"calls": [{"goal": {"done": "1", "summary": "read"}}]},
    {"say": "The report."},
    {"say": "Another report."},
]
"""1 user, 2 goal call, 3 its result, 4 two reads, 5 and 6 their results, 7 done, 8 its result,
9 the report."""

READS: list[Any] = [
    *({"calls": [{"read_file": {"path": f"f{n}.txt"}}]} for n in range(4)),
    {"say": "End."},
    {"say": "More."},
]
SMALL: dict[str, Any] = {"context_window": 8_400, "tools": ("goal", "read_file")}
"""The window in which three of READS are over the threshold."""

SUMMARY = "1. **Findings**: [2-7] f0 to f2 hold facts."


def started(folder: Path, turns: list[Any] = TURNS, **config: Any) -> str:
    for n in range(4):
        lines = "\n".join(f"file {n} line {i} holds a fact" for i in range(75))
        (folder / f"f{n}.txt").write_text(lines)
    branches = {"compression": [{"say": SUMMARY}]}
    options = {"script": {"turns": turns, "branches": branches}, "speed": 0}
    settings = RunConfig(
        provider="scripted", workspace=str(folder), provider_options=options, **config
    )
    return commands.start(None, "Look at the files.", settings).pk


def play(trace_id: str) -> str:
    """Drive a run as a worker does; its status then."""
    return asyncio.run(runs.drive(trace_id, "me"))


def ran(folder: Path, turns: list[Any] = TURNS, **config: Any) -> Trace:
    trace_id = started(folder, turns, **config)
    assert play(trace_id) == "completed"
    return now(trace_id)


def now(trace: Trace | str) -> Trace:
    return Trace.objects.get(pk=trace if isinstance(trace, str) else trace.pk)


def on_path(trace: Trace | str) -> list[int]:
    return [m.sequence for m in paths.page(now(trace))]


def told(trace: Trace | str, kind: str) -> list[dict[str, Any]]:
    """The fields of a trace's events of one kind, in order."""
    rows = Event.objects.filter(trace=trace, kind=kind).order_by("number")
    return [json.loads(data) for data in rows.values_list("data", flat=True)]


def asked(trace_id: str, name: str, by: Any = None, **arguments: Any) -> Command:
    """A command that was given while the run was driven."""
    return Command.objects.create(
        trace_id=trace_id, name=name, by=by, arguments=json.dumps(arguments)
    )


aplay = sync_to_async(play)
