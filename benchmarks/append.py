"""Appending one message with its event, against bare INSERTs of the very same rows.

    python -m benchmarks.append --messages 5000

Both commit once per message, on the same database (that of DATABASE_URL, else a SQLite file made
for this run) and in turns of a hundred, so that neither has a quieter machine. Prints a table and
one line of JSON; times in milliseconds. The bar is a ratio of at most 4.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

BAR = 4.0
TURN = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CYBERAGENT_DATA_DIR", folder)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cyberagent.settings")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        report(measure(asked.messages))
        from traces.threads import close_connections

        close_connections()


def measure(count: int) -> dict[str, Any]:
    """Times of each way, the turns interleaved."""
    from django.db import connection

    from traces import write

    ours, theirs, store = new_trace(), new_trace(), new_trace()
    ways: dict[str, list[float]] = {"append": [], "bare INSERTs": [], "store (async)": []}
    for turn in range(0, count, TURN):
        drafts = [draft(n) for n in range(turn, min(turn + TURN, count))]
        for one in drafts:
            begun = time.perf_counter()
            write.append(ours, [one])
            ways["append"].append(time.perf_counter() - begun)
        ways["bare INSERTs"] += bare(rows_since(ours, turn), theirs)
        ways["store (async)"] += asyncio.run(stored(store, drafts))
    medians = {way: statistics.median(times) * 1000 for way, times in ways.items()}
    means = {way: statistics.fmean(times) * 1000 for way, times in ways.items()}
    bare_ms = medians["bare INSERTs"]
    return {
        "database": connection.vendor,
        "messages": count,
        "median_ms": {way: round(ms, 4) for way, ms in medians.items()},
        "mean_ms": {way: round(ms, 4) for way, ms in means.items()},
        "ratio": round(medians["append"] / bare_ms, 2),
        "ratio_of_means": round(means["append"] / means["bare INSERTs"], 2),
        "bar": BAR,
    }


def new_trace() -> str:
    """A trace with its root message: its branch is there."""
    from cyberagent.core.ports import NewTrace
    from cyberagent.core.types import text_message
    from traces import write

    trace = write.create_trace(NewTrace(mission="measure appends"))
    write.append(trace.id, [text_message("user", "begin", source="user")])
    return trace.id


def draft(number: int) -> Any:
    """A message of about 1 KB, as agents write them."""
    from cyberagent.core.types import text_message

    text = f"step {number}: " + "read the next file and note what it says. " * 24
    return text_message("assistant", text, source="model", goal_id="1.2", turn=1, tokens=240)


def rows_since(trace_id: str, turn: int) -> list[list[tuple[str, list[Any]]]]:
    """The stored rows of one turn's messages: for each the INSERTs without their keys."""
    from traces.models import Event, Message

    made: list[list[tuple[str, list[Any]]]] = []
    messages = Message.objects.filter(trace_id=trace_id, sequence__gt=turn + 1)
    events = Event.objects.filter(trace_id=trace_id, number__gt=turn + 1)
    for message, event in zip(
        messages.order_by("sequence"), events.order_by("number"), strict=True
    ):
        made.append([insert_of(message), insert_of(event)])
    return made


def insert_of(row: Any) -> tuple[str, list[Any]]:
    from django.db import connection

    meta = row._meta
    columns = [f for f in meta.concrete_fields if not f.primary_key]
    mark = "?" if connection.vendor == "sqlite" else "%s"
    names, marks = ", ".join(f.column for f in columns), ", ".join([mark] * len(columns))
    values = [f.get_db_prep_save(getattr(row, f.attname), connection) for f in columns]
    return f"INSERT INTO {meta.db_table} ({names}) VALUES ({marks})", values


def bare(turn: Sequence[list[tuple[str, list[Any]]]], trace_id: str) -> Iterator[float]:
    """Insert the rows under another trace through the driver alone; seconds of each commit."""
    from django.db import connection

    from traces.models import Branch

    branch = Branch.objects.get(trace_id=trace_id).pk
    connection.ensure_connection()
    driver = connection.connection
    begin = "BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN"
    for statements in turn:
        moved = [(sql, under(sql, values, trace_id, branch)) for sql, values in statements]
        begun = time.perf_counter()
        driver.execute(begin)
        for sql, values in moved:
            driver.execute(sql, values)
        driver.execute("COMMIT")
        yield time.perf_counter() - begun


def under(sql: str, values: list[Any], trace_id: str, branch: int) -> list[Any]:
    names = sql[sql.index("(") + 1 : sql.index(")")].split(", ")
    other = {"trace_id": trace_id, "branch_id": branch}
    return [other.get(name, value) for name, value in zip(names, values, strict=True)]


async def stored(trace_id: str, drafts: Sequence[Any]) -> list[float]:
    """One append after the other through the Store, its thread and event loop included."""
    from traces.store import OrmStore

    store, times = OrmStore(), []
    for one in drafts:
        begun = time.perf_counter()
        await store.append(trace_id, [one])
        times.append(time.perf_counter() - begun)
    return times


def report(result: dict[str, Any]) -> None:
    print(f"{'':16}{'median ms':>12}{'mean ms':>12}")
    for way, ms in result["median_ms"].items():
        print(f"{way:16}{ms:12.4f}{result['mean_ms'][way]:12.4f}")
    verdict = "within" if result["ratio"] <= BAR else "OVER"
    print(f"{result['ratio']:.2f}× the bare INSERTs: {verdict} the bar of {BAR:g}×")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
