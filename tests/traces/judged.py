"""Verdicts with all that stands behind them, for tests of the verdict desk: a tree of traces, a
report, a packet that was sent, and the verdict on it. Grown by hand, as ``tests/traces/grown.py``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from cyberagent.core.context_policy import normalize_root_task_anchor, normalize_task_brief
from cyberagent.core.ports import NewTrace
from cyberagent.core.reports import Artifact, normalize_task_report
from cyberagent.core.types import Message, text_message
from cyberagent.core.validation import ValidationPacket, build_validation_packet
from cyberagent.core.verdicts import plan_validation
from tests.traces import grown
from traces import paths, write
from traces.models import Trace, ValidationResult

ANCHOR: dict[str, Any] = {
    "objective": "Move the shop to the new payment service",
    "completion_criteria": ["Orders can be paid", "The old service is switched off"],
    "constraints": ["No card number is logged"],
}
BRIEF: dict[str, Any] = grown.brief(
    "Write the refund call",
    completion_criteria=["A refund reaches the bank", "The tests of refunds pass"],
    expected_outputs=["refund.py"],
    constraints=["No card number is logged"],
)
REPORT: dict[str, Any] = {
    "status": "completed",
    "summary": "The refund call is written and tested.",
    "criteria": [
        {"criterion": "A refund reaches the bank", "met": True, "evidence": [3, "refund.py"]},
        {"criterion": "The tests of refunds pass", "met": True, "evidence": [3, 999]},
    ],
    "outputs": [
        {"name": "refund.py", "artifact": "shop/refund.py"},
        {"name": "notes", "artifact": "notes.md"},
    ],
    "open_issues": ["Partial refunds are not covered"],
    "knowledge": [],
}
SOURCE = "def refund(order):\n    return bank.refund(order.id)\n"
ARTIFACTS = (
    Artifact(
        name="refund.py",
        kind="file",
        location="shop/refund.py",
        sha256=hashlib.sha256(SOURCE.encode()).hexdigest(),
        size=len(SOURCE),
        content=SOURCE,
    ),
    Artifact(name="notes", kind="file", location="notes.md", problem="there is no file notes.md"),
)


def words(b1: str, b2: str) -> list[dict[str, Any]]:
    """Criteria of a verdict on BRIEF; those of the root are not judged."""
    return [
        {
            "id": "B1",
            "criterion": "A refund reaches the bank",
            "verdict": b1,
            "reason": "The bank's answer is in message 3.",
            "evidence": [3, "refund.py"],
        },
        {
            "id": "B2",
            "criterion": "The tests of refunds pass",
            "verdict": b2,
            "reason": "No test run is among the messages.",
            "evidence": [3] if b2 == "passed" else [],
        },
        *(
            {"id": f"R{n}", "criterion": text, "verdict": "unknown", "reason": "not judged",
             "evidence": []}
            for n, text in enumerate(ANCHOR["completion_criteria"], 1)
        ),
    ]  # fmt: skip


def follows(b1: str, b2: str) -> str:
    """By docs/protocol.md: failed where one failed, passed where all passed, else unknown."""
    if "failed" in (b1, b2):
        return "failed"
    return "passed" if (b1, b2) == ("passed", "passed") else "unknown"


def a_root(status: str = "paused", mission: str = "Move the shop", **columns: Any) -> str:
    """A recursive root with its mission as message 1."""
    new = NewTrace(
        mission=mission,
        config={"provider": "scripted", "preset": "recursive"},
        context={"lineage": []},
        anchor=normalize_root_task_anchor(ANCHOR),
        status=status,  # type: ignore[arg-type]
    )
    made = write.create_trace(new, **columns).id
    write.append(made, [text_message("user", mission, source="user", tokens=1)], turn=1)
    return made


def a_validator(of: str, message: int, packet: str, answer: str = "{}") -> str:
    """The trace of a validator that was sent ``packet``."""
    new = NewTrace(
        mission="Validate",
        config={"provider": "scripted", "model": "judge-1", "preset": "validator"},
        context={"spawned": {"kind": "validator", "call": "r1", "index": 0}},
        parent_trace=of,
        parent_message=message,
        status="completed",
    )
    made = write.create_trace(new).id
    write.append(made, [text_message("user", packet, source="framework", tokens=1)], turn=1)
    write.append(made, [text_message("assistant", answer, source="model", tokens=1)])
    return made


def work(child: str, output: str = "refund 12: accepted by the bank") -> None:
    """Messages 2 and 3 of a child: a call, and its result with ``output``."""
    grown.asks(child, "w1", name="terminal", arguments='{"command": "refund 12"}')
    result = text_message(
        "tool", output, source="tool", tool_call_id="w1", name="terminal", tokens=1
    )
    write.append(child, [result])


def judged_child(
    b1: str = "passed",
    b2: str = "failed",
    *,
    status: str = "paused",
    model: str = "judge-1",
    told: bool = True,
    mark: str = "",
    **columns: Any,
) -> ValidationResult:
    """The verdict on a child of a new root in ``status``: work in messages 2 and 3, the report in
    4, the verdict with message 5. ``told``: the root has its result, and the review is due.
    ``mark``: is put into every text of it."""
    brief, report, criteria = (marked(v, mark) for v in (BRIEF, REPORT, words(b1, b2)))
    root = a_root(status, mission=f"Move the shop{mark}", **columns)
    ask = grown.asks(root, "c1")
    child = grown.a_child(root, "c1", ask, contract=brief, status="completed")
    work(child, f"refund 12: accepted by the bank{mark}")
    reported = grown.asks(child, "r1", name="submit_report")
    packet = packet_of(child, mark)
    validator = a_validator(child, reported, packet.text)
    found = grown.result(
        follows(b1, b2), criteria=criteria, model=model + mark, reason=mark,
        packet_sha256=hashlib.sha256(packet.text.encode()).hexdigest(),
        usage={"prompt": 1200, "completion": 80},
    )  # fmt: skip
    entries = [{"entry": "reported", "report": report}, grown.validated(found)]
    grown.answers(child, "r1", *entries, name="submit_report", validator=validator)
    if told:
        given = {"entry": "delegated", "child": child, "brief": brief, "access": []}
        over = {"entry": "child_ended", "child": child, "report": report, "result": found}
        grown.answers(root, "c1", given, over)
    return ValidationResult.objects.get(trace=child)


KEPT = ("verdict", "status", "id", "kind", "sha256", "entry")
"""Fields whose words the protocol fixes."""


def marked(value: Any, mark: str) -> Any:
    """``value`` with ``mark`` at the end of each text that is free; constraints are the root's."""
    if isinstance(value, dict):
        kept = (*KEPT, "constraints")
        return {k: v if k in kept else marked(v, mark) for k, v in value.items()}
    if isinstance(value, list):
        return [marked(v, mark) for v in value]
    return value + mark if isinstance(value, str) and value else value


