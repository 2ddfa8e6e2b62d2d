"""What the engine itself costs per model call when 100 and when 100,000 messages are stored,
with windows of equal size.

    python -m benchmarks.overhead

The model answers at once and calls one tool that does nothing slow. Bar: at most twice.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.common import history, product, report

FEW, MANY, WINDOW, CALLS = 100, 100_000, 90, 40


def main() -> None:
    with product():
        ms = {f"{n:,}": asyncio.run(measured(n)) for n in (FEW, MANY)}
        ratio = ms[f"{MANY:,}"] / ms[f"{FEW:,}"]
        report(
            "The engine's own time per model call, ms",
            [(f"with {n} messages stored", f"{value:.1f}") for n, value in ms.items()],
            within=ratio <= 2,
            ms={n: round(value, 2) for n, value in ms.items()},
            ratio=round(ratio, 2),
        )


def stored(count: int) -> str:
    """A trace of ``count`` messages whose main path is its newest ones: what came before is
    stored and off the path, as after a summary."""
    from cyberagent.core.types import TraceState
    from cyberagent.trace.formats.values import TraceBundle
    from traces.bundle import store_bundle

    chain: Sequence[Any] = history(count, per_goal=10)
    first = count - WINDOW
    root = replace(chain[0], sequence=first, depth=1, parent_sequence=None)
    tail = [replace(m, depth=m.sequence - first + 1) for m in chain[first:]]
    messages = (*chain[: first - 1], root, *tail)
    state = TraceState(
        id="",
        mission="A long job",
        status="completed",
        head_sequence=count,
        last_sequence=count,
        origin="bench",
    )
    return store_bundle(TraceBundle(state=state, messages=messages), None).pk


async def measured(count: int) -> float:
    """Median milliseconds from the end of one model answer to the next call being sent."""
    from cyberagent.core.config import RunConfig
    from cyberagent.presets import build_runner
    from traces.store import OrmStore, in_writer

    trace_id = await in_writer(stored, count)
    turns = [{"calls": [{"get_current_context": {}}]}] * CALLS + [{"say": "End."}]
    options = {"script": {"turns": [{"say": "."}] * WINDOW + turns}, "speed": 0}
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(provider="scripted", workspace=folder, provider_options=options)
        runner = await build_runner(config, store=OrmStore(), environment={})
        state_answers = sum(m.source == "model" for m in await OrmStore().path(trace_id))
        options["script"]["turns"] = [{"say": "."}] * state_answers + turns
        runner = await build_runner(config, store=OrmStore(), environment={})
        times: list[float] = []
        begun = time.perf_counter()
        asked = [{"role": "user", "content": "Go on."}]
        async for event in runner.run(asked, config, trace_id=trace_id):
            if event.kind == "CallStarted":
                times.append((time.perf_counter() - begun) * 1000)
            if event.kind == "Usage":
                begun = time.perf_counter()
    return median(times[2:])


if __name__ == "__main__":
    main()
