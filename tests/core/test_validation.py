"""The validator's packet, which the agent under test has no hand in, and the verdict read of it."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberagent.core.errors import InvalidTaskValue, ToolFailed
from cyberagent.core.reports import Artifact, TaskReport, normalize_task_report
from cyberagent.core.types import (
    INTERRUPTED_RESULT,
    File,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    text_message,
)
from cyberagent.core.validation import (
    ValidationPacket,
    build_validation_packet,
    read_verdict,
    resolve_artifacts,
)
from cyberagent.core.verdicts import (
    Reviewer,
    ValidationResult,
    normalize_task_review,
    plan_validation,
    read_plan,
    read_result,
    read_review,
)
from cyberagent.tools.workspace import read_bytes
from tests.core.protocol_values import anchor, brief, report, result, review

ANCHOR = anchor()
BRIEF = brief(ANCHOR)
PLAN = plan_validation(ANCHOR, BRIEF, model="judge-1")
LIMIT = 50_000


def packet(path: list[Message] | None = None, **parts: Any) -> ValidationPacket:
    parts = {"anchor": ANCHOR, "brief": BRIEF, "plan": PLAN, "report": report()} | parts
    built = build_validation_packet(path=path or [], **parts)
    assert isinstance(built, ValidationPacket)
    return built


def said(sequence: int, text: str, **fields: Any) -> Message:
    return text_message("assistant", text, source="model", sequence=sequence, **fields)


def shown(built: ValidationPacket) -> list[dict[str, Any]]:
    """The lines of messages, as JSON, in the order in which they stand."""
    _, _, tail = built.text.partition("\n\n# Messages, newest first\n")
    lines = tail.partition("\n\n# Left out\n")[0].splitlines()
    return [json.loads(line) for line in lines]


# Artifacts -------------------------------------------------------------------------------------


def made(outputs: list[dict[str, str]], workspace: Path) -> list[Artifact]:
    told = normalize_task_report({"status": "partial", "summary": "s", "outputs": outputs})
    return list(resolve_artifacts(told, partial(read_bytes, workspace)))


def test_hash_and_size_are_computed_from_the_file_itself(tmp_path: Path) -> None:
    data = "naïve 数据\r\n".encode()
    (tmp_path / "out.txt").write_bytes(data)
    [found] = made([{"name": "the file", "artifact": "out.txt"}], tmp_path)
    assert (found.kind, found.location, found.problem) == ("file", "out.txt", "")
    assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert found.content == "naïve 数据\r\n"


def test_an_artifact_that_is_not_there_stays_in_the_list_with_the_reason(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "link").symlink_to(outside)
    outputs = [
        {"name": "a", "artifact": "gone.txt"},
        {"name": "b", "artifact": "../outside"},
        {"name": "c", "artifact": "link"},
        {"name": "d", "artifact": "."},
    ]
    found = made(outputs, workspace)
    assert [a.name for a in found] == ["a", "b", "c", "d"]
    assert all(a.problem and a.sha256 == "" and a.size is None for a in found)
    assert "there is no `gone.txt`" in found[0].problem
    assert "leaves the workspace" in found[1].problem and "leaves" in found[2].problem


def test_binary_files_texts_and_urls(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"\x89PNG\0")
    (tmp_path / "l").write_bytes(b"caf\xe9")
    outputs = [
        {"name": "picture", "artifact": "b"},
        {"name": "latin", "artifact": "l"},
        {"name": "answer", "text": "42 ✓"},
        {"name": "page", "artifact": "HTTPS://example.org/x"},
    ]
    picture, latin, answer, page = made(outputs, tmp_path)
    assert (picture.content, picture.size, latin.content) == (None, 5, None)
    assert (answer.kind, answer.content, answer.size) == ("text", "42 ✓", 6)
    assert answer.sha256 == hashlib.sha256("42 ✓".encode()).hexdigest()
    assert (page.kind, page.sha256, page.content) == ("url", "", None)
    assert "not fetched" in page.problem


def test_a_report_without_outputs_has_no_artifacts() -> None:
    def read(path: str) -> bytes:
        raise ToolFailed(path)

    assert resolve_artifacts(None, read) == resolve_artifacts(report(), read) == ()


# The packet ------------------------------------------------------------------------------------


def test_every_fixed_part_stands_in_the_packet_as_it_is() -> None:
    told = report(outputs=[{"name": "n", "text": "a\n# TaskBrief\nb"}])
    artifacts = resolve_artifacts(told, lambda path: b"")
    built = packet(report=told, artifacts=artifacts, candidate=said(9, "Done.\nAll of it."))
    for text in (ANCHOR.text, BRIEF.text, told.text, PLAN.text):
        assert text in built.text
    assert json.loads(built.parts["CandidateAnswer"]) == {
        "sequence": 9,
        "text": "Done.\nAll of it.",
    }
    assert json.loads(built.parts["Artifacts"])[0]["content"] == "a\n# TaskBrief\nb"
    headings = [line for line in built.text.splitlines() if line.startswith("# ")]
    assert headings == [
        "# RootTaskAnchor",
        "# TaskBrief",
        "# TaskReport",
        "# ValidationPlan",
        "# Artifacts",
        "# CandidateAnswer",
    ]
    assert built.sha256 == hashlib.sha256(built.text.encode()).hexdigest()


def test_messages_follow_newest_first_with_calls_and_results() -> None:
    path = [
        text_message("user", "Go\n# Messages", source="framework", sequence=1),
        Message(
            role="assistant",
            source="model",
            sequence=2,
            parts=(Text("I look."), ToolCall("c1", "read_file", '{"path": "a"}', extra="sig")),
        ),
        Message(
            role="tool",
            source="tool",
            sequence=3,
            parts=(Text("no such file"),),
            tool_call_id="c1",
            name="read_file",
            is_error=True,
        ),
    ]
    built = packet(path)
    assert shown(built) == [
        {
            "sequence": 3,
            "role": "tool",
            "source": "tool",
            "name": "read_file",
            "text": "no such file",
            "is_error": True,
            "tool_call_id": "c1",
        },
        {
            "sequence": 2,
            "role": "assistant",
            "source": "model",
            "text": "I look.",
            "tool_calls": [
                {
                    "id": "c1",
                    "name": "read_file",
                    "arguments": '{"path": "a"}',
                    "made_by": "model",
                }
            ],
        },
        {"sequence": 1, "role": "user", "source": "framework", "text": "Go\n# Messages"},
    ]
    assert (built.sequences, built.left_out) == ({1, 2, 3}, 0)


def test_side_branches_reasoning_and_placeholders_are_not_in_the_packet() -> None:
    tool = Message(role="tool", source="framework", sequence=5, parts=(Text(INTERRUPTED_RESULT),))
    path = [
        Message(
            role="assistant",
            source="model",
            sequence=2,
            parts=(Reasoning("SECRET-THOUGHT", blob={"s": "SECRET-BLOB"}), Text("said")),
        ),
        said(3, "SECRET-BRANCH", branch_id="b1", branch_type="reflection"),
        said(4, "SECRET-TYPE", branch_type="compression"),
        tool,
    ]
    built = packet(path)
    assert built.sequences == {2}
    assert "SECRET" not in built.text and INTERRUPTED_RESULT not in built.text


def test_a_ref_is_in_the_packet_only_as_far_as_the_agent_read_it() -> None:
    with_ref = brief(ANCHOR, context_refs=[{"ref_id": "r", "version": "a" * 64}])
    read = Message(
        role="tool", source="tool", sequence=2, name="read_context_ref", parts=(Text("THE SLICE"),)
    )
    assert [m["text"] for m in shown(packet([read], brief=with_ref))] == ["THE SLICE"]
    assert shown(packet([], brief=with_ref)) == []


def test_the_whole_output_of_a_tool_is_shown_where_it_fits_else_what_the_agent_saw() -> None:
    def output(size: int) -> Message:
        return Message(
            role="tool", source="tool", sequence=2, parts=(Text("short"),), full_output="x" * size
        )

    [whole] = shown(packet([output(20_000)]))
    assert whole["text"] == "x" * 20_000 and "form" not in whole
    [part] = shown(packet([output(60_000)]))
    assert (part["text"], part["form"]) == ("short", "as shown to the agent")


def test_images_and_files_are_named() -> None:
    message = Message(
        role="user",
        source="user",
        sequence=1,
        parts=(
            Image(media_type="image/png", data="QUJD"),
            File(name="a.csv", text="1,2"),
            File(name="b.bin", data="QUJD"),
        ),
    )
    [line] = shown(packet([message]))
    assert line["text"] == "[image image/png]\n[file a.csv]\n1,2\n[file b.bin]"


def test_the_candidate_answer_is_shown_once() -> None:
    answer = said(7, "THE ANSWER")
    built = packet([said(6, "before"), answer], candidate=answer)
    assert built.text.count("THE ANSWER") == 1
    assert (built.sequences, built.left_out) == ({6, 7}, 0)


def test_half_a_surrogate_pair_in_a_message_does_no_harm() -> None:
    built = packet([said(1, "a\ud800b"), said(2, "c\0d")], candidate=said(3, "\udfff"))
    assert [m["text"] for m in shown(built)] == ["c\0d", "a\ufffdb"]
    built.text.encode()


def test_old_messages_are_left_out_whole_and_counted() -> None:
    path = [said(n, f"{n}:" + "x" * 9_000) for n in range(1, 11)]
    built = packet(path)
    assert [m["sequence"] for m in shown(built)] == [10, 9, 8, 7, 6]
    assert built.text.endswith('\n\n# Left out\n{"messages":5}')
    assert built.left_out == 5 and len(built.text) <= LIMIT


def test_a_message_that_does_not_fit_does_not_hide_the_older_ones() -> None:
    built = packet([said(1, "old"), said(2, "x" * 60_000), said(3, "new")])
    assert [m["sequence"] for m in shown(built)] == [3, 1]
    assert built.left_out == 1


def filling(characters: int) -> dict[str, Any]:
    """Parts whose fixed text has exactly this many characters."""

    def parts(size: int) -> dict[str, Any]:
        text = Artifact(name="a", kind="text", content="x" * size)
        return {"artifacts": [text]}

    return parts(characters - len(packet(**parts(0)).text))


def test_a_fixed_part_of_exactly_50000_characters_is_sent_alone() -> None:
    built = packet([said(1, "hello")], **filling(LIMIT))
    assert len(built.text) == LIMIT
    assert (built.sequences, built.left_out) == (frozenset(), 1)


def test_a_fixed_part_over_the_limit_is_unknown_and_nothing_is_shortened() -> None:
    built = build_validation_packet(
        path=[], anchor=ANCHOR, brief=BRIEF, plan=PLAN, report=report(), **filling(LIMIT + 1)
    )
    assert isinstance(built, ValidationResult)
    assert (built.verdict, built.packet_sha256, built.model) == ("unknown", "", "judge-1")
    assert "50,001 characters" in built.reason and "Artifacts" in built.reason
    assert {c.verdict for c in built.criteria} == {"unknown"}
    assert [c.id for c in built.criteria] == ["B1", "R1", "R2"]


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([1, 200, 7_000, 30_000, 49_000, 120_000]),
        st.sampled_from(["", "b1"]),
        st.sampled_from(["x", "界", '"', "\n"]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(MESSAGES, st.sampled_from([0, 10_000, 48_900, 49_990, 50_000]))
def test_what_holds_of_every_packet(drawn: list[tuple[int, str, str]], fixed: int) -> None:
    path = [said(n, c * size, branch_id=b) for n, (size, b, c) in enumerate(drawn, 1)]
    built = packet(path, **(filling(fixed) if fixed else {}))
    text = built.text
    assert len(text) <= LIMIT
    at = 0
    for part in built.parts.values():
        at = text.index(part, at) + len(part)
    lines = shown(built)
    order = [m["sequence"] for m in lines]
    assert order == sorted(order, reverse=True) and set(order) == built.sequences
    on_path = [m for m in path if not m.branch_id]
    assert built.sequences <= {m.sequence for m in on_path}
    assert len(order) + built.left_out == len(on_path)
    assert all(m["text"] == path[m["sequence"] - 1].text for m in lines)
    # What was left out would not have fitted: a line is its text in JSON and about 80 more.
    free = LIMIT - len(text)
    for message in on_path:
        if message.sequence not in built.sequences:
            assert len(json.dumps(message.text, ensure_ascii=False)) + 130 > free


# Reading a verdict -------------------------------------------------------------------------------

ARTIFACT = Artifact(name="refund.py", kind="file", location="refund.py", content="pass")
PACKET = packet([said(4, "tested")], artifacts=[ARTIFACT])


def answer(verdict: str = "passed", **changes: Any) -> dict[str, Any]:
    criterion = {
        "criterion": "B1",
        "verdict": verdict,
        "reason": "Message 4 shows it.",
        "evidence": [4, "refund.py"],
    } | changes
    return {"verdict": verdict, "criteria": [criterion]}


def read(value: Any) -> ValidationResult:
    return read_verdict(value if isinstance(value, str) else json.dumps(value), PACKET)


@pytest.mark.parametrize("word", ["passed", "failed", "unknown"])
def test_a_verdict_in_the_right_form_is_taken(word: str) -> None:
    usage = Usage(prompt=10, completion=2)
    found = read_verdict(
        json.dumps(answer(word) | {"reason": " Overall. "}),
        PACKET,
        model="judge-2",
        usage=usage,
        cost=0.25,
        created_at="2026-05-01T10:00:00Z",
    )
    assert (found.verdict, found.reason, found.model) == (word, "Overall.", "judge-2")
    assert (found.usage, found.cost, found.created_at) == (usage, 0.25, "2026-05-01T10:00:00Z")
    assert found.packet_sha256 == PACKET.sha256
    first = found.criteria[0]
    assert (first.id, first.criterion) == ("B1", "A refund reaches the bank")
    assert (first.verdict, first.evidence) == (word, (4, "refund.py"))
    assert [(c.id, c.verdict) for c in found.criteria[1:]] == [("R1", "unknown"), ("R2", "unknown")]


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", " \n```json\r\n{}\r\n```\n"])
def test_one_fence_around_it_is_allowed(fence: str) -> None:
    assert read(fence.replace("{}", json.dumps(answer(), indent=1))).verdict == "passed"


def test_a_criterion_may_be_named_by_its_text() -> None:
    assert read(answer(criterion="A refund reaches the bank")).verdict == "passed"


GOOD = json.dumps(answer())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "passed",
        "PASSED",
        '"passed"',
        "Great work! Everything is passed.",
        f"Here is my verdict: {GOOD}",
        f"```json\n{GOOD}\n``` It is all very good.",
        f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```",
        f"```yaml\n{GOOD}\n```",
        f"[{GOOD}]",
        GOOD[:-1],
        GOOD.replace('"passed"', '"pass"'),
        GOOD.replace('"passed"', '"Passed"'),
        GOOD.replace('"passed"', "true"),
        GOOD.replace('"passed"', '["passed"]'),
        GOOD.replace("{", '{"verdict": "failed", ', 1),
        GOOD.replace("{", '{"score": NaN, ', 1),
        GOOD.replace("{", '{"score": 10, ', 1),
        GOOD.replace("Message 4", "\\ud800"),
        GOOD.replace("[4,", "[1e999,"),
        "[" * 200_000,
        '{"verdict": "passed"}',
        '{"verdict": "passed", "criteria": []}',
        '{"verdict": "passed", "criteria": null}',
        '{"verdict": "passed", "criteria": "all"}',
        "null",
    ],
)
def test_anything_else_is_unknown_with_the_reason(text: str) -> None:
    found = read(text)
    assert found.verdict == "unknown"
    assert found.reason.startswith("the validator's answer cannot be used: ")
    assert {c.verdict for c in found.criteria} == {"unknown"}
    assert found.packet_sha256 == PACKET.sha256


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (answer(evidence=[]), "called passed"),
        (answer(evidence=[5]), "not in the packet"),
        (answer(evidence=["other.py"]), "not in the packet"),
        (answer(evidence=[True]), "message sequences"),
        (answer(evidence=[0]), "message sequences"),
        (answer(evidence=[4.0]), "message sequences"),
        (answer(reason=" "), "reason"),
        (answer(criterion="B2"), "not in the plan"),
        (answer(criterion="R1"), "lacks B1"),
        (answer() | {"criteria": answer()["criteria"] * 2}, "judged twice"),
        (answer() | {"verdict": "failed"}, "passed follows"),
        (answer("failed") | {"verdict": "passed"}, "failed follows"),
        (answer("unknown") | {"verdict": "passed"}, "unknown follows"),
        (answer(confidence=1), "confidence"),
    ],
)
def test_a_verdict_that_contradicts_itself_or_the_packet_is_unknown(value: Any, why: str) -> None:
    found = read(value)
    assert found.verdict == "unknown" and why in found.reason


def test_the_roots_criteria_do_not_decide_about_a_child_but_about_the_root() -> None:
    value = answer()
    value["criteria"].append(
        {"criterion": "R1", "verdict": "failed", "reason": "Not yet.", "evidence": []}
    )
    assert read(value).verdict == "passed"
    assert [c.verdict for c in read(value).criteria] == ["passed", "failed", "unknown"]
    own = packet([said(4, "x")], brief=None, report=None, plan=plan_validation(ANCHOR, model="m"))
    judged = [
        {"criterion": f"R{n}", "verdict": "passed", "reason": "r", "evidence": [4]} for n in (1, 2)
    ]
    whole = read_verdict(json.dumps({"verdict": "passed", "criteria": judged}), own)
    assert whole.verdict == "passed"
    half = read_verdict(json.dumps({"verdict": "passed", "criteria": judged[:1]}), own)
    assert half.verdict == "unknown" and "lacks R2" in half.reason


@settings(deadline=None)
@given(
    st.text()
    | st.recursive(
        st.sampled_from(["passed", "B1", "verdict", 4, True, None, 1.5]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["verdict", "criteria", "criterion", "reason", "evidence", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_no_answer_is_passed_unless_its_criteria_are(text: str) -> None:
    found = read_verdict(text, PACKET)
    assert found.verdict != "passed" or found.criteria[0].evidence
    assert len(found.criteria) == 3


# Plan, report, result, review ------------------------------------------------------------------


def test_a_plan_is_made_from_anchor_and_brief() -> None:
    assert [(c.id, c.criterion, c.decides) for c in PLAN.criteria] == [
        ("B1", "A refund reaches the bank", True),
        ("R1", "Orders can be paid", False),
        ("R2", "The old service is switched off", False),
    ]
    assert (PLAN.model, PLAN.anchor_sha256, PLAN.brief_sha256) == (
        "judge-1",
        ANCHOR.sha256,
        BRIEF.sha256,
    )
    assert PLAN.checks == ("expected_outputs", "constraints", "artifacts")
    assert all(c.decides for c in plan_validation(ANCHOR, model="m").criteria)
    assert read_plan(PLAN.to_json()) == PLAN
    with pytest.raises(InvalidTaskValue, match="twice"):
        read_plan(PLAN.to_json() | {"criteria": PLAN.to_json()["criteria"] * 2})


FULL = {
    "status": "partial",
    "summary": " Half of it. ",
    "criteria": [
        {"criterion": "A refund reaches the bank", "met": False, "evidence": [3, "log", 3]}
    ],
    "outputs": [{"name": "log", "text": ""}, {"name": "code", "artifact": "refund.py"}],
    "open_issues": ["No key", "No key "],
    "knowledge": None,
}


def test_a_report_in_normal_form() -> None:
    found = normalize_task_report(FULL, BRIEF.completion_criteria)
    assert found.to_json() == {
        "status": "partial",
        "summary": "Half of it.",
        "criteria": [
            {"criterion": "A refund reaches the bank", "met": False, "evidence": [3, "log"]}
        ],
        "outputs": [{"name": "log", "text": ""}, {"name": "code", "artifact": "refund.py"}],
        "open_issues": ["No key"],
        "knowledge": [],
    }
    assert normalize_task_report(json.loads(found.text)) == found


def claim(**changes: Any) -> dict[str, Any]:
    return {"criteria": [{"criterion": "c", "met": True, "evidence": []} | changes]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"status": "done"}, "status"),
        ({"summary": ""}, "summary"),
        ({"verdict": "passed"}, "verdict"),
        (claim(met="yes"), "criteria[0].met"),
        (claim(criterion=""), "criteria[0].criterion"),
        (claim(evidence=["nowhere"]), "criteria[0].evidence"),
        (claim(evidence=[True]), "criteria[0].evidence"),
        (claim(evidence=[-1]), "criteria[0].evidence"),
        ({"criteria": claim()["criteria"] * 2}, "criteria[1].criterion"),
        ({"outputs": [{"name": "a"}]}, "outputs[0].artifact"),
        ({"outputs": [{"name": "a", "artifact": "b", "text": "c"}]}, "outputs[0].artifact"),
        ({"outputs": [{"name": "a", "artifact": " "}]}, "outputs[0].artifact"),
        ({"outputs": [{"name": "a", "text": "x"}] * 2}, "outputs[1].name"),
        ({"outputs": [{"name": "a", "text": "x", "sha256": "0"}]}, "outputs[0].sha256"),
        ({"knowledge": [float("nan")]}, "knowledge"),
    ],
)
def test_a_malformed_report_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTaskValue) as caught:
        report(**changes)
    assert caught.value.field == field


def test_a_claim_about_another_criterion_is_refused() -> None:
    with pytest.raises(InvalidTaskValue, match="not one of the task's"):
        normalize_task_report(FULL, ["Another"])


def test_a_result_is_read_as_it_was_written() -> None:
    found = read_verdict(GOOD, PACKET, usage=Usage(prompt=3), cost=0.5, created_at="now")
    assert read_result(json.loads(json.dumps(found.to_json()))) == found
    assert read_result(result("unknown").to_json()) == result("unknown")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"verdict": "ok"}, "verdict"),
        ({"cost": "free"}, "cost"),
        ({"usage": {"prompt": -1}}, "usage.prompt"),
        ({"criteria": [{"id": "B1", "criterion": "c", "verdict": "x"}]}, "criteria[0].verdict"),
    ],
)
def test_a_malformed_result_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTaskValue) as caught:
        read_result(result("passed").to_json() | changes)
    assert caught.value.field == field


@pytest.mark.parametrize("verdict", ["failed", "unknown"])
def test_accepting_what_did_not_pass_needs_a_reason_and_is_marked(verdict: Any) -> None:
    with pytest.raises(InvalidTaskValue, match=f"a verdict that is {verdict}") as caught:
        review("ACCEPT", ANCHOR, verdict=verdict, reason=" ")
    assert caught.value.field == "reason"
    assert review("ACCEPT", ANCHOR, verdict=verdict, reason="ok").against_verdict == verdict
    assert review("ABANDON", ANCHOR, verdict=verdict).against_verdict == ""


def test_accepting_what_passed_needs_no_reason_and_is_not_marked() -> None:
    assert review("ACCEPT", ANCHOR).against_verdict == ""


def test_a_next_brief_is_needed_and_normalised_or_cannot_stand() -> None:
    own = brief(ANCHOR, constraints=["Own"])
    following = {"objective": " Again ", "completion_criteria": ["c"], "expected_outputs": ["o"]}
    for decision in ("REVISE_CHILD", "REPLACE"):
        found = review(decision, ANCHOR, own=own, next_brief=following).next_brief
        assert found is not None and found == brief(ANCHOR, own, **following)
        assert found.constraints == ("No card number is logged", "Own")
        with pytest.raises(InvalidTaskValue, match="is needed"):
            review(decision, ANCHOR)
    for decision in ("ACCEPT", "ABANDON"):
        with pytest.raises(InvalidTaskValue, match="cannot stand"):
            review(decision, ANCHOR, next_brief=following)


def test_a_review_is_read_as_it_was_written_and_not_if_it_was_changed() -> None:
    made = review("REPLACE", ANCHOR, verdict="failed", next_brief=BRIEF.to_json(), reason="r")
    stored = json.loads(json.dumps(made.to_json()))
    assert read_review(stored) == made
    assert stored["next_brief_sha256"] == BRIEF.sha256
    stored["next_brief"]["constraints"] = []
    with pytest.raises(InvalidTaskValue, match="next_brief_sha256"):
        read_review(stored)


@pytest.mark.parametrize("decision", ["accept", "", None, "MERGE"])
def test_other_decisions_are_refused(decision: Any) -> None:
    with pytest.raises(InvalidTaskValue, match="decision must be one of"):
        normalize_task_review(
            {"decision": decision},
            verdict="passed",
            anchor=ANCHOR,
            brief=None,
            reviewer=Reviewer(kind="operator", id="ada"),
            created_at="",
        )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a", " a", "b", "", "c\n"]), max_size=6),
    st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=3),
    st.sampled_from(["completed", "partial", "failed"]),
)
def test_normalising_a_report_once_is_enough(
    texts: list[str], names: list[str], status: str
) -> None:
    found: TaskReport = report(
        status=status,
        open_issues=texts,
        knowledge=texts,
        outputs=[{"name": n, "artifact": f"{n}.txt "} for n in names],
        criteria=[{"criterion": f" {n}", "met": True, "evidence": [1, n]} for n in names],
    )
    assert normalize_task_report(found.to_json()) == found
    assert list(found.open_issues) == list(dict.fromkeys(t.strip() for t in texts if t.strip()))
