"""Random operations on rows — appends, side branches, rewinds, forks, transactions that die —
against a tree so plain that it can be read at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import Conflict, NotFound
from cyberagent.core.events import MessageStored, Nudge
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import Json, Message, text_message
from tests.examples import examples
from tests.traces.naive import Naive
from traces import paths, write
from traces.models import Event, Trace
from traces.models import Message as MessageRow
from traces.rewind import fork
from traces.store import OrmStore

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Rows:
    """One trace in rows beside the naive one; ``rows`` are messages as first seen, as JSON."""

    trace: str
    naive: Naive = field(default_factory=Naive)
    rows: dict[int, Json] = field(default_factory=dict)
    branch_ends: dict[str, int] = field(default_factory=dict)

    def took(self, messages: tuple[Message, ...], parent: int, *, moves: bool) -> None:
        for message in messages:
            assert message.sequence == len(self.rows) + 1
            assert (message.parent_sequence or 0) == parent
            parent = message.sequence
            self.rows[message.sequence] = message.to_json()
        self.naive.add(*messages, moves=moves)

    def check(self) -> None:
        trace = Trace.objects.get(pk=self.trace)
        assert (trace.head_sequence, trace.last_sequence) == (self.naive.head, len(self.rows))
        stored = async_to_sync(OrmStore().messages)(self.trace, range(1, len(self.rows) + 2))
        assert {n: m.to_json() for n, m in stored.items()} == self.rows
        assert paths.page(trace) == self.naive.path()
        numbers = (
            Event.objects.filter(trace=trace).order_by("number").values_list("number", flat=True)
        )
        assert list(numbers) == list(range(1, trace.last_event + 1))
        told = async_to_sync(OrmStore().events)(self.trace, 0, 100_000)
        about = [e.message for e in told if isinstance(e, MessageStored)]
        assert about == list(range(1, len(self.rows) + 1)), "each message is told once"


def draft(text: str, branch: str = "") -> Message:
    kind: Any = "reflection" if branch else ""
    return text_message("user", text, source="user", branch_id=branch, branch_type=kind)


_texts = st.sampled_from(["a", "", "\x00", "\ud800", "行动", "x" * 300])
_counts = st.integers(1, 3)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _counts, _texts),
        st.tuples(st.just("append"), _counts, _texts),
        st.tuples(st.just("side"), st.sampled_from(["b1", "b2", "b3"]), _texts),
        st.tuples(st.just("under"), st.integers(0, 9), _texts),
        st.tuples(st.just("root"), _counts, _texts),
        st.tuples(st.just("move"), st.integers(0, 30), _texts),
        st.tuples(st.just("stale"), _counts, _texts),
        st.tuples(st.just("crash"), _counts, _texts),
        st.tuples(st.just("fork"), st.integers(0, 9), _texts),
    ),
    max_size=14,
)


class Crashed(Exception):
    """The process died before the commit."""


def apply(rows: Rows, name: str, value: Any, text: str) -> None:
    naive, head = rows.naive, rows.naive.head
    if name in ("append", "root"):
        drafts = [draft(f"{text}{n}") for n in range(value)]
        done = write.append(rows.trace, drafts, root=name == "root", expected_head=head)
        rows.took(done.messages, 0 if name == "root" else head, moves=True)
    elif name == "side":
        parent = rows.branch_ends.get(value, head)
        done = write.append(
            rows.trace, [draft(text, value)], parent=parent or None, root=not parent,
            move_head=False,
        )  # fmt: skip
        rows.took(done.messages, parent, moves=False)
        rows.branch_ends[value] = done.messages[0].sequence
    elif name == "under":
        path = naive.path()
        if path:
            parent = path[value % len(path)].sequence
            done = write.append(rows.trace, [draft(text)], parent=parent, expected_head=head)
            rows.took(done.messages, parent, moves=True)
    elif name == "move":
        move(rows, value)
    elif name == "stale":
        with pytest.raises(Conflict):
            write.append(rows.trace, [draft(text)], expected_head=head + 1)
    elif name == "crash":
        with pytest.raises(Crashed), transaction.atomic():
            write.append(rows.trace, [draft(text)] * value, [Nudge(what="x")])
            raise Crashed
    else:
        forked(rows, value)


def move(rows: Rows, to: int) -> None:
    naive = rows.naive
    if to > len(rows.rows):
        with pytest.raises(NotFound):
            write.move_head(rows.trace, to, expected_head=naive.head)
    elif to and naive.messages[to].branch_id:
        with pytest.raises(Conflict):
            write.move_head(rows.trace, to, expected_head=naive.head)
    else:
        write.move_head(rows.trace, to, [Nudge(what="moved")], expected_head=naive.head)
        naive.head = to


def forked(rows: Rows, back: int) -> None:
    """A fork shares the words of the prefix, and what is done to it leaves the first alone."""
    path = rows.naive.path()
    if not path:
        return
    at = path[back % len(path)].sequence
    made = fork(Trace.objects.get(pk=rows.trace), at, owner=None)
    words = [m.text for m in rows.naive.path(at)]
    assert [m.text for m in paths.page(made)] == words
    write.append(made.pk, [draft("only here")])
    assert MessageRow.objects.filter(trace_id=rows.trace).count() == len(rows.rows)


@examples(25)
@given(OPERATIONS)
def test_whatever_is_done_the_rows_are_what_the_plain_tree_is(operations):
    rows = Rows(write.create_trace(NewTrace(mission="x")).id)
    for operation in operations:
        apply(rows, *operation)
        rows.check()
