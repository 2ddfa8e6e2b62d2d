"""What was done to a run's windows, as its ledgers tell it."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from cyberagent.core.events import Injected
from tests.traces.played import READS, SMALL, asked, now, play, ran, started
from traces import acts, commands, ports, rewind, write
from traces.ledgers import compactions, injections
from traces.models import Message

pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada")


def test_the_compactions_of_a_run_say_what_went_and_what_it_cost(tmp_path):
    trace = ran(tmp_path, READS, **SMALL)
    summary = Message.objects.get(trace=trace, source="summary")
    stood = json.loads(summary.metadata)["stands_for"]
    [done] = compactions(trace)
    assert (done.policy, done.level, done.strategy) == ("cyber", 2, "summary")
    assert (done.trigger, done.success, done.breaker) == ("overflow", True, "closed")
    assert (done.message, done.first, done.last) == (
        summary.sequence, stood["first"], stood["last"],
    )  # fmt: skip
    assert done.tokens_after < done.tokens_before
    assert {e["what"] for e in done.edits} >= {"removed", "inserted"}
    assert compactions(trace, after=done.number) == []


def test_passes_come_by_pages_in_their_order(tmp_path, ada):
    trace = ran(tmp_path)
    for text in ("And now?", "And then?"):
        acts.compact(now(trace), by=ada)
        commands.say(trace, text, by=ada)
        play(trace.pk)
    first, second = compactions(now(trace))
    assert first.number < second.number
    assert [c.number for c in compactions(trace, limit=1)] == [first.number]
    assert [c.number for c in compactions(trace, after=first.number)] == [second.number]
    assert (first.by, first.success, second.success) == ("ada", True, False)
    assert second.why and second.tokens_before == second.tokens_after


def test_an_injection_says_why_how_much_and_whether_the_window_still_has_it(tmp_path, ada):
    trace_id, name = started(tmp_path), min(ports.current_skills())
    asked(trace_id, "inject", ada, skill=name)
    play(trace_id)
    acts.inject_skill(now(trace_id), name, by=ada)
    fired, held = injections(now(trace_id))
    result = Message.objects.get(trace=trace_id, name="skill")
    assert (fired.what, fired.why, fired.fired) == (f"skill {name}", "asked for by ada", True)
    assert (fired.call, fired.message, fired.tokens) == (2, result.sequence, result.tokens)
    assert fired.window == "whole"
    assert (held.fired, held.message, held.tokens, held.window) == (False, None, 0, "")
    assert held.why == "it is among the last 10 messages"
    assert injections(now(trace_id), after=fired.number) == [held]


def test_an_injection_that_compaction_shortened_is_not_whole_any_more(tmp_path, ada):
    name = min(ports.current_skills())
    trace_id = started(tmp_path, context_window=100_000)
    asked(trace_id, "inject", ada, skill=name)
    play(trace_id)
    acts.compact(now(trace_id), "aggressive", by=ada)
    commands.say(now(trace_id), "And now?", by=ada)
    play(trace_id)
    [done] = compactions(now(trace_id))
    first = injections(now(trace_id))[0]
    assert [e["what"] for e in done.edits] == ["replaced"]
    assert done.first <= (first.message or 0) <= done.last
    assert first.window == "changed"


def test_an_injection_that_a_rewind_left_is_not_in_the_window_any_more(tmp_path, ada):
    trace_id, name = started(tmp_path), min(ports.current_skills())
    asked(trace_id, "inject", ada, skill=name)
    play(trace_id)
    trace = now(trace_id)
    rewind.move(trace, 1, by="ada", expected_head=trace.head_sequence)
    # The skill is wanted still, so that the resumed run has it injected again.
    commands.resume(now(trace_id), by=ada)
    play(trace_id)
    old, new = [i for i in injections(now(trace_id)) if i.fired]
    assert (old.window, new.window) == ("gone", "whole")
    assert new.why in ("declared for this run", "it had left the window")


def test_an_event_whose_message_is_not_there_is_told_as_it_is(tmp_path):
    trace = ran(tmp_path)
    write.append(trace.pk, [], [Injected(what="anything", why="w", message=9, tokens=7)])
    [told] = injections(now(trace))
    assert (told.message, told.tokens, told.window, told.call) == (None, 7, "", 9)
