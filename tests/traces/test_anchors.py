"""Root anchors: what a revision does, what it refuses, and who has no way to one."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from cyberagent.core.errors import Conflict, InvalidInput, NotFound
from tests.traces import grown
from tests.traces.anchored import (
    ANCHOR,
    below,
    changed,
    of_characters,
    rooted,
    validator_of,
)
from tests.traces.people import Api, person, stored_trace
from tests.traces.played import told
from traces import anchors, write
from traces.access import RoleNeeded
from traces.models import AnchorRevision, Command, Event, Trace, ValidationResult
from traces.protocols import protocol_of

pytestmark = pytest.mark.django_db

FIRST_TEXT = (
    '{"completion_criteria":["Orders can be paid","The old service is switched off"],'
    '"constraints":["No card number is logged"],'
    '"objective":"Move the shop to the new payment service"}'
)
NEW = changed(constraints=["No card number is logged", "No shop is closed"])
NEW_TEXT = FIRST_TEXT.replace('logged"]', 'logged","No shop is closed"]')


@pytest.fixture
def root() -> Trace:
    return rooted()


@pytest.fixture
def admin() -> Any:
    return person("root", "admin")


def driven(trace: Trace) -> None:
    """As if a process drove the tree that begins with ``trace``."""
    until = timezone.now() + timedelta(hours=1)
    Trace.objects.filter(pk=trace.pk).update(status="running", lease_owner="me", lease_until=until)


def counts() -> list[int]:
    return [m.objects.count() for m in (AnchorRevision, Event, Command)]


# What a revision does --------------------------------------------------------------------------


def test_a_revision_stands_beside_the_one_that_it_supersedes(root, admin):
    made = anchors.revise(root, NEW, by=admin, why="  the contract says so ")
    first, second = AnchorRevision.objects.filter(trace=root).order_by("number")
    assert made == second
    assert (first.number, first.text, first.supersedes) == (1, FIRST_TEXT, "")
    assert first.sha256 == sha256(FIRST_TEXT.encode()).hexdigest()
    assert (second.number, second.text) == (2, NEW_TEXT)
    assert second.sha256 == sha256(NEW_TEXT.encode()).hexdigest()
    assert second.supersedes == first.sha256
    assert (second.by, second.by_name, second.why) == (admin, "root", "the contract says so")


def test_every_trace_that_has_not_ended_has_the_event_and_no_other(root, admin):
    paused, waiting = below(root), below(root, "waiting")
    grandchild = below(paused, "running")
    ended = [below(root, status) for status in ("completed", "failed", "stopped")]
    made = anchors.revise(root, NEW, by=admin, why="new law")
    event = {
        "sha256": made.sha256,
        "supersedes": made.supersedes,
        "by": "root",
        "why": "new law",
    }
    for trace in (root, paused, waiting, grandchild):
        assert told(trace, "AnchorRevised") == [event]
    for trace in ended:
        assert told(trace, "AnchorRevised") == []


def test_a_root_that_has_ended_still_keeps_the_record(admin):
    root = rooted(status="completed")
    anchors.revise(root, NEW, by=admin, why="new law")
    assert len(told(root, "AnchorRevised")) == 1
    assert Trace.objects.get(pk=root.pk).status == "completed"


def test_a_tree_at_rest_is_given_no_command(root, admin):
    below(root)
    anchors.revise(root, NEW, by=admin, why="new law")
    assert not Command.objects.exists()


def test_a_tree_that_is_driven_hears_of_it_by_a_command_on_each_trace_at_work(root, admin):
    driven(root)
    at_work, paused = below(root, "running"), below(root, "paused")
    validator_of(at_work)  # judges by a packet that holds the anchor as it was
    anchors.revise(root, NEW, by=admin, why="new law")
    given = {c.trace_id: c for c in Command.objects.all()}
    assert given.keys() == {root.pk, at_work.pk}
    assert paused.pk not in given
    for command in given.values():
        assert (command.name, command.status, command.by) == ("anchor", "pending", admin)
        assert json.loads(command.arguments) == {}


def test_a_contract_keeps_its_constraints_and_gets_the_new_ones(root, admin):
    child = below(root, constraints=["Only Python"])
    given = changed(constraints=["No shop is closed"])
    seen = anchors.preview(root, given)
    (contract,) = seen.contracts
    assert (contract.trace, contract.gets) == (child.pk, ("No shop is closed",))
    assert (contract.loses, contract.problem) == ((), "")
    assert list(seen.changes()) == [
        ("constraints", ("No shop is closed",), ("No card number is logged",))
    ]
    assert AnchorRevision.objects.count() == 1
    anchors.revise(root, given, by=admin, why="new law")
    state = protocol_of(child)
    assert state is not None and state.brief is not None
    assert state.brief.constraints == (
        "No card number is logged", "Only Python", "No shop is closed",
    )  # fmt: skip
    # What the revision after it takes away again, the contract had from it alone.
    (contract,) = anchors.preview(root, ANCHOR).contracts
    assert (contract.gets, contract.loses) == ((), ("No shop is closed",))


def test_a_preview_says_what_would_change_and_who_would_be_told(root):
    child = below(root)
    below(root, "completed")
    seen = anchors.preview(
        root, changed(objective="Move the shop by May", completion_criteria=["Orders can be paid"])
    )
    assert (seen.number, seen.told, seen.problem) == (2, (root.pk, child.pk), "")
    assert list(seen.changes()) == [
        ("objective", ("Move the shop by May",), ("Move the shop to the new payment service",)),
        ("completion_criteria", (), ("The old service is switched off",)),
    ]


# What it refuses -------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "RootTaskAnchor"), ([], "RootTaskAnchor"), ("text", "RootTaskAnchor"),
        ({}, "constraints"),
        (changed(objective=" \n"), "objective"),
        (changed(objective=7), "objective"),
        (changed(completion_criteria=[]), "completion_criteria"),
        (changed(completion_criteria=["", None]), "completion_criteria"),
        (changed(constraints=None), "constraints"),
        (changed(constraints=[["nested"]]), "constraints[0]"),
        (changed(constraints=[deep(40)]), "constraints"),
        (changed(constraints=[float("nan")]), "constraints"),
        (changed(constraints=[float("-inf")]), "constraints"),
        (changed(objective="half \ud800"), "objective"),
        (changed(objective="a\0b"), "objective"),
        (changed(colour="red"), "colour"),
        (of_characters(4_001), "objective"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_anchor_changes_nothing(root, admin, value, field):
    driven(root)
    before = counts()
    with pytest.raises(InvalidInput, match=field.replace("[", r"\[")):
        anchors.revise(root, value, by=admin, why="new law")
    assert counts() == before


def test_an_anchor_may_have_exactly_4000_characters(root, admin):
    made = anchors.revise(root, of_characters(4_000), by=admin, why="long")
    assert len(made.text) == 4_000


def test_markup_in_an_anchor_is_text(root, admin):
    value = changed(objective="<script>alert(1)</script>", constraints=["<b>&amp;"])
    anchors.revise(root, value, by=admin, why="<i>why</i>")
    found = Api(admin).get(f"/traces/{root.pk}/anchor").json()
    assert found["anchor"]["objective"] == "<script>alert(1)</script>"
    assert found["revisions"][1]["why"] == "<i>why</i>"


def test_the_same_anchor_is_no_revision(root, admin):
    before = counts()
    same = changed(objective=f"  {ANCHOR['objective']}\n", constraints=ANCHOR["constraints"] * 2)
    with pytest.raises(InvalidInput, match="already the same"):
        anchors.revise(root, same, by=admin, why="again")
    assert counts() == before


@pytest.mark.parametrize("why", ["", "  \n", "x" * 2_001], ids=len)
def test_a_reason_is_needed_and_has_an_end(root, admin, why):
    before = counts()
    with pytest.raises(InvalidInput, match="reason"):
        anchors.revise(root, NEW, by=admin, why=why)
    assert counts() == before


def test_a_run_without_an_anchor_gets_none(admin):
    plain = Trace.objects.get(pk=stored_trace())
    with pytest.raises(InvalidInput, match="no root anchor"):
        anchors.revise(plain, NEW, by=admin, why="new law")
    with pytest.raises(NotFound, match="root anchor"):
        anchors.revisions(plain)
    assert not AnchorRevision.objects.exists()


def test_a_sub_agents_anchor_is_revised_at_the_root(root, admin):
    child = below(root)
    with pytest.raises(InvalidInput, match=root.pk):
        anchors.revise(child, NEW, by=admin, why="new law")
    assert AnchorRevision.objects.count() == 1


MORE = "No shop is closed"
ROOM = len(f',"{MORE}"')
"""What one more constraint takes of a contract's canonical JSON."""


