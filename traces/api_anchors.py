"""The REST API of root anchors: the revisions, and an admin's new one.

Source: docs/api.md, "Root anchors".
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from traces import access, anchors
from traces.api import PROBLEMS, answer
from traces.api_schemas import AnchorOut, AnchorPreviewOut, AnchorRevisionOut, ReviseIn
from traces.protocols import root_of

router = Router()


@router.get("/traces/{trace_id}/anchor", response={200: AnchorOut, **PROBLEMS}, tags=["anchors"])
def get_anchor(request: HttpRequest, trace_id: str) -> Any:
    """The root anchor of the tree that a trace belongs to, with its revisions, oldest first."""
    root = root_of(access.find_trace(request.user, trace_id))
    found = [anchors.revision_json(row) for row in anchors.revisions(root)]
    now = {name: found[-1][name] for name in ("anchor", "sha256")}
    return answer({"trace": root.pk, **now, "revisions": found})


@router.post(
    "/traces/{trace_id}/anchor",
    response={200: AnchorPreviewOut, 201: AnchorRevisionOut, **PROBLEMS},
    tags=["anchors"],
)
def revise_anchor(request: HttpRequest, trace_id: str, body: ReviseIn) -> Any:
    """Revise the root anchor of a tree. Needs the role admin; with ``dry_run`` nothing is
    written, and the answer says what it would mean."""
    access.require(request.user, "admin")
    trace = access.find_trace(request.user, trace_id)
    if body.dry_run:
        return answer(anchors.preview_json(anchors.preview(trace, body.anchor)))
    made = anchors.revise(
        trace, body.anchor, by=request.user, why=body.why, expected_sha256=body.expected_sha256
    )
    return answer(anchors.revision_json(made), 201)
