"""The REST API of traces: reading, starting, events, tokens.

Each function finds the trace for this person, calls one domain function and answers.
Source: docs/api.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Header, Query, Router, Status

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidInput, NotFound
from cyberagent.core.types import Json, Message
from traces import access, listing, paths
from traces.api_schemas import (
    CallOut,
    CallPage,
    EventPage,
    MessageOut,
    MessagePage,
    NewTokenOut,
    Number,
    Problem,
    Started,
    StartIn,
    TokenIn,
    TokenOut,
    TraceDetail,
    TracePage,
    WindowOut,
)
from traces.models import ApiToken, Event, ModelCall, Trace
from traces.models import Message as MessageRow
from traces.rows import (
    CALL_COLUMNS,
    EVENT_COLUMNS,
    MESSAGE_COLUMNS,
    call_from,
    event_from,
    hold,
    message_from,
)
from traces.shapes import call_json, message_json, trace_detail, trace_json
from traces.starting import start_for
from traces.stream import event_stream
from traces.windows import window_of

router = Router()
PROBLEMS = dict.fromkeys((401, 403, 404, 409, 422), Problem)

Limit = Query(100, ge=1, le=1000, description="rows of one page, at most 1,000")
After = Query(0, ge=0, le=2**31 - 1, description="only what comes after this number")


def answer(value: Json, status: int = 200) -> HttpResponse:
    """JSON of any text at all: what UTF-8 cannot hold is escaped."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return HttpResponse(text, status=status, content_type="application/json")


def page_of(items: Sequence[dict[str, Any]], limit: int, key: str) -> dict[str, Any]:
    """``limit`` + 1 rows were asked for: one more than fits means that there is a next page."""
    more = len(items) > limit
    kept = list(items[:limit])
    return {"items": kept, "next": kept[-1][key] if more else None}


# Traces ------------------------------------------------------------------------------------


@router.get("/traces", response={200: TracePage, **PROBLEMS}, tags=["traces"])
def list_traces(
    request: HttpRequest,
    status: str = "",
    preset: str = "",
    model: str = "",
    owner: str = "",
    origin: str = "",
    search: str = Query("", max_length=200, description="words in the mission"),
    parent: str = Query("", description="sub-agents of this trace instead of the roots"),
    verdict: str = Query("", description="of the newest validation of its own answer"),
    since: str = Query("", description="first day, UTC"),
    until: str = Query("", description="last day, UTC"),
    cursor: str = "",
    limit: int = Limit,
) -> Any:
    """Traces that you may see, newest first."""
    wanted = listing.Filter(
        status=status, preset=preset, model=model, owner=owner, origin=origin, search=search,
        parent=parent, verdict=verdict, since=since, until=until,
    )  # fmt: skip
    rows, following = listing.page(
        access.visible_traces(request.user), wanted, cursor=cursor, limit=limit
    )
    return answer({"items": [trace_json(t) for t in rows], "next": following})


@router.post("/traces", response={201: Started, **PROBLEMS}, tags=["traces"])
def start_trace(request: HttpRequest, body: StartIn) -> Any:
    """Start a run. It is queued at once; follow its events. Needs the role operator."""
    trace = start_for(
        request.user,
        body.mission,
        RunConfig.from_json(body.config),
        skills=tuple(body.skills),
        shared=body.shared,
        anchor=None if body.anchor is None else normalize_root_task_anchor(body.anchor),
    )
    return Status(201, {"id": trace.pk, "status": trace.status})


@router.get("/traces/{trace_id}", response={200: TraceDetail, **PROBLEMS}, tags=["traces"])
def get_trace(request: HttpRequest, trace_id: str) -> Any:
    trace = access.find_trace(request.user, trace_id)
    return answer(trace_detail(trace))


# Messages ----------------------------------------------------------------------------------


@router.get(
    "/traces/{trace_id}/messages", response={200: MessagePage, **PROBLEMS}, tags=["messages"]
)
def list_messages(
    request: HttpRequest,
    trace_id: str,
    path: Literal["main", "all", "branch"] = "main",
    branch: str = Query("", max_length=64, description="a branch_id; only with path=branch"),
    after: int = After,
    limit: int = Limit,
) -> Any:
    """Messages by sequence: of the main path, of one side branch, or all that there are."""
    trace = access.find_trace(request.user, trace_id)
    if (path == "branch") != bool(branch):
        raise InvalidInput("path=branch goes with branch=<branch_id>, and only then")
    found = _messages(trace, path, branch, after, limit + 1)
    return answer(page_of([message_json(m) for m in found], limit, "sequence"))


def _messages(trace: Trace, path: str, branch: str, after: int, count: int) -> list[Message]:
    if path == "main":
        return paths.main_page(trace, after=after, limit=count)
    rows = MessageRow.objects.filter(trace=trace)
    if path == "branch":
        rows = rows.filter(side_branch=hold(branch))
        if not rows.exists():
            raise NotFound("side branch", branch)
    later = rows.filter(sequence__gt=after).order_by("sequence")
    return [message_from(row) for row in later.values(*MESSAGE_COLUMNS)[:count]]


