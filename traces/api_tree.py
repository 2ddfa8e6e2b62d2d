"""The REST API of a tree of traces: its states, one trace's protocol, the board of sub-agents.

Source: docs/api.md, "A tree of runs".
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_view import Child
from cyberagent.core.types import Json
from traces import access, trees
from traces.api import PROBLEMS, answer
from traces.below import below
from traces.members import board_of
from traces.models import Trace
from traces.protocols import protocol_of
from traces.rows import held

router = Router()


class TreeTraceOut(Schema):
    id: str
    parent: str | None
    parent_message: int | None = Field(description="the message that asked for it")
    depth: int = Field(description="0: the root")
    kind: str = Field(description="agent, validator, explore or research; empty: not known")
    mission: str
    status: str
    steps: int
    current_goal: str
    goals_done: int
    goals_total: int
    verdict: str = Field(description="that a validator gave, of others the newest on it")


class TreeOut(Schema):
    root: str
    traces: list[TreeTraceOut]


class ProtocolOut(Schema):
    trace: str
    recursive: bool = Field(description="all else is empty where it is not")
    anchor: dict[str, Any] | None = Field(description="anchor, sha256, and its revisions")
    briefs: list[dict[str, Any]] = Field(description="number, sha256, message, brief")
    catalogue: list[dict[str, Any]] = Field(description="ref_id, version, kind, characters")
    children: list[dict[str, Any]]
    reviews_due: list[str]
    approved: list[dict[str, Any]] = Field(description="next briefs that are not carried out yet")
    report: dict[str, Any] | None
    result: dict[str, Any] | None


class BoardRowOut(Schema):
    id: str
    parent: str
    level: int
    kind: str
    mission: str
    status: str
    status_why: str
    steps: int
    tokens: int
    cost: float | None
    current_goal: str
    asked_at: int = Field(description="the parent's message that asked for it; 0: not known")
    on_path: bool = Field(description="whether that is on the parent's main path")
    brief: dict[str, Any] | None
    refs: list[dict[str, Any]]
    report: dict[str, Any] | None
    verdict: dict[str, Any] | None
    validators: list[str]
    review: dict[str, Any] | None
    delivered: int | None = Field(description="the parent's message that brought the result")
    alarms: list[str]
    problem: str


class BoardOut(Schema):
    top: BoardRowOut = Field(description="the trace itself")
    items: list[BoardRowOut] = Field(description="all below it, parents before their children")


@router.get("/traces/{trace_id}/tree", response={200: TreeOut, **PROBLEMS}, tags=["tree"])
def get_tree(request: HttpRequest, trace_id: str) -> Any:
    """The whole tree that a trace belongs to, with the state of each."""
    trace = access.find_trace(request.user, trace_id)
    root = trees.root(trace.pk).get()
    own = {
        "id": root.pk,
        "parent": None,
        "parent_message": None,
        "depth": 0,
        "kind": "",
        "mission": held(root.mission),
        "current_goal": held(root.current_goal),
        "verdict": _newest_verdict(root),
        **{name: getattr(root, name) for name in _COUNTS},
    }
    return answer({"root": root.pk, "traces": [own, *map(_below_json, below(root.pk))]})


_COUNTS = ("status", "steps", "goals_done", "goals_total")


def _newest_verdict(trace: Trace) -> str:
    return trace.verdicts.order_by("-sequence").values_list("verdict", flat=True).first() or ""


def _below_json(one: Any) -> dict[str, Json]:
    return {
        "id": one.id,
        "parent": one.parent,
        "parent_message": one.message or None,
        "depth": one.level + 1,
        "kind": one.kind,
        "mission": one.mission,
        "current_goal": one.goal,
        "verdict": one.verdict,
        **{name: getattr(one, name) for name in _COUNTS},
    }


@router.get("/traces/{trace_id}/protocol", response={200: ProtocolOut, **PROBLEMS}, tags=["tree"])
def get_protocol(request: HttpRequest, trace_id: str) -> Any:
    """What is in force for a recursive trace."""
    trace = access.find_trace(request.user, trace_id)
    state = protocol_of(trace)
    if state is None:
        return answer({"trace": trace.pk, "recursive": False, **_EMPTY})
    revisions = trees.read_anchors(trees.root_id(trace.pk))
    anchor = {
        "anchor": state.anchor.to_json(),
        "sha256": state.anchor.sha256,
        "revisions": [r.to_json() for r in revisions],
    }
    return answer({"trace": trace.pk, "recursive": True, "anchor": anchor, **_state_json(state)})


_EMPTY: dict[str, Json] = {
    "anchor": None, "briefs": [], "catalogue": [], "children": [], "reviews_due": [],
    "approved": [], "report": None, "result": None,
}  # fmt: skip


def _state_json(state: ProtocolState) -> dict[str, Json]:
    return {
        "briefs": [
            {
                "number": v.number,
                "sha256": v.brief.sha256,
                "message": v.given_at_sequence,
                "brief": v.brief.to_json(),
            }
            for v in state.briefs
        ],
        "catalogue": state.catalogue.listing(),
        "children": [_child_json(c) for c in state.children.values()],
        "reviews_due": [c.id for c in state.reviews_due],
        "approved": [{"child": a.child, "brief": a.brief.to_json()} for a in state.approved],
        "report": state.report.to_json() if state.report else None,
        "result": state.result.to_json() if state.result else None,
    }


def _child_json(child: Child) -> dict[str, Json]:
    return {
        "id": child.id,
        "rounds": child.rounds,
        "brief": child.brief.to_json(),
        "access": [r.to_json() for r in sorted(child.access)],
        "report": child.report.to_json() if child.report else None,
        "result": child.result.to_json() if child.result else None,
        "review": child.review.to_json() if child.review else None,
        "review_is_due": child.review_is_due,
    }


@router.get("/traces/{trace_id}/agents", response={200: BoardOut, **PROBLEMS}, tags=["tree"])
def get_board(request: HttpRequest, trace_id: str) -> Any:
    """The board of sub-agents: what each was given, handed in, and what came of it."""
    found = board_of(access.find_trace(request.user, trace_id))
    return answer({"top": found.top.to_json(), "items": [r.to_json() for r in found.rows]})
