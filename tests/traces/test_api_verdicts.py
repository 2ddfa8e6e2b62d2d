"""Verdicts over the REST API: what it gives to read, what people say and do through it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.traces import judged
from tests.traces.people import Api, person
from traces import reviews, write
from traces.api_schemas import CommandOut
from traces.api_verdicts import (
    AgreementsOut,
    CorrectionOut,
    VerdictDetail,
    VerdictPage,
    VerdictReviewOut,
)
from traces.models import Command, Trace, VerdictReview

pytestmark = pytest.mark.django_db


@pytest.fixture
def olga(db: None) -> Any:
    return person("olga", "operator")


@pytest.fixture
def api(olga: Any) -> Api:
    return Api(olga)


def writes(row: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"/verdicts/{row.pk}/reviews", {"word": row.verdict}),
        (f"/verdicts/{row.pk}/correction", {"text": "Again."}),
        (
            f"/traces/{row.trace.parent_trace_id}/reviews",
            {"child": row.trace_id, "decision": "ABANDON"},
        ),
    ]


def test_who_may_read_and_who_may_act(olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    stranger, nobody = Api(person("sam", "operator")), Api()
    assert nobody.get(f"/verdicts/{row.pk}").status_code == 401
    assert stranger.get(f"/verdicts/{row.pk}").status_code == 404
    assert stranger.get("/verdicts").json()["items"] == []
    for path, body in writes(row):
        assert stranger.post(path, body).status_code == 404, path
    Trace.objects.update(shared=True)
    viewer = Api(person("vera", "viewer"))
    assert viewer.get(f"/verdicts/{row.pk}").status_code == 200
    for path, body in writes(row):
        refused = viewer.post(path, body)
        assert refused.status_code == 403 and "needs the role operator" in refused.json()["detail"]
    assert not VerdictReview.objects.exists() and not Command.objects.exists()


def test_the_queue_by_pages_with_every_filter(api: Api, olga: Any) -> None:
    child = judged.judged_child(owner_id=olga.pk)
    roots = [judged.judged_root(owner_id=olga.pk) for _ in range(3)]
    reviews.review(roots[0], "failed", by=olga)
    first = api.get("/verdicts", limit=3).json()
    VerdictPage.model_validate(first)
    assert [v["id"] for v in first["items"]] == [roots[2].pk, roots[1].pk, roots[0].pk]
    assert [v["state"] for v in first["items"]] == ["waiting", "waiting", "confirmed"]
    assert first["items"][2]["review"]["by"] == "olga"
    rest = api.get("/verdicts", limit=3, cursor=first["next"]).json()
    assert ([v["id"] for v in rest["items"]], rest["next"]) == ([child.pk], None)
    for query, expected in (
        ({"verdict": "passed"}, []),
        ({"review": "confirmed"}, [roots[0].pk]),
        ({"model": "judge-1", "search": "refund"}, [child.pk]),
        ({"run": child.trace.parent_trace_id}, [child.pk]),
        ({"until": "2026-01-01"}, []),
        ({"since": "2026-01-02", "until": "2026-01-02", "review": "waiting", "limit": 1},
         [roots[2].pk]),
    ):  # fmt: skip
        assert [v["id"] for v in api.get("/verdicts", **query).json()["items"]] == expected, query


@pytest.mark.parametrize(
    "query",
    [{"verdict": "good"}, {"review": "done"}, {"since": "soon"}, {"cursor": "x"}, {"limit": 0}],
)
def test_a_query_that_cannot_be_is_422(api: Api, query: Any) -> None:
    refused = api.get("/verdicts", **query)
    assert refused.status_code == 422 and next(iter(query)) in refused.json()["detail"]


def test_one_verdict_with_claims_packet_and_reviews(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    reviews.review(row, "failed", by=olga, comment="I ran them.")
    found = api.get(f"/verdicts/{row.pk}").json()
    VerdictDetail.model_validate(found)
    first, second, *roots = found["criteria"]
    assert first["claim"] == {
        "met": True,
        "evidence": [
            {"message": 3, "artifact": "", "is_there": True},
            {"message": None, "artifact": "refund.py", "is_there": True},
        ],
    }
    assert (second["verdict"], second["person"]) == ("failed", "failed")
    assert second["claim"]["evidence"][1] == {"message": 999, "artifact": "", "is_there": False}
    assert [r["decides"] for r in roots] == [False, False]
    assert hashlib.sha256(found["packet"].encode()).hexdigest() == found["packet_now_sha256"]
    assert found["packet_holds"] and found["packet_sha256"] == found["packet_now_sha256"]
    assert (found["brief"], found["brief_version"]) == (judged.BRIEF, 1)
    assert found["anchor"] == judged.ANCHOR and found["report"] == judged.REPORT
    assert [a["name"] for a in found["artifacts"]] == ["refund.py", "notes"]
    assert [r["comment"] for r in found["reviews"]] == ["I ran them."]
    assert found["usage"]["prompt"] == 1200


def test_the_exact_packet_is_for_operators(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk, shared=True)
    whole = api.get(f"/verdicts/{row.pk}").json()
    seen = Api(person("vera", "viewer")).get(f"/verdicts/{row.pk}").json()
    VerdictDetail.model_validate(seen)
    assert seen["packet"] is None and seen["packet_characters"] == len(whole["packet"])
    assert seen["packet_now_sha256"] == row.packet_sha256 and seen["packet_holds"]
    assert "return bank.refund" not in str(seen) and "return bank.refund" in str(whole)
    assert whole["artifacts"][0]["content"] == judged.SOURCE
    assert seen["criteria"] == whole["criteria"]


def test_a_verdict_that_a_rewind_left_is_marked(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    assert api.get(f"/verdicts/{row.pk}").json()["left_by_rewind"] is False
    parent = Trace.objects.get(pk=row.trace.parent_trace_id)
    write.move_head(parent.pk, 1, expected_head=parent.head_sequence)
    assert api.get(f"/verdicts/{row.pk}").json()["left_by_rewind"] is True


def test_a_roots_verdict_without_a_packet(api: Api, olga: Any) -> None:
    row = judged.judged_root("unknown", sent=False, owner_id=olga.pk)
    found = api.get(f"/verdicts/{row.pk}").json()
    VerdictDetail.model_validate(found)
    assert (found["packet"], found["packet_holds"], found["validator"]) == (None, None, None)
    assert found["answer"] == {"sequence": 2, "text": judged.ANSWER}
    assert "61,002" in found["reason"]


@pytest.mark.parametrize("number", ["0", "999999", "2147483647"])
def test_a_verdict_that_is_not_there(api: Api, number: str) -> None:
    assert api.get(f"/verdicts/{number}").status_code == 404


def test_a_persons_word_is_stored(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    path = f"/verdicts/{row.pk}/reviews"
    made = api.post(path, {"word": "failed"})
    assert made.status_code == 201
    VerdictReviewOut.model_validate(made.json())
    assert made.json()["confirms"]
    body = {
        "word": "passed", "criteria": {"B2": "passed"}, "reason": "done_elsewhere",
        "comment": "CI ran them.",
    }  # fmt: skip
    assert api.post(path, body).json()["criteria"]["B2"] == "passed"
    assert api.get(f"/verdicts/{row.pk}").json()["state"] == "overruled"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"word": "good"}, "word"),
        ({"word": "passed"}, "failed follows"),
        ({"criteria": {"B9": "passed"}}, "'B9'"),
        ({"criteria": {"B2": "maybe"}}, "criteria"),
        ({"word": "passed", "criteria": {"B2": "passed"}}, "reason is needed"),
        ({"word": "passed", "criteria": {"B2": "passed"}, "reason": "other"}, "comment is needed"),
        ({"reason": "because"}, "reason"),
        ({"comment": "x" * 10_001}, "comment"),
        ({"by": "tom"}, "by"),
    ],
)
def test_a_word_that_cannot_be_is_422_and_nothing_is_stored(
    api: Api, olga: Any, change: Any, says: str
) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    refused = api.post(f"/verdicts/{row.pk}/reviews", {"word": "failed"} | change)
    assert refused.status_code == 422 and says in refused.json()["detail"]
    assert not VerdictReview.objects.exists()


def test_a_correction_is_tried_dry_then_sent(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    path = f"/verdicts/{row.pk}/correction"
    dry = api.post(path, {"text": "Run the tests.", "dry_run": True})
    assert dry.status_code == 200 and not Command.objects.exists()
    CorrectionOut.model_validate(dry.json())
    assert (dry.json()["way"], dry.json()["trace"]) == ("review", row.trace.parent_trace_id)
    assert dry.json()["review"]["decision"] == "REVISE_CHILD"
    done = api.post(path, {"text": "Run the tests."})
    assert done.status_code == 202
    CommandOut.model_validate(done.json())
    assert done.json()["arguments"]["next_brief"] == dry.json()["review"]["next_brief"]
    again = api.post(path, {"text": "Run the tests.", "dry_run": True}).json()
    assert again["way"] == "say_parent"


def test_a_correction_that_was_tried_dry_is_sent_as_it_was_or_not_at_all(
    api: Api, olga: Any
) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    path = f"/verdicts/{row.pk}/correction"
    dry = api.post(path, {"text": "Run the tests.", "dry_run": True}).json()
    judged.accepted(row)
    count = Command.objects.count()
    refused = api.post(path, {"text": "Run the tests.", "expected": dry["expected"]})
    assert refused.status_code == 409 and refused.json()["detail"].startswith("expected")
    assert Command.objects.count() == count
    dry = api.post(path, {"text": "Run the tests.", "dry_run": True}).json()
    done = api.post(path, {"text": "Run the tests.", "expected": dry["expected"]})
    assert (done.status_code, done.json()["name"]) == (202, "say")


def test_a_word_that_has_not_seen_the_newest_is_409(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    path = f"/verdicts/{row.pk}/reviews"
    first = api.post(path, {"word": "failed", "expected_review": 0}).json()
    refused = api.post(path, {"word": "failed", "expected_review": 0})
    assert refused.status_code == 409 and "olga has said failed" in refused.json()["detail"]
    assert VerdictReview.objects.count() == 1
    assert api.post(path, {"word": "failed", "expected_review": first["id"]}).status_code == 201


def test_a_correction_that_cannot_be_sent_says_why(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk, told=False)
    path = f"/verdicts/{row.pk}/correction"
    dry = api.post(path, {"text": "x", "dry_run": True}).json()
    refused = api.post(path, {"text": "x"})
    assert refused.status_code == 409
    assert refused.json()["detail"] == dry["why"] and dry["way"] == "none"
    assert api.post(path, {"text": " "}).status_code == 422
    assert api.post(path, {"text": "x" * 8_001}).status_code == 422


def test_a_child_is_reviewed_in_place_of_its_parent(api: Api, olga: Any) -> None:
    row = judged.judged_child(owner_id=olga.pk)
    path = f"/traces/{row.trace.parent_trace_id}/reviews"
    body = {"child": row.trace_id, "decision": "ACCEPT"}
    refused = api.post(path, body)
    assert refused.status_code == 422 and "reason is needed" in refused.json()["detail"]
    assert api.post(path, body | {"decision": "MAYBE"}).status_code == 422
    assert api.post(path, body | {"child": "other"}).status_code == 422
    assert not Command.objects.exists()
    done = api.post(path, body | {"reason": "It will do.", "resume": True})
    assert (done.status_code, done.json()["status"]) == (202, "applied")
    assert Trace.objects.get(pk=row.trace.parent_trace_id).status == "queued"


def test_agreement(api: Api, olga: Any) -> None:
    reviews.review(judged.judged_child(owner_id=olga.pk), "failed", by=olga)
    found = api.get("/verdicts/agreement").json()
    AgreementsOut.model_validate(found)
    assert (found["all"]["n"], found["all"]["share"], found["all"]["kappa"]) == (1, 1.0, None)
    assert found["by_model"][0]["table"]["failed"]["failed"] == 1
