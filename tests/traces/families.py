"""Trees of traces for tests: stored message by message with the records that a run would keep."""

from __future__ import annotations

import json
from typing import Any

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief
from cyberagent.core.context_policy import normalize_task_brief
from cyberagent.core.events import ChildEnded, ChildStarted, Reviewed, StatusChanged, Verdict
from cyberagent.core.ports import NewTrace
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import (
    Briefed,
    Delegated,
    Reported,
    Validated,
    entry_to_json,
)
from cyberagent.core.protocol_entries import ChildEnded as Ended
from cyberagent.core.reports import TaskReport, normalize_task_report
from cyberagent.core.types import Json, Message, Text, ToolCall, text_message
from cyberagent.core.verdicts import Reviewer, ValidationResult, Word, normalize_task_review
from tests.core.protocol_values import anchor, brief_json
from traces import write
from traces.models import Trace
from traces.protocols import protocol_of

AT = "2026-05-01T10:00:00.000Z"


class Family:
    """A recursive root and whoever is made below it. Traces are named by their ids."""

    def __init__(self, owner: Any, mission: str = "Move the shop", **anchor_fields: Any) -> None:
        self.anchor: RootTaskAnchor = anchor(**anchor_fields)
        made = write.create_trace(
            NewTrace(
                mission=mission, config={"preset": "recursive"}, context={"lineage": []},
                status="running", anchor=self.anchor,
            ),
            owner_id=owner.pk,
        )  # fmt: skip
        self.root = made.id
        self.calls = 0
        self.tell(self.root, text_message("user", mission, source="user"))

    # Messages ------------------------------------------------------------------------------

    def tell(self, trace: str, message: Message, *events: Any, **fields: Any) -> int:
        """Store a message at the head; its sequence."""
        return write.append(trace, [message], events, **fields).messages[0].sequence

    def call(self, trace: str, name: str, **arguments: Json) -> tuple[int, str]:
        """An assistant's call; its message and id."""
        self.calls += 1
        made = ToolCall(f"call{self.calls}", name, json.dumps(arguments))
        message = Message(role="assistant", source="model", parts=(Text("So."), made))
        return self.tell(trace, message), made.id

    def answer(self, trace: str, call: str, name: str, text: str, **metadata: Json) -> int:
        """The result of a call, with what the framework recorded."""
        message = text_message(
            "tool", text, source="tool", tool_call_id=call, name=name, metadata=metadata
        )
        return self.tell(trace, message)

    def status(self, trace: str, status: Any, why: str = "") -> None:
        write.append(trace, [], [StatusChanged(status=status, why=why)], status=status)

    def state(self, trace: str) -> ProtocolState:
        found = protocol_of(trace)
        assert found is not None
        return found

    # Sub-agents ----------------------------------------------------------------------------

    def spawn(self, parent: str, kind: str, mission: str, at: int, call: str) -> str:
        above = Trace.objects.get(pk=parent)
        context: dict[str, Json] = {"spawned": {"kind": kind, "call": call, "index": 0}}
        if kind == "agent":
            context["lineage"] = [*json.loads(above.context)["lineage"], parent]
        made = write.create_trace(
            NewTrace(
                mission=mission, context=context, status="running",
                config={"preset": "recursive" if kind == "agent" else kind},
                parent_trace=parent, parent_message=at,
            )
        )  # fmt: skip
        began = ChildStarted(child=made.id, agent=kind, mission=mission, brief=1, message=at)
        write.append(parent, [], [began])
        return made.id

    def delegate(self, parent: str, child: str = "", **changes: Any) -> tuple[str, str]:
        """Ask for a sub-agent, or for ``child`` again; its id and the call's."""
        brief = self.brief(parent, **changes)
        at, call = self.call(parent, "agent", task_brief=brief.to_json())
        child = child or self.spawn(parent, "agent", brief.objective, at, call)
        self.contract(parent, child, brief, at, call)
        return child, call

    def brief(self, parent: str, **changes: Any) -> TaskBrief:
        return normalize_task_brief(brief_json(**changes), self.anchor, self.state(parent).brief)

    def contract(self, parent: str, child: str, brief: TaskBrief, at: int, call: str) -> int:
        state = self.state(parent)
        _, access = state.delegated(at, child, brief)
        entry = entry_to_json(Briefed(brief, parent, access))
        metadata = {"protocol": [entry], "call": call, "message": at}
        return self.tell(
            child, text_message("user", brief.text, source="framework", metadata=metadata)
        )

    def report(
        self,
        child: str,
        verdict: Word = "passed",
        reason: str = "seen",
        packet: str = "# RootTaskAnchor\n{}",
        **changes: Any,
    ) -> tuple[TaskReport, ValidationResult, str]:
        """``child`` hands in a report, a validator judges it by ``packet``; also the validator's
        id."""
        value = {"status": "completed", "summary": "It is written."}
        report = normalize_task_report(value | changes)
        at, call = self.call(child, "submit_report", **report.to_json())
        judge = self.spawn(child, "validator", f"Validate: {report.summary}", at, call)
        result = self.judged(judge, verdict, reason, packet)
        entries = [entry_to_json(Reported(report)), entry_to_json(Validated(result))]
        message = text_message(
            "tool", f"Verdict: {verdict}", source="tool", tool_call_id=call, name="submit_report",
            metadata={"protocol": entries, "validator": judge, "verdict": verdict},
        )  # fmt: skip
        self.tell(child, message, Verdict(verdict=verdict, why=reason, validator=judge, message=-1))
        return report, result, judge

    def judged(self, judge: str, verdict: Word, reason: str, packet: str) -> ValidationResult:
        self.tell(judge, text_message("user", packet, source="framework"))
        self.tell(judge, text_message("assistant", "{}", source="model"))
        self.status(judge, "completed")
        return ValidationResult(
            verdict=verdict, reason=reason, packet_sha256="0" * 64, created_at=AT
        )

    def deliver(
        self,
        parent: str,
        child: str,
        call: str,
        report: TaskReport | None,
        result: ValidationResult,
        status: str = "completed",
    ) -> int:
        """``child`` ends, and the call's result is stored; its message."""
        self.status(child, status)
        brief = self.state(child).briefs[-1].brief
        access = tuple(g.snapshot.ref for g in self.state(child).catalogue.grants if g.granted_by)
        at = Trace.objects.get(pk=child).parent_message
        ended = ChildEnded(child=child, agent="agent", status=status, message=at)
        write.append(parent, [], [ended])
        entries = [
            entry_to_json(Delegated(child, brief, access)),
            entry_to_json(Ended(child, report, result)),
        ]
        return self.answer(
            parent, call, "agent", f"Child {child} ended", protocol=entries, child=child
        )

    def review(self, parent: str, child: str, decision: str, *, by: str = "", **given: Any) -> int:
        """The parent's review, or that of the operator ``by``; its message."""
        state = self.state(parent)
        found = state.children[child]
        assert found.result is not None
        at = Trace.objects.get(pk=parent).last_sequence + 1
        review = normalize_task_review(
            {"decision": decision, **given},
            verdict=found.result.verdict, anchor=self.anchor, brief=state.brief, created_at=AT,
            reviewer=Reviewer(kind="operator", id=by) if by else Reviewer(kind="trace", id=parent),
        )  # fmt: skip
        if by:
            entry = state.reviewed(at, child, review)[0].newest
            message = text_message(
                "user", "Reviewed.", source="framework", metadata={"protocol": [entry], "by": by}
            )
            told = Reviewed(child=child, decision=decision, by=by, why=review.reason, message=-1)
            return self.tell(parent, message, told)
        _, call = self.call(parent, "review_child", child=child, decision=decision)
        entry = state.reviewed(at + 1, child, review)[0].newest
        message = text_message(
            "tool", "Reviewed.", source="tool", tool_call_id=call, name="review_child",
            metadata={"protocol": [entry]},
        )  # fmt: skip
        told = Reviewed(child=child, decision=decision, by="parent", why=review.reason, message=-1)
        return self.tell(parent, message, told)

    def accepted(self, parent: str, **changes: Any) -> str:
        """A sub-agent from its contract to its acceptance; its id."""
        child, call = self.delegate(parent, **changes)
        report, result, _ = self.report(child)
        self.deliver(parent, child, call, report, result)
        self.review(parent, child, "ACCEPT")
        return child

    def explore(self, parent: str, mission: str = "Which files use it?") -> tuple[str, str]:
        at, call = self.call(parent, "explore", branches=[mission], background="none")
        return self.spawn(parent, "explore", mission, at, call), call

    def read(self, trace: str, ref_id: str, version: str, characters: int) -> int:
        """The trace reads a ref whole; the message of the result."""
        _, call = self.call(trace, "read_context_ref", ref_id=ref_id, version=version)
        head = json.dumps({"ref_id": ref_id, "from": 0, "to": characters, "characters": characters})
        return self.answer(trace, call, "read_context_ref", f"{head}\n{{}}")


