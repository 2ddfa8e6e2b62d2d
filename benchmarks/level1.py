"""Level 1 over long histories, against one Python loop that copies the list message by message.

    python -m benchmarks.level1 --messages 100000

Every goal of the history is closed, so every message is looked at and nearly all go. The loop
makes a new item for each message; a loop that only appends references is shown beside it. Best of
several turns, one way after the other in each, with the garbage collector held off as timeit
does; times in milliseconds. Prints a table and one line of JSON. The bars: a ratio of at most
10, and at most 2.2 times the time for twice the size.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cyberagent.compaction.goal import compress_completed_goals
from cyberagent.compaction.values import Facts, Items
from cyberagent.core.tokens import TiktokenCounter
from cyberagent.core.types import Message, Text, ToolCall
from cyberagent.core.window import Item
from cyberagent.trace.goals import GoalTree

BAR, DOUBLE_BAR = 10.0, 2.2
TURNS = 7
PER_GOAL = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    most = parser.parse_args().messages
    report([measure(n) for n in (most // 10, most // 2, most)])


def history(count: int) -> Items:
    """A user message, then goals of a hundred messages each: turns with one call and its result,
    some with a call of the plan beside, and the call that closes the goal."""
    made = [Message(role="user", parts=(Text("begin"),), source="user", tokens=5)]
    while len(made) < count:
        place = len(made)
        goal = str(place // PER_GOAL + 1)
        call = ToolCall(f"call_{place}", "read_file", '{"path": "notes.py"}')
        calls = [call]
        if place % PER_GOAL >= PER_GOAL - 2:
            calls = [ToolCall(call.id, "goal", json.dumps({"done": goal, "summary": "it works"}))]
        made.append(
            Message(
                role="assistant",
                parts=(Text("Next."), *calls),
                source="model",
                goal_id=goal,
                tokens=20,
            )
        )
        made.append(
            Message(
                role="tool",
                parts=(Text("content"),),
                source="tool",
                tool_call_id=call.id,
                name=calls[0].name,
                goal_id=goal,
                tokens=200,
            )
        )
    return tuple(Item(replace(m, sequence=n)) for n, m in enumerate(made[:count], 1))


def plan(count: int) -> GoalTree:
    goals = [
        {"id": str(n), "description": "a goal", "status": "completed", "summary": "it works"}
        for n in range(1, count // PER_GOAL + 2)
    ]
    return GoalTree.from_json({"mission": "measure", "current_id": None, "goals": goals})


def copied(items: Items) -> list[Item]:
    copy: list[Item] = []
    for item in items:
        copy.append(Item(item.message, item.kind, item.strategy, item.why))
    return copy


def appended(items: Items) -> list[Item]:
    copy: list[Item] = []
    for item in items:
        copy.append(item)
    return copy


def measure(count: int) -> dict[str, Any]:
    items = history(count)
    facts = Facts(counter=TiktokenCounter("o200k_base", exact=True), plan=plan(count))
    left = compress_completed_goals(items, facts).items
    ways: dict[str, Callable[[], object]] = {
        "level 1": lambda: compress_completed_goals(items, facts),
        "copy": lambda: copied(items),
        "append": lambda: appended(items),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(TURNS):
        for way, run in ways.items():
            gc.collect()
            gc.disable()
            begun = time.perf_counter()
            run()
            best[way] = min(best[way], (time.perf_counter() - begun) * 1000)
            gc.enable()
    return {
        "messages": count,
        "left": len(left),
        "ms": {way: round(ms, 3) for way, ms in best.items()},
        "ratio": round(best["level 1"] / best["copy"], 2),
        "ratio_to_append": round(best["level 1"] / best["append"], 1),
    }


def report(results: Sequence[dict[str, Any]]) -> None:
    print(
        f"{'messages':>10}{'left':>8}{'level 1 ms':>12}{'copy ms':>10}{'append ms':>11}{'ratio':>8}"
    )
    for one in results:
        ms = one["ms"]
        print(
            f"{one['messages']:10}{one['left']:8}{ms['level 1']:12.2f}{ms['copy']:10.2f}"
            f"{ms['append']:11.2f}{one['ratio']:8.2f}"
        )
    double = results[-1]["ms"]["level 1"] / results[-2]["ms"]["level 1"]
    within = all(one["ratio"] <= BAR for one in results) and double <= DOUBLE_BAR
    print(
        f"{results[-1]['ratio']:.2f}× the copying loop, {double:.2f}× for twice the messages: "
        f"{'within' if within else 'OVER'} the bars of {BAR:g}× and {DOUBLE_BAR:g}×"
    )
    summary = {"scales": list(results), "double": round(double, 2)}
    print(json.dumps({**summary, "bars": [BAR, DOUBLE_BAR], "within": within}))


if __name__ == "__main__":
    main()
