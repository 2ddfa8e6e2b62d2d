"""A correction in a real run: what the desk sends back is worked on, validated and reviewed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from tests.traces.people import person
from tests.traces.played import now, play
from traces import commands, reviews
from traces.models import Command, ValidationResult
from traces.protocols import protocol_of
from traces.verdicts import view_of

pytestmark = pytest.mark.usefixtures("threads")

ANCHOR = {"objective": "Greet", "completion_criteria": ["A greeting is made"], "constraints": []}
BRIEF: dict[str, Any] = {
    "objective": "Write the greeting",
    "completion_criteria": ["It greets"],
    "expected_outputs": ["greeting"],
}
AFTER: dict[str, Any] = BRIEF | {
    "completion_criteria": [
        "It greets",
        "The correction that olga asked for is carried out: Greet by name.",
    ],
    "parent_findings": [
        {
            "verdict_on_the_work_before": {
                "verdict": "passed",
                "person": {
                    "by": "olga",
                    "verdict": "failed",
                    "criteria": {"B1": "failed", "R1": "unknown"},
                    "reason": "criterion_misread",
                    "comment": "It greets nobody.",
                },
            }
        }
    ],
}
"""The next brief, as docs/verdicts.md has it."""


def report(text: str) -> dict[str, Any]:
    output = {"name": "greeting", "text": text}
    told = {"status": "completed", "summary": "Done.", "outputs": [output]}
    return {"submit_report": {"report": told}}


def passed(*names: str) -> dict[str, Any]:
    said = {"verdict": "passed", "reason": "It stands there.", "evidence": ["greeting"]}
    criteria = [{"criterion": name, **said} for name in names]
    return {"say": json.dumps({"verdict": "passed", "criteria": criteria})}


FOUND = {"find": {"child": "Child {} ended: "}}
ANSWER_PASSED = (
    '{"verdict": "passed", "criteria": [{"criterion": "R1", "verdict": "passed",'
    ' "reason": "Seen.", "evidence": [{answer}]}]}'
)
SCRIPT: dict[str, Any] = {
    "turns": [
        {"calls": [{"agent": {"task_brief": BRIEF}}]},
        # It forgets the review: twice reminded, it answers all the same.
        *[{"say": "There is a greeting."}] * 3,
        FOUND | {"calls": [{"agent": {"task_brief": AFTER, "child": "{child}"}}]},
        FOUND | {"calls": [{"review_child": {"child": "{child}", "decision": "ACCEPT"}}]},
        {"say": "Now it greets by name."},
    ],
    "agents": [
        {"match": ["# ValidationPlan", "Greet by name."], "kind": "validator",
         "turns": [passed("B1", "B2")]},
        {"match": ["# ValidationPlan", '"objective":"Write the greeting"'], "kind": "validator",
         "turns": [passed("B1")]},
        {"match": "# ValidationPlan", "kind": "validator",
         "turns": [{"find": {"answer": '# CandidateAnswer\n{"sequence":{},'},
                    "say": ANSWER_PASSED}]},
        {"match": "Write the greeting", "kind": "agent",
         "turns": [{"calls": [report("Hello!")]}, {"calls": [report("Hello, Mei!")]}]},
    ],
}  # fmt: skip


def test_what_a_person_corrects_is_done_again_validated_and_reviewed(tmp_path: Path) -> None:
    olga = person("olga", "operator")
    config = RunConfig(
        provider="scripted", preset="recursive", workspace=str(tmp_path),
        provider_options={"script": SCRIPT, "speed": 0},
    )  # fmt: skip
    root = commands.start(olga, "Greet.", config, anchor=normalize_root_task_anchor(ANCHOR))
    assert play(root.pk) == "failed"
    assert now(root).status_why.startswith("it answered while reviews are due: ")
    first = ValidationResult.objects.get(is_root=False)
    sent = view_of(first).sent
    assert sent is not None and sent.holds
    assert reviews.due(first.trace) is not None

    reviews.review(
        first, "failed", by=olga, criteria={"B1": "failed"}, reason="criterion_misread",
        comment="It greets nobody.",
    )  # fmt: skip
    command = reviews.correct(first, "Greet by name.", by=olga)
    assert command.status == "applied" and now(root).status == "queued"
    assert play(root.pk) == "completed", now(root).status_why

    second = ValidationResult.objects.filter(trace=first.trace_id).order_by("-sequence")[0]
    assert second.pk != first.pk and second.verdict == "passed"
    view = view_of(second)
    assert view.version == 2 and view.brief is not None
    for name, value in AFTER.items():
        assert view.brief.to_json()[name] == value
    assert [c.judged.criterion for c in view.criteria if c.judged.decides] == AFTER[
        "completion_criteria"
    ]
    state = protocol_of(root.pk)
    assert state is not None and not state.reviews_due
    review = state.children[first.trace_id].review
    assert review is not None and review.decision == "ACCEPT"
    assert not Command.objects.filter(status="pending").exists()
    plan = reviews.plan_correction(first, "Again.", by=olga)
    assert plan.way == "none" and "not the one that counts" in plan.why
