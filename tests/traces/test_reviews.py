"""What people do with a verdict: their word beside it, a correction, the review of a child."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cyberagent.core.errors import Conflict, InvalidInput, ProtocolRefused
from cyberagent.core.types import text_message
from tests.traces import grown, judged
from tests.traces.people import person, stored_trace
from traces import child_reviews, commands, reviews, write
from traces.models import Command, Event, Trace, ValidationResult, VerdictReview
from traces.protocols import protocol_of
from traces.reviews import ReviewRefused
from traces.rows import held

pytestmark = pytest.mark.django_db

WHY = {"reason": "evidence_misread", "comment": "Message 3 is about another order."}


@pytest.fixture
def olga(db: None) -> Any:
    return person("olga", "operator")


def now(trace: str | None) -> Trace:
    return Trace.objects.get(pk=trace)


# A person's word -------------------------------------------------------------------------------


def test_to_confirm_needs_nothing_and_takes_over_the_words_of_the_validator(olga: Any) -> None:
    row = judged.judged_child()
    made = reviews.review(row, "failed", by=olga)
    assert made.confirms and made.by == olga
    assert json.loads(made.criteria) == {
        "B1": "passed", "B2": "failed", "R1": "unknown", "R2": "unknown",
    }  # fmt: skip


def test_another_word_needs_a_reason_and_a_comment(olga: Any) -> None:
    row = judged.judged_child()
    mine = {"B2": "passed"}
    with pytest.raises(ReviewRefused, match=r"^reason is needed to overrule"):
        reviews.review(row, "passed", by=olga, criteria=mine, comment="Seen.")
    with pytest.raises(ReviewRefused, match=r"^comment is needed to overrule"):
        reviews.review(row, "passed", by=olga, criteria=mine, reason="other", comment=" \n")
    assert not VerdictReview.objects.exists()
    made = reviews.review(row, "passed", by=olga, criteria=mine, **WHY)
    assert not made.confirms and made.comment == WHY["comment"]
    assert json.loads(made.criteria)["B2"] == "passed"


@pytest.mark.parametrize(
    ("mine", "word", "follows"),
    [
        ({}, "passed", "failed"),
        ({"B2": "unknown"}, "failed", "unknown"),
        ({"B2": "passed"}, "unknown", "passed"),
        ({"B1": "unknown", "B2": "passed"}, "passed", "unknown"),
        ({"R1": "failed", "B2": "passed"}, "failed", "passed"),  # R1 does not decide
    ],
)
def test_the_word_for_the_whole_has_to_follow_from_those_that_decide(
    olga: Any, mine: dict[str, str], word: str, follows: str
) -> None:
    row = judged.judged_child()
    with pytest.raises(ReviewRefused, match=f"^word is {word}, but {follows} follows") as refused:
        reviews.review(row, word, by=olga, criteria=mine, **WHY)
    assert refused.value.field == "word"
    assert not VerdictReview.objects.exists()


def test_about_a_roots_answer_the_criteria_of_the_root_decide(olga: Any) -> None:
    row = judged.judged_root("failed")
    with pytest.raises(ReviewRefused, match="R1 passed, R2 failed"):
        reviews.review(row, "passed", by=olga, criteria={"R1": "passed"}, **WHY)
    both = {"R1": "passed", "R2": "passed"}
    assert reviews.review(row, "passed", by=olga, criteria=both, **WHY).word == "passed"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"word": "good"}, "word"),
        ({"word": ""}, "word"),
        ({"word": "failed", "criteria": {"B9": "passed"}}, "criteria"),
        ({"word": "failed", "criteria": {"B1": "yes"}}, "criteria.B1"),
        ({"word": "failed", "reason": "because"}, "reason"),
        ({"word": "failed", "comment": "x" * 10_001}, "comment"),
    ],
)
def test_what_is_malformed_is_refused_by_name(olga: Any, given: Any, field: str) -> None:
    with pytest.raises(ReviewRefused) as refused:
        reviews.review(judged.judged_child(), given.pop("word"), by=olga, **given)
    assert refused.value.field == field and str(refused.value).startswith(field)
    assert not VerdictReview.objects.exists()


def test_reviews_stand_beside_the_verdict_and_never_over_it_or_each_other(olga: Any) -> None:
    row = judged.judged_child()
    before = ValidationResult.objects.filter(pk=row.pk).values().get()
    message = judged.metadata_of(judged.heard(row.trace_id))
    first = reviews.review(row, "passed", by=olga, criteria={"B2": "passed"}, **WHY)
    reviews.review(row, "failed", by=person("mei", "operator"))
    kept = VerdictReview.objects.get(pk=first.pk)
    assert (kept.word, kept.comment) == ("passed", WHY["comment"])
    assert row.reviews.count() == 2
    assert ValidationResult.objects.filter(pk=row.pk).values().get() == before
    assert judged.metadata_of(judged.heard(row.trace_id)) == message


def test_a_comment_may_hold_what_no_text_column_can(olga: Any) -> None:
    made = reviews.review(judged.judged_child(), "failed", by=olga, comment="a\0b \ud800")
    assert held(VerdictReview.objects.get(pk=made.pk).comment) == "a\0b \ud800"


# A correction: said to a root ----------------------------------------------------------------


def test_a_roots_correction_is_said_to_it_with_verdict_and_word_quoted(olga: Any) -> None:
    row = judged.judged_root("failed")
    reviews.review(row, "failed", by=olga, comment="Card payments are missing.")
    plan = reviews.plan_correction(row, " Add card payments. ", by=olga)
    assert (plan.way, plan.trace, plan.is_live) == ("say", row.trace, False)
    for said in (
        "your answer, which message 3 carries", "verdict: failed",
        "- R1 failed → failed: Orders can be paid",
        "failed (olga: Card payments are missing.)",
        "What olga asks of you now:\nAdd card payments.",
    ):  # fmt: skip
        assert said in plan.text
    assert not Command.objects.exists() and now(row.trace_id).status == "failed"
    command = reviews.correct(row, "Add card payments.", by=olga)
    assert (command.name, command.trace) == ("say", row.trace)
    assert json.loads(command.arguments) == {"text": plan.text}
    assert now(row.trace_id).status == "queued"


def test_without_a_review_the_correction_goes_alone(olga: Any) -> None:
    row = judged.judged_root("failed")
    text = reviews.plan_correction(row, "Again.", by=olga).text
    assert "- R1 failed: Orders can be paid" in text and "own verdict: -" in text


def test_a_chinese_run_hears_it_in_chinese(olga: Any) -> None:
    row = judged.judged_root("failed")
    config = json.loads(row.trace.config) | {"language": "zh"}
    Trace.objects.filter(pk=row.trace_id).update(config=json.dumps(config))
    row = ValidationResult.objects.get(pk=row.pk)
    assert "人工更正" in reviews.plan_correction(row, "再来。", by=olga).text


def test_a_live_root_hears_it_at_its_next_safe_point(olga: Any) -> None:
    row = judged.judged_root("failed", status="running", lease_owner="me")
    assert reviews.plan_correction(row, "Again.", by=olga).is_live
    assert reviews.correct(row, "Again.", by=olga).status == "pending"
    assert now(row.trace_id).status == "running"


# A correction: a review that is due --------------------------------------------------------------


def test_a_child_whose_review_is_due_is_sent_back_with_the_correction_in_its_brief(
    olga: Any,
) -> None:
    row = judged.judged_child("passed", "passed")
    root = row.trace.parent_trace_id
    reviews.review(row, "failed", by=olga, criteria={"B2": "failed"}, **WHY)
    plan = reviews.plan_correction(row, "Run the tests and show it.", by=olga)
    assert (plan.way, plan.trace and plan.trace.pk, plan.is_live) == ("review", root, False)
    assert not Command.objects.exists()
    command = reviews.correct(row, "Run the tests and show it.", by=olga)
    assert (command.name, command.trace_id, command.status) == ("review", root, "applied")

    state = protocol_of(root or "")
    assert state is not None
    review = state.children[row.trace_id].review
    assert review is not None and review.next_brief is not None
    assert (review.decision, review.reason) == ("REVISE_CHILD", WHY["comment"])
    assert (review.reviewer.kind, review.reviewer.id) == ("operator", "olga")
    asked = review.next_brief
    assert asked.text == plan.text
    assert asked.completion_criteria == (
        "A refund reaches the bank",
        "The tests of refunds pass",
        "The correction that olga asked for is carried out: Run the tests and show it.",
    )
    assert asked.parent_findings[-1]["verdict_on_the_work_before"]["person"] == {
        "by": "olga", "verdict": "failed", "criteria": {
            "B1": "passed", "B2": "failed", "R1": "unknown", "R2": "unknown"},
        "reason": "evidence_misread", "comment": WHY["comment"],
    }  # fmt: skip
    for same in ("objective", "expected_outputs", "constraints", "context"):
        assert asked.to_json()[same] == judged.BRIEF[same]
    assert [a.brief for a in state.approved] == [asked] and not state.reviews_due


def test_the_run_at_the_root_goes_on_with_it(olga: Any) -> None:
    row = judged.judged_child()
    root = row.trace.parent_trace_id
    reviews.correct(row, "Run the tests.", by=olga)
    assert now(root).status == "queued"
    assert [c.name for c in Command.objects.order_by("pk")] == ["review", "resume"]
    told = Event.objects.filter(trace=root, kind="Reviewed").get()
    assert json.loads(told.data) | {"why": ""} == {
        "child": row.trace_id, "decision": "REVISE_CHILD", "by": "olga", "why": "",
    }  # fmt: skip
    heard = judged.heard(root or "")
    assert (heard.role, heard.source, heard.sequence) == ("user", "framework", told.message)
    assert "Run the tests." in heard.text


def test_a_live_parent_makes_the_review_at_its_next_safe_point(olga: Any) -> None:
    row = judged.judged_child(status="running", lease_owner="me")
    command = reviews.correct(row, "Run the tests.", by=olga)
    assert (command.status, command.name) == ("pending", "review")
    given = json.loads(command.arguments)
    assert (given["child"], given["decision"]) == (row.trace_id, "REVISE_CHILD")
    assert "Run the tests." in json.dumps(given["next_brief"])
    assert now(row.trace.parent_trace_id).status == "running"


def test_a_review_that_came_while_the_run_was_ending_is_made_when_it_rests(olga: Any) -> None:
    row = judged.judged_child(status="running", lease_owner="me")
    root = row.trace.parent_trace_id or ""
    reviews.correct(row, "Run the tests.", by=olga)
    grown.becomes(root, "paused")
    assert commands.unsettled() == [root]
    commands.settle(root)
    assert Command.objects.get().status == "applied"
    state = protocol_of(root)
    assert state is not None and not state.reviews_due


def test_a_completed_root_is_queued_again_for_the_review(olga: Any) -> None:
    row = judged.judged_child(status="completed")
    reviews.correct(row, "Run the tests.", by=olga)
    assert now(row.trace.parent_trace_id).status == "queued"


# A correction: reviewed already ------------------------------------------------------------------


def test_after_the_review_it_is_said_to_the_run_above(olga: Any) -> None:
    row = judged.judged_child()
    judged.accepted(row)
    plan = reviews.plan_correction(row, "Have it done again.", by=olga)
    assert (plan.way, plan.trace and plan.trace.pk) == ("say_parent", row.trace.parent_trace_id)
    assert row.trace_id in plan.text and "Its task: Write the refund call" in plan.text
    assert "- B2 failed: The tests of refunds pass" in plan.text
    command = reviews.correct(row, "Have it done again.", by=olga)
    assert (command.name, command.trace_id) == ("say", row.trace.parent_trace_id)
    assert now(row.trace.parent_trace_id).status == "queued"


def test_a_word_that_does_not_know_the_newest_is_refused(olga: Any) -> None:
    row = judged.judged_child()
    first = reviews.review(row, "failed", by=person("mei", "operator"), expected=0)
    for behind in (0, first.pk + 1):
        with pytest.raises(Conflict, match=r"^expected_review: mei has said failed"):
            reviews.review(row, "failed", by=olga, expected=behind)
    assert row.reviews.get() == first
    reviews.review(row, "failed", by=olga, expected=first.pk)
    assert row.reviews.count() == 2


# A correction that was shown -----------------------------------------------------------------


def test_what_is_sent_is_what_was_shown_or_nothing(olga: Any) -> None:
    row = judged.judged_child()
    plan = reviews.plan_correction(row, "Run the t", by=olga)
    child_reviews.review_child(
        now(row.trace.parent_trace_id),
        {"child": row.trace_id, "decision": "ACCEPT", "reason": "It will do."},
        by=person("mei", "operator"),
    )
    before = Command.objects.count()
    with pytest.raises(reviews.PlanChanged, match=r"^expected"):
        reviews.correct(row, "Run the tests.", by=olga, expected=plan.expected)
    assert Command.objects.count() == before
    assert now(row.trace.parent_trace_id).status == "paused"


def test_a_person_goes_on_writing_after_the_preview(olga: Any) -> None:
    row = judged.judged_child()
    plan = reviews.plan_correction(row, "", by=olga)
    assert plan.expected == reviews.plan_correction(row, "Run them.", by=olga).expected
    command = reviews.correct(row, "Run the tests.", by=olga, expected=plan.expected)
    assert command.name == "review"


def test_a_word_that_would_be_quoted_is_part_of_what_was_shown(olga: Any) -> None:
    row = judged.judged_root("failed")
    plan = reviews.plan_correction(row, "Pay.", by=olga)
    reviews.review(row, "failed", by=person("mei", "operator"), comment="Nothing is paid.")
    with pytest.raises(reviews.PlanChanged):
        reviews.correct(row, "Pay.", by=olga, expected=plan.expected)
    plan = reviews.plan_correction(row, "Pay.", by=olga)
    assert reviews.correct(row, "Pay.", by=olga, expected=plan.expected).name == "say"


# A correction: where nothing can be resumed ------------------------------------------------------


def refused(row: ValidationResult, olga: Any) -> str:
    """Why nothing can be sent; the plan and the act say the same, and nothing is stored."""
    count = Command.objects.count()
    plan = reviews.plan_correction(row, "Again.", by=olga)
    assert (plan.way, plan.trace, plan.text) == ("none", None, "")
    with pytest.raises(Conflict) as error:
        reviews.correct(row, "Again.", by=olga)
    assert str(error.value) == plan.why
    assert Command.objects.count() == count
    return plan.why


def test_a_verdict_under_an_earlier_contract_is_refused(olga: Any) -> None:
    row = judged.judged_child()
    grown.contracts(row.trace_id, "c2", judged.BRIEF, row.trace.parent_trace_id or "")
    assert "not the one that counts" in refused(row, olga)


def test_a_verdict_on_a_path_that_was_left_is_refused(olga: Any) -> None:
    row = judged.judged_child()
    head = now(row.trace_id).head_sequence
    write.move_head(row.trace_id, 1, expected_head=head)
    assert "left by a rewind" in refused(row, olga)


def test_a_verdict_on_a_child_that_the_run_above_was_rewound_past_is_refused(olga: Any) -> None:
    row = judged.judged_child()
    parent = now(row.trace.parent_trace_id)
    assert not reviews.was_left(row)
    write.move_head(parent.pk, 1, expected_head=parent.head_sequence)
    assert "left by a rewind" in refused(row, olga) and reviews.was_left(row)
    write.move_head(parent.pk, parent.head_sequence, expected_head=1)
    assert not reviews.was_left(row)


def test_a_verdict_that_was_taken_in_by_a_message_that_was_left_is_refused(olga: Any) -> None:
    row = judged.judged_child()
    parent = now(row.trace.parent_trace_id)
    write.move_head(parent.pk, parent.head_sequence - 1, expected_head=parent.head_sequence)
    assert "left by a rewind" in refused(row, olga)


def test_a_rewind_far_above_leaves_the_verdict_too(olga: Any) -> None:
    row = nested("paused")
    root = now(now(row.trace.parent_trace_id).parent_trace_id)
    assert not reviews.was_left(row)
    write.move_head(root.pk, 1, expected_head=root.head_sequence)
    assert "left by a rewind" in refused(row, olga)


def test_an_earlier_answer_of_a_root_is_refused(olga: Any) -> None:
    row = judged.judged_root("failed")
    metadata = {"protocol": [grown.validated(grown.result("failed"))]}
    grown.says(row.trace_id, "Another answer.")
    note = text_message("user", "failed", source="framework", tokens=1, metadata=metadata)
    write.append(row.trace_id, [note])
    assert "not the one that counts" in refused(row, olga)


def test_a_verdict_that_the_run_above_does_not_know_yet_is_refused(olga: Any) -> None:
    assert "has not taken the verdict in yet" in refused(judged.judged_child(told=False), olga)


def test_an_imported_run_is_refused(olga: Any) -> None:
    row = judged.judged_root("failed")
    Trace.objects.filter(pk=row.trace_id).update(origin="claude_code")
    row = ValidationResult.objects.get(pk=row.pk)
    assert "was imported" in refused(row, olga)


def test_a_run_that_waits_for_an_approval_is_refused(olga: Any) -> None:
    assert "waits for an approval" in refused(judged.judged_child(status="waiting"), olga)


def nested(status: str) -> ValidationResult:
    """The verdict on a grandchild whose parent is in ``status`` below a paused root."""
    row = judged.judged_child()
    parent = row.trace.parent_trace_id
    root = judged.a_root("paused")
    context = {"lineage": [root], "spawned": {"kind": "agent", "call": "c0", "index": 0}}
    ask = grown.asks(root, "c0")
    Trace.objects.filter(pk=parent).update(
        parent_trace=root, parent_message=ask, status=status, context=json.dumps(context)
    )
    mine = json.loads(row.trace.context) | {"lineage": [root, parent]}
    Trace.objects.filter(pk=row.trace_id).update(context=json.dumps(mine))
    return ValidationResult.objects.get(pk=row.pk)


@pytest.mark.parametrize("status", ["completed", "failed", "stopped"])
def test_a_parent_that_has_ended_below_a_root_is_refused(olga: Any, status: str) -> None:
    assert f"is {status}; only the run above" in refused(nested(status), olga)


def test_a_parent_that_paused_below_a_root_gets_the_review_and_the_root_is_resumed(
    olga: Any,
) -> None:
    row = nested("paused")
    parent = now(row.trace.parent_trace_id)
    assert reviews.correct(row, "Run the tests.", by=olga).trace == parent
    assert {now(parent.pk).status, now(parent.parent_trace_id).status} == {"queued"}
    state = protocol_of(parent.pk)
    assert state is not None and state.children[row.trace_id].review is not None


def test_a_reviewed_child_below_a_parent_that_was_interrupted_is_refused(olga: Any) -> None:
    row = nested("interrupted")
    judged.accepted(row)
    assert "hears nothing" in refused(row, olga)


def test_a_paused_parent_below_a_root_hears_of_a_reviewed_child_and_goes_on(olga: Any) -> None:
    row = nested("paused")
    judged.accepted(row)
    command = reviews.correct(row, "Have it done again.", by=olga)
    parent = now(row.trace.parent_trace_id)
    assert (command.name, command.trace, parent.status) == ("say", parent, "queued")


def test_a_parent_in_the_middle_of_a_call_is_refused_before_anything_is_stored(olga: Any) -> None:
    row = judged.judged_child()
    root = row.trace.parent_trace_id or ""
    grown.asks(root, "c2")
    with pytest.raises(Conflict, match="in the middle of a tool call"):
        reviews.correct(row, "Again.", by=olga)
    assert not Command.objects.exists() and now(root).status == "paused"


def test_a_correction_for_which_the_brief_has_no_room_is_refused(olga: Any) -> None:
    row = judged.judged_child()
    reviews.review(row, "failed", by=olga, comment="y" * 9_000)
    plan = reviews.plan_correction(row, "x" * 8_000, by=olga)
    assert plan.way == "none" and "16,000" in plan.why
    with pytest.raises(Conflict, match="16,000"):
        reviews.correct(row, "x" * 8_000, by=olga)


@pytest.mark.parametrize("text", ["", " \n ", "x" * 8_001, "a\0b"])
def test_a_correction_needs_words_that_fit(olga: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^text"):
        reviews.correct(judged.judged_root("failed"), text, by=olga)
    assert not Command.objects.exists()


# The review of a child ---------------------------------------------------------------------------


def review_child(row: ValidationResult, olga: Any, resume: bool = False, **given: Any) -> Command:
    parent = now(row.trace.parent_trace_id)
    return reviews.review_child(parent, {"child": row.trace_id, **given}, by=olga, resume=resume)


@pytest.mark.parametrize(
    ("decision", "more"),
    [
        ("ACCEPT", {"reason": "It is good enough."}),
        ("ABANDON", {}),
        ("REPLACE", {"next_brief": judged.BRIEF}),
        ("REVISE_CHILD", {"next_brief": judged.BRIEF, "reason": "Once more."}),
    ],
)
def test_an_operator_makes_any_review_that_is_due(olga: Any, decision: str, more: Any) -> None:
    row = judged.judged_child()
    command = review_child(row, olga, decision=decision, **more)
    assert (command.status, command.result) == ("applied", f"{decision} {row.trace_id}")
    state = protocol_of(row.trace.parent_trace_id or "")
    assert state is not None
    review = state.children[row.trace_id].review
    assert review is not None and review.decision == decision
    assert now(row.trace.parent_trace_id).status == "paused"  # it was not asked to go on
    assert review.against_verdict == ("failed" if decision == "ACCEPT" else "")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"decision": "ACCEPT"}, "reason is needed to accept a verdict that is failed"),
        ({"decision": "REVISE_CHILD"}, "next_brief is needed"),
        ({"decision": "ABANDON", "next_brief": judged.BRIEF}, "next_brief cannot stand"),
        ({"decision": "MAYBE"}, "decision must be one of"),
        ({"decision": "REPLACE", "next_brief": {"objective": "x"}}, "completion_criteria"),
        ({"decision": "ABANDON", "child": "nobody"}, "'nobody'"),
    ],
)
def test_a_review_that_cannot_be_is_refused_and_nothing_is_stored(
    olga: Any, given: Any, says: str
) -> None:
    row = judged.judged_child()
    head = now(row.trace.parent_trace_id).head_sequence
    with pytest.raises(ProtocolRefused, match=says):
        review_child(row, olga, **given)
    assert not Command.objects.exists()
    assert now(row.trace.parent_trace_id).head_sequence == head


@pytest.mark.parametrize("given", [{"why": "x"}, {"decision": 3}, {"reason": ["x"]}])
def test_arguments_that_are_none_are_refused_by_name(olga: Any, given: Any) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        review_child(judged.judged_child(), olga, **{"decision": "ABANDON", **given})


def test_a_review_is_made_once(olga: Any) -> None:
    row = judged.judged_child()
    review_child(row, olga, decision="ABANDON")
    with pytest.raises(ProtocolRefused, match="due"):
        review_child(row, olga, decision="ABANDON")


def test_a_run_that_is_not_recursive_has_nothing_to_review(olga: Any) -> None:
    plain = now(stored_trace(olga))
    with pytest.raises(ProtocolRefused, match="not recursive"):
        reviews.review_child(plain, {"child": "c", "decision": "ABANDON"}, by=olga)


def test_with_resume_the_run_goes_on_after_it(olga: Any) -> None:
    row = judged.judged_child()
    review_child(row, olga, decision="ABANDON", resume=True)
    assert now(row.trace.parent_trace_id).status == "queued"


def test_whether_a_review_is_due_is_known() -> None:
    row = judged.judged_child()
    found = reviews.due(row.trace)
    assert found is not None and found.id == row.trace_id
    judged.accepted(row)
    assert reviews.due(row.trace) is None
    assert reviews.due(judged.judged_root().trace) is None
