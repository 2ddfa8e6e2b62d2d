"""What going back would undo of the protocol, told before it is done."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from cyberagent.core.types import text_message
from tests.traces.families import Family
from tests.traces.played import now
from traces import undone
from traces.models import Trace

pytestmark = pytest.mark.django_db


class Grown(Family):
    """1 the mission; 2 to 5 a child from its call to its acceptance; 6 and 7 the call and the
    result of another one, whose review is due; 8 the call of an explorer that is at work."""

    def __init__(self, owner: User) -> None:
        super().__init__(owner)
        self.first = self.accepted(self.root, objective="Write the <b>list</b>")
        second, call = self.delegate(self.root, objective="Write the guide")
        report, result, _ = self.report(second)
        self.deliver(self.root, second, call, report, result)
        self.explore(self.root, "Which files use it?")

    def at(self, to: int) -> undone.Undone:
        found = undone.undone(now(self.root), to)
        assert found is not None
        return found


@pytest.fixture
def grown() -> Grown:
    return Grown(User.objects.create_user("ann"))


def test_nothing_is_undone_at_the_head(grown: Grown) -> None:
    assert grown.at(8) == undone.Undone()


def test_a_call_that_is_left_ends_whom_it_asked_for(grown: Grown) -> None:
    assert grown.at(7) == undone.Undone(ended=("Which files use it?",))


def test_a_child_that_was_asked_for_later_is_none(grown: Grown) -> None:
    assert grown.at(5) == undone.Undone(gone=("Write the guide",), ended=("Which files use it?",))


def test_before_its_review_a_result_waits_for_one_and_is_no_ref(grown: Grown) -> None:
    told = grown.at(3)
    assert (told.due, told.refs) == (("Write the <b>list</b>",), 1)
    assert told.gone == ("Write the guide",)


def test_at_the_beginning_nobody_was_asked_for(grown: Grown) -> None:
    told = grown.at(0)
    assert told.gone == ("Write the <b>list</b>", "Write the guide")
    assert (told.due, told.refs) == ((), 1)


def test_a_verdict_on_its_own_work_counts_no_more(grown: Grown) -> None:
    report_at = Trace.objects.get(pk=grown.first).head_sequence
    told = undone.undone(now(grown.first), report_at - 1)
    assert told is not None and told.verdict == "passed"


def test_of_a_run_without_the_protocol_nothing_is_told(grown: Grown) -> None:
    plain = Trace.objects.get(parent_trace=grown.root, mission="Which files use it?").pk
    grown.tell(plain, text_message("user", "Look.", source="user"))
    assert undone.undone(now(plain), 1) is None
