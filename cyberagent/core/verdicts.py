"""What is planned, found and decided about a task: ValidationPlan, ValidationResult, TaskReview.

Source: docs/protocol.md, "Report, verdict, review".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief, read_brief
from cyberagent.core.context_policy import normalize_task_brief
from cyberagent.core.normal import Fields, canonical_text
from cyberagent.core.reports import Evidence, read_evidence
from cyberagent.core.types import Json, Usage

PLAN, RESULT, REVIEW = "ValidationPlan", "ValidationResult", "TaskReview"

Word = Literal["passed", "failed", "unknown"]
WORDS = ("passed", "failed", "unknown")

Decision = Literal["ACCEPT", "REVISE_CHILD", "REPLACE", "ABANDON"]
DECISIONS = ("ACCEPT", "REVISE_CHILD", "REPLACE", "ABANDON")
WITH_NEXT_BRIEF = ("REVISE_CHILD", "REPLACE")


# The plan --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCriterion:
    """``id``: "B1" (the brief's first) or "R1" (the root's). Those that decide are the brief's,
    or the root's where there is no brief; the others are told so that work that leads away from
    the root task is seen."""

    id: str
    criterion: str
    decides: bool

    def to_json(self) -> dict[str, Json]:
        return {"id": self.id, "criterion": self.criterion, "decides": self.decides}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan:
    """What is validated, and by which ``model``; fixed before the child starts. ``checks``:
    what to look at besides the criteria."""

    criteria: tuple[PlannedCriterion, ...]
    checks: tuple[str, ...]
    model: str
    anchor_sha256: str
    brief_sha256: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "criteria": [c.to_json() for c in self.criteria],
            "checks": list(self.checks),
            "model": self.model,
            "anchor_sha256": self.anchor_sha256,
            "brief_sha256": self.brief_sha256,
        }

    @property
    def text(self) -> str:
        return canonical_text(self.to_json(), PLAN)

    def find(self, name: str) -> PlannedCriterion | None:
        """The criterion with this id or this very text; of two with one text the deciding one."""
        named = [c for c in self.criteria if name == c.id]
        named += [c for c in self.criteria if name == c.criterion and c.decides]
        named += [c for c in self.criteria if name == c.criterion]
        return named[0] if named else None


CHECKS_OF_A_BRIEF = ("expected_outputs", "constraints", "artifacts")
CHECKS_OF_A_ROOT = ("constraints", "artifacts")


def plan_validation(
    anchor: RootTaskAnchor, brief: TaskBrief | None = None, *, model: str
) -> ValidationPlan:
    """The plan for a child with ``brief``, or for the root's candidate answer without."""
    own = brief.completion_criteria if brief else ()
    criteria = [
        PlannedCriterion(id=f"B{n}", criterion=text, decides=True) for n, text in enumerate(own, 1)
    ]
    criteria += [
        PlannedCriterion(id=f"R{n}", criterion=text, decides=brief is None)
        for n, text in enumerate(anchor.completion_criteria, 1)
    ]
    return ValidationPlan(
        criteria=tuple(criteria),
        checks=CHECKS_OF_A_BRIEF if brief else CHECKS_OF_A_ROOT,
        model=model,
        anchor_sha256=anchor.sha256,
        brief_sha256=brief.sha256 if brief else "",
    )


def read_plan(value: object) -> ValidationPlan:
    """The plan that ``to_json`` wrote. Raises InvalidTaskValue."""
    fields = Fields(PLAN, value, tuple(ValidationPlan.__dataclass_fields__))
    criteria = tuple(
        PlannedCriterion(
            id=one.text("id", required=True),
            criterion=one.text("criterion", required=True),
            decides=one.yes_or_no("decides"),
        )
        for one in fields.objects("criteria", ("id", "criterion", "decides"))
    )
    if len({c.id for c in criteria}) < len(criteria):
        raise fields.refuse("criteria", "has an id twice")
    return ValidationPlan(
        criteria=criteria,
        checks=fields.texts("checks"),
        model=fields.text("model"),
        anchor_sha256=fields.text("anchor_sha256", required=True),
        brief_sha256=fields.text("brief_sha256"),
    )


# The result ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionVerdict:
    id: str
    criterion: str
    verdict: Word
    reason: str
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "criterion": self.criterion,
            "verdict": self.verdict,
            "reason": self.reason,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """A verdict. ``reason``: why it is unknown, or what the validator said of the whole.
    ``packet_sha256``: of the packet as sent, "" where none was; ``cost`` in US dollars, None
    where prices are not known; ``created_at`` ISO 8601, UTC."""

    verdict: Word
    reason: str = ""
    criteria: tuple[CriterionVerdict, ...] = ()
    packet_sha256: str = ""
    model: str = ""
    usage: Usage | None = None
    cost: float | None = None
    created_at: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "criteria": [c.to_json() for c in self.criteria],
            "packet_sha256": self.packet_sha256,
            "model": self.model,
            "usage": self.usage.to_json() if self.usage else None,
            "cost": self.cost,
            "created_at": self.created_at,
        }


def decided(criteria: Sequence[tuple[PlannedCriterion, Word]]) -> Word:
    """The verdict that follows from those of the criteria: failed where a deciding one failed,
    passed where all deciding ones passed (and there is one), else unknown."""
    words = [word for criterion, word in criteria if criterion.decides]
    if "failed" in words:
        return "failed"
    return "passed" if words and set(words) == {"passed"} else "unknown"