@router.get(
    "/traces/{trace_id}/messages/{sequence}",
    response={200: MessageOut, **PROBLEMS},
    tags=["messages"],
)
def get_message(request: HttpRequest, trace_id: str, sequence: Number) -> Any:
    trace = access.find_trace(request.user, trace_id)
    row = MessageRow.objects.filter(trace=trace, sequence=sequence).values(*MESSAGE_COLUMNS)
    if not row:
        raise NotFound("message", sequence)
    return answer(message_json(message_from(row[0])))


# Calls -------------------------------------------------------------------------------------


@router.get("/traces/{trace_id}/calls", response={200: CallPage, **PROBLEMS}, tags=["calls"])
def list_calls(request: HttpRequest, trace_id: str, after: int = After, limit: int = Limit) -> Any:
    """Model calls, numbered 1, 2, 3 … per trace."""
    trace = access.find_trace(request.user, trace_id)
    rows = ModelCall.objects.filter(trace=trace, number__gt=after).order_by("number")
    found = [call_json(call_from(row)) for row in rows.values(*CALL_COLUMNS)[: limit + 1]]
    return answer(page_of(found, limit, "number"))


@router.get(
    "/traces/{trace_id}/calls/{number}", response={200: CallOut, **PROBLEMS}, tags=["calls"]
)
def get_call(request: HttpRequest, trace_id: str, number: Number) -> Any:
    trace = access.find_trace(request.user, trace_id)
    rows = ModelCall.objects.filter(trace=trace, number=number).values(*CALL_COLUMNS)
    if not rows:
        raise NotFound("call", number)
    return answer(call_json(call_from(rows[0])))


@router.get(
    "/traces/{trace_id}/calls/{number}/window",
    response={200: WindowOut, **PROBLEMS},
    tags=["calls"],
)
def get_window(request: HttpRequest, trace_id: str, number: Number) -> Any:
    """The exact payload of one call, rebuilt, and whether its hash is the one that was sent.
    It is shown unredacted, and therefore needs the role operator."""
    trace = access.find_trace(request.user, trace_id)
    access.require(request.user, "operator")
    view = window_of(trace, number)
    return answer({"sha256": view.sha256, "holds": view.holds, "payload": json.loads(view.payload)})


# Events ------------------------------------------------------------------------------------


@router.get("/traces/{trace_id}/events", response={200: EventPage, **PROBLEMS}, tags=["events"])
def list_events(request: HttpRequest, trace_id: str, after: int = After, limit: int = Limit) -> Any:
    """Stored events, numbered 1, 2, 3 … per trace."""
    trace = access.find_trace(request.user, trace_id)
    rows = Event.objects.filter(trace=trace, number__gt=after).order_by("number")
    found = [event_from(row).to_json() for row in rows.values(*EVENT_COLUMNS)[: limit + 1]]
    return answer(page_of(found, limit, "number"))


@router.get("/traces/{trace_id}/events/stream", response=PROBLEMS, tags=["events"])
def stream_events(
    request: HttpRequest,
    trace_id: str,
    after: int = After,
    until: Literal["", "done"] = Query("", description="done: end once the run has ended"),
    last_event_id: str = Header("", alias="Last-Event-ID"),
) -> Any:
    """The events as Server-Sent Events: those after ``Last-Event-ID`` (or ``after``), then live."""
    trace = access.find_trace(request.user, trace_id)
    stream = event_stream(trace.pk, _number(last_event_id, after), until_done=until == "done")
    response = StreamingHttpResponse(stream, content_type="text/event-stream")
    response["Cache-Control"] = "no-cache"
    response["X-Accel-Buffering"] = "no"
    return response


def _number(last_event_id: str, after: int) -> int:
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 10):
        raise InvalidInput("Last-Event-ID must be the number of an event")
    return int(last_event_id)


# Tokens ------------------------------------------------------------------------------------


@router.get("/tokens", response={200: list[TokenOut], **PROBLEMS}, tags=["tokens"])
def list_tokens(request: HttpRequest) -> QuerySet[ApiToken]:
    """Your own tokens, without their text."""
    return ApiToken.objects.filter(user=request.user).order_by("pk")


@router.post("/tokens", response={201: NewTokenOut, **PROBLEMS}, tags=["tokens"])
def create_token(request: HttpRequest, body: TokenIn) -> Any:
    """A new token with your own rights; its text is in this answer and nowhere else."""
    row, text = access.create_token(request.user, body.name)
    return Status(201, TokenOut.from_orm(row).dict() | {"token": text})


@router.delete("/tokens/{token_id}", response={200: TokenOut, **PROBLEMS}, tags=["tokens"])
def revoke_token(request: HttpRequest, token_id: Number) -> Any:
    return access.revoke_token(request.user, token_id)