def nearly_full(parent: Trace, room: int, status: str = "paused") -> Trace:
    """A sub-agent whose contract has ``room`` characters left of its 16,000."""
    bare = below(parent, "completed", reason="x")
    state = protocol_of(bare)
    assert state is not None and state.brief is not None
    return below(parent, status, reason="x" * (16_000 - room - len(state.brief.text) + 1))


def test_a_contract_that_has_room_for_exactly_the_new_constraint_gets_it(root, admin):
    child = nearly_full(root, ROOM)
    anchors.revise(root, NEW, by=admin, why="new law")
    state = protocol_of(child)
    assert state is not None and state.brief is not None
    assert len(state.brief.text) == 16_000
    assert state.brief.constraints[-1] == MORE


@pytest.mark.parametrize("status", ["queued", "running", "paused", "waiting", "interrupted"])
def test_a_contract_in_force_without_room_refuses_the_revision(root, admin, status):
    child = nearly_full(root, ROOM - 1, status)
    before = counts()
    seen = anchors.preview(root, NEW)
    assert child.pk in seen.problem and "16,001" in seen.problem
    with pytest.raises(InvalidInput, match=f"{child.pk} has no room"):
        anchors.revise(root, NEW, by=admin, why="new law")
    assert counts() == before


def test_a_full_contract_of_a_sub_agent_that_is_done_refuses_nothing(root, admin):
    for status in ("completed", "failed", "stopped"):
        nearly_full(root, 0, status)
    assert anchors.revise(root, NEW, by=admin, why="new law").number == 2


