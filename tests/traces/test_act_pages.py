"""Acts and ledgers over the test client: what a dialog says before, what is stored after, who
may. How they behave in a browser: ``tests/browser/test_acts.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from cyberagent.core.events import Injected
from cyberagent.core.events import Knowledge as Learnt
from skills_app.models import Skill
from tests.traces.made import forked, planned
from tests.traces.people import person
from tests.traces.played import READS, SMALL, now, on_path, ran
from traces import labjobs, write
from traces.bundle import store_bundle
from traces.models import Command, Knowledge, Trace

pytestmark = pytest.mark.usefixtures("threads")

PART = {"HX-Request": "true"}


@pytest.fixture
def owner() -> User:
    return person("olga", "operator")


@pytest.fixture
def mine(owner: User) -> Client:
    client = Client()
    client.force_login(owner)
    return client


def owned(trace: Trace, owner: User) -> str:
    Trace.objects.filter(pk=trace.pk).update(owner=owner)
    return f"/runs/{trace.pk}/"


def text(answer: Any) -> str:
    """What a reader sees: tags out, spaces as one."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


# Who may ---------------------------------------------------------------------------------------


def test_a_viewer_reads_every_ledger_and_is_asked_for_no_act(owner: User) -> None:
    trace = planned().store(owner)
    Trace.objects.filter(pk=trace.pk).update(shared=True)
    viewer = Client()
    viewer.force_login(person("vera", "viewer"))
    for tab in ("compactions", "injections", "knowledge", "commands", "lab"):
        assert viewer.get(f"/runs/{trace.pk}/{tab}/").status_code == 200, tab
    for act in ("rewind", "edit", "fork", "compact", "policy", "inject"):
        assert viewer.get(f"/runs/{trace.pk}/{act}/", headers=PART).status_code == 403, act
        assert viewer.post(f"/runs/{trace.pk}/{act}/", headers=PART).status_code == 403, act
    assert b"data-dialog" not in viewer.get(f"/runs/{trace.pk}/messages/1/").content
    assert not Command.objects.exists()


def test_somebody_elses_run_is_not_there(owner: User) -> None:
    trace = planned().store(owner)
    stranger = Client()
    stranger.force_login(person("sam", "operator"))
    for act in ("rewind", "fork", "compact", "inject", "lab", "knowledge"):
        assert stranger.get(f"/runs/{trace.pk}/{act}/", headers=PART).status_code == 404, act


# Going back ------------------------------------------------------------------------------------


