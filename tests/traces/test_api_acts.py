"""The acts and ledgers over the REST API: what they need, what they answer, who may."""

from __future__ import annotations

from typing import Any

import pytest

from cyberagent.core.events import Injected
from cyberagent.core.events import Knowledge as Learnt
from tests.traces.people import Api, conversation, person, stored_trace
from tests.traces.played import now, on_path, play, ran
from traces import api_schemas, ports, write
from traces.models import Command, Knowledge, Trace

READS = ["/rewind?to=1", "/compaction", "/compactions", "/injections", "/knowledge"]
WRITES: list[tuple[str, dict[str, Any]]] = [
    ("/commands", {"name": "rewind", "to": 1, "head": 5}),
    ("/commands", {"name": "edit", "sequence": 1, "text": "x"}),
    ("/commands", {"name": "compact"}),
    ("/commands", {"name": "policy", "policy": "off"}),
    ("/commands", {"name": "inject", "skill": "x"}),
    ("/fork", {"at": 1}),
    ("/knowledge/k1.1", {"status": "accepted"}),
]


@pytest.fixture
def olga(db: None):
    return person("olga", "operator")


@pytest.fixture
def talk(olga: Any) -> str:
    trace_id = stored_trace(olga)
    conversation(trace_id)
    return trace_id


def owned(folder: Any, user: Any) -> str:
    trace = ran(folder)
    Trace.objects.filter(pk=trace.pk).update(owner=user)
    return trace.pk


# Who may -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READS)
def test_the_ledgers_of_another_persons_trace_do_not_exist(talk, path):
    assert Api(person("bob", "operator")).get(f"/traces/{talk}{path}").status_code == 404
    assert Api().get(f"/traces/{talk}{path}").status_code == 401


@pytest.mark.parametrize(("path", "body"), WRITES)
def test_only_an_operator_who_sees_the_trace_may_act(talk, path, body):
    Trace.objects.filter(pk=talk).update(shared=True)
    refused = Api(person("vera", "viewer")).post(f"/traces/{talk}{path}", body)
    assert refused.status_code == 403 and "needs the role operator" in refused.json()["detail"]
    Trace.objects.filter(pk=talk).update(shared=False)
    assert Api(person("bob", "operator")).post(f"/traces/{talk}{path}", body).status_code == 404
    assert not Command.objects.exists() and Trace.objects.count() == 1


# Acts --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
def test_a_run_is_rewound_after_its_receipt_was_read(tmp_path, olga):
    trace_id, api = owned(tmp_path, olga), Api(olga)
    receipt = api.get(f"/traces/{trace_id}/rewind", to=5).json()
    api_schemas.ReceiptOut(**receipt)
    assert (receipt["asked"], receipt["to"], receipt["head"], receipt["leaves"]) == (5, 3, 9, 6)
    assert (receipt["state"], receipt["equal"], receipt["goals_total"]) == ("holds", True, 2)
    assert now(trace_id).head_sequence == 9
    done = api.post(
        f"/traces/{trace_id}/commands", {"name": "rewind", "to": 5, "head": 9, "why": "again"}
    )
    assert done.status_code == 202
    assert (done.json()["status"], done.json()["by"]) == ("applied", "olga")
    assert on_path(trace_id) == [1, 2, 3]
    late = api.post(f"/traces/{trace_id}/commands", {"name": "rewind", "to": 1, "head": 9})
    assert late.status_code == 409 and "the head is message 3, not 9" in late.json()["detail"]


@pytest.mark.usefixtures("threads")
def test_a_message_is_edited_and_the_run_goes_on(tmp_path, olga):
    trace_id = owned(tmp_path, olga)
    body = {"name": "edit", "sequence": 1, "text": "Only f0.", "head": 9}
    assert Api(olga).post(f"/traces/{trace_id}/commands", body).status_code == 202
    assert now(trace_id).status == "queued" and play(trace_id) == "completed"
    assert on_path(trace_id)[0] == 10


@pytest.mark.usefixtures("threads")
def test_a_fork_is_answered_with_the_new_trace(tmp_path, olga):
    trace_id = owned(tmp_path, olga)
    made = Api(olga).post(f"/traces/{trace_id}/fork", {"at": 6})
    assert made.status_code == 201
    api_schemas.TraceOut(**made.json())
    assert (made.json()["owner"], made.json()["head_sequence"]) == ("olga", 6)
    assert made.json()["id"] != trace_id


