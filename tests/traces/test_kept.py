"""What is kept of a trace in the process: read on, by several threads at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection

from cyberagent.core.events import CallStarted, Rewound
from cyberagent.core.types import text_message
from tests.traces import grown
from traces import marks, members, write
from traces.kept import Kept
from traces.models import Trace

REF = {"ref_id": "task_brief:x", "version": "a" * 64}


@dataclass(frozen=True)
class Seen:
    upto: int = 0
    found: tuple[int, ...] = ()


def test_who_read_less_than_another_one_takes_nothing_away() -> None:
    kept = Kept(Seen(), most=2)
    kept.keep("a", Seen(3, (1, 2, 3)))
    kept.keep("a", Seen(2, (1, 2)))
    assert kept.of("a") == Seen(3, (1, 2, 3))
    assert kept.of("b") == Seen()


def test_of_too_many_traces_the_one_asked_for_longest_ago_is_forgotten() -> None:
    kept = Kept(Seen(), most=2)
    kept.keep("a", Seen(1))
    kept.keep("b", Seen(1))
    assert kept.of("a").upto == 1
    kept.keep("c", Seen(1))
    assert [kept.of(name).upto for name in "abc"] == [1, 0, 1]


def reading(trace: str, number: int) -> None:
    """A sub-agent reads a ref."""
    call = f"k{number}"
    grown.asks(trace, call, name="read_context_ref", arguments=json.dumps(REF))
    text = '{"characters":10,"from":0,"to":10}\nabc'
    found = text_message("tool", text, source="tool", tool_call_id=call, name="read_context_ref")
    write.append(trace, [found])


def at_once(read: Callable[[], Any]) -> list[Any]:
    """What four threads get that read at the same time."""
    begin = threading.Barrier(4)

    def one(_: int) -> Any:
        begin.wait()
        try:
            return read()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(4)))


@pytest.mark.usefixtures("threads")
def test_readers_at_once_see_each_reading_of_a_ref_once() -> None:
    root = grown.a_root("paused")
    child = grown.a_child(root, "c1", grown.asks(root, "c1"))
    for upto in range(10, 50, 10):
        for number in range(upto - 10, upto):
            reading(child, number)
        row = Trace.objects.get(pk=child)
        seen = at_once(lambda row=row: members.members_of(row)[0].reads)
        assert [len(reads) for reads in seen] == [upto] * 4


@pytest.mark.usefixtures("threads")
def test_readers_at_once_see_each_event_as_one_mark() -> None:
    root = grown.a_root("paused")
    told = Rewound(to_sequence=1, from_sequence=1, by="ada")
    for times in range(1, 5):
        write.append(root, [], [CallStarted(call=times), *[told] * 50])
        row = Trace.objects.get(pk=root)
        seen = at_once(lambda row=row: sum(m.count for m in marks.of(row)))
        assert seen == [times * 50] * 4
