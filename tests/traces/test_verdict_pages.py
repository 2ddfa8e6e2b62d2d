"""The verdict desk over the test client: what is shown to whom, what is stored, what is refused.
How it behaves in a browser: ``tests/browser/test_verdicts.py``."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cyberagent.core.types import text_message
from tests.traces import grown, judged
from tests.traces.people import person
from traces import paths, reviews, write
from traces.models import Command, Trace, ValidationResult, VerdictReview

pytestmark = pytest.mark.django_db

PART = {"HX-Request": "true"}
SEEN = {"expected_review": "0"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def owner(db: None) -> User:
    return person("olga", "operator")


@pytest.fixture
def mine(owner: User) -> Client:
    return signed_in(owner)


def text(answer: Any) -> str:
    """What a reader sees: tags out, spaces as one."""
    bare = re.sub(r"<[^>]+>", " ", answer.content.decode())
    return re.sub(r"\s+", " ", html.unescape(bare))


def place(row: ValidationResult, act: str = "") -> str:
    return f"/verdicts/{row.pk}/{act}"


def shown(client: Client, row: ValidationResult) -> dict[str, str]:
    """What the page's own form sends along of what it shows."""
    fields = r'name="(expected|expected_review)" value="([^"]*)"'
    return dict(re.findall(fields, client.get(place(row)).content.decode()))


# Who may ---------------------------------------------------------------------------------------