@pytest.mark.usefixtures("threads")
def test_a_compaction_is_previewed_then_asked_for(tmp_path, olga):
    trace_id, api = owned(tmp_path, olga), Api(olga)
    preview = api.get(f"/traces/{trace_id}/compaction", policy="micro").json()
    api_schemas.PreviewOut(**preview)
    assert preview["policy"] == "custom" and not Command.objects.exists()
    wrong = api.get(f"/traces/{trace_id}/compaction", policy="no_such")
    assert wrong.status_code == 422 and "no_such" in wrong.json()["detail"]
    asked = api.post(f"/traces/{trace_id}/commands", {"name": "compact"})
    assert (asked.status_code, asked.json()["status"]) == (202, "pending")
    chosen = api.post(f"/traces/{trace_id}/commands", {"name": "policy", "policy": "layered"})
    assert chosen.json()["status"] == "applied"
    api.post(f"/traces/{trace_id}/commands", {"name": "say", "text": "Go on."})
    play(trace_id)
    page = api.get(f"/traces/{trace_id}/compactions").json()
    api_schemas.CompactionPage(**page)
    [row] = page["items"]
    assert (row["policy"], row["by"], row["trigger"]) == ("layered", "olga", "manual")


@pytest.mark.usefixtures("threads")
def test_a_skill_is_injected_and_stands_in_the_ledger(tmp_path, olga):
    trace_id, api, name = owned(tmp_path, olga), Api(olga), min(ports.current_skills())
    body = {"name": "inject", "skill": name}
    assert api.post(f"/traces/{trace_id}/commands", body).json()["status"] == "applied"
    api.post(f"/traces/{trace_id}/commands", {"name": "say", "text": "Go on."})
    play(trace_id)
    [row] = api.get(f"/traces/{trace_id}/injections").json()["items"]
    api_schemas.InjectionOut(**row)
    assert (row["why"], row["window"], row["fired"]) == ("asked for by olga", "whole", True)
    missing = api.post(f"/traces/{trace_id}/commands", {"name": "inject", "skill": "no_such"})
    assert missing.status_code == 404


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"name": "rewind", "head": 5}, "rewind needs to"),
        ({"name": "rewind", "to": 1}, "rewind needs head"),
        ({"name": "edit", "sequence": 1}, "edit needs text"),
        ({"name": "policy"}, "policy needs policy"),
        ({"name": "inject"}, "inject needs skill"),
        ({"name": "stop", "to": 1}, "stop takes no to"),
        ({"name": "say", "text": "x", "policy": "off"}, "say takes no policy"),
        ({"name": "rewind", "to": -1, "head": 5}, "greater than or equal to 0"),
        ({"name": "edit", "sequence": 1, "text": "a\0b"}, "must not hold NUL"),
        ({"name": "compact", "policy": "off"}, "removes nothing"),
        ({"name": "reflect"}, "name"),
    ],
)
def test_an_act_that_is_not_whole_is_refused_with_a_sentence(talk, olga, body, problem):
    answer = Api(olga).post(f"/traces/{talk}/commands", body)
    assert answer.status_code == 422
    assert problem in answer.json()["detail"]
    assert not Command.objects.exists()


# Ledgers -----------------------------------------------------------------------------------


def test_ledgers_come_by_pages(talk, olga):
    for n in range(3):
        event = Injected(what="get_current_context", why=f"iteration {n}", fired=False)
        write.append(talk, [], [event])
    api = Api(olga)
    first = api.get(f"/traces/{talk}/injections", limit=2).json()
    assert [r["why"] for r in first["items"]] == ["iteration 0", "iteration 1"]
    rest = api.get(f"/traces/{talk}/injections", limit=2, after=first["next"]).json()
    assert [r["why"] for r in rest["items"]] == ["iteration 2"] and rest["next"] is None
    assert api.get(f"/traces/{talk}/compactions").json() == {"items": [], "next": None}


def test_knowledge_is_listed_and_judged(talk, olga):
    write.append(
        talk,
        [],
        [Learnt(entry=f"k5.{n}", status="pending", text="t", sources=(1,)) for n in (1, 2)],
    )
    api = Api(olga)
    judged = api.post(f"/traces/{talk}/knowledge/k5.2", {"status": "rejected", "why": "no"})
    assert judged.status_code == 200
    row = judged.json()
    api_schemas.KnowledgeOut(**row)
    assert (row["status"], row["judge"], row["why"]) == ("rejected", "olga", "no")
    waiting = api.get(f"/traces/{talk}/knowledge", status="pending").json()
    assert [r["name"] for r in waiting["items"]] == ["k5.1"]
    assert waiting["items"][0]["sources"] == [1]
    again = api.post(f"/traces/{talk}/knowledge/k5.2", {"status": "rejected"})
    assert again.status_code == 409
    assert api.post(f"/traces/{talk}/knowledge/k9.9", {"status": "rejected"}).status_code == 404
    assert api.post(f"/traces/{talk}/knowledge/k5.1", {"status": "perhaps"}).status_code == 422
    assert Knowledge.objects.get(name="k5.1").status == "pending"


def test_a_rewind_to_what_is_not_there_is_told(talk, olga):
    api = Api(olga)
    assert api.get(f"/traces/{talk}/rewind").status_code == 422
    assert api.get(f"/traces/{talk}/rewind", to=99).status_code == 404
    side = api.get(f"/traces/{talk}/rewind", to=4)
    assert side.status_code == 409 and "side branch" in side.json()["detail"]
