"""The texts of the recursive protocol: what they hold, in both languages, once they are filled."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.context_policy import normalize_task_brief
from cyberagent.core.lineage import anchor_text, root_opening, superseding, told_anchor
from cyberagent.core.reports import Artifact
from cyberagent.core.types import text_message
from cyberagent.core.validation import ValidationPacket, build_validation_packet, read_verdict
from cyberagent.core.verdicts import plan_validation
from cyberagent.core.wording import label, wording
from tests.core.protocol_values import anchor, brief_json, report

LANGUAGES = ("en", "zh")

FILLS = {
    "recursive": set(),
    "explore_agent": set(),
    "report_reminder": set(),
    "root_anchor": {"anchor"},
    "anchor_superseded": {"anchor", "why"},
    "child_task": {"anchor", "lineage", "brief", "version", "refs"},
    "reviews_due": {"children"},
    "root_rejected": {"reasons"},
    "operator_review": {"child", "decision", "reason", "brief", "by"},
}
"""What the framework knows when it tells each of them."""

ALL = [(language, name) for language in LANGUAGES for name in FILLS]
BRACES = 'with {braces}, {} and a "quote"'


@pytest.mark.parametrize(("language", "name"), ALL)
def test_every_place_is_filled_once_and_what_fills_it_stays_as_it_is(language: str, name: str):
    text = wording(language, name)
    assert sorted(re.findall(r"\{(\w*)\}", text)) == sorted(FILLS[name])
    filled = text.format(**{fill: f"<{fill} {BRACES}>" for fill in FILLS[name]})
    for fill in FILLS[name]:
        assert filled.count(f"<{fill} {BRACES}>") == 1
    assert "{" not in filled.replace(BRACES, "")


def given_to_a_child(language: str, root_brief: str, lineage: str) -> str:
    return wording(language, "child_task").format(
        anchor=anchor_text(anchor()),
        lineage=lineage,
        brief=root_brief,
        version=3,
        refs=label(language, "no_refs"),
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_anchor_stands_once_where_a_trace_begins(language: str):
    root = anchor()
    opening = root_opening(root, language)
    assert opening.text.count(root.text) == opening.text.count(root.sha256) == 1
    brief = normalize_task_brief(brief_json(), root)
    task = given_to_a_child(language, brief.text, "r1 → p2")
    assert task.count(root.text) == task.count(root.sha256) == 1
    assert task.count(root.objective) == 1
    assert task.count(brief.text) == 1
    for text in ("r1 → p2", "3", label(language, "no_refs"), "`submit_report`"):
        assert text in task


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_revised_anchor_is_told_with_its_reason_and_counts_as_told(language: str):
    old, new = anchor(), anchor(constraints=["No card number is logged", "No downtime"])
    revision = AnchorRevision(anchor=new, by="ada", why="law changed", supersedes=old.sha256)
    told = superseding(revision, language)
    assert told.text.count(new.text) == 1 and "law changed" in told.text
    assert old.sha256 not in told.text
    assert told_anchor([root_opening(old, language), told]) == new.sha256


def packet() -> ValidationPacket:
    """A packet that holds what the example of the validator's text names: two criteria of the
    brief and one of the root, message 57, the artifact refund.py."""
    root = anchor(completion_criteria=["Orders can be paid"])
    brief = normalize_task_brief(brief_json(completion_criteria=["It runs", "It is whole"]), root)
    seen = replace(text_message("tool", "1 passed", source="tool"), sequence=57)
    made = build_validation_packet(
        anchor=root,
        plan=plan_validation(root, brief, model="m"),
        path=[seen],
        brief=brief,
        report=report(),
        artifacts=[Artifact(name="refund.py", kind="file", location="refund.py", content="x")],
    )
    assert isinstance(made, ValidationPacket)
    return made


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_that_a_validator_is_shown_is_an_answer_that_is_taken(language: str):
    text = wording(language, "validator")
    (example,) = [line for line in text.splitlines() if line.startswith("{")]
    result = read_verdict(example, packet())
    assert result.verdict == "failed"
    found = [(c.id, c.verdict, list(c.evidence)) for c in result.criteria]
    assert found == [
        ("B1", "passed", [57]),
        ("B2", "failed", ["refund.py"]),
        ("R1", "unknown", []),
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_validator_is_told_of_every_section_word_and_key_there_is(language: str):
    text = wording(language, "validator")
    sections = re.findall("^# .+$", packet().text, re.MULTILINE)
    assert len(sections) == 7
    for name in (*sections, "# Left out", "passed", "failed", "unknown", "decides", "checks"):
        assert name in text
    assert set(re.findall(r'"(\w+)":', text)) == {
        "verdict", "reason", "criteria", "criterion", "evidence", "decides",
    }  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_agent_is_told_of_every_tool_decision_and_field_of_the_protocol(language: str):
    text = wording(language, "recursive")
    tools = ("agent", "review_child", "submit_report", "read_context_ref", "explore",
             "delegate_research", "get_current_context")  # fmt: skip
    fields = ("objective", "completion_criteria", "expected_outputs", "parent_findings",
              "context", "context_refs", "ref_id", "version", "background")  # fmt: skip
    for name in (*tools, *fields):
        assert f"`{name}`" in text
    for word in ("ACCEPT", "REVISE_CHILD", "REPLACE", "ABANDON", "partial", "failed"):
        assert word in text


def test_both_languages_name_the_same_things():
    """What stands in backquotes are names of tools, fields and words; they are not translated."""
    for name in (*FILLS, "validator"):
        named = [sorted(set(re.findall("`[^`]+`", wording(lang, name)))) for lang in LANGUAGES]
        assert named[0] == named[1], name


def test_labels_stand_once_in_each_language_with_the_same_places():
    found = []
    for language in LANGUAGES:
        lines = [line.partition(": ") for line in wording(language, "labels").splitlines()]
        keys = [key for key, _, _ in lines]
        assert len(keys) == len(set(keys))
        found.append({key: sorted(re.findall(r"\{\w+\}", text)) for key, _, text in lines})
    assert found[0] == found[1]
