"""Root anchors in Django's admin: looked at, revised after a preview, never changed or deleted."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from tests.traces.anchored import ANCHOR, below, changed, rooted
from tests.traces.people import person
from tests.traces.played import told
from traces import access, anchors
from traces.models import AnchorRevision, Command, Event, Trace, ValidationResult, VerdictReview

pytestmark = pytest.mark.django_db

LIST = "/admin/traces/anchorrevision/"


def client_of(user: Any, staff: bool = True) -> Client:
    user.is_staff = staff
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin() -> Client:
    """Somebody with the role admin and the staff mark, and no permission of Django's own."""
    return client_of(person("root", "admin"))


@pytest.fixture
def root() -> Trace:
    return rooted(person("ann", "operator"))


def address(trace: Trace, what: str = "revise") -> str:
    return f"{LIST}{anchors.revisions(trace)[-1].pk}/{what}/"


def form(trace: Trace, **changes: str) -> dict[str, str]:
    return {
        "objective": ANCHOR["objective"],
        "completion_criteria": "\r\n".join(ANCHOR["completion_criteria"]),
        "constraints": "No card number is logged\r\nNo shop is closed",
        "why": "new law",
        "expected_sha256": anchors.revisions(trace)[-1].sha256,
    } | changes


def counts() -> list[int]:
    return [m.objects.count() for m in (AnchorRevision, Event, Command)]


