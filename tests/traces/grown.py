"""Recursive trees grown by hand, message by message, for tests of their rows.

    root = a_root()
    ask = asks(root, "c1")                 # an answer that calls agent()
    child = a_child(root, "c1", ask)       # with its contract
    answers(root, "c1", *ended(child))     # the call's result, with the records of it

Records are written out as docs/protocol.md has them, and hashed here, not by the code under test.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import Message, ToolCall, text_message
from traces import write
from traces.models import Trace

ANCHOR: dict[str, Any] = {
    "objective": "Refunds work",
    "completion_criteria": ["a refund is paid out"],
    "constraints": ["no new tables"],
}


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def hashed(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def brief(objective: str = "Find the refund code", **more: Any) -> dict[str, Any]:
    """A contract in normal form."""
    return {
        "objective": objective,
        "reason": "",
        "completion_criteria": ["the function is named"],
        "expected_outputs": ["a file name"],
        "parent_findings": [],
        "context": "",
        "constraints": ["no new tables"],
        "context_refs": [],
    } | more


REPORT: dict[str, Any] = {
    "status": "completed",
    "summary": "It is in refund.py",
    "criteria": [{"criterion": "the function is named", "met": True, "evidence": [1]}],
    "outputs": [{"name": "where", "text": "refund.py"}],
    "open_issues": [],
    "knowledge": [],
}


def result(verdict: str = "passed", **more: Any) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "reason": "",
        "criteria": [
            {
                "id": "B1",
                "criterion": "the function is named",
                "verdict": verdict,
                "reason": "message 1 names it",
                "evidence": [1],
            }
        ],
        "packet_sha256": "a" * 64,
        "model": "judge-1",
        "usage": None,
        "cost": 0.25,
        "created_at": "2026-01-02T03:04:05.678Z",
    } | more


# Entries -------------------------------------------------------------------------------------


def briefed(contract: dict[str, Any], parent: str, access: Any = ()) -> dict[str, Any]:
    return {"entry": "briefed", "brief": contract, "parent": parent, "access": list(access)}


def validated(found: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"entry": "validated", "result": found or result()}


def ended(
    child: str, contract: dict[str, Any] | None = None, access: Any = (), **found: Any
) -> list[dict[str, Any]]:
    """What stands on the result of a call of agent()."""
    given = {"child": child, "brief": contract or brief(), "access": list(access)}
    over = {"child": child, "report": REPORT, "result": result(**found)}
    return [{"entry": "delegated", **given}, {"entry": "child_ended", **over}]


def reviewed(child: str, decision: str = "ACCEPT") -> dict[str, Any]:
    review = {
        "decision": decision,
        "reason": "",
        "next_brief": None,
        "next_brief_sha256": "",
        "reviewer": {"kind": "operator", "id": "ann"},
        "created_at": "2026-01-02T03:05:00.000Z",
        "against_verdict": "",
    }
    snapshot = {"report": REPORT, "result": result(), "review": review}
    ref = {"ref_id": f"reviewed_task_result:{child}", "version": hashed(snapshot)}
    return {"entry": "reviewed", "child": child, "review": review, "ref": [ref]}


def snapshot_of(child: str) -> dict[str, Any]:
    """The reviewed result of a child as another one is given a copy of it."""
    entry = reviewed(child)
    text = canonical({"report": REPORT, "result": result(), "review": entry["review"]})
    return entry["ref"][0] | {"kind": "reviewed_task_result", "text": text}


# Traces --------------------------------------------------------------------------------------


def a_root(status: Any = "running", *, owner: str = "", **columns: Any) -> str:
    """A recursive root with its mission as message 1."""
    new = NewTrace(
        mission="Refunds",
        config={"provider": "scripted", "preset": "recursive"},
        context={"lineage": []},
        anchor=normalize_root_task_anchor(ANCHOR),
        status=status,
    )
    made = write.create_trace(new, lease_owner=owner, **columns).id
    write.append(made, [text_message("user", "Refunds", source="user", tokens=1)], turn=1)
    return made


def asks(trace: str, *calls: str, name: str = "agent", arguments: str = "{}") -> int:
    """An answer with these calls; its sequence."""
    parts = tuple(ToolCall(c, name, arguments) for c in calls)
    message = Message(role="assistant", source="model", parts=parts, tokens=1)
    return write.append(trace, [message]).messages[0].sequence


def a_child(
    parent: str,
    call: str,
    message: int,
    *,
    kind: str = "agent",
    status: Any = "running",
    contract: dict[str, Any] | None = None,
    access: Any = (),
    owner: str = "",
) -> str:
    """A sub-agent of a recursive trace; one of kind agent with its contract as message 1."""
    above = Trace.objects.get(pk=parent)
    context: dict[str, Any] = {"spawned": {"kind": kind, "call": call, "index": 0}}
    if kind == "agent":
        context["lineage"] = [*json.loads(above.context)["lineage"], parent]
    new = NewTrace(
        mission="Look",
        config={"provider": "scripted", "preset": "recursive"},
        context=context,
        parent_trace=parent,
        parent_message=message,
        status=status,
    )
    made = write.create_trace(new, lease_owner=owner).id
    text = text_message("user", "packet", source="framework", tokens=1)
    write.append(made, [text] if kind != "agent" else [], turn=1)
    if kind == "agent":
        contracts(made, call, contract or brief(), parent, access, message)
    return made


def contracts(
    child: str,
    call: str,
    contract: dict[str, Any],
    parent: str,
    access: Any = (),
    message: int = 0,
) -> int:
    """The message that brings a contract; its sequence. ``message``: the parent's answer that
    gave it with ``call``."""
    metadata = {
        "protocol": [briefed(contract, parent, access)],
        "call": call,
        "message": message,
        "pinned": True,
    }
    text = text_message("user", "contract", source="framework", tokens=1, metadata=metadata)
    return write.append(child, [text], turn=1).messages[0].sequence


def answers(
    trace: str, call: str, *entries: dict[str, Any], name: str = "agent", **more: Any
) -> int:
    """The result of a call, with records; its sequence."""
    message = text_message(
        "tool",
        "done",
        source="tool",
        tool_call_id=call,
        name=name,
        tokens=1,
        metadata={"protocol": list(entries), **more} if entries else more,
    )
    return write.append(trace, [message]).messages[0].sequence


def says(trace: str, text: str = "So be it.") -> int:
    message = text_message("assistant", text, source="model", tokens=1)
    return write.append(trace, [message]).messages[0].sequence


def reports(child: str, call: str = "r1", *, validator: str = "", **found: Any) -> int:
    """The child hands in its report and gets a verdict; the sequence of the verdict's message."""
    asks(child, call, name="submit_report")
    entries = [{"entry": "reported", "report": REPORT}, validated(result(**found))]
    return answers(child, call, *entries, name="submit_report", validator=validator)


def becomes(trace: str, status: Any) -> None:
    write.append(trace, [], status=status)


def status_of(trace: str) -> str:
    return Trace.objects.values_list("status", flat=True).get(pk=trace)
