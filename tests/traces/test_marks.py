"""Marks above the timeline: what happened between the calls, at most so many of them."""

from __future__ import annotations

import pytest

from cyberagent.core.events import CallStarted, Compacted, Injected, Rewound
from tests.traces.people import stored_trace, trace_row
from traces import marks, write
from traces.marks import Happened
from traces.models import Trace


def kinds_and_places(happened: list[Happened], calls: int) -> list[tuple[str, float, int]]:
    return [(m.kind, m.x, m.count) for m in marks.placed(happened, calls)]


def test_a_mark_stands_between_the_call_before_and_the_call_after() -> None:
    # Five calls stand at 0, 25, 50, 75 and 100 percent.
    happened = [Happened("level1", 3, 10), Happened("injected", 1, 4), Happened("rewound", 5, 20)]
    assert kinds_and_places(happened, 5) == [
        ("injected", 12.5, 1), ("level1", 62.5, 1), ("rewound", 100.0, 1),
    ]  # fmt: skip
    assert kinds_and_places([Happened("injected", 0, 1)], 5) == [("injected", 0.0, 1)]


def test_a_thousand_injections_are_at_most_forty_marks_that_lose_none() -> None:
    placed = marks.placed([Happened("injected", n, n) for n in range(1, 5_001, 5)], 5_000)
    assert len(placed) == 40
    assert sum(m.count for m in placed) == 1_000


@pytest.mark.django_db
def test_events_are_marks_and_what_failed_or_was_held_back_is_none() -> None:
    trace = stored_trace()
    went = {"strategy": "goal", "trigger": "overflow", "tokens_before": 90, "tokens_after": 50}
    write.append(trace, [], [CallStarted(call=1), Compacted(level=1, **went), CallStarted(call=2)])
    write.append(trace, [], [Compacted(level=2, success=False, **went), Compacted(level=2, **went)])
    told = [Injected(what="skill a", why="recent", fired=False), Injected(what="skill a", why="")]
    write.append(trace, [], [*told, Rewound(to_sequence=1, from_sequence=4, by="ada")])
    Trace.objects.filter(pk=trace).update(last_call=4)
    found = [(m.kind, m.first.after) for m in marks.of(trace_row(trace))]
    assert sorted(found) == [("injected", 2), ("level1", 1), ("level2", 2), ("rewound", 2)]
    # Read on from where it was: later calls and events are there too.
    write.append(trace, [], [CallStarted(call=3), CallStarted(call=4, branch_id="b")])
    write.append(trace, [], [Compacted(level=1, **went)])
    assert [m.first.after for m in marks.of(trace_row(trace)) if m.kind == "level1"] == [1, 4]
    number = trace_row(trace).last_event
    assert marks.calls_around(trace_row(trace), number) == (3, 0)
