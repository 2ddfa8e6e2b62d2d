"""Verdicts, reviews and agreement as JSON objects, for the REST API and the terminal alike.

Every field is always there. Source: docs/api.md, "Verdicts".
"""

from __future__ import annotations

import json

from cyberagent.core.reports import Artifact
from cyberagent.core.types import Json
from traces.agreement import Agreement, Agreements
from traces.models import ValidationResult, VerdictReview
from traces.reviews import Correction, was_left
from traces.rows import held, iso
from traces.verdict_queue import criteria_of, state_of_review
from traces.verdicts import Criterion, Evidence, VerdictView


def verdict_json(row: ValidationResult) -> dict[str, Json]:
    """A verdict as lists show it; ``row`` was given its newest review."""
    newest: VerdictReview | None = row.newest  # type: ignore[attr-defined]
    return {
        "id": row.pk,
        "trace": row.trace_id,
        "sequence": row.sequence,
        "validator": row.validator_id,
        "is_root": row.is_root,
        "task": held(row.task),
        "verdict": row.verdict,
        "reason": held(row.reason),
        "criteria": [
            {
                "id": one.id,
                "criterion": one.criterion,
                "decides": one.decides,
                "verdict": one.word,
                "reason": one.reason,
                "evidence": list(one.evidence),
            }
            for one in criteria_of(row)
        ],
        "packet_sha256": row.packet_sha256,
        "model": held(row.model),
        "cost": row.cost,
        "created_at": iso(row.created_at),
        "state": state_of_review(row),
        "review": None if newest is None else review_json(newest),
    }


def review_json(review: VerdictReview) -> dict[str, Json]:
    return {
        "id": review.pk,
        "by": review.by.get_username(),
        "word": review.word,
        "confirms": review.confirms,
        "criteria": json.loads(review.criteria),
        "reason": review.reason,
        "comment": held(review.comment),
        "created_at": iso(review.created_at),
    }


def verdict_detail(view: VerdictView, *, exact: bool = True) -> dict[str, Json]:
    """A verdict with the task, the claims beside the words, the packet and all reviews.
    ``exact``: with the packet's text too, which is for operators (docs/access.md)."""
    answer = view.answer
    return verdict_json(view.row) | {
        "criteria": [_criterion(c) for c in view.criteria],
        "anchor": view.anchor.to_json() if view.anchor else None,
        "anchor_number": view.anchor_number,
        "brief": view.brief.to_json() if view.brief else None,
        "brief_sha256": view.brief.sha256 if view.brief else "",
        "brief_version": view.version,
        "report": view.report.to_json() if view.report else None,
        "answer": None if answer is None else {"sequence": answer[0], "text": answer[1]},
        "artifacts": [_artifact(a, exact) for a in view.artifacts],
        "packet": view.sent.text if view.sent and exact else None,
        "packet_characters": len(view.sent.text) if view.sent else None,
        "packet_now_sha256": view.sent.sha256 if view.sent else "",
        "packet_holds": view.sent.holds if view.sent else None,
        "left_by_rewind": was_left(view.row),
        "call": view.call.number if view.call else None,
        "usage": view.usage.to_json() if view.usage else None,
        "duration_ms": view.call.duration_ms if view.call else None,
        "reviews": [review_json(r) for r in view.reviews],
    }


def _artifact(one: Artifact, exact: bool) -> dict[str, Json]:
    """An output; its content stands in the packet and is for whom that is for."""
    return one.to_json() if exact else one.to_json() | {"content": None}


def _criterion(one: Criterion) -> dict[str, Json]:
    claim = one.claim
    return {
        "id": one.judged.id,
        "criterion": one.judged.criterion,
        "decides": one.judged.decides,
        "verdict": one.judged.word,
        "reason": one.judged.reason,
        "evidence": [_evidence(e) for e in one.evidence],
        "claim": None
        if claim is None
        else {"met": claim.met, "evidence": [_evidence(e) for e in one.claimed_by]},
        "person": one.person,
    }


def _evidence(one: Evidence) -> dict[str, Json]:
    return {"message": one.sequence, "artifact": one.name, "is_there": one.is_there}


def correction_json(plan: Correction) -> dict[str, Json]:
    return {
        "way": plan.way,
        "trace": plan.trace.pk if plan.trace else None,
        "text": plan.text,
        "is_live": plan.is_live,
        "why": plan.why,
        "review": dict(plan.arguments) or None,
        "expected": plan.expected,
    }


def agreements_json(found: Agreements) -> dict[str, Json]:
    return {
        "all": agreement_json(found.all),
        "by_model": [agreement_json(a) for a in found.by_model],
        "by_criterion": [agreement_json(a) for a in found.by_criterion],
        "criteria": found.criteria,
    }


def agreement_json(one: Agreement) -> dict[str, Json]:
    return {
        "name": one.name,
        "n": one.n,
        "agreed": one.agreed,
        "share": one.share,
        "kappa": one.kappa,
        "table": {validator: dict(person) for validator, person in one.table.items()},
    }