def unknown_result(plan: ValidationPlan, reason: str) -> ValidationResult:
    """``unknown`` for every criterion, for one ``reason``; no packet and no call is behind it."""
    return ValidationResult(
        verdict="unknown",
        reason=reason,
        criteria=tuple(
            CriterionVerdict(id=c.id, criterion=c.criterion, verdict="unknown", reason=reason)
            for c in plan.criteria
        ),
        model=plan.model,
    )


def read_result(value: object) -> ValidationResult:
    """The result that ``to_json`` wrote. Raises InvalidTaskValue."""
    fields = Fields(RESULT, value, tuple(ValidationResult.__dataclass_fields__))
    known = tuple(CriterionVerdict.__dataclass_fields__)
    criteria = [
        CriterionVerdict(
            id=one.text("id", required=True),
            criterion=one.text("criterion", required=True),
            verdict=cast("Word", one.word("verdict", WORDS)),
            reason=one.text("reason"),
            evidence=read_evidence(one, "evidence"),
        )
        for one in fields.objects("criteria", known)
    ]
    cost = fields.value("cost")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float)):
        raise fields.refuse("cost", "must be a number")
    return ValidationResult(
        verdict=cast("Word", fields.word("verdict", WORDS)),
        reason=fields.text("reason"),
        criteria=tuple(criteria),
        packet_sha256=fields.text("packet_sha256"),
        model=fields.text("model"),
        usage=_usage(fields),
        cost=cost,
        created_at=fields.text("created_at"),
    )


def _usage(fields: Fields) -> Usage | None:
    value = fields.value("usage")
    if value is None:
        return None
    inner = Fields(RESULT, value, tuple(Usage.__slots__), "usage.")
    counts = {k: inner.number(k) for k in Usage.__slots__ if inner.has(k)}
    return Usage.from_json(counts)


# The review ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewer:
    """The parent trace (``id``) or an operator (a name)."""

    kind: Literal["trace", "operator"]
    id: str

    def to_json(self) -> dict[str, Json]:
        return {"kind": self.kind, "id": self.id}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReview:
    """The parent's decision. ``against_verdict``: "failed" or "unknown" where such a verdict
    was accepted nevertheless, else ""."""

    decision: Decision
    reason: str
    next_brief: TaskBrief | None
    reviewer: Reviewer
    created_at: str
    against_verdict: Literal["", "failed", "unknown"] = ""

    def to_json(self) -> dict[str, Json]:
        brief = self.next_brief
        return {
            "decision": self.decision,
            "reason": self.reason,
            "next_brief": brief.to_json() if brief else None,
            "next_brief_sha256": brief.sha256 if brief else "",
            "reviewer": self.reviewer.to_json(),
            "created_at": self.created_at,
            "against_verdict": self.against_verdict,
        }


def normalize_task_review(
    value: object,
    *,
    verdict: Word,
    anchor: RootTaskAnchor,
    brief: TaskBrief | None,
    reviewer: Reviewer,
    created_at: str,
) -> TaskReview:
    """A review ``{decision, reason, next_brief}`` of a child whose verdict is ``verdict``, by a
    trace whose own brief is ``brief`` (None: the root).

    REVISE_CHILD and REPLACE need a next brief, which is normalised as in ``agent()``; the others
    have none. ACCEPT of ``failed`` or ``unknown`` needs a reason and is marked. Raises
    InvalidTaskValue.
    """
    fields = Fields.wrapping(REVIEW, value, ("decision", "reason", "next_brief"))
    decision = cast("Decision", fields.word("decision", DECISIONS))
    wants = decision in WITH_NEXT_BRIEF
    if wants != fields.has("next_brief"):
        why = "is needed" if wants else "cannot stand"
        raise fields.refuse("next_brief", f"{why} with the decision {decision}")
    against = verdict if decision == "ACCEPT" and verdict != "passed" else ""
    if against and not fields.text("reason"):
        raise fields.refuse("reason", f"is needed to accept a verdict that is {verdict}")
    following = fields.value("next_brief")
    return TaskReview(
        decision=decision,
        reason=fields.text("reason"),
        next_brief=normalize_task_brief(following, anchor, brief) if wants else None,
        reviewer=reviewer,
        created_at=created_at,
        against_verdict=against,
    )


def read_review(value: object) -> TaskReview:
    """The review that ``to_json`` wrote. Raises InvalidTaskValue."""
    known = (*TaskReview.__dataclass_fields__, "next_brief_sha256")
    fields = Fields.wrapping(REVIEW, value, known)
    brief = read_brief(fields.value("next_brief")) if fields.has("next_brief") else None
    if fields.text("next_brief_sha256") != (brief.sha256 if brief else ""):
        raise fields.refuse("next_brief_sha256", "is not that of the next brief")
    reviewer = Fields(REVIEW, fields.value("reviewer"), ("kind", "id"), "reviewer.")
    against = fields.value("against_verdict")
    if against not in ("", "failed", "unknown"):
        raise fields.refuse("against_verdict", "must be empty, failed or unknown")
    kind = cast("Literal['trace', 'operator']", reviewer.word("kind", ("trace", "operator")))
    return TaskReview(
        decision=cast("Decision", fields.word("decision", DECISIONS)),
        reason=fields.text("reason"),
        next_brief=brief,
        reviewer=Reviewer(kind=kind, id=reviewer.text("id", required=True)),
        created_at=fields.text("created_at"),
        against_verdict=against,
    )