def grown(owner: Any) -> Trace:
    """A tree with all that a board can show: a revised contract, a ref that is read, a verdict
    against which it was accepted, one at work, one that nobody waits for."""
    family = Family(owner)
    root = family.root
    first, call = family.delegate(root, objective="Write the refund call")
    report, result, _ = family.report(first, "failed", "The bank saw nothing")
    family.deliver(root, first, call, report, result)
    better = {"objective": "Write the refund call", "reason": "Nothing arrived"}
    family.review(root, first, "REVISE_CHILD", next_brief=family.brief(root, **better).to_json())
    family.status(first, "running")
    _, call = family.delegate(root, first, **better)
    report, result, _ = family.report(first)
    family.deliver(root, first, call, report, result)
    family.review(root, first, "ACCEPT")
    grant = family.state(root).catalogue.grants[-1]
    ref = grant.snapshot.ref
    second, call = family.delegate(
        root, objective="Switch the old service off", context_refs=[ref.to_json()],
        constraints=["Not on a Friday"], parent_findings=["The new one works"],
    )  # fmt: skip
    family.read(second, ref.ref_id, ref.version, len(grant.snapshot.text))
    family.accepted(second, objective="Find who still calls it")
    report, result, _ = family.report(second, "unknown", "No message shows it")
    family.deliver(root, second, call, report, result)
    family.review(root, second, "ACCEPT", by="olga", reason="I switched it off myself")
    lost, call = family.explore(root, "Who was paid twice?")
    family.answer(root, call, "explore", "interrupted")
    family.status(lost, "running")
    last, _ = family.delegate(root, objective="Tell the customers")
    # At rest, so that no server that finds it takes it for one whose owner died.
    family.status(last, "paused")
    family.status(root, "paused")
    return Trace.objects.get(pk=root)
