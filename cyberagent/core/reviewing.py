"""Reviews of children: by the trace above them, and by operators.

Source: docs/protocol.md, "Report, verdict, review".
"""

from __future__ import annotations

from collections.abc import Mapping

from cyberagent.core.errors import ProtocolRefused
from cyberagent.core.events import Reviewed
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.types import Json, Message, text_message
from cyberagent.core.verdicts import Reviewer, TaskReview, normalize_task_review
from cyberagent.core.wording import wording

BY_PARENT = "parent"
"""Who reviewed, in the event of a review that the trace above made itself."""


def reviewed(
    protocol: ProtocolState,
    child: str,
    value: Mapping[str, Json],
    *,
    reviewer: Reviewer,
    at: str,
    sequence: int,
) -> tuple[TaskReview, list[dict[str, Json]], str]:
    """The review ``{decision, reason, next_brief}`` of ``child``, its record for message
    ``sequence``, and a warning ("" mostly). Raises ProtocolRefused and InvalidTaskValue."""
    found = protocol.children.get(child)
    if found is None or found.result is None:
        known = ", ".join(c.id for c in protocol.reviews_due) or "none"
        raise ProtocolRefused(f"no review of {child[:80]!r} is due; due are: {known}")
    review = normalize_task_review(
        value,
        verdict=found.result.verdict,
        anchor=protocol.anchor,
        brief=protocol.brief,
        reviewer=reviewer,
        created_at=at,
    )
    after, warning = protocol.reviewed(sequence, child, review)
    return review, after.newer_than(protocol), warning


def operator_review(
    protocol: ProtocolState | None,
    arguments: Mapping[str, Json],
    *,
    by: str,
    at: str,
    language: str,
) -> tuple[Message, Reviewed]:
    """The framework's message with which an operator's review reaches the trace above the
    child, and its event. ``arguments``: ``{child, decision, reason, next_brief}``. Raises
    ProtocolRefused and InvalidTaskValue."""
    if protocol is None:
        raise ProtocolRefused("this run is not recursive: it has no children to review")
    given = {k: v for k, v in arguments.items() if k != "child" and v not in ("", None)}
    child = str(arguments.get("child", ""))
    last = protocol.entries[-1].sequence if protocol.entries else 0
    review, record, warning = reviewed(
        protocol, child, given, reviewer=Reviewer(kind="operator", id=by), at=at, sequence=last
    )
    brief = review.next_brief.text if review.next_brief else "-"
    text = wording(language, "operator_review").format(
        by=by, child=child, decision=review.decision, reason=review.reason or "-", brief=brief
    )
    if warning:
        text = f"{text}\n\n{warning}"
    metadata: dict[str, Json] = {"protocol": record, "by": by}
    draft = text_message("user", text, source="framework", metadata=metadata)
    told = Reviewed(child=child, decision=review.decision, by=by, why=review.reason, message=-1)
    return draft, told