def packet_of(child: str, mark: str = "") -> ValidationPacket:
    anchor = normalize_root_task_anchor(ANCHOR)
    brief = normalize_task_brief(marked(BRIEF, mark), anchor)
    made = build_validation_packet(
        anchor=anchor,
        plan=plan_validation(anchor, brief, model="judge-1"),
        path=paths.page(child),
        brief=brief,
        report=normalize_task_report(marked(REPORT, mark)),
        artifacts=[replace(a, name=a.name + mark, problem=a.problem + mark) for a in ARTIFACTS],
    )
    assert isinstance(made, ValidationPacket)
    return made


ANSWER = "The shop is on the **new** service."


def judged_root(
    verdict: str = "failed", *, sent: bool = True, status: str = "failed", **columns: Any
) -> ValidationResult:
    """The verdict, with message 3, on the answer of a new root, message 2. ``sent``: False for a
    packet that was too large."""
    root = a_root(status, **columns)
    answered = grown.says(root, ANSWER)
    validator, digest = "", ""
    reason = "" if sent else "nothing was validated: the fixed part has 61,002 characters"
    if sent:
        anchor = normalize_root_task_anchor(ANCHOR)
        packet = build_validation_packet(
            anchor=anchor,
            plan=plan_validation(anchor, model="judge-1"),
            path=paths.page(root),
            candidate=next(m for m in paths.page(root) if m.sequence == answered),
        )
        assert isinstance(packet, ValidationPacket)
        validator = a_validator(root, answered, packet.text)
        digest = hashlib.sha256(packet.text.encode()).hexdigest()
    criteria = [
        {"id": f"R{n}", "criterion": text, "verdict": verdict, "reason": "seen in the answer",
         "evidence": [answered]}
        for n, text in enumerate(ANCHOR["completion_criteria"], 1)
    ]  # fmt: skip
    found = grown.result(verdict, criteria=criteria, packet_sha256=digest, reason=reason)
    metadata = {"protocol": [grown.validated(found)], "validator": validator}
    note = text_message("user", verdict, source="framework", tokens=1, metadata=metadata)
    write.append(root, [note])
    return ValidationResult.objects.get(trace=root)


def accepted(row: ValidationResult) -> None:
    """The run above the judged child has accepted its result."""
    root = Trace.objects.get(pk=row.trace_id).parent_trace_id
    assert root is not None
    grown.asks(root, "v1", name="review_child")
    entry = grown.reviewed(row.trace_id)
    entry["review"] |= {
        "reason": "good enough",
        "against_verdict": "" if row.verdict == "passed" else row.verdict,
        "reviewer": {"kind": "trace", "id": root},
    }
    grown.answers(root, "v1", entry | {"ref": []}, name="review_child")


def heard(trace: str) -> Message:
    """The newest message of a trace's path."""
    return paths.page(trace)[-1]


def metadata_of(message: Message) -> dict[str, Any]:
    return json.loads(json.dumps(dict(message.metadata)))
