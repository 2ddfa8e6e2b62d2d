"""Knowledge rows: made from events in the write path, judged by people, brought by imports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cyberagent.core.errors import Conflict, InvalidInput, NotFound
from cyberagent.core.events import Knowledge as Learnt
from cyberagent.core.events import Session
from cyberagent.core.types import text_message
from tests.traces.made import planned
from tests.traces.people import stored_trace
from tests.traces.played import READS, SMALL, now, play, started, told
from traces import access, knowledge, write
from traces.bundle import bundle_of, store_bundle
from traces.ledgers import knowledge as ledger
from traces.models import Event, Knowledge, Trace

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada")


def learnt(trace_id: str, name: str = "k3.1", text: str = "f1 is for tests [2]") -> Knowledge:
    event = Learnt(entry=name, status="pending", text=text, sources=(2,), goal_id="1")
    write.append(trace_id, [], [event])
    return Knowledge.objects.get(trace=trace_id, name=name)


def evaluated(trace_id: str, status: str, name: str = "k3.1") -> None:
    told = Learnt(
        entry=name, status=status, text="f1 is for tests [2]", sources=(2,), goal_id="1",
        by="knowledge_eval", why="seen twice",
    )  # fmt: skip
    write.append(trace_id, [], [told])


def test_an_entry_waits_until_it_is_judged():
    trace_id = stored_trace()
    row = learnt(trace_id)
    assert (row.text, json.loads(row.sources), row.goal_id) == ("f1 is for tests [2]", [2], "1")
    assert (row.status, row.judge, row.judged_at) == ("pending", "", None)
    evaluated(trace_id, "accepted")
    row.refresh_from_db()
    assert (row.status, row.judge, row.why) == ("accepted", "knowledge_eval", "seen twice")
    assert row.judged_by is None and row.judged_at is not None
    assert Knowledge.objects.count() == 1


def test_a_persons_word_is_stored_as_an_event_and_no_model_overrules_it(ada: User):
    trace_id = stored_trace()
    row = knowledge.judge(learnt(trace_id), "rejected", by=ada, why="it is not")
    assert (row.status, row.judge, row.judged_by, row.why) == ("rejected", "ada", ada, "it is not")
    event = json.loads(Event.objects.filter(trace=trace_id).latest("number").data)
    assert (event["entry"], event["status"], event["by"]) == ("k3.1", "rejected", "ada")
    evaluated(trace_id, "accepted")
    row.refresh_from_db()
    assert (row.status, row.judged_by) == ("rejected", ada)
    assert knowledge.judge(row, "accepted", by=ada).status == "accepted"
    with pytest.raises(Conflict, match=r"k3\.1 is accepted by ada already"):
        knowledge.judge(knowledge.find(now(trace_id), "k3.1"), "accepted", by=ada)


def test_an_entry_that_was_judged_meanwhile_is_a_conflict(ada: User):
    trace_id = stored_trace()
    seen = learnt(trace_id)
    evaluated(trace_id, "accepted")
    with pytest.raises(Conflict, match="it is accepted by knowledge_eval"):
        knowledge.judge(seen, "rejected", by=ada)
    assert Knowledge.objects.get().status == "accepted"


def test_what_a_person_judged_waits_for_no_evaluation_any_more(ada: User):
    trace_id = stored_trace()
    waiting = [{"name": n, "text": "t", "sources": [], "goal_id": ""} for n in ("k3.1", "k3.2")]
    write.append(trace_id, [], context={"pending_knowledge": waiting, "policy": "off"})
    knowledge.judge(learnt(trace_id), "accepted", by=ada)
    context = json.loads(now(trace_id).context)
    assert [e["name"] for e in context["pending_knowledge"]] == ["k3.2"]
    assert context["policy"] == "off"


def test_entries_are_listed_by_status_and_by_pages():
    trace_id = stored_trace()
    other = stored_trace()
    learnt(other, "k9.1")
    for n in range(1, 6):
        learnt(trace_id, f"k3.{n}")
    evaluated(trace_id, "accepted", "k3.2")
    trace = now(trace_id)
    assert [r.name for r in ledger(trace, limit=2)] == ["k3.1", "k3.2"]
    after = Knowledge.objects.get(trace=trace, name="k3.2").pk
    assert [r.name for r in ledger(trace, after=after)] == ["k3.3", "k3.4", "k3.5"]
    assert [r.name for r in ledger(trace, status="accepted")] == ["k3.2"]
    with pytest.raises(InvalidInput, match="pending, accepted, rejected"):
        ledger(trace, status="maybe")
    with pytest.raises(NotFound):
        knowledge.find(trace, "k9.1")


def test_a_text_that_no_column_holds_comes_back_as_it_was():
    row = learnt(stored_trace(), text="a \ud800 and \0")
    assert "\0" not in row.text
    found = knowledge.find(row.trace, "k3.1")
    assert found.text == row.text and found.pk == row.pk


def test_a_batch_without_knowledge_makes_no_query_for_it():
    trace_id = stored_trace()
    with CaptureQueriesContext(connection) as counted:
        write.append(
            trace_id, [text_message("user", "more", source="user")], [Session(how="resumed")]
        )
    assert counted.captured_queries
    assert not [q for q in counted.captured_queries if "knowledge" in q["sql"]]


def test_an_import_brings_the_rows_of_its_events(ada: User):
    first = planned().store(ada)
    row = learnt(first.pk)
    knowledge.judge(row, "accepted", by=ada, why="true")
    bundle = bundle_of(now(first.pk))
    made = store_bundle(replace(bundle, state=replace(bundle.state, id="")), ada)
    copy = Knowledge.objects.get(trace=made)
    # A name in a file is a name, not a person here.
    assert (copy.status, copy.judge, copy.judged_by, copy.why) == ("accepted", "ada", None, "true")


@pytest.mark.parametrize(
    "bad",
    [
        Learnt(entry="", status="pending"),
        Learnt(entry="k" * 65, status="pending"),
        Learnt(entry="k1.1", status="perhaps"),
        Learnt(entry="k1.1", status="pending", text=5),  # type: ignore[arg-type]
        Learnt(entry="k1.1", status="pending", goal_id="1" * 101),
    ],
)
def test_a_malformed_entry_is_refused_whole(bad: Learnt):
    trace_id = stored_trace()
    with pytest.raises(InvalidInput):
        write.append(trace_id, [], [bad])
    assert not Knowledge.objects.exists() and not Event.objects.filter(trace=trace_id).exists()


@pytest.mark.usefixtures("threads")
def test_a_run_that_reflects_leaves_rows(tmp_path):
    turns = [*READS[:4], {"say": "End."}]
    trace_id = started(tmp_path, turns, enable_extraction=True, **SMALL)
    config = json.loads(now(trace_id).config)
    config["provider_options"]["script"]["branches"] |= {
        "reflection": [{"say": "f0 holds numbered lines. [2-3]\n\nUse f1 for tests. [5]"}],
        "knowledge_eval": [{"say": "k7.1: accepted - seen"}],
    }
    Trace.objects.filter(pk=trace_id).update(config=json.dumps(config))
    assert play(trace_id) == "completed"
    events = {e["entry"]: e["status"] for e in told(trace_id, "Knowledge")}
    rows = Knowledge.objects.filter(trace=trace_id)
    assert events and {r.name: r.status for r in rows} == events
    assert Knowledge.objects.get(trace=trace_id, name="k7.1").judge == "knowledge_eval"


def test_the_admin_lists_knowledge_and_changes_none_of_it():
    row = learnt(stored_trace())
    client = Client()
    client.force_login(access.local_admin())
    assert "k3.1" in client.get("/admin/traces/knowledge/").content.decode()
    change = f"/admin/traces/knowledge/{row.pk}/change/"
    assert client.post(change, {"status": "accepted"}).status_code == 403