LONGER = grown.ANCHOR | {"constraints": ["no new tables", "n" * 900]}
"""Takes more room than a contract of 15,500 characters and more has left."""


def a_full_child(status: str) -> tuple[Trace, Trace, dict[str, Any]]:
    """A root at rest, a sub-agent whose call is open, and its nearly full contract."""
    contract = grown.brief(context="y" * 15_500)
    root = grown.a_root("paused")
    ask = grown.asks(root, "c1")
    child = grown.a_child(root, "c1", ask, status=status, contract=contract)
    return Trace.objects.get(pk=root), Trace.objects.get(pk=child), contract


@pytest.mark.parametrize("status", ["stopped", "failed", "completed"])
def test_a_contract_that_an_open_call_goes_on_with_refuses_what_it_has_no_room_for(status, admin):
    root, child, _ = a_full_child(status)
    with pytest.raises(InvalidInput, match=f"{child.pk} has no room"):
        anchors.revise(root, LONGER, by=admin, why="new law")
    assert AnchorRevision.objects.count() == 1


def test_a_full_contract_is_in_force_until_its_review_and_then_refuses_nothing(admin):
    root, child, contract = a_full_child("completed")
    grown.reports(child.pk)
    grown.answers(root.pk, "c1", *grown.ended(child.pk, contract))
    assert child.pk in anchors.preview(root, LONGER).problem
    grown.asks(root.pk, "v1", name="review_child")
    grown.answers(root.pk, "v1", grown.reviewed(child.pk), name="review_child")
    assert anchors.preview(root, LONGER).contracts == ()
    assert anchors.revise(root, LONGER, by=admin, why="new law").number == 2


def test_the_page_of_a_contract_without_room_for_a_later_anchor_says_so(admin, client):
    root, child, contract = a_full_child("completed")
    grown.reports(child.pk)
    grown.answers(root.pk, "c1", *grown.ended(child.pk, contract))
    grown.asks(root.pk, "v1", name="review_child")
    grown.answers(root.pk, "v1", grown.reviewed(child.pk), name="review_child")
    anchors.revise(root, LONGER, by=admin, why="new law")
    client.force_login(admin)
    answer = client.get(f"/runs/{child.pk}/task/")
    assert answer.status_code == 200
    shown = answer.content.decode()
    assert "has no room in this contract" in shown and "at most 16,000 fit" in shown
    verdict = ValidationResult.objects.get(trace=child)
    assert client.get(f"/verdicts/{verdict.pk}/").status_code == 200
    # The trace above goes on, and another revision can be previewed.
    more = LONGER | {"constraints": [*LONGER["constraints"], "one more"]}
    assert anchors.preview(root, more).problem == ""


# Who may, and two at once ------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_an_admin_revises_also_a_run_of_ones_own(role):
    ann = person("ann", role)
    root = rooted(ann)
    before = counts()
    with pytest.raises(RoleNeeded, match="needs the role admin"):
        anchors.revise(root, NEW, by=ann, why="mine")
    body = {"anchor": NEW, "why": "mine", "expected_sha256": ""}
    for dry_run in (False, True):
        answer = Api(ann).post(f"/traces/{root.pk}/anchor", body | {"dry_run": dry_run})
        assert answer.status_code == 403
    assert counts() == before


def test_who_saw_another_anchor_is_told_so(root, admin):
    seen = anchors.revisions(root)[-1].sha256
    anchors.revise(root, NEW, by=admin, why="first", expected_sha256=seen)
    before = counts()
    for value in (changed(objective="Another one"), NEW):
        with pytest.raises(Conflict, match="revision 2 by root"):
            anchors.revise(root, value, by=admin, why="second", expected_sha256=seen)
    assert counts() == before


