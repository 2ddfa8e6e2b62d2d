"""The REST API of what operators do, and of the ledgers that say what was done.

Each function finds the trace for this person, calls one domain function and answers.
Source: docs/api.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Query, Router

from cyberagent.core.errors import InvalidInput
from traces import access, acts, commands, ledgers, rewind
from traces import knowledge as entries
from traces.api import PROBLEMS, After, Limit, answer, page_of
from traces.api_schemas import (
    LARGEST,
    CommandIn,
    CommandOut,
    CommandPage,
    CompactionPage,
    ForkIn,
    InjectionPage,
    JudgementIn,
    KnowledgeOut,
    KnowledgePage,
    PreviewOut,
    ReceiptOut,
    TraceOut,
)
from traces.models import Command, Trace
from traces.shapes import (
    command_json,
    compaction_json,
    knowledge_json,
    preview_json,
    receipt_json,
    trace_json,
)

router = Router()

# Commands ----------------------------------------------------------------------------------


@router.get(
    "/traces/{trace_id}/commands", response={200: CommandPage, **PROBLEMS}, tags=["commands"]
)
def list_commands(
    request: HttpRequest, trace_id: str, after: int = After, limit: int = Limit
) -> Any:
    """Who did what to this run, and what became of it."""
    trace = access.find_trace(request.user, trace_id)
    rows = Command.objects.filter(trace=trace, pk__gt=after).select_related("by").order_by("pk")
    return answer(page_of([command_json(c) for c in rows[: limit + 1]], limit, "id"))


@router.post(
    "/traces/{trace_id}/commands", response={202: CommandOut, **PROBLEMS}, tags=["commands"]
)
def give_command(request: HttpRequest, trace_id: str, body: CommandIn) -> Any:
    """Do something to a run. It is stored at once; a run that is driven applies it at its next
    safe point, on one that nobody drives it is done with this answer. Needs the role operator."""
    access.require(request.user, "operator")
    trace = access.find_trace(request.user, trace_id)
    needs, takes, act = _ACTS[body.name]
    given = body.model_dump(exclude={"name"}, exclude_none=True)
    for name in needs:
        if name not in given:
            raise InvalidInput(f"{body.name} needs {name}")
    for name in given:
        if name not in (*needs, *takes):
            raise InvalidInput(f"{body.name} takes no {name}")
    return answer(command_json(act(trace, by=request.user, **given)), 202)


def _rewind(trace: Trace, *, by: Any, to: int, head: int, why: str = "") -> Command:
    return acts.rewind(trace, to, by=by, why=why, expected_head=head)


def _edit(
    trace: Trace,
    *,
    by: Any,
    sequence: int,
    text: str,
    resume: bool = True,
    head: int | None = None,
) -> Command:
    return acts.edit(trace, sequence, text, by=by, resume=resume, expected_head=head)


def _inject(trace: Trace, *, by: Any, skill: str) -> Command:
    return acts.inject_skill(trace, skill, by=by)


_ACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[..., Command]]] = {
    "say": (("text",), (), commands.say),
    "pause": ((), (), commands.pause),
    "resume": ((), (), commands.resume),
    "stop": ((), (), commands.stop),
    "rewind": (("to", "head"), ("why",), _rewind),
    "edit": (("sequence", "text"), ("resume", "head"), _edit),
    "compact": ((), ("policy",), acts.compact),
    "policy": (("policy",), (), acts.set_policy),
    "inject": (("skill",), (), _inject),
}
"""Each act: what it needs, what it may be given besides, and its function."""


# Going back --------------------------------------------------------------------------------


@router.get("/traces/{trace_id}/rewind", response={200: ReceiptOut, **PROBLEMS}, tags=["rewind"])
def preview_rewind(
    request: HttpRequest,
    trace_id: str,
    to: int = Query(..., ge=0, le=LARGEST, description="a message; 0: before the first"),
) -> Any:
    """What going back to a message would mean, and whether the windows still hold."""
    trace = access.find_trace(request.user, trace_id)
    return answer(receipt_json(rewind.preview(trace, to)))


@router.post("/traces/{trace_id}/fork", response={201: TraceOut, **PROBLEMS}, tags=["rewind"])
def fork_trace(request: HttpRequest, trace_id: str, body: ForkIn) -> Any:
    """A new trace of yours that shares all up to a message. Needs the role operator."""
    access.require(request.user, "operator")
    trace = access.find_trace(request.user, trace_id)
    return answer(trace_json(acts.fork(trace, body.at, by=request.user)), 201)


# The window --------------------------------------------------------------------------------


@router.get(
    "/traces/{trace_id}/compaction", response={200: PreviewOut, **PROBLEMS}, tags=["windows"]
)
def preview_compaction(
    request: HttpRequest,
    trace_id: str,
    policy: str = Query("", max_length=200, description="another policy than the run's"),
) -> Any:
    """What a compaction would do to the next call's window; no model is asked."""
    trace = access.find_trace(request.user, trace_id)
    return answer(preview_json(acts.compaction_preview(trace, policy or None)))


@router.get(
    "/traces/{trace_id}/compactions", response={200: CompactionPage, **PROBLEMS}, tags=["windows"]
)
def list_compactions(
    request: HttpRequest, trace_id: str, after: int = After, limit: int = Limit
) -> Any:
    """The compaction passes of a run, those that failed too."""
    trace = access.find_trace(request.user, trace_id)
    found = ledgers.compactions(trace, after=after, limit=limit + 1)
    return answer(page_of([compaction_json(c) for c in found], limit, "number"))


@router.get(
    "/traces/{trace_id}/injections", response={200: InjectionPage, **PROBLEMS}, tags=["windows"]
)
def list_injections(
    request: HttpRequest, trace_id: str, after: int = After, limit: int = Limit
) -> Any:
    """What the framework put into the window, and what it held back."""
    trace = access.find_trace(request.user, trace_id)
    found = ledgers.injections(trace, after=after, limit=limit + 1)
    return answer(page_of([i.to_json() for i in found], limit, "number"))


# Knowledge ---------------------------------------------------------------------------------


@router.get(
    "/traces/{trace_id}/knowledge", response={200: KnowledgePage, **PROBLEMS}, tags=["knowledge"]
)
def list_knowledge(
    request: HttpRequest,
    trace_id: str,
    status: Literal["", "pending", "accepted", "rejected"] = "",
    after: int = After,
    limit: int = Limit,
) -> Any:
    """What the run learnt."""
    trace = access.find_trace(request.user, trace_id)
    found = ledgers.knowledge(trace, status=status, after=after, limit=limit + 1)
    return answer(page_of([knowledge_json(row) for row in found], limit, "id"))


@router.post(
    "/traces/{trace_id}/knowledge/{name}",
    response={200: KnowledgeOut, **PROBLEMS},
    tags=["knowledge"],
)
def judge_knowledge(request: HttpRequest, trace_id: str, name: str, body: JudgementIn) -> Any:
    """Accept or reject an entry; no model overrules it. Needs the role operator."""
    access.require(request.user, "operator")
    trace = access.find_trace(request.user, trace_id)
    entry = entries.find(trace, name)
    return answer(knowledge_json(entries.judge(entry, body.status, by=request.user, why=body.why)))
