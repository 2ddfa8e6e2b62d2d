"""Operators' acts on windows: to runs that are driven and to runs at rest, and refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from cyberagent.core.errors import Conflict, InvalidConfig, InvalidInput, LeaseLost, NotFound
from cyberagent.core.rebuild import rebuilt
from cyberagent.providers.projections import PROJECTIONS
from goals.models import Goal
from tests.traces.played import (
    READS,
    SMALL,
    TURNS,
    asked,
    now,
    on_path,
    play,
    ran,
    started,
    told,
)
from traces import acts, commands, lease, rewind, runs, write
from traces.models import Command, Event, Message, ModelCall, Trace
from traces.store import OrmStore

pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada")


def driven(trace_id: str) -> Trace:
    assert lease.take(trace_id, "worker")
    write.append(trace_id, [], status="running")
    return now(trace_id)


def window(trace_id: str, number: int) -> str:
    found = asyncio.run(rebuilt(OrmStore(), trace_id, number, PROJECTIONS))
    assert found.holds
    return found.body.decode()


# Rewind ----------------------------------------------------------------------------------------


def test_a_rewind_at_rest_is_done_at_once_and_undone_by_the_former_head(tmp_path, ada):
    trace = ran(tmp_path)
    command = acts.rewind(trace, 5, by=ada, why="wrong file", expected_head=9)
    assert (command.status, command.by, now(trace).status) == ("applied", ada, "paused")
    assert command.result == "from message 9 to 3: 6 left"
    assert on_path(trace) == [1, 2, 3]
    [event] = told(trace, "Rewound")
    assert (event["from_sequence"], event["to_sequence"]) == (9, 3)
    assert (event["by"], event["why"]) == ("ada", "wrong file")
    assert now(trace).status_why == "rewound by ada"
    undone = acts.rewind(now(trace), event["from_sequence"], by=ada, expected_head=3)
    assert undone.result == "from message 3 to 9: 0 left, 6 brought back"
    assert on_path(trace) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert Goal.objects.get(trace=trace, goal_id="1").status == "completed"


def test_a_rewind_says_why_it_cannot_be_and_leaves_nothing(tmp_path, ada):
    trace = ran(tmp_path)
    with pytest.raises(Conflict, match="the head is message 9, not 8"):
        acts.rewind(trace, 3, by=ada, expected_head=8)
    with pytest.raises(NotFound):
        acts.rewind(trace, 77, by=ada, expected_head=9)
    with pytest.raises(Conflict, match="nothing to go back over: message 9"):
        acts.rewind(trace, 9, by=ada, expected_head=9)
    write.append(trace.pk, [], status="waiting")
    with pytest.raises(Conflict, match="waits for an approval"):
        acts.rewind(trace, 3, by=ada, expected_head=9)
    assert (now(trace).head_sequence, Command.objects.count()) == (9, 0)
    assert told(trace, "Rewound") == []


def test_a_run_that_is_driven_pauses_for_a_rewind_and_is_then_where_it_was_asked_to(tmp_path, ada):
    trace_id = started(tmp_path)
    command = asked(trace_id, "rewind", ada, to=1, why="again")
    # It is asked for before the first call; what is on the path at the safe point counts.
    assert play(trace_id) == "paused"
    command.refresh_from_db()
    assert command.status == "refused"
    assert "nothing to go back over: message 1" in command.result
    commands.resume(now(trace_id), by=ada)
    assert asyncio.run(rewound_while_driven(trace_id, ada)) == "paused"
    assert on_path(trace_id) == [1, 2, 3]
    done = Command.objects.filter(name="rewind").latest("pk")
    assert (done.status, done.by) == ("applied", ada)
    assert now(trace_id).lease_owner == ""
    statuses = [e["status"] for e in told(trace_id, "StatusChanged")]
    assert statuses[-1] == "paused"
    commands.resume(now(trace_id), by=ada)
    assert play(trace_id) == "completed"
    # The next call was sent what was sent there before.
    calls = dict(ModelCall.objects.filter(trace=trace_id).values_list("number", "sha256"))
    second = ModelCall.objects.get(trace=trace_id, number=2).after_sequence
    again = ModelCall.objects.filter(trace=trace_id, after_sequence=second).latest("number")
    assert calls[again.number] == calls[2] and again.number > 2


async def rewound_while_driven(trace_id: str, by: User) -> str:
    """Ask for a rewind to message 3 as soon as message 6 is there."""
    append, given = write.append, []

    def appended(*args: Any, **kwargs: Any) -> Any:
        out = append(*args, **kwargs)
        if any(m.sequence == 6 for m in out.messages) and not given:
            given.append(acts.rewind(now(trace_id), 3, by=by, expected_head=5))
            assert given[0].status == "pending"
        return out

    write.append = appended
    try:
        return await runs.drive(trace_id, "me")
    finally:
        write.append = append


def test_a_rewind_of_a_driven_run_must_name_what_is_on_its_path(tmp_path, ada):
    trace = ran(tmp_path)
    acts.rewind(trace, 3, by=ada, expected_head=9)
    commands.resume(trace, by=ada)
    driven(trace.pk)
    with pytest.raises(Conflict, match="message 9 is not on the main path"):
        acts.rewind(now(trace), 9, by=ada, expected_head=3)
    command = acts.rewind(now(trace), 1, by=ada, expected_head=3)
    assert command.status == "pending" and on_path(trace) == [1, 2, 3]


def test_a_rewind_that_nobody_was_left_to_apply_is_applied_once(tmp_path, ada):
    """The owner died after the pause was stored and before it dealt with the command."""
    trace = ran(tmp_path)
    write.append(trace.pk, [], status="paused")
    command = asked(trace.pk, "rewind", ada, to=6)
    assert commands.unsettled() == [trace.pk]
    assert not commands.settle(trace.pk) and not commands.settle(trace.pk)
    assert commands.unsettled() == []
    command.refresh_from_db()
    assert command.status == "applied"
    assert on_path(trace) == [1, 2, 3, 4, 5, 6]
    assert len(told(trace, "Rewound")) == 1


def test_the_thread_beside_the_server_deals_with_what_was_left(tmp_path, ada):
    from traces.embedded import Loop

    trace = ran(tmp_path)
    write.append(trace.pk, [], status="paused")
    asked(trace.pk, "rewind", ada, to=6)
    loop = Loop(drives=False)
    loop._loop.run_until_complete(loop._look())
    loop._loop.close()
    assert on_path(trace)[-1] == 6


def test_a_rewind_asked_for_while_the_run_ended_is_applied_to_the_ended_run(tmp_path, ada):
    trace = ran(tmp_path)
    rewound = asked(trace.pk, "rewind", ada, to=6)
    lost = asked(trace.pk, "rewind", ada, to=8)
    assert not commands.settle(trace.pk)
    rewound.refresh_from_db()
    lost.refresh_from_db()
    assert (rewound.status, lost.status) == ("applied", "refused")
    assert lost.result == "message 8 is not on the main path"
    assert (now(trace).status, on_path(trace)[-1]) == ("paused", 6)


def test_a_dead_owners_run_is_rewound_at_once(tmp_path, ada):
    trace = ran(tmp_path)
    write.append(trace.pk, [], status="running")
    Trace.objects.filter(pk=trace.pk).update(lease_owner="dead", lease_until="2026-01-01T00:00Z")
    assert acts.rewind(now(trace), 3, by=ada, expected_head=9).status == "applied"
    assert (now(trace).status, now(trace).lease_owner) == ("paused", "")


# Edit and fork ---------------------------------------------------------------------------------


def test_an_edited_message_stands_in_place_of_the_old_and_the_run_goes_on(tmp_path, ada):
    trace = ran(tmp_path)
    commands.say(trace, "And the tests?", by=ada)
    assert play(trace.pk) == "completed"
    assert on_path(trace) == [*range(1, 12)]
    command = acts.edit(now(trace), 10, "And the notes?", by=ada)
    assert (command.status, command.result) == ("applied", "said instead of message 10")
    assert now(trace).status == "queued"
    assert play(trace.pk) == "completed"
    assert on_path(trace) == [*range(1, 10), 12, 13]
    said = Message.objects.get(trace=trace, sequence=12)
    assert (said.role, said.source, said.parent_sequence) == ("user", "operator", 9)
    assert json.loads(said.metadata) == {"by": "ada", "edits": 10}
    assert said.tokens > 0 and said.turn == 3
    assert Message.objects.get(trace=trace, sequence=10).parts  # the old one is still there
    body = window(trace.pk, now(trace).last_call)
    assert "And the notes?" in body and "And the tests?" not in body


def test_the_first_message_can_be_edited_and_the_run_left_paused(tmp_path, ada):
    trace = ran(tmp_path)
    acts.edit(trace, 1, "Look at f0 only.", by=ada, resume=False, expected_head=9)
    assert (on_path(trace), now(trace).status) == ([10], "paused")
    assert Message.objects.get(trace=trace, sequence=10).parent_sequence is None
    assert not Goal.objects.filter(trace=trace).exists()


@pytest.mark.parametrize(
    ("sequence", "text", "error", "why"),
    [
        (3, "x", Conflict, "not written by a person"),
        (9, "x", Conflict, "not written by a person"),
        (1, " \n", InvalidInput, "empty"),
        (50, "x", NotFound, "50"),
        (0, "x", NotFound, "0"),
    ],
)
def test_what_cannot_be_edited_is_said(tmp_path, ada, sequence, text, error, why):
    trace = ran(tmp_path)
    with pytest.raises(error, match=why):
        acts.edit(trace, sequence, text, by=ada)
    with pytest.raises(Conflict, match="the head is message 9, not 4"):
        acts.edit(trace, 1, "x", by=ada, expected_head=4)
    assert not Command.objects.exists() and now(trace).head_sequence == 9


def test_a_driven_run_pauses_for_an_edit_and_goes_on_by_itself(tmp_path, ada):
    trace_id = started(tmp_path)
    command = asked(trace_id, "edit", ada, sequence=1, text="Only f0.", resume=True)
    assert play(trace_id) == "completed"
    command.refresh_from_db()
    assert command.status == "applied"
    assert on_path(trace_id)[0] == 2 and now(trace_id).status == "completed"
    assert "Only f0." in window(trace_id, 1)


def test_a_fork_is_a_run_of_its_own_and_noted_on_the_original(tmp_path, ada):
    trace = ran(tmp_path)
    made = acts.fork(trace, 6, by=ada)
    assert (made.owner, made.status, on_path(made)) == (ada, "paused", [1, 2, 3, 4, 5, 6])
    command = Command.objects.get(trace=trace)
    assert (command.name, command.status, command.by) == ("fork", "applied", ada)
    assert command.result == f"run {made.pk} begins from message 6"
    assert on_path(trace)[-1] == 9 and now(trace).status == "completed"
    with pytest.raises(NotFound):
        acts.fork(trace, 99, by=ada)
    assert Command.objects.count() == 1


# Compaction ------------------------------------------------------------------------------------


def test_a_compaction_at_rest_waits_and_is_done_before_the_next_call(tmp_path, ada):
    trace = ran(tmp_path)
    command = acts.compact(trace, by=ada)
    assert command.status == "pending" and told(trace, "Compacted") == []
    assert not commands.settle(trace.pk)  # nobody loses it
    commands.say(trace, "And now?", by=ada)
    assert play(trace.pk) == "completed"
    command.refresh_from_db()
    [done] = told(trace, "Compacted")
    assert (command.status, done["trigger"], done["by"]) == ("applied", "manual", "ada")
    assert done["strategy"] == "goal" and done["success"]
    assert command.result == f"{done['tokens_before']:,} → {done['tokens_after']:,} tokens"
    assert "file 0 line 1 " not in window(trace.pk, now(trace).last_call)


def test_a_compaction_survives_a_pause_and_a_resume(tmp_path, ada):
    trace_id = started(tmp_path)
    command = acts.compact(now(trace_id), by=ada)
    commands.pause(now(trace_id), by=ada)
    commands.resume(now(trace_id), by=ada)
    asked(trace_id, "pause", ada)
    # The compaction comes first: there is nothing yet to remove, and that is its end.
    assert play(trace_id) == "paused"
    commands.resume(now(trace_id), by=ada)
    assert play(trace_id) == "completed"
    command.refresh_from_db()
    assert command.status == "refused" and "nothing" in command.result
    assert len(told(trace_id, "Compacted")) == 1


def test_a_compaction_that_is_cut_short_is_done_by_the_next_owner(tmp_path, ada, monkeypatch):
    """The command ends in the commit of what the pass made, and not before."""
    trace = ran(tmp_path, READS, context_window=100_000, tools=("goal", "read_file"))
    command = acts.compact(trace, by=ada)
    commands.say(trace, "And now?", by=ada)

    def dies(_: str, event: Any) -> None:
        if event.kind == "BranchStarted":
            raise LeaseLost("somebody else drives it")

    with monkeypatch.context() as patched:
        patched.setattr(runs, "_tell", dies)
        assert play(trace.pk) == "running"
    command.refresh_from_db()
    assert command.status == "pending" and told(trace, "Compacted") == []
    assert play(trace.pk) == "completed"
    command.refresh_from_db()
    assert command.status == "applied"
    assert [c["strategy"] for c in told(trace, "Compacted")] == ["summary"]


def test_a_compaction_under_another_policy_is_for_that_once(tmp_path, ada):
    trace = ran(tmp_path)
    acts.compact(trace, "micro", by=ada)
    with pytest.raises(Conflict, match="asked for already"):
        acts.compact(trace, by=ada)
    commands.say(trace, "And now?", by=ada)
    play(trace.pk)
    [done] = told(trace, "Compacted")
    assert done["policy"] == "custom" and "policy" not in json.loads(now(trace).context)
    with pytest.raises(InvalidConfig):
        acts.compact(trace, "no_such", by=ada)
    with pytest.raises(InvalidInput, match="removes nothing"):
        acts.compact(trace, "off", by=ada)


def test_a_preview_says_what_a_compaction_then_does_and_writes_nothing(tmp_path, ada):
    trace = ran(tmp_path, context_window=100_000)
    rows = [model.objects.count() for model in (Event, Message, ModelCall, Command)]
    preview = acts.compaction_preview(trace)
    assert [model.objects.count() for model in (Event, Message, ModelCall, Command)] == rows
    assert (preview.policy, preview.stubbed) == ("cyber", False)
    acts.compact(trace, by=ada)
    commands.say(trace, "And now?", by=ada)
    play(trace.pk)
    [done] = told(trace, "Compacted")
    assert [e["messages"] for e in preview.edits] == [e["messages"] for e in done["edits"]]
    assert preview.tokens_saved > 0 and preview.worth_it and preview.why == ""


def test_a_preview_counts_the_cached_tokens_that_would_be_lost(tmp_path):
    trace = ran(tmp_path, context_window=100_000)
    preview = acts.compaction_preview(trace)
    # The newest call was sent 1 to 8. Level 1 takes 4 to 6: of the prefix 1 to 3 stay.
    sizes = dict(Message.objects.filter(trace=trace).values_list("sequence", "tokens"))
    raw = sum(sizes[n] for n in range(4, 9))
    call = ModelCall.objects.get(trace=trace, number=now(trace).last_call)
    reported = call.prompt_tokens or call.estimated_tokens
    ratio = min(max(reported / call.estimated_tokens, 0.5), 4.0)
    assert preview.cached_lost == pytest.approx(raw * ratio, abs=1)


def test_a_preview_of_a_summary_says_that_a_stub_stands_for_it(tmp_path):
    trace = ran(tmp_path, READS, context_window=100_000, tools=("goal", "read_file"))
    preview = acts.compaction_preview(trace)
    assert preview.stubbed and preview.users_whole == (1,)
    assert preview.tokens_after < preview.tokens_before
    assert preview.floor <= preview.tokens_after and preview.limit == 87_500
    nothing = acts.compaction_preview(trace, "off")
    assert (nothing.edits, nothing.worth_it) == ((), False)
    assert nothing.why == "there was nothing to remove"


# Policy and skills -----------------------------------------------------------------------------


def test_a_policy_chosen_at_rest_holds_when_the_run_goes_on(tmp_path, ada):
    trace = ran(tmp_path, READS[:2] + READS[4:], **SMALL)
    assert acts.set_policy(trace, "off", by=ada).status == "applied"
    assert json.loads(now(trace).context)["policy"] == "off"
    with pytest.raises(InvalidConfig):
        acts.set_policy(trace, "no_such", by=ada)
    assert Command.objects.count() == 1


def test_a_policy_chosen_for_a_driven_run_is_applied_at_its_safe_point(tmp_path, ada):
    trace_id = started(tmp_path)
    command = acts.set_policy(now(trace_id), "layered", by=ada)
    assert command.status == "pending"
    assert play(trace_id) == "completed"
    command.refresh_from_db()
    assert command.status == "applied"
    assert json.loads(now(trace_id).context)["policy"] == "layered"


def skill_name() -> str:
    from traces import ports

    return min(ports.current_skills())


def test_a_skill_asked_for_at_rest_is_in_the_window_when_the_run_goes_on(tmp_path, ada):
    trace, name = ran(tmp_path), skill_name()
    command = acts.inject_skill(trace, name, by=ada)
    assert command.status == "applied"
    commands.say(trace, "Use it.", by=ada)
    assert play(trace.pk) == "completed"
    fired = [e for e in told(trace, "Injected") if e["what"] == f"skill {name}"]
    assert [(e["fired"], e["why"]) for e in fired] == [(True, "asked for by ada")]
    result = Message.objects.get(trace=trace, name="skill")
    assert str(result.tool_call_id) in window(trace.pk, now(trace).last_call)
    assert json.loads(now(trace).context)["asked_skills"] == {}
    # Now it stands among the last messages: it is held back, and that is told.
    again = acts.inject_skill(now(trace), name, by=ada)
    assert (again.status, again.result) == ("refused", "it is among the last 10 messages")
    assert told(trace, "Injected")[-1]["fired"] is False


def test_a_skill_asked_for_while_driven_comes_with_the_next_tools(tmp_path, ada):
    trace_id, name = started(tmp_path), skill_name()
    command = asked(trace_id, "inject", ada, skill=name)
    twice = asked(trace_id, "inject", ada, skill=name)
    assert play(trace_id) == "completed"
    command.refresh_from_db()
    twice.refresh_from_db()
    assert (command.status, twice.status) == ("applied", "refused")
    assert "asked for already" in twice.result
    fired = [e for e in told(trace_id, "Injected") if e["fired"]]
    assert [e["why"] for e in fired if e["what"] == f"skill {name}"] == ["asked for by ada"]
    result = Message.objects.get(trace=trace_id, name="skill")
    assert result.parent_sequence == 3 and str(result.tool_call_id) in window(trace_id, 2)


def test_a_skill_asked_for_is_injected_once_though_the_owner_dies_before(tmp_path, ada):
    """What is asked for stands in the trace's context until the skill is loaded."""
    trace_id, name = started(tmp_path), skill_name()
    asked(trace_id, "inject", ada, skill=name)
    asked(trace_id, "pause", ada)
    assert play(trace_id) == "paused"
    assert json.loads(now(trace_id).context)["asked_skills"] == {name: "ada"}
    commands.resume(now(trace_id), by=ada)
    assert play(trace_id) == "completed"
    assert Message.objects.filter(trace=trace_id, name="skill").count() == 1


def test_a_skill_that_cannot_be_injected_is_refused(tmp_path, ada):
    trace = ran(tmp_path)
    with pytest.raises(NotFound, match="no_such"):
        acts.inject_skill(trace, "no_such", by=ada)
    other = ran(tmp_path, READS[4:], tools=("goal", "read_file"))
    with pytest.raises(Conflict, match="not given the tool skill"):
        acts.inject_skill(other, skill_name(), by=ada)
    assert not Command.objects.exists()
    unknown = asked(started(tmp_path), "inject", ada, skill="written later")
    play(unknown.trace_id)
    unknown.refresh_from_db()
    assert (unknown.status, "after this run began" in unknown.result) == ("refused", True)


async def test_a_pause_that_came_with_a_rewind_has_nothing_left_to_do(tmp_path: Path):
    trace = await sync_to_async(ran)(tmp_path, TURNS)
    await sync_to_async(write.append)(trace.pk, [], status="paused")
    await sync_to_async(asked)(trace.pk, "pause")
    assert not await sync_to_async(commands.settle)(trace.pk)
    command = await Command.objects.aget()
    assert (command.status, command.result) == ("refused", "the run was paused already")
    assert (await sync_to_async(rewind.preview)(trace, 6)).state == "holds"