def text_of(answer: Any) -> str:
    """What a page says, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())


# Looking -----------------------------------------------------------------------------------------


def test_each_revision_is_listed_and_found_by_its_words(admin, root):
    made = anchors.revise(
        root, changed(objective="Move by May"), by=person("zoe", "admin"), why="the law"
    )
    page = text_of(admin.get(LIST))
    for word in (root.pk, "Move by May", ANCHOR["objective"], "zoe", "the law", made.sha256[:12]):
        assert word in page
    for query in (root.pk, "by May", "zoe", "the law", made.sha256):
        assert "Move by May" in text_of(admin.get(LIST, {"q": query}))
    assert "Move by May" not in text_of(admin.get(LIST, {"q": "nobody wrote this"}))


def test_a_revision_is_shown_whole_and_an_old_one_leads_to_the_newest(admin, root):
    first = anchors.revisions(root)[0]
    made = anchors.revise(root, changed(constraints=[]), by=person("zoe", "admin"), why="the law")
    page = text_of(admin.get(f"{LIST}{made.pk}/change/"))
    for word in (
        *ANCHOR["completion_criteria"],
        made.sha256,
        made.supersedes,
        made.text,
        "Revise…",
    ):
        assert word in page
    old = text_of(admin.get(f"{LIST}{first.pk}/change/"))
    assert "Revise the newest one, 2…" in old
    answer = admin.get(f"{LIST}{first.pk}/revise/")
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}{made.pk}/revise/")


@pytest.mark.parametrize("what", ["change", "delete"])
def test_a_revision_is_neither_changed_nor_deleted(admin, root, what):
    before = counts()
    assert admin.post(address(root, what), {"post": "yes", "text": "{}"}).status_code == 403
    assert admin.post(f"{LIST}add/", {"text": "{}"}).status_code == 403
    deleting = {"action": "delete_selected", "_selected_action": [anchors.revisions(root)[0].pk]}
    admin.post(LIST, deleting | {"post": "yes"})
    assert counts() == before


def test_verdicts_and_peoples_word_on_them_are_looked_at_alone(admin, root):
    criteria = [{"id": "B1", "criterion": "<b>Paid</b>", "verdict": "passed", "reason": "seen",
                 "evidence": [3]}]  # fmt: skip
    verdict = ValidationResult.objects.create(
        trace=root, sequence=3, verdict="passed", task="Write \x1f\"a\\u0000\"",
        criteria=json.dumps(criteria),
    )  # fmt: skip
    review = VerdictReview.objects.create(
        result=verdict, by=person("zoe", "operator"), word="failed", confirms=False
    )
    for address, row in (("validationresult", verdict), ("verdictreview", review)):
        assert admin.get(f"/admin/traces/{address}/").status_code == 200
        page = admin.get(f"/admin/traces/{address}/{row.pk}/change/")
        assert page.status_code == 200
        assert "<b>Paid</b>" not in page.content.decode()
        for what in ("change", "delete"):
            url = f"/admin/traces/{address}/{row.pk}/{what}/"
            assert admin.post(url, {"post": "yes", "word": "passed"}).status_code == 403
    assert VerdictReview.objects.get().word == "failed"
    assert ValidationResult.objects.get().verdict == "passed"


# Who may -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "staff", "status"),
    [("viewer", True, 403), ("operator", True, 403), ("admin", False, 302), ("viewer", False, 302)],
)
def test_whoever_lacks_the_role_or_the_mark_has_no_way_in(root, role, staff, status):
    client = client_of(person("eve", role), staff)
    before = counts()
    for url in (LIST, address(root), address(root, "change")):
        assert client.get(url).status_code == status
    assert client.post(address(root), form(root) | {"_revise": "1"}).status_code == status
    assert counts() == before


def test_djangos_own_permissions_do_not_stand_for_the_role(root):
    eve = person("eve", "operator")
    eve.user_permissions.set(Permission.objects.filter(content_type__app_label="traces"))
    client = client_of(eve)
    assert client.get(address(root)).status_code == 403
    assert client.post(address(root), form(root) | {"_revise": "1"}).status_code == 403
    assert AnchorRevision.objects.count() == 1


# Revising ----------------------------------------------------------------------------------------


def test_the_form_begins_with_the_newest_anchor(admin, root):
    page = admin.get(address(root)).content.decode()
    shown = {
        name: unescape(re.search(rf'<textarea[^>]*name="{name}"[^>]*>\n?([^<]*)<', page)[1])
        for name in ("objective", "completion_criteria", "constraints")
    }
    assert shown == {
        "objective": ANCHOR["objective"],
        "completion_criteria": "\n".join(ANCHOR["completion_criteria"]),
        "constraints": "No card number is logged",
    }


def test_it_is_asked_before_it_is_done(admin, root):
    child = below(root)
    before = counts()
    asked = admin.post(address(root), form(root) | {"_preview": "1"})
    page = text_of(asked)
    assert asked.status_code == 200
    assert f"Revision 2 of run {root.pk}. 2 runs are told" in page
    assert page.count("No shop is closed") == 2 and child.pk in page
    assert counts() == before
    done = admin.post(address(root), form(root) | {"_revise": "1"}, follow=True)
    assert f"Revision 2 of the anchor of run {root.pk} is in force." in text_of(done)
    newest = anchors.revisions(root)[-1]
    assert (newest.number, newest.by_name, newest.why) == (2, "root", "new law")
    assert json.loads(newest.text)["constraints"] == [
        "No card number is logged",
        "No shop is closed",
    ]
    assert len(told(root, "AnchorRevised")) == len(told(child, "AnchorRevised")) == 1


def test_nothing_is_lost_on_the_way_back_to_the_form(admin, root):
    given = form(root, objective='Move "it"', why="because <i>") | {"_edit": "1"}
    page = admin.post(address(root), given).content.decode()
    assert "Move &quot;it&quot;</textarea>" in page
    assert "No shop is closed</textarea>" in page
    assert 'value="because &lt;i&gt;"' in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"why": " "}, ["field is required"]),
        ({"why": "x" * 2_001}, ["at most 2000 characters"]),
        ({"objective": " "}, ["field is required"]),
        ({"completion_criteria": "\r\n \r\n"}, ["field is required"]),
        ({"objective": "a\0b"}, ["Null characters"]),
        ({"objective": "é" * 4_000}, ["objective is the longest field", "at most 4,000 fit"]),
        ({"constraints": "No card number is logged"}, ["already the same"]),
    ],
    ids=range(7),
)  # fmt: skip
@pytest.mark.parametrize("button", ["_preview", "_revise"])
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_lost(
    admin, root, changes, words, button
):
    before = counts()
    answer = admin.post(address(root), form(root, **changes) | {button: "1"})
    assert answer.status_code == 422
    page = text_of(answer)
    for word in words:
        assert word in page
    assert "No card number is logged" in page
    assert counts() == before


def test_a_contract_without_room_is_named_and_cannot_be_passed_over(admin, root):
    child = below(root, reason="x" * 15_000)
    wide = form(root, constraints="y" * 1_000)
    page = admin.post(address(root), wide | {"_preview": "1"})
    assert f"the contract of {child.pk} has no room for it" in text_of(page)
    assert b'name="_revise"' not in page.content
    assert admin.post(address(root), wide | {"_revise": "1"}).status_code == 422
    assert AnchorRevision.objects.count() == 1


def test_who_was_overtaken_is_told_and_sees_what_is_there_now(admin, root):
    mine = form(root)
    anchors.revise(root, changed(objective="Theirs"), by=access.local_admin(), why="faster")
    refused = admin.post(address(root), mine | {"_revise": "1"})
    assert refused.status_code == 422
    assert "revision 2 by admin" in text_of(refused)
    assert AnchorRevision.objects.count() == 2
    seen = text_of(admin.post(address(root), mine | {"_preview": "1"}))
    assert "The anchor was revised since you began" in seen
    assert "Theirs" in seen
    now = anchors.revisions(root)[-1].sha256
    done = admin.post(address(root), mine | {"expected_sha256": now, "_revise": "1"})
    assert done.status_code == 302
    assert anchors.revisions(root)[-1].number == 3


def test_an_item_of_several_lines_comes_through_the_form_unchanged(admin, root):
    odd = ["one\ntwo", '"quoted"', '"a\\nb"', "plain"]
    anchors.revise(root, changed(constraints=odd), by=access.local_admin(), why="odd")
    page = admin.get(address(root)).content.decode()
    shown = unescape(re.search(r'<textarea[^>]*name="constraints"[^>]*>\n?([^<]*)<', page)[1])
    given = form(root, objective="Other", constraints=shown.replace("\n", "\r\n"))
    assert admin.post(address(root), given | {"_revise": "1"}).status_code == 302
    assert json.loads(anchors.revisions(root)[-1].text)["constraints"] == odd
