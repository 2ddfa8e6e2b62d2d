"""The REST API of verdicts: the queue, one verdict, people's words, corrections, agreement.

Each function finds the verdict or trace for this person, calls one domain function and answers.
Source: docs/api.md, "Verdicts".
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from traces import access, agreement, reviews, verdict_queue
from traces.api import PROBLEMS, Limit, answer
from traces.api_schemas import CommandOut, Line, Number, Strict
from traces.shapes import command_json
from traces.verdict_shapes import (
    agreements_json,
    correction_json,
    review_json,
    verdict_detail,
    verdict_json,
)
from traces.verdicts import view_of

router = Router()

Word = Literal["passed", "failed", "unknown"]

# What goes in and out ------------------------------------------------------------------------


Text = Annotated[str, Field(max_length=reviews.MAX_COMMENT)]


class VerdictReviewOut(Schema):
    id: int
    by: str
    word: Word
    confirms: bool = Field(description="the same word as the validator's")
    criteria: dict[str, Word]
    reason: str
    comment: str
    created_at: datetime


class VerdictOut(Schema):
    id: int
    trace: str = Field(description="the judged trace")
    sequence: int = Field(description="its message that carries the verdict")
    validator: str | None = Field(description="the validator's trace; null where none was asked")
    is_root: bool
    task: str
    verdict: Word
    reason: str
    criteria: list[dict[str, Any]]
    packet_sha256: str
    model: str
    cost: float | None
    created_at: datetime
    state: Literal["waiting", "confirmed", "overruled"]
    review: VerdictReviewOut | None = Field(description="the newest")


class VerdictPage(Schema):
    items: list[VerdictOut]
    next: str | None = Field(description="cursor of the page after this one")


class VerdictDetail(VerdictOut):
    anchor: dict[str, Any] | None
    anchor_number: int | None
    brief: dict[str, Any] | None
    brief_sha256: str
    brief_version: int = Field(description="0 for a root, which has none")
    report: dict[str, Any] | None
    answer: dict[str, Any] | None = Field(description="a root's candidate answer")
    artifacts: list[dict[str, Any]]
    packet: str | None = Field(
        description="exactly as sent, for the role operator and up; null where none was"
    )
    packet_characters: int | None
    packet_now_sha256: str = Field(description="computed anew")
    packet_holds: bool | None
    left_by_rewind: bool = Field(description="no run goes by it any more")
    call: int | None = Field(description="the validator's call")
    usage: dict[str, Any] | None
    duration_ms: int | None
    reviews: list[VerdictReviewOut] = Field(description="the newest first")


class VerdictReviewIn(Strict):
    word: Word = Field(description="must follow from the criteria that decide")
    criteria: dict[str, Word] = Field(
        default_factory=dict, description="by id; what is not named keeps the validator's word"
    )
    reason: Literal[
        "", "evidence_misread", "evidence_missing", "criterion_misread", "done_elsewhere",
        "packet_incomplete", "other",
    ] = Field(default="", description="needed for another word than the validator's")  # fmt: skip
    comment: Text = Field(default="", description="the same")
    expected_review: int | None = Field(
        default=None, description="id of the newest review that you saw, 0 for none; else 409"
    )


class CorrectionIn(Strict):
    text: Annotated[str, Field(max_length=reviews.MAX_CORRECTION)] = ""
    dry_run: bool = Field(default=False, description="only say what would happen")
    expected: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="`expected` of a dry run; 409 where it is another one now"
    )


class CorrectionOut(Schema):
    way: Literal["say", "review", "say_parent", "none"]
    trace: str | None = Field(description="who hears it")
    text: str = Field(description="exactly what it hears; of a review the next brief")
    is_live: bool = Field(description="at work: heard at its next safe point; else resumed")
    why: str = Field(description="of `none`")
    review: dict[str, Any] | None
    expected: str = Field(description="give it back, to have done what was shown or nothing")


class AgreementOut(Schema):
    name: str
    n: int
    agreed: int
    share: float | None
    kappa: float | None = Field(description="Cohen's; null where it is not defined")
    table: dict[Word, dict[Word, int]] = Field(description="the validator's word, the person's")


class AgreementsOut(Schema):
    all: AgreementOut
    by_model: list[AgreementOut]
    by_criterion: list[AgreementOut] = Field(description="at most 200, the most words first")
    criteria: int


class TaskReviewIn(Strict):
    child: Line
    decision: Literal["ACCEPT", "REVISE_CHILD", "REPLACE", "ABANDON"]
    reason: Text = ""
    next_brief: dict[str, Any] | None = Field(
        default=None, description="a TaskBrief; for REVISE_CHILD and REPLACE"
    )
    resume: bool = Field(default=False, description="the run at the root then goes on")


# The queue -----------------------------------------------------------------------------------


@router.get("/verdicts", response={200: VerdictPage, **PROBLEMS}, tags=["verdicts"])
def list_verdicts(
    request: HttpRequest,
    verdict: Literal["", "passed", "failed", "unknown"] = "",
    review: Literal["", "waiting", "confirmed", "overruled"] = "",
    model: str = Query("", max_length=200),
    run: str = Query("", max_length=32, description="a trace, with everything below it"),
    since: str = Query("", max_length=10, description="a day, UTC"),
    until: str = Query("", max_length=10, description="a day, UTC; inclusive"),
    search: str = Query("", max_length=200, description="words in the task"),
    cursor: str = "",
    limit: int = Limit,
) -> Any:
    """Verdicts on traces that you may see, newest first."""
    wanted = verdict_queue.Filter(
        verdict=verdict, review=review, model=model, run=run, since=since, until=until,
        search=search,
    )  # fmt: skip
    rows, following = verdict_queue.page(
        verdict_queue.visible(request.user), wanted, cursor=cursor, limit=limit
    )
    return answer({"items": [verdict_json(row) for row in rows], "next": following})


@router.get("/verdicts/agreement", response={200: AgreementsOut, **PROBLEMS}, tags=["verdicts"])
def get_agreement(request: HttpRequest) -> Any:
    """How often validators and people agree, over the newest review of each verdict."""
    return answer(agreements_json(agreement.agreement(verdict_queue.visible(request.user))))


@router.get("/verdicts/{verdict_id}", response={200: VerdictDetail, **PROBLEMS}, tags=["verdicts"])
def get_verdict(request: HttpRequest, verdict_id: Number) -> Any:
    """One verdict with claims, evidence, the packet exactly as sent, and all reviews. The
    packet's text needs the role operator."""
    row = verdict_queue.find(request.user, verdict_id)
    exact = access.has_role(request.user, "operator")
    return answer(verdict_detail(view_of(row), exact=exact))


