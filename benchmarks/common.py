"""What the benchmarks share: Django on a database of their own, long traces, medians, a report.

Each benchmark compares ways within one run, in turns, since machines are noisy. It prints a table
and, as its last line, one JSON object with ``within``: whether its bars are kept.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

TURNS = 15


@contextmanager
def product() -> Iterator[None]:
    """Django set up on the database of DATABASE_URL, else on a SQLite file that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CYBERAGENT_DATA_DIR", folder)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cyberagent.settings")
        import django

        django.setup()
        from django.core.management import call_command

        from traces.threads import close_connections

        call_command("migrate", verbosity=0)
        yield
        close_connections()


def long_trace(messages: int, *, per_goal: int = 100, owner: Any = None) -> Any:
    """A stored trace: a plan with a goal for each ``per_goal`` messages, turns of one call and
    its result, all goals closed but the last."""
    from cyberagent.core.types import TraceState
    from cyberagent.trace.formats.values import TraceBundle
    from traces.bundle import store_bundle

    drafts = history(messages, per_goal)
    state = TraceState(
        id="",
        mission="A long job",
        status="completed",
        head_sequence=len(drafts),
        last_sequence=len(drafts),
        origin="bench",
    )
    return store_bundle(TraceBundle(state=state, messages=tuple(drafts)), owner)


def history(count: int, per_goal: int = 100) -> list[Any]:
    """``count`` messages in a chain, numbered from 1."""
    from dataclasses import replace

    from cyberagent.core.types import Message, Text, ToolCall

    goals = max(1, count // per_goal)
    plan = {"add": [f"Part {n}" for n in range(1, goals + 1)]}
    made = [Message(role="user", parts=(Text("A long job"),), source="user")]
    current = ""
    while len(made) < count:
        place = len(made)
        goal = str(min(goals, place // per_goal + 1))
        arguments: dict[str, Any] = {"path": f"src/module_{place}.py"}
        name = "read_file"
        if place == 1:
            name, arguments = "goal", {**plan, "focus": "1"}
        elif goal != current:
            name, arguments = "goal", {"done": current, "summary": "as found", "focus": goal}
        call = ToolCall(f"call_{place}", name, json.dumps(arguments))
        said = Text(f"Step {place}: the next file tells how part {goal} is done.")
        made.append(Message(role="assistant", parts=(said, call), source="model", goal_id=current))
        result = Text(f"line {place}\n" * 12)
        made.append(
            Message(
                role="tool", parts=(result,), source="tool", tool_call_id=call.id, name=name,
                goal_id=current, duration_ms=3,
            )
        )  # fmt: skip
        current = goal
    return [
        replace(m, sequence=n, depth=n, parent_sequence=n - 1 or None)
        for n, m in enumerate(made[:count], 1)
    ]


def medians(ways: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """Milliseconds of each way, the ways interleaved, after one turn that does not count."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, act in ways.items():
            begun = time.perf_counter()
            act()
            if turn:
                times[way].append((time.perf_counter() - begun) * 1000)
    return {way: statistics.median(found) for way, found in times.items()}


def report(title: str, rows: Sequence[tuple[str, str]], *, within: bool, **result: Any) -> None:
    print(title)
    for name, value in rows:
        print(f"  {name:44}{value:>16}")
    print("  within its bars" if within else "  OVER its bars")
    print(json.dumps({**result, "within": within}))