def test_nobody_reads_it_without_signing_in(owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    for address in ("/verdicts/", "/verdicts/agreement/", "/verdicts/waiting/", place(row)):
        assert Client().get(address).status_code == 302, address


def test_somebody_elses_verdict_is_not_there(owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    stranger = signed_in(person("sam", "operator"))
    assert stranger.get(place(row)).status_code == 404
    for act in ("review/", "correction/", "child/"):
        assert stranger.post(place(row, act)).status_code == 404, act
    assert "No verdicts yet" in text(stranger.get("/verdicts/"))
    assert not VerdictReview.objects.exists()


def test_a_viewer_reads_and_is_asked_for_nothing(owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk, shared=True)
    viewer = signed_in(person("vera", "viewer"))
    page = viewer.get(place(row))
    assert "The tests of refunds pass" in text(page) and b"<textarea" not in page.content
    assert b'type="radio"' not in page.content
    for act in ("review/", "correction/", "child/"):
        assert viewer.post(place(row, act), {"act": "confirm"}).status_code == 403, act
    assert not VerdictReview.objects.exists() and not Command.objects.exists()


def test_the_exact_packet_is_for_operators(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk, shared=True)
    packet = paths.page(row.validator_id or "")[0].text
    viewer = text(signed_in(person("vera", "viewer")).get(place(row)))
    own = text(mine.get(place(row)))
    # The source of an output stands in the packet alone.
    assert "return bank.refund" in packet and "return bank.refund" in own
    assert "return bank.refund" not in viewer and "Show the packet" not in viewer
    assert "The exact packet needs the role operator." in viewer
    assert row.packet_sha256 in viewer and f"{len(packet):,} characters" in viewer


# The queue -----------------------------------------------------------------------------------


def test_an_empty_desk_says_what_would_be_there(mine: Client) -> None:
    said = text(mine.get("/verdicts/"))
    assert "No verdicts yet" in said and "when a validator has judged" in said


def test_the_queue_begins_with_what_waits(mine: Client, owner: User) -> None:
    waits = judged.judged_child(owner_id=owner.pk)
    done = judged.judged_root(owner_id=owner.pk)
    reviews.review(done, "failed", by=owner)
    page = mine.get("/verdicts/")
    assert f'id="verdict-{waits.pk}"'.encode() in page.content
    assert f'id="verdict-{done.pk}"'.encode() not in page.content
    everything = mine.get("/verdicts/?review=all")
    assert f'id="verdict-{done.pk}"'.encode() in everything.content
    assert "Confirmed olga" in text(everything)
    assert f'href="/verdicts/{waits.pk}/?review=all"' in everything.content.decode()
    reviews.review(waits, "failed", by=owner)
    assert "Nothing waits" in text(mine.get("/verdicts/"))
    assert "No verdict fits" in text(mine.get("/verdicts/?verdict=passed"))


def test_a_filter_that_cannot_be_is_said_and_the_form_stays(mine: Client, owner: User) -> None:
    judged.judged_child(owner_id=owner.pk)
    page = mine.get("/verdicts/?since=soon&search=refund")
    assert page.status_code == 200 and "since must be a day" in text(page)
    assert 'value="refund"' in page.content.decode()
    part = mine.get("/verdicts/?verdict=nice", headers=PART)
    assert "verdict must be one of" in text(part) and b"<html" not in part.content


def test_older_ones_are_on_the_next_page(mine: Client, owner: User) -> None:
    rows = [judged.judged_root(owner_id=owner.pk) for _ in range(51)]
    first = mine.get("/verdicts/")
    assert first.content.count(b'<tr id="verdict-') == 50
    [older] = re.findall(r'rel="next" href="([^"]+)"', first.content.decode())
    second = mine.get(html.unescape(older))
    assert re.findall(r'<tr id="verdict-(\d+)"', second.content.decode()) == [str(rows[0].pk)]
    assert "Newest" in text(second)


def test_the_queue_costs_the_same_however_long_it_is(mine: Client, owner: User) -> None:
    def cost(address: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert mine.get(address).status_code == 200
        return len(queries)

    first = judged.judged_child(owner_id=owner.pk)
    mine.get(place(first))  # what was read of a tree is kept
    few = cost("/verdicts/?review=all")
    one = cost(place(first))
    for _ in range(5):
        reviews.review(judged.judged_child(owner_id=owner.pk), "failed", by=owner)
    assert cost("/verdicts/?review=all") == few
    assert cost(place(first)) == one


def test_the_navigation_counts_what_waits_for_who_can_review(mine: Client, owner: User) -> None:
    assert mine.get("/verdicts/waiting/", headers=PART).status_code == 204
    for _ in range(2):
        row = judged.judged_root(owner_id=owner.pk, shared=True)
    assert "2 waiting" in text(mine.get("/verdicts/waiting/", headers=PART))
    reviews.review(row, "failed", by=owner)
    assert "1 waiting" in text(mine.get("/verdicts/waiting/", headers=PART))
    viewer = signed_in(person("vera", "viewer"))
    assert viewer.get("/verdicts/waiting/", headers=PART).status_code == 204


# One verdict -----------------------------------------------------------------------------------


def test_a_verdict_shows_claim_word_evidence_and_packet(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    page = mine.get(place(row))
    source, said = page.content.decode(), text(page)
    for words in (
        "Claim Met", "Validator Failed No test run is among the messages. no evidence",
        "message 999 does not exist", "terminal: refund 12: accepted by the bank",
        "2 criteria of the root, told beside", "Contract, version 1", "Root anchor, revision 1",
        "The refund call is written and tested.", "there is no file notes.md", "shop/refund.py",
        "the very packet that the verdict names", "1,200 in, 80 out", "$0.25",
        "Nobody has said a word on it yet",
    ):  # fmt: skip
        assert words in said, words
    assert f'href="/runs/{row.trace_id}/messages/3/"' in source
    assert f'href="/runs/{row.trace_id}/messages/5/"' in source
    assert 'href="#artifact-1"' in source and 'id="artifact-1"' in source
    assert f'href="/runs/{row.validator_id}/"' in source
    assert judged.ARTIFACTS[0].sha256 in source
    sent = judged.packet_of(row.trace_id).text.split("\n\n# Messages")[0]
    assert html.escape(sent, quote=True) in source
    assert row.packet_sha256 in source


def test_a_packet_with_another_hash_is_shown_as_such(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    ValidationResult.objects.filter(pk=row.pk).update(packet_sha256="0" * 64)
    assert f"not the one that the verdict names: {'0' * 64}" in text(mine.get(place(row)))


def test_where_no_packet_was_sent_the_reason_stands(mine: Client, owner: User) -> None:
    row = judged.judged_root("unknown", sent=False, owner_id=owner.pk)
    said = text(mine.get(place(row)))
    assert "No packet was sent. nothing was validated: the fixed part has 61,002" in said
    assert "The shop is on the new service." in said


def test_html_and_script_in_every_field_stay_text(mine: Client, owner: User) -> None:
    row = judged.judged_child("passed", "passed", owner_id=owner.pk, mark=EVIL)
    reviews.review(
        row, "failed", by=owner, criteria={"B2": "failed"}, reason="other", comment=EVIL
    )  # fmt: skip
    assert EVIL in row.task and EVIL in row.criteria.replace("\\", "")
    preview = mine.post(place(row, "correction/"), {"text": EVIL}, headers=PART)
    refused = mine.post(
        place(row, "review/"), {"word": EVIL, "comment": EVIL, "reason": EVIL, "criterion-B1": EVIL}
    )
    child = mine.post(
        place(row, "child/"), {"decision": EVIL, "next_brief": EVIL, "child_reason": EVIL}
    )
    pages = [
        mine.get("/verdicts/?review=all"), mine.get(place(row)), mine.get("/verdicts/agreement/"),
        mine.get("/verdicts/", {"search": EVIL, "run": EVIL, "model": EVIL, "since": EVIL}),
        preview, refused, child,
    ]  # fmt: skip
    assert [p.status_code for p in pages] == [200, 200, 200, 200, 200, 422, 422]
    for page in pages:
        assert b"<script>alert" not in page.content and b"<img src=x" not in page.content
        assert b"alert(1)" in page.content


def test_what_utf8_cannot_hold_breaks_no_page(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    reviews.review(row, "failed", by=owner, comment="half \ud800 and \0")
    assert mine.get(place(row)).status_code == 200


# A person's word -------------------------------------------------------------------------------


def test_to_confirm_is_one_request_and_leads_to_the_next_of_the_queue(
    mine: Client, owner: User
) -> None:
    one, two = (judged.judged_child(owner_id=owner.pk) for _ in range(2))
    judged.judged_root(owner_id=owner.pk)
    done = mine.post(place(two, "review/?search=refund"), {"act": "confirm", **SEEN})
    assert (done.status_code, done["Location"]) == (302, f"/verdicts/{one.pk}/?search=refund")
    assert two.reviews.get().confirms
    last = mine.post(place(one, "review/?search=refund"), {"act": "confirm", **SEEN}, follow=True)
    assert last.request["PATH_INFO"] == "/verdicts/"
    assert "There is no other one in this queue." in text(last)


def test_to_confirm_keeps_a_comment_and_refuses_words_that_lead_elsewhere(
    mine: Client, owner: User
) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    given = {"act": "confirm", "comment": "So it is.", **SEEN}
    refused = mine.post(place(row, "review/"), given | {"criterion-B2": "passed"})
    assert refused.status_code == 422 and "that decide follows: Passed" in text(refused)
    assert ">So it is.</textarea>" in refused.content.decode()
    mine.post(place(row, "review/"), given)
    assert row.reviews.get().comment == "So it is."


def test_another_word_is_stored_and_the_page_stays(mine: Client, owner: User) -> None:
    row = judged.judged_child("passed", "passed", owner_id=owner.pk)
    given = {
        "word": "failed", "criterion-B1": "passed", "criterion-B2": "failed",
        "reason": "evidence_missing", "comment": "No run of the tests.", **SEEN,
    }  # fmt: skip
    done = mine.post(place(row, "review/"), given)
    assert done["Location"] == f"/verdicts/{row.pk}/#correction"
    said = text(mine.get(place(row)))
    for words in ("Overruled: Failed", "Evidence is missing", "No run of the tests.", "B2 failed"):
        assert words in said


def test_what_is_refused_is_said_beside_its_field_and_nothing_typed_is_lost(
    mine: Client, owner: User
) -> None:
    row = judged.judged_child("passed", "passed", owner_id=owner.pk)
    given = {"word": "failed", "criterion-B2": "failed", "comment": "Seen it fail."}
    page = mine.post(place(row, "review/"), given)
    source = page.content.decode()
    assert page.status_code == 422
    assert 'id="reason-error" role="alert">A reason is needed to overrule' in source
    assert ">Seen it fail.</textarea>" in source
    assert re.search(r'name="criterion-B2" value="failed" data-decides checked', source)
    assert re.search(r'name="word" value="failed" checked', source)
    wrong = mine.post(place(row, "review/"), given | {"word": "passed"})
    assert "You say Passed on the whole, but from your words on the criteria" in text(wrong)
    assert not VerdictReview.objects.exists()


def test_a_word_on_a_page_that_is_behind_is_not_stored_and_stays_in_the_form(
    mine: Client, owner: User
) -> None:
    row = judged.judged_child(owner_id=owner.pk, shared=True)
    before = shown(mine, row)
    theirs = reviews.review(
        row, "passed", by=person("ann", "operator"), criteria={"B2": "passed"}, reason="other",
        comment="CI ran them.",
    )  # fmt: skip
    for given in ({"act": "confirm"}, {"word": "failed", "comment": "Mine."}):
        page = mine.post(place(row, "review/"), before | given)
        assert page.status_code == 409
        assert "ann has said Passed meanwhile. Your word is not stored" in text(page)
        assert "CI ran them." in text(page)
    assert ">Mine.</textarea>" in page.content.decode()
    assert f'name="expected_review" value="{theirs.pk}"' in page.content.decode()
    assert mine.post(place(row, "review/"), {"act": "confirm"}).status_code == 409
    odd = {"act": "confirm", "expected_review": "x"}
    assert mine.post(place(row, "review/"), odd).status_code == 409
    assert row.reviews.get() == theirs
    done = mine.post(place(row, "review/"), shown(mine, row) | {"word": "failed"})
    assert done.status_code == 302 and row.reviews.count() == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"word": "passed", "criterion-B2": "failed"}, "that decide follows: Failed."),
        ({"word": "failed", "criterion-B2": "failed"}, "A reason is needed to overrule"),
        (
            {"word": "failed", "criterion-B2": "failed", "reason": "other"},
            "A comment is needed to overrule",
        ),
        ({"word": "nice"}, "Choose one of those that are offered."),
        ({"word": "passed", "criterion-B2": "nice"}, "Choose one of those that are offered."),
        ({"word": "passed", "reason": "because"}, "Choose one of those that are offered."),
        ({"word": "passed", "criterion-B9": "passed"}, "This verdict has no criterion B9."),
        ({"word": "passed", "comment": "x" * 10_001}, "It has 10,001 characters; 10,000 fit."),
    ],
)
def test_a_refusal_of_the_form_is_a_sentence_that_can_be_translated(
    mine: Client, owner: User, given: dict[str, str], says: str
) -> None:
    row = judged.judged_child("passed", "passed", owner_id=owner.pk)
    page = mine.post(place(row, "review/"), given)
    [told] = re.findall(r'<p class="errors?"[^>]*role="alert">([^<]*)', page.content.decode())
    assert page.status_code == 422 and says in html.unescape(told)
    chinese = {"Accept-Language": "zh-hans"}
    page = mine.post(place(row, "review/"), given, headers=chinese)
    [told] = re.findall(r'<p class="errors?"[^>]*role="alert">([^<]*)', page.content.decode())
    assert "Passed" not in told and "Failed" not in told


# Corrections and reviews of children ---------------------------------------------------------


def test_a_correction_is_shown_before_it_is_sent(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    said = text(mine.get(place(row)))
    assert "The sub-agent’s review is due" in said and "the run goes on at once" in said
    part = mine.post(place(row, "correction/"), {"text": "Run the tests."}, headers=PART)
    assert "new: The correction that olga asked for is carried out: Run the tests." in text(part)
    assert not Command.objects.exists()
    done = mine.post(place(row, "correction/"), {"text": "Run the tests.", **shown(mine, row)})
    assert done["Location"] == f"/runs/{row.trace.parent_trace_id}/"
    assert [c.name for c in Command.objects.order_by("pk")] == ["review", "resume"]


def test_a_correction_does_what_was_shown_or_nothing(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    before = shown(mine, row)
    judged.accepted(row)
    count = Command.objects.count()
    for given in (before, {}):
        refused = mine.post(place(row, "correction/"), {"text": "Run the tests."} | given)
        assert refused.status_code == 409 and Command.objects.count() == count
        assert "has changed since it was shown. Nothing was sent" in text(refused)
    assert ">Run the tests.</textarea>" in refused.content.decode()
    assert "The sub-agent was reviewed already: it is said to" in text(refused)
    mine.post(place(row, "correction/"), {"text": "Run the tests.", **shown(mine, row)})
    assert [c.name for c in Command.objects.order_by("pk")[count:]] == ["say"]


def test_a_verdict_that_a_rewind_left_says_so(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    assert "left by a rewind" not in text(mine.get(place(row)))
    parent = Trace.objects.get(pk=row.trace.parent_trace_id)
    write.move_head(parent.pk, 1, expected_head=parent.head_sequence)
    page = mine.get(place(row))
    assert "left by a rewind" in text(page) and "There is nothing to correct" in text(page)
    assert b"correction-text" not in page.content


def test_the_words_that_a_root_hears_are_shown_whole(mine: Client, owner: User) -> None:
    row = judged.judged_root("failed", owner_id=owner.pk)
    part = text(mine.post(place(row, "correction/"), {"text": "Pay."}, headers=PART))
    assert f"It is said to {row.trace_id} , the run itself." in part
    mine.post(place(row, "correction/"), {"text": "Pay.", **shown(mine, row)})
    heard = json.loads(Command.objects.get().arguments)["text"]
    assert re.sub(r"\s+", " ", heard) in part


def test_where_nothing_can_be_resumed_the_page_says_why(mine: Client, owner: User) -> None:
    row = judged.judged_root("failed", owner_id=owner.pk)
    Trace.objects.filter(pk=row.trace_id).update(origin="claude_code")
    page = mine.get(place(row))
    assert "was imported; it cannot be resumed" in text(page)
    assert b"correction-text" not in page.content
    refused = mine.post(place(row, "correction/"), {"text": "Again."})
    assert refused.status_code == 422 and "was imported" in text(refused)
    assert ">Again.</textarea>" in refused.content.decode()


def test_an_empty_correction_is_refused_beside_its_field(mine: Client, owner: User) -> None:
    row = judged.judged_root("failed", owner_id=owner.pk)
    refused = mine.post(place(row, "correction/"), {"text": "  "})
    assert refused.status_code == 422
    assert 'id="text-error" role="alert">text: say what' in refused.content.decode()


def test_a_review_that_is_due_is_made_from_the_page(mine: Client, owner: User) -> None:
    row = judged.judged_child(owner_id=owner.pk)
    page = mine.get(place(row))
    assert "The review of this sub-agent is due" in text(page)
    assert "&quot;objective&quot;: &quot;Write the refund call&quot;" in page.content.decode()
    refused = mine.post(place(row, "child/"), {"decision": "ACCEPT"})
    assert refused.status_code == 422
    assert "reason is needed to accept a verdict that is failed" in text(refused)
    broken = mine.post(place(row, "child/"), {"decision": "REPLACE", "next_brief": '{"a": NaN}'})
    assert "NaN" in text(broken) and "TaskBrief" in text(broken)
    mine.post(place(row, "child/"), {"decision": "ACCEPT", "child_reason": "It will do."})
    assert Command.objects.get().status == "applied"
    after = text(mine.get(place(row)))
    assert "The review of this sub-agent is due" not in after
    assert "The sub-agent was reviewed already" in after


def test_a_root_has_no_review_of_a_child(mine: Client, owner: User) -> None:
    row = judged.judged_root(owner_id=owner.pk)
    refused = mine.post(place(row, "child/"), {"decision": "ABANDON"})
    assert refused.status_code == 422 and "Only a sub-agent is reviewed." in text(refused)


# Compare -------------------------------------------------------------------------------------


def test_two_runs_side_by_side_show_the_newest_verdict_on_each(mine: Client, owner: User) -> None:
    one = judged.judged_root("failed", owner_id=owner.pk)
    metadata = {"protocol": [grown.validated(grown.result("passed"))]}
    grown.says(one.trace_id, "Another answer.")
    note = text_message("user", "passed", source="framework", tokens=1, metadata=metadata)
    write.append(one.trace_id, [note])
    newest = ValidationResult.objects.latest("pk")
    none = judged.a_root(owner_id=owner.pk)
    page = mine.get(f"/runs/{one.trace_id}/compare/{none}/")
    assert re.findall(r"Verdict (Passed|Failed|–)", text(page)) == ["Passed", "–"]
    assert f'href="/verdicts/{newest.pk}/"' in page.content.decode()
    assert newest.pk != one.pk
    chinese = mine.get(page.request["PATH_INFO"], headers={"Accept-Language": "zh-hans"})
    assert "通过" in text(chinese) and "Passed" not in text(chinese)


# Agreement -----------------------------------------------------------------------------------


def test_agreement_is_shown_with_its_table_and_what_is_not_defined(
    mine: Client, owner: User
) -> None:
    assert "Nobody has reviewed a verdict yet" in text(mine.get("/verdicts/agreement/"))
    reviews.review(judged.judged_child(owner_id=owner.pk), "failed", by=owner)
    said = text(mine.get("/verdicts/agreement/"))
    assert "Reviewed 1 Agree 1 · 100 % Kappa not defined" in said
    other = judged.judged_child("passed", "passed", owner_id=owner.pk)
    reviews.review(
        other, "failed", by=owner, criteria={"B2": "failed"}, reason="other", comment="No."
    )  # fmt: skip
    said = text(mine.get("/verdicts/agreement/"))
    # (failed, failed), (passed, failed): po = 0.5 and pe = (1·2 + 1·0) / 4 = 0.5, kappa = 0.
    assert "Reviewed 2 Agree 1 · 50 % Kappa 0.00" in said
    assert "Passed 0 1 0 Failed 0 1 0 Unknown 0 0 0" in said
    assert "The tests of refunds pass 2 1 50 % 0.00" in said