# Words and corrections -------------------------------------------------------------------------


@router.post(
    "/verdicts/{verdict_id}/reviews",
    response={201: VerdictReviewOut, **PROBLEMS},
    tags=["verdicts"],
)
def review_verdict(request: HttpRequest, verdict_id: Number, body: VerdictReviewIn) -> Any:
    """Your own word, stored beside the verdict. Needs the role operator."""
    access.require(request.user, "operator")
    row = verdict_queue.find(request.user, verdict_id)
    made = reviews.review(
        row,
        body.word,
        by=request.user,
        criteria=body.criteria,
        reason=body.reason,
        comment=body.comment,
        expected=body.expected_review,
    )
    return answer(review_json(made), 201)


@router.post(
    "/verdicts/{verdict_id}/correction",
    response={200: CorrectionOut, 202: CommandOut, **PROBLEMS},
    tags=["verdicts"],
)
def correct(request: HttpRequest, verdict_id: Number, body: CorrectionIn) -> Any:
    """Have the run go on with a correction; with `dry_run` only what would happen, and the text
    that would be sent. Needs the role operator."""
    access.require(request.user, "operator")
    row = verdict_queue.find(request.user, verdict_id)
    if body.dry_run:
        return answer(correction_json(reviews.plan_correction(row, body.text, by=request.user)))
    command = reviews.correct(row, body.text, by=request.user, expected=body.expected)
    return answer(command_json(command), 202)


# Children ------------------------------------------------------------------------------------


@router.post(
    "/traces/{trace_id}/reviews", response={202: CommandOut, **PROBLEMS}, tags=["verdicts"]
)
def review_child(request: HttpRequest, trace_id: str, body: TaskReviewIn) -> Any:
    """Review a child of this trace in its place. A trace that is at work applies it at its next
    safe point, to one at rest it is done with this answer. Needs the role operator."""
    access.require(request.user, "operator")
    trace = access.find_trace(request.user, trace_id)
    given = body.model_dump(exclude={"resume"}, exclude_none=True)
    command = reviews.review_child(trace, given, by=request.user, resume=body.resume)
    return answer(command_json(command), 202)