def test_a_rewind_shows_its_receipt_then_its_result_and_can_be_undone(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    trace = ran(tmp_path)
    base = owned(trace, owner)
    asked = text(mine.get(f"{base}rewind/?to=6", headers=PART))
    for said in ("Rewind to message 6", "3 messages, kept beside the path", "0/2 goals",
                 "2 calls rebuilt: the very bytes that were sent",
                 "the same as call 3 was sent"):  # fmt: skip
        assert said in asked
    assert on_path(trace) == list(range(1, 10))

    given = {"to": 6, "head": 9, "why": "wrong file"}
    done = mine.post(f"{base}rewind/", given, headers=PART)
    assert "from message 9 to 6: 3 left" in text(done)
    assert on_path(trace) == [1, 2, 3, 4, 5, 6]
    rows = text(mine.get(f"{base}rows/?goal=1&start=0&count=50", headers=PART))
    assert "Left by a rewind: 3 messages → olga “wrong file”" in rows
    assert "call 3" in text(mine.get(base))

    undo = dict(re.findall(r'name="(to|head|why)" value="([^"]*)"', done.content.decode()))
    assert undo == {"to": "9", "head": "6", "why": "undone"}
    mine.post(f"{base}rewind/", undo, headers=PART)
    assert on_path(trace) == list(range(1, 10))
    ledger = text(mine.get(f"{base}commands/"))
    assert ledger.count("rewind") == 2 and "wrong file" in ledger


def test_a_rewind_from_a_head_that_moved_is_refused_in_words(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    trace = ran(tmp_path)
    base = owned(trace, owner)
    refused = mine.post(f"{base}rewind/", {"to": 3, "head": 8}, headers=PART)
    assert refused.status_code == 409
    assert "the head is message 9, not 8" in text(refused)
    assert on_path(trace) == list(range(1, 10))


def test_a_message_that_cannot_be_gone_back_to_says_so(mine: Client, owner: User) -> None:
    trace = store_bundle(forked(), owner)
    aside = mine.get(f"/runs/{trace.pk}/rewind/?to=8", headers=PART)
    assert "message 8 is on a side branch" in text(aside)
    assert mine.get(f"/runs/{trace.pk}/rewind/?to=999", headers=PART).status_code == 404
    assert mine.get(f"/runs/{trace.pk}/rewind/?to=-1", headers=PART).status_code == 404


def test_a_message_is_said_in_other_words_and_the_run_goes_on(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    trace = ran(tmp_path)
    base = owned(trace, owner)
    assert "Look at the files." in text(mine.get(f"{base}edit/?at=1", headers=PART))
    empty = mine.post(f"{base}edit/", {"at": 1, "head": 9, "text": " "}, headers=PART)
    assert (empty.status_code, "the edited text is empty" in text(empty)) == (409, True)
    mine.post(f"{base}edit/", {"at": 1, "head": 9, "text": "Look at f0."}, headers=PART)
    assert now(trace).messages.get(sequence=10).parent_sequence is None
    assert on_path(trace)[0] == 10


def test_a_fork_leads_to_the_new_run(mine: Client, owner: User, tmp_path: Path) -> None:
    trace = ran(tmp_path)
    base = owned(trace, owner)
    answer = mine.post(f"{base}fork/", {"at": 6}, headers=PART)
    made = Trace.objects.exclude(pk=trace.pk).get()
    assert answer["HX-Redirect"] == f"/runs/{made.pk}/"
    assert (made.owner, on_path(made)) == (owner, [1, 2, 3, 4, 5, 6])
    page = mine.get(f"/runs/{made.pk}/").content.decode()
    assert f'href="/runs/{trace.pk}/messages/6/"' in page
    assert f'href="/runs/{made.pk}/"' in mine.get(base).content.decode()
    side_by_side = text(mine.get(f"{base}compare/{made.pk}/"))
    assert "the same up to message 6" in side_by_side
    assert "Read Completed" in side_by_side and "Read In progress" not in side_by_side


# The window ------------------------------------------------------------------------------------


def test_a_compaction_shows_what_goes_before_it_is_asked_for(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    trace = ran(tmp_path)
    base = owned(trace, owner)
    assert 'value="cyber" selected' in mine.get(f"{base}compact/", headers=PART).content.decode()
    seen = text(mine.get(f"{base}compact/?policy=cyber", headers=PART))
    assert "goal 1 is completed" in seen and "1 message stays word for word" in seen
    assert not Command.objects.exists()
    mine.post(f"{base}compact/", {"policy": "layered"}, headers=PART)
    again = mine.post(f"{base}compact/", {"policy": "layered"}, headers=PART)
    assert (again.status_code, "asked for already" in text(again)) == (409, True)
    [command] = Command.objects.all()
    assert (command.name, command.arguments, command.by) == (
        "compact", '{"policy":"layered"}', owner,
    )  # fmt: skip
    assert mine.get(f"{base}compact/?policy=none", headers=PART).status_code == 404


def test_another_policy_is_kept_and_shown_where_it_acts(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    trace = ran(tmp_path, context_window=10_000)
    base = owned(trace, owner)
    assert "compaction acts at 5,000" in text(mine.get(base))
    assert mine.post(f"{base}policy/", {"policy": "off"}, headers=PART).status_code == 200
    assert "compaction acts" not in text(mine.get(base))
    assert 'value="off" checked' in mine.get(f"{base}policy/", headers=PART).content.decode()


def test_skills_say_whether_they_are_in_the_window(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    Skill.objects.all().delete()
    Skill.objects.create(name="style", description="How we write", text="Briefly.")
    base = owned(ran(tmp_path), owner)
    assert "not loaded" in text(mine.get(f"{base}inject/", headers=PART))
    told = text(mine.post(f"{base}inject/", {"skill": "style"}, headers=PART))
    assert "The skill style is loaded when the run goes on." in told
    assert mine.post(f"{base}inject/", {"skill": "none"}, headers=PART).status_code == 404


# Ledgers ---------------------------------------------------------------------------------------


def test_a_summary_stands_in_the_ledger_the_timeline_and_the_tree(
    mine: Client, owner: User, tmp_path: Path
) -> None:
    trace = ran(tmp_path, READS, **SMALL)
    base = owned(trace, owner)
    page = mine.get(f"{base}compactions/").content.decode()
    [number] = re.findall(r'id="event-(\d+)"', page)
    summary = trace.messages.get(source="summary").sequence
    assert "Level 2" in page and f'href="{base}messages/{summary}/"' in page
    timeline = mine.get(f"{base}timeline/").content.decode()
    assert f'href="{base}compactions/?at={number}#event-{number}"' in timeline
    assert "Level 2:" in timeline
    rows = text(mine.get(f"{base}rows/?goal=&start=0&count=50", headers=PART))
    assert "Summary stands for" in rows
    opened = text(mine.get(f"{base}open/?summary={summary}", headers=PART))
    assert "read_file (&quot;f0.txt&quot;)" in opened
    assert "Side branch compression" in opened


def test_ledgers_come_newest_first_by_pages_that_meet(mine: Client, owner: User) -> None:
    trace = planned().store(owner)
    for n in range(70):
        write.append(trace.pk, [], [Injected(what=f"skill s{n:02}", why="declared", fired=False)])
    seen: list[str] = []
    address = f"/runs/{trace.pk}/injections/"
    while address:
        page = mine.get(address).content.decode()
        seen += re.findall(r"skill (s\d\d)", page)
        older = re.search(r'rel="next" href="(\?at=\d+)"', page)
        address = f"/runs/{trace.pk}/injections/{older[1]}" if older else ""
    assert seen == [f"s{n:02}" for n in reversed(range(70))]


def test_knowledge_is_accepted_by_a_person_once(mine: Client, owner: User) -> None:
    trace = planned().store(owner)
    learnt = Learnt(entry="k1.1", status="pending", text="<b>Ids</b> repeat.", sources=(3,))
    write.append(trace.pk, [], [learnt])
    base = f"/runs/{trace.pk}/knowledge/"
    page = mine.get(base).content.decode()
    assert "&lt;b&gt;Ids&lt;/b&gt; repeat." in page and f"/runs/{trace.pk}/messages/3/" in page
    done = mine.post(f"{base}k1.1/", {"status": "accepted"}, headers=PART)
    assert "Accepted" in text(done) and "olga" in text(done)
    assert Knowledge.objects.get().judged_by == owner
    again = mine.post(f"{base}k1.1/", {"status": "accepted"}, headers=PART)
    assert (again.status_code, again["HX-Retarget"]) == (409, "#notice")
    assert mine.post(f"{base}k9.9/", {"status": "accepted"}).status_code == 404
    assert mine.post(f"{base}k1.1/", {"status": "maybe"}).status_code == 404


# Lab -------------------------------------------------------------------------------------------


def test_the_lab_replays_in_a_thread_and_marks_the_best(mine: Client, owner: User) -> None:
    trace = planned(40).store(owner)
    address = f"/runs/{trace.pk}/lab/?policies=cyber&policies=off&policies=&window=900"
    begun = mine.get(address, headers=PART)
    job = labjobs.job_for(trace, ["cyber", "off"], 900, anew=False)
    assert begun.status_code == 200
    job.thread.join(60)
    page = mine.get(f"{address}&poll=1", headers=PART).content.decode()
    assert re.findall(r'<th scope="row" class="mono">(\w+)', page) == ["cyber", "off"]
    assert "900 tokens" in page and "as asked for" in page
    peaks = [int(p.replace(",", "")) for p in re.findall(r"</th><td[^>]*>([\d,]+)", page)]
    assert [r.peak_tokens for r in job.reports] == peaks


def test_the_lab_refuses_in_words(mine: Client, owner: User) -> None:
    trace = planned().store(owner)
    for query, said in (("policies=none", "there is no policy"), ("policies=", "cyber"),
                        ("policies=off&window=-4", "whole number"),
                        ("policies=off&window=9999999999999", "whole number")):  # fmt: skip
        assert said in text(mine.get(f"/runs/{trace.pk}/lab/?{query}", headers=PART)), query
