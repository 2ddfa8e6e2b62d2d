"""The REST API of the compaction lab. Source: docs/lab.md."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema

from cyberagent.compaction.subject import LARGEST_WINDOW
from traces import access
from traces.api import PROBLEMS, answer
from traces.lab import lab, policies_in

router = Router()


class PolicyOut(Schema):
    """One policy over the trace; docs/lab.md says how each number is made."""

    peak_tokens: int
    mean_tokens: float
    passes: int
    summary_calls: int
    prefix_share: float
    price: float
    recall: float | None
    user_messages_kept: int
    violations: int
    seconds: float
    calls: int
    failed_passes: int
    user_messages: int
    checked: int
    overflows: int
    hidden: int
    shortened: int
    problems: list[str]
    log: list[dict[str, Any]]


class LabOut(Schema):
    trace: str
    window: int
    window_from: str
    segmented: str
    messages: int
    raw_peak_tokens: int
    policies: dict[str, PolicyOut]


@router.get("/traces/{trace_id}/lab", response={200: LabOut, **PROBLEMS}, tags=["lab"])
def replay_trace(
    request: HttpRequest,
    trace_id: str,
    policies: str = Query("", max_length=500, description="names with commas; default: all"),
    window: int | None = Query(None, ge=1, le=LARGEST_WINDOW, description="tokens"),
) -> Any:
    """The trace replayed under each policy, side by side. It is only read."""
    trace = access.find_trace(request.user, trace_id)
    return answer(lab(trace, policies_in(policies), window).to_json())
