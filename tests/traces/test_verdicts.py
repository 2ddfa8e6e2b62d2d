"""The queue of verdicts, one verdict put together, and how often validators and people agree."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import InvalidInput, NotFound
from tests.traces import grown, judged
from tests.traces.people import person
from traces import agreement, reviews, verdict_queue
from traces.agreement import kappa
from traces.models import AnchorRevision, Trace, ValidationResult
from traces.packets import Packet, read_packet
from traces.rewind import fork
from traces.rows import as_json
from traces.verdict_queue import Filter
from traces.verdicts import view_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def olga(db: None) -> Any:
    return person("olga", "operator")


def ids(user: Any, **wanted: str) -> list[int]:
    rows, _ = verdict_queue.page(verdict_queue.visible(user), Filter(**wanted))
    return [row.pk for row in rows]


def at(row: ValidationResult, day: str) -> ValidationResult:
    ValidationResult.objects.filter(pk=row.pk).update(created_at=datetime.fromisoformat(day))
    return ValidationResult.objects.get(pk=row.pk)


# The queue ---------------------------------------------------------------------------------


def test_a_person_sees_the_verdicts_of_the_runs_that_they_may_see(olga: Any) -> None:
    mine = judged.judged_child(owner_id=olga.pk)
    theirs = judged.judged_child(owner_id=person("tom", "operator").pk)
    shared = judged.judged_root(owner_id=theirs.trace.owner_id, shared=True)
    assert set(ids(olga)) == {mine.pk, shared.pk}
    assert set(ids(person("ada", "admin"))) == {mine.pk, theirs.pk, shared.pk}
    assert verdict_queue.find(olga, mine.pk) == mine
    with pytest.raises(NotFound) as hidden:
        verdict_queue.find(olga, theirs.pk)
    with pytest.raises(NotFound) as missing:
        verdict_queue.find(olga, 999_999)
    assert str(hidden.value) == str(missing.value).replace("999999", str(theirs.pk))


def test_a_subagents_verdict_is_as_visible_as_the_run_at_its_root(olga: Any) -> None:
    row = judged.judged_child(owner_id=person("tom", "operator").pk)
    assert ids(olga) == []
    Trace.objects.filter(pk=row.trace.parent_trace_id).update(shared=True)
    assert ids(olga) == [row.pk] and verdict_queue.find(olga, row.pk) == row


def test_pages_by_cursor_show_each_verdict_once_also_when_new_ones_come(olga: Any) -> None:
    rows = [judged.judged_root(owner_id=olga.pk) for _ in range(5)]
    for row in rows[:3]:  # of three at one moment the number decides
        at(row, "2026-03-01T00:00:00+00:00")
    for row in rows[3:]:
        at(row, "2026-03-02T00:00:00+00:00")
    seen, cursor, mine = [], "", verdict_queue.visible(olga)
    for _ in range(3):
        found, following = verdict_queue.page(mine, Filter(), cursor=cursor, limit=2)
        seen += [row.pk for row in found]
        at(judged.judged_root(owner_id=olga.pk), "2026-04-01T00:00:00+00:00")
        cursor = following or ""
    assert cursor == ""
    expected = [rows[4], rows[3], rows[2], rows[1], rows[0]]
    assert seen == [row.pk for row in expected]


@pytest.mark.parametrize(
    "cursor",
    ["x", "é", "MTIz", "MjAyNi0wMS0wMSAx", "MjAyNi0wMS0wMVQwMDowMDowMCswMDowMCBhYmM"],
)
def test_a_cursor_that_the_list_did_not_give_is_refused(olga: Any, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        verdict_queue.page(verdict_queue.visible(olga), Filter(), cursor=cursor)


def test_each_filter_narrows_by_what_it_names(olga: Any) -> None:
    failed = at(judged.judged_child(owner_id=olga.pk), "2026-03-01T23:59:59+00:00")
    passed = at(judged.judged_child("passed", "passed", owner_id=olga.pk, model="judge-2"),
                "2026-03-02T00:00:00+00:00")  # fmt: skip
    root = at(judged.judged_root(owner_id=olga.pk), "2026-03-03T12:00:00+00:00")
    assert ids(olga, verdict="failed") == [root.pk, failed.pk]
    assert ids(olga, model="judge-2") == [passed.pk]
    assert ids(olga, run=failed.trace.parent_trace_id or "") == [failed.pk]
    assert ids(olga, run=failed.trace_id) == [failed.pk]
    assert ids(olga, run="nowhere") == []
    assert ids(olga, since="2026-03-02") == [root.pk, passed.pk]
    assert ids(olga, until="2026-03-01") == [failed.pk]
    assert ids(olga, since="2026-03-02", until="2026-03-02") == [passed.pk]
    assert ids(olga, search="refund WRITE") == [passed.pk, failed.pk]
    assert ids(olga, search="payment") == [root.pk]
    assert ids(olga, search="refund payment") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verdict", "good"),
        ("review", "done"),
        ("since", "yesterday"),
        ("until", "2026-02-30"),
        ("search", "a\0b"),
        ("run", "\0"),
    ],
)
def test_a_filter_that_cannot_be_names_itself(olga: Any, name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{name}"):
        ids(olga, **{name: value})


def test_the_last_day_there_is_can_be_asked_for(olga: Any) -> None:
    row = judged.judged_root(owner_id=olga.pk)
    assert ids(olga, until="9999-12-31") == [row.pk]
    assert ids(olga, since="9999-12-31") == []


def test_a_verdict_waits_until_somebody_reviews_it_and_then_the_newest_review_counts(
    olga: Any,
) -> None:
    row = judged.judged_root(owner_id=olga.pk)
    other = judged.judged_root(owner_id=olga.pk)
    assert ids(olga, review="waiting") == [other.pk, row.pk] and verdict_queue.waiting(olga) == 2
    reviews.review(row, "failed", by=olga)
    assert ids(olga, review="confirmed") == [row.pk]
    assert ids(olga, review="waiting") == [other.pk] and verdict_queue.waiting(olga) == 1
    reviews.review(
        row, "passed", by=olga, criteria={"R1": "passed", "R2": "passed"},
        reason="other", comment="I looked again.",
    )  # fmt: skip
    assert ids(olga, review="overruled") == [row.pk] and ids(olga, review="confirmed") == []
    found, _ = verdict_queue.page(verdict_queue.visible(olga), Filter(review="overruled"))
    assert verdict_queue.state_of_review(found[0]) == "overruled"
    assert found[0].newest.comment == "I looked again."


def test_the_count_for_the_navigation_stops_at_its_limit(olga: Any) -> None:
    for _ in range(4):
        judged.judged_root(owner_id=olga.pk)
    assert verdict_queue.waiting(olga, most=3) == 3


def test_the_queue_costs_the_same_queries_however_many_there_are(olga: Any) -> None:
    mine = verdict_queue.visible(olga)

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            verdict_queue.page(mine, Filter(review="confirmed"))
        return len(queries)

    reviews.review(judged.judged_root(owner_id=olga.pk), "failed", by=olga)
    few = cost()
    for _ in range(6):
        reviews.review(judged.judged_child(owner_id=olga.pk), "failed", by=olga)
    assert cost() == few


def test_neighbours_are_those_of_the_same_queue(olga: Any) -> None:
    one, two, three = (judged.judged_root(owner_id=olga.pk) for _ in range(3))
    mine = verdict_queue.visible(olga)
    assert verdict_queue.neighbours(mine, Filter(), two) == (three.pk, one.pk)
    assert verdict_queue.neighbours(mine, Filter(), three) == (None, two.pk)
    four = judged.judged_root(owner_id=olga.pk)
    # Of several newer or older ones it is the next.
    assert verdict_queue.neighbours(mine, Filter(), one) == (two.pk, None)
    assert verdict_queue.neighbours(mine, Filter(), four) == (None, three.pk)
    reviews.review(two, "failed", by=olga)
    # What was reviewed has left the queue, but still has a place beside it.
    assert verdict_queue.neighbours(mine, Filter(review="waiting"), two) == (three.pk, one.pk)
    assert verdict_queue.neighbours(mine, Filter(review="waiting"), one) == (three.pk, None)


# One verdict -----------------------------------------------------------------------------------


def test_a_childs_verdict_stands_beside_the_claims_of_its_report(olga: Any) -> None:
    view = view_of(judged.judged_child())
    first, second, *roots = view.criteria
    assert (first.judged.id, first.judged.word, first.claim and first.claim.met) == (
        "B1", "passed", True,
    )  # fmt: skip
    assert [c.judged.id for c in view.criteria if c.judged.decides] == ["B1", "B2"]
    assert second.judged.reason == "No test run is among the messages."
    assert [c.claim for c in roots] == [None, None]
    assert view.report is not None and view.report.summary == judged.REPORT["summary"]
    assert view.brief is not None and view.brief.objective == "Write the refund call"
    assert (view.version, view.anchor_number, view.state) == (1, 1, "waiting")
    assert view.usage is not None and view.usage.prompt == 1200


def test_evidence_is_found_or_said_to_be_missing() -> None:
    first, second, *_ = view_of(judged.judged_child()).criteria
    message, artifact = first.evidence
    assert (message.sequence, message.is_there, message.who) == (3, True, "terminal")
    assert message.said == "refund 12: accepted by the bank"
    assert (artifact.name, artifact.place, artifact.is_there) == ("refund.py", 1, True)
    there, gone = second.claimed_by
    assert (there.sequence, there.is_there) == (3, True)
    assert (gone.sequence, gone.is_there) == (999, False)


def test_a_sequence_that_no_column_holds_is_only_missing() -> None:
    row = judged.judged_root()
    ValidationResult.objects.filter(pk=row.pk).update(
        criteria=row.criteria.replace('"evidence":[2]', '"evidence":[99999999999999999999]')
    )
    row.refresh_from_db()
    found = view_of(row).criteria[0].evidence[0]
    assert (found.sequence, found.is_there) == (99999999999999999999, False)


def test_the_packet_is_shown_as_sent_and_its_hash_computed_anew() -> None:
    row = judged.judged_child()
    view = view_of(row)
    text = judged.packet_of(row.trace_id).text
    assert view.sent is not None and view.sent.holds
    assert view.sent.sha256 == hashlib.sha256(view.sent.text.encode()).hexdigest()
    # The packet was made before the verdict's own message was stored.
    assert view.sent.text.split("\n\n# Messages")[0] == text.split("\n\n# Messages")[0]
    assert [a.name for a in view.artifacts] == ["refund.py", "notes"]
    assert view.artifacts[1].problem == "there is no file notes.md"


def test_a_packet_that_is_not_the_one_of_the_verdict_is_told() -> None:
    row = judged.judged_child()
    ValidationResult.objects.filter(pk=row.pk).update(packet_sha256="0" * 64)
    row.refresh_from_db()
    sent = view_of(row).sent
    assert sent is not None and not sent.holds


def test_a_roots_verdict_has_its_answer_and_no_report() -> None:
    view = view_of(judged.judged_root())
    assert view.answer == (2, judged.ANSWER)
    assert (view.report, view.brief, view.version) == (None, None, 0)
    assert all(c.judged.decides and c.claim is None for c in view.criteria)


def test_without_a_packet_the_answer_and_the_anchor_come_from_the_messages() -> None:
    view = view_of(judged.judged_root("unknown", sent=False))
    assert view.sent is None and view.row.validator is None
    assert view.answer == (2, judged.ANSWER)
    assert view.anchor is not None and view.anchor.to_json() == judged.ANCHOR
    assert "61,002" in view.row.reason


def test_a_verdict_keeps_the_anchor_that_it_was_judged_by() -> None:
    row = judged.judged_root("unknown", sent=False)
    root = row.trace
    AnchorRevision.objects.filter(trace=root).update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    AnchorRevision.objects.create(
        trace=root, number=2, sha256="b" * 64, created_at=datetime(2026, 6, 1, tzinfo=UTC),
        text='{"completion_criteria":["Another"],"constraints":[],"objective":"Another"}',
    )  # fmt: skip
    view = view_of(row)
    assert view.anchor_number == 1 and view.anchor is not None
    assert view.anchor.objective == judged.ANCHOR["objective"]
    later = view_of(at(row, "2026-07-01T00:00:00+00:00"))
    assert later.anchor_number == 2


def test_the_version_of_the_brief_is_that_of_the_judged_report() -> None:
    row = judged.judged_child()
    parent = row.trace.parent_trace_id or ""
    grown.contracts(row.trace_id, "c2", judged.BRIEF | {"reason": "again"}, parent)
    assert view_of(row).version == 1


def test_one_verdict_costs_the_same_queries_however_long_its_run_is() -> None:
    def cost(row: ValidationResult) -> int:
        row = ValidationResult.objects.select_related("trace", "validator").get(pk=row.pk)
        with CaptureQueriesContext(connection) as queries:
            view_of(row)
        return len(queries)

    short, long = judged.judged_child(), judged.judged_child()
    for n in range(30):
        grown.asks(long.trace_id, f"x{n}", name="read_file")
        grown.answers(long.trace_id, f"x{n}", name="read_file")
    assert cost(long) == cost(short)


# A packet taken apart ----------------------------------------------------------------------------


def test_a_packet_gives_its_parts_again() -> None:
    found = read_packet(judged.packet_of(judged.judged_child().trace_id).text)
    assert found.anchor is not None and found.anchor.to_json() == judged.ANCHOR
    assert found.brief is not None and found.brief.to_json() == judged.BRIEF
    assert found.artifacts == judged.ARTIFACTS
    assert (found.candidate, found.left_out) == (None, 0)
    assert found.messages == 5  # contract, call, result, call of submit_report, its result


@given(st.text())
def test_any_other_text_gives_what_can_be_read_and_never_fails(text: str) -> None:
    assert isinstance(read_packet(text), Packet)
    assert isinstance(read_packet(f"# RootTaskAnchor\n{text}\n\n# Artifacts\n{text}"), Packet)


def test_a_heading_inside_a_value_starts_no_section() -> None:
    text = '# TaskBrief\nnull\n\n# CandidateAnswer\n{"sequence":7,"text":"x\\n# Artifacts\\n[]"}'
    assert read_packet(text).candidate == (7, "x\n# Artifacts\n[]")


# Agreement -----------------------------------------------------------------------------------


def pairs(**counts: int) -> list[tuple[str, str]]:
    short = {"p": "passed", "f": "failed", "u": "unknown"}
    return [(short[k[0]], short[k[1]]) for k, n in counts.items() for _ in range(n)]


def test_kappa_of_a_table_worked_out_by_hand() -> None:
    """20 pp, 5 pf, 10 fp, 15 ff: n = 50, agreed 35, po = 0.7. The validator says passed 25 times
    and failed 25, the person 30 and 20: pe = (25·30 + 25·20) / 2500 = 0.5.
    kappa = (0.7 - 0.5) / (1 - 0.5) = 0.4."""
    assert kappa(pairs(pp=20, pf=5, fp=10, ff=15)) == pytest.approx(0.4)


def test_kappa_of_three_words_worked_out_by_hand() -> None:
    """4 pp, 1 pu, 3 ff, 2 uu, n = 10, agreed 9. Validator: p 5, f 3, u 2; person: p 4, f 3, u 3.
    pe = (5·4 + 3·3 + 2·3) / 100 = 0.35. kappa = (0.9 - 0.35) / 0.65 = 0.55/0.65."""
    assert kappa(pairs(pp=4, pu=1, ff=3, uu=2)) == pytest.approx(11 / 13)


def test_kappa_below_chance_is_negative() -> None:
    """1 pf, 1 fp: po = 0, pe = (1·1 + 1·1)/4 = 0.5, kappa = -0.5/0.5 = -1."""
    assert kappa(pairs(pf=1, fp=1)) == -1


@pytest.mark.parametrize("same", [{}, {"pp": 1}, {"ff": 12}])
def test_kappa_is_not_defined_without_two_words(same: dict[str, int]) -> None:
    assert kappa(pairs(**same)) is None


def test_kappa_is_nought_where_one_side_uses_one_word_only() -> None:
    """3 pp, 1 pf: po = 0.75, pe = (4·3 + 0·1)/16 = 0.75."""
    assert kappa(pairs(pp=3, pf=1)) == 0


WORDS = st.sampled_from(["passed", "failed", "unknown"])
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=60)


@given(PAIRS)
def test_kappa_lies_between_minus_one_and_one_and_is_symmetric(found: Any) -> None:
    value = kappa(found)
    assert value == kappa([(b, a) for a, b in found])
    assert value is None or -1 <= value <= 1


@given(st.lists(WORDS, min_size=2, max_size=40))
def test_kappa_of_full_agreement_is_one_or_undefined(words: list[str]) -> None:
    assert kappa([(w, w) for w in words]) == (1 if len(set(words)) > 1 else None)


@given(PAIRS, st.randoms())
def test_kappa_does_not_depend_on_the_order(found: Any, random: Any) -> None:
    mixed = list(found)
    random.shuffle(mixed)
    assert kappa(mixed) == kappa(found)


def test_agreement_counts_the_newest_review_of_each_verdict_by_model_and_criterion(
    olga: Any,
) -> None:
    one = judged.judged_child(owner_id=olga.pk)  # B1 passed, B2 failed
    two = judged.judged_child("passed", "passed", owner_id=olga.pk)
    three = judged.judged_child("passed", "passed", owner_id=olga.pk, model="judge-2")
    judged.judged_child(owner_id=olga.pk)  # nobody reviewed it
    wrong = {"reason": "other", "comment": "No."}
    reviews.review(one, "passed", by=olga, criteria={"B2": "passed"}, **wrong)
    reviews.review(one, "failed", by=olga)  # counts instead
    reviews.review(two, "unknown", by=olga, criteria={"B2": "unknown"}, **wrong)
    reviews.review(three, "passed", by=olga)
    found = agreement.agreement(verdict_queue.visible(olga))
    assert (found.all.n, found.all.agreed) == (3, 2)
    assert found.all.table["passed"] == {"passed": 1, "failed": 0, "unknown": 1}
    assert found.all.table["failed"] == {"passed": 0, "failed": 1, "unknown": 0}
    assert [(a.name, a.n, a.agreed) for a in found.by_model] == [
        ("judge-1", 2, 1),
        ("judge-2", 1, 1),
    ]
    # judge-1: pairs (failed, failed), (passed, unknown): po 0.5, pe = (1·1)/4, kappa = 1/3.
    assert found.by_model[0].kappa == pytest.approx(1 / 3)
    assert found.by_model[1].kappa is None
    by_name = {a.name: a for a in found.by_criterion}
    tests = by_name["The tests of refunds pass"]
    assert (tests.n, tests.agreed) == (3, 2)
    assert by_name["A refund reaches the bank"].share == 1


def test_agreement_counts_no_verdict_that_was_imported_or_copied(olga: Any) -> None:
    rows = [judged.judged_child(owner_id=olga.pk) for _ in range(4)]
    unsent = judged.judged_root("unknown", sent=False, owner_id=olga.pk)
    for row in rows:
        reviews.review(row, "failed", by=olga)
    reviews.review(unsent, "unknown", by=olga)
    _, foreign, ours, copy = rows
    Trace.objects.filter(pk=foreign.trace_id).update(origin="claude_code")
    before = json.loads(ours.trace.context) | {"original_id": "0123456789ab"}
    Trace.objects.filter(pk=ours.trace_id).update(context=as_json(before, "context"))
    ValidationResult.objects.filter(pk=copy.pk).update(validator=None)
    found = agreement.agreement(verdict_queue.visible(olga))
    # What is left: the first, and the one for which no packet could be made.
    assert (found.all.n, found.all.table["failed"]["failed"]) == (2, 1)
    assert found.all.table["unknown"]["unknown"] == 1


def test_a_fork_brings_no_second_verdict_into_the_agreement(olga: Any) -> None:
    row = judged.judged_root("failed", owner_id=olga.pk)
    copied = fork(Trace.objects.get(pk=row.trace_id), row.sequence, owner=olga)
    for one in (row, copied.verdicts.get()):
        reviews.review(one, "failed", by=olga)
    assert agreement.agreement(verdict_queue.visible(olga)).all.n == 1


def test_agreement_is_over_what_a_person_may_see(olga: Any) -> None:
    tom = person("tom", "operator")
    reviews.review(judged.judged_root(owner_id=tom.pk), "failed", by=tom)
    assert agreement.agreement(verdict_queue.visible(olga)).all.n == 0
    assert agreement.agreement(verdict_queue.visible(tom)).all.n == 1
