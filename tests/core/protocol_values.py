"""Hand-made protocol values that the protocol's tests share."""

from __future__ import annotations

from typing import Any

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief
from cyberagent.core.context_policy import normalize_root_task_anchor, normalize_task_brief
from cyberagent.core.reports import TaskReport, normalize_task_report
from cyberagent.core.verdicts import (
    Reviewer,
    TaskReview,
    ValidationResult,
    Word,
    normalize_task_review,
)


def anchor_json(**changes: Any) -> dict[str, Any]:
    value = {
        "objective": "Move the shop to the new payment service",
        "completion_criteria": ["Orders can be paid", "The old service is switched off"],
        "constraints": ["No card number is logged"],
    }
    return value | changes


def brief_json(**changes: Any) -> dict[str, Any]:
    value = {
        "objective": "Write the refund call",
        "completion_criteria": ["A refund reaches the bank"],
        "expected_outputs": ["refund.py"],
    }
    return value | changes


def anchor(**changes: Any) -> RootTaskAnchor:
    return normalize_root_task_anchor(anchor_json(**changes))


def brief(root: RootTaskAnchor, parent: TaskBrief | None = None, **changes: Any) -> TaskBrief:
    return normalize_task_brief(brief_json(**changes), root, parent)


def report(**changes: Any) -> TaskReport:
    value = {"status": "completed", "summary": "The refund call is written."}
    return normalize_task_report(value | changes)


def result(verdict: Word, reason: str = "seen") -> ValidationResult:
    return ValidationResult(
        verdict=verdict, reason=reason, packet_sha256="0" * 64, created_at="2026-05-01T10:00:00Z"
    )


def review(
    decision: str,
    root: RootTaskAnchor,
    *,
    verdict: Word = "passed",
    own: TaskBrief | None = None,
    **more: Any,
) -> TaskReview:
    return normalize_task_review(
        {"decision": decision, **more},
        verdict=verdict,
        anchor=root,
        brief=own,
        reviewer=Reviewer(kind="trace", id="parent"),
        created_at="2026-05-01T11:00:00Z",
    )