@pytest.mark.usefixtures("threads")
def test_of_two_at_once_one_wins():
    root, admin = rooted(), person("root", "admin")
    seen = anchors.revisions(root)[-1].sha256
    together = threading.Barrier(2)

    def revise(objective: str) -> str:
        try:
            together.wait(30)
            anchors.revise(
                root, changed(objective=objective), by=admin, why="race", expected_sha256=seen
            )
            return objective
        except Conflict:
            return ""
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        won = [one for one in pool.map(revise, ("Mine", "Yours")) if one]
    assert len(won) == 1
    newest = anchors.revisions(root)[-1]
    assert (newest.number, json.loads(newest.text)["objective"]) == (2, won[0])
    assert len(told(root, "AnchorRevised")) == 1


@pytest.mark.usefixtures("threads")
def test_a_revision_waits_for_who_writes_in_the_tree_and_is_in_nobodys_way():
    root, admin = rooted(), person("root", "admin")
    child = below(root, "running")
    writing, asked = threading.Event(), threading.Event()

    def write_both() -> None:
        """As a run that stores for a sub-agent first and for the root then, at one go."""
        try:
            with transaction.atomic():
                write.append(child.pk, [], [])
                Trace.objects.filter(pk=child.pk).update(steps=1)
                writing.set()
                asked.wait(30)
                Trace.objects.filter(pk=root.pk).update(steps=1)
        finally:
            connection.close()

    def revise() -> int:
        try:
            writing.wait(30)
            asked.set()
            return anchors.revise(root, NEW, by=admin, why="new law").number
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        other, mine = pool.submit(write_both), pool.submit(revise)
        assert (mine.result(60), other.result(60)) == (2, None)
    assert Trace.objects.filter(steps=1).count() == 2


# The API -----------------------------------------------------------------------------------------


def test_whoever_may_see_a_run_sees_its_anchor_from_any_trace_of_the_tree(admin):
    ann = person("ann")
    root = rooted(ann)
    child = below(root)
    anchors.revise(root, NEW, by=admin, why="new law")
    for trace in (root, child):
        found = Api(ann).get(f"/traces/{trace.pk}/anchor").json()
        assert (found["trace"], found["anchor"]) == (root.pk, NEW)
        assert found["sha256"] == sha256(NEW_TEXT.encode()).hexdigest()
        first, second = found["revisions"]
        assert (first["number"], first["anchor"], first["by"]) == (1, ANCHOR, "ann")
        assert (second["number"], second["by"], second["why"]) == (2, "root", "new law")
        assert second["supersedes"] == first["sha256"]
    assert Api(person("bob")).get(f"/traces/{root.pk}/anchor").status_code == 404
    assert Api(ann).get(f"/traces/{stored_trace(ann)}/anchor").status_code == 404


def test_an_admin_revises_by_the_api_after_a_dry_run(root, admin):
    api, child = Api(admin), below(root)
    seen = api.get(f"/traces/{root.pk}/anchor").json()["sha256"]
    body = {"anchor": NEW, "expected_sha256": seen}
    before = counts()
    preview = api.post(f"/traces/{root.pk}/anchor", body | {"dry_run": True})
    assert preview.status_code == 200
    assert preview.json()["contracts"] == [
        {
            "trace": child.pk,
            "objective": "Write the refund call",
            "gets": [MORE],
            "loses": [],
            "problem": "",
        }
    ]
    assert preview.json()["changes"] == [{"field": "constraints", "added": [MORE], "removed": []}]
    assert preview.json()["told"] == [root.pk, child.pk]
    assert counts() == before
    made = api.post(f"/traces/{root.pk}/anchor", body | {"why": "new law"})
    assert made.status_code == 201
    assert (made.json()["number"], made.json()["by"]) == (2, "root")
    again = api.post(f"/traces/{root.pk}/anchor", body | {"why": "new law"})
    assert again.status_code == 409


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b'{"anchor": {"objective": NaN}, "expected_sha256": "x"}', 400, "NaN"),
        (b'{"anchor": ' + b"[" * 100_000, 400, "nested"),
        ({"anchor": [], "expected_sha256": "x"}, 422, "anchor"),
        ({"anchor": NEW}, 422, "expected_sha256"),
        ({"anchor": NEW, "expected_sha256": "x", "number": 7}, 422, "number"),
        ({"anchor": NEW, "expected_sha256": "x" * 64, "why": "new law"}, 409, "revision 1"),
        (b'{"anchor": {"objective": "\\ud800"}, "expected_sha256": "x", "dry_run": true}', 422,
         "objective"),
        ({"anchor": changed(x=1), "expected_sha256": "", "dry_run": True}, 422, "x is not known"),
        ({"anchor": of_characters(4_001), "expected_sha256": "", "dry_run": True}, 422, "4,001"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_body_that_cannot_work_changes_nothing(root, admin, body, status, word):
    before = counts()
    answer = Api(admin).post(f"/traces/{root.pk}/anchor", body)
    assert answer.status_code == status
    assert word in answer.json()["detail"]
    assert counts() == before
