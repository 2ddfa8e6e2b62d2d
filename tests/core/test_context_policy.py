"""What a child gets: the anchor, its contract and refs, in one normal form or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.context_policy import (
    brief_under,
    build_child_context_access,
    check_tree,
    differences,
    matches,
    normalize_root_task_anchor,
    normalize_task_brief,
    read_root_task_anchor,
    revise_anchor,
)
from cyberagent.core.errors import InvalidInput, InvalidTaskValue, RefRefused, TreeTooLarge
from cyberagent.core.normal import MAX_DEPTH, WHITESPACE, parse_json, unique
from cyberagent.core.refs import Catalogue, ContextRef, Grant, Snapshot
from tests.core.protocol_values import anchor, anchor_json, brief, brief_json

ROOT = Path(__file__).resolve().parents[2]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def refused(call: Callable[[], object]) -> InvalidTaskValue:
    with pytest.raises(InvalidTaskValue) as caught:
        call()
    return caught.value


# The anchor ------------------------------------------------------------------------------------

KNOWN = {
    "objective": "\u3000 Add a login — 登录\n",
    "completion_criteria": ["Tests pass ", "文档", "Tests pass", " "],
    "constraints": ["No new dependency", "\tNo new dependency"],
}
# What `sha256sum` says of the canonical text, written out by hand:
# {"completion_criteria":["Tests pass","文档"],"constraints":["No new dependency"],…}
KNOWN_SHA256 = "685a23d14a2b645c217dcc593879c62a8fa6af824d24507f2f37d8d03869d52a"


def test_an_anchor_is_stripped_deduplicated_and_hashed() -> None:
    found = normalize_root_task_anchor(KNOWN)
    assert found.text == (
        '{"completion_criteria":["Tests pass","文档"],"constraints":["No new dependency"],'
        '"objective":"Add a login — 登录"}'
    )
    assert found.sha256 == KNOWN_SHA256


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_hash_is_the_same_in_every_process(seed: str) -> None:
    code = (
        "import json, sys\n"
        "from cyberagent.core.context_policy import *\n"
        "a = normalize_root_task_anchor(json.loads(sys.argv[1]))\n"
        "b = normalize_task_brief(json.loads(sys.argv[2]), a)\n"
        "print(a.sha256, b.sha256)"
    )
    context = {"z": 1, "a": [0.1, 1e22, -0.0], "é": {"2": 1, "10": None}}
    task = brief_json(context=context)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(KNOWN), json.dumps(task)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    mine = normalize_task_brief(task, normalize_root_task_anchor(KNOWN))
    assert done.stdout.split() == [KNOWN_SHA256, mine.sha256]


def test_what_is_stripped_is_frozen_and_is_what_this_python_calls_white_space() -> None:
    assert set(WHITESPACE) == {c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()}


@pytest.mark.parametrize("character", ["x", "界", "\U0001f600", "\n"])
def test_an_anchor_may_have_4000_characters_and_not_one_more(character: str) -> None:
    # {"completion_criteria":["c"],"constraints":[],"objective":""} has 61 characters, and a
    # line feed is written as two.
    width = 2 if character == "\n" else 1
    room = 4_000 - 61 - 2
    fits = "a" + character * (room // width) + "a" * (room % width) + "a"
    value = {"completion_criteria": ["c"], "constraints": [], "objective": fits}
    assert len(normalize_root_task_anchor(value).text) == 4_000
    error = refused(lambda: normalize_root_task_anchor(value | {"objective": fits + "a"}))
    assert (error.field, error.limit) == ("objective", 4_000)
    assert "4,001 characters" in str(error) and "4,000 fit" in str(error)


def test_the_error_of_a_long_anchor_names_its_longest_field() -> None:
    error = refused(lambda: anchor(constraints=[f"{n}" * 300 for n in range(100, 110)]))
    assert error.field == "constraints"


@pytest.mark.parametrize("field", ["objective", "completion_criteria", "constraints"])
def test_every_field_of_an_anchor_must_be_given(field: str) -> None:
    value = anchor_json()
    del value[field]
    error = refused(lambda: normalize_root_task_anchor(value))
    assert error.field == field and "missing" in str(error)


def test_an_anchor_may_have_no_constraints_but_not_no_criteria() -> None:
    assert anchor(constraints=[]).constraints == ()
    assert refused(lambda: anchor(completion_criteria=[" "])).field == "completion_criteria"
    assert refused(lambda: anchor(objective="\n")).field == "objective"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"deadline": "May"}, "deadline"),
        ({"objective": 3}, "objective"),
        ({"objective": None}, "objective"),
        ({"objective": "a\0b"}, "objective"),
        ({"objective": "a\ud800"}, "objective"),
        ({"completion_criteria": "all of it"}, "completion_criteria"),
        ({"completion_criteria": ["a", 1]}, "completion_criteria[1]"),
        ({"constraints": {"a": "b"}}, "constraints"),
        ({"constraints": [["a"]]}, "constraints[0]"),
    ],
)
def test_a_malformed_anchor_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    error = refused(lambda: anchor(**changes))
    assert error.field == field
    assert isinstance(error, InvalidInput) and "RootTaskAnchor" in str(error)


@pytest.mark.parametrize("value", [None, "text", [], 3, ["objective"]])
def test_what_is_no_object_is_no_anchor(value: object) -> None:
    assert "must be an object" in str(refused(lambda: normalize_root_task_anchor(value)))


def test_an_anchor_file_may_have_a_byte_order_mark_and_windows_line_ends() -> None:
    text = "\ufeff" + json.dumps(anchor_json(), indent=2).replace("\n", "\r\n")
    assert read_root_task_anchor(text) == anchor()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        "1" * 5_000,
        "{'a': 1}",
        "\x00",
    ],
)
def test_json_is_read_strictly(text: str) -> None:
    refused(lambda: parse_json(text, "file"))


def test_a_number_too_large_for_json_is_refused_after_reading() -> None:
    assert "Infinity" in str(refused(lambda: brief(anchor(), context=parse_json("1e999", "x"))))


# Revisions -------------------------------------------------------------------------------------


def revised(**changes: Any) -> tuple[AnchorRevision, ...]:
    first = AnchorRevision(anchor=anchor())
    return revise_anchor([first], anchor_json(**changes), by="ada", at="2026-05-02", why="audit")


def test_a_revision_keeps_the_old_anchor_and_says_which_it_supersedes() -> None:
    old, new = revised(constraints=["No card number is logged", "Euro only"])
    assert old.anchor == anchor()
    assert new.supersedes == old.anchor.sha256 != new.anchor.sha256
    assert (new.by, new.at, new.why) == ("ada", "2026-05-02", "audit")
    assert new.to_json()["sha256"] == hashlib.sha256(new.anchor.text.encode()).hexdigest()


def test_a_revision_that_changes_nothing_or_has_no_reason_is_refused() -> None:
    with pytest.raises(InvalidInput, match="already the same"):
        revised(objective=" Move the shop to the new payment service ")
    first = AnchorRevision(anchor=anchor())
    for by, why in (("ada", " "), ("", "audit")):
        with pytest.raises(InvalidInput, match="needs a name and a reason"):
            revise_anchor([first], anchor_json(constraints=[]), by=by, at="", why=why)
    with pytest.raises(InvalidInput, match="create it anew"):
        revise_anchor([], anchor_json(), by="ada", at="", why="audit")


def test_an_existing_brief_keeps_its_constraints_and_gets_the_new_ones_added() -> None:
    old = brief(anchor(), constraints=["Own"])
    new = brief_under(old, anchor(constraints=["Euro only"]))
    assert new.constraints == ("No card number is logged", "Own", "Euro only")
    assert old.constraints == ("No card number is logged", "Own")
    assert brief_under(new, anchor(constraints=["Own", "Euro only"])) is new


def test_a_revision_that_does_not_fit_into_a_brief_is_refused() -> None:
    empty = brief(anchor(), context="")
    full = brief(anchor(), context="x" * (16_000 - len(empty.text)))
    error = refused(lambda: brief_under(full, anchor(constraints=["Euro only"])))
    assert error.limit == 16_000


# The brief -------------------------------------------------------------------------------------


def test_a_brief_has_all_fields_in_canonical_form() -> None:
    ref = {"ref_id": "r", "version": "a" * 64}
    found = brief(
        anchor(),
        reason=" because ",
        parent_findings=["f", " f", {"b": 1, "a": 2}, {"a": 2, "b": 1}, None],
        context={"k": [1, 1]},
        constraints=["Own", "No card number is logged"],
        context_refs=[ref, dict(reversed(ref.items()))],
    )
    assert found.text == canonical(
        {
            "objective": "Write the refund call",
            "reason": "because",
            "completion_criteria": ["A refund reaches the bank"],
            "expected_outputs": ["refund.py"],
            "parent_findings": ["f", {"b": 1, "a": 2}],
            "context": {"k": [1, 1]},
            "constraints": ["No card number is logged", "Own"],
            "context_refs": [ref],
        }
    )
    assert found.sha256 == hashlib.sha256(found.text.encode()).hexdigest()


def test_constraints_come_from_the_anchor_then_the_parent_then_the_brief_itself() -> None:
    root = anchor(constraints=["A", "B"])
    parent = brief(root, constraints=["P", "B"])
    child = brief(root, parent, constraints=["C", "P", "A"])
    assert parent.constraints == ("A", "B", "P")
    assert child.constraints == ("A", "B", "P", "C")
    assert brief(root, child).constraints == ("A", "B", "P", "C")


@pytest.mark.parametrize("field", ["objective", "completion_criteria", "expected_outputs"])
@pytest.mark.parametrize("empty", ["absent", "null", "blank"])
def test_the_required_fields_of_a_brief(field: str, empty: str) -> None:
    value = brief_json()
    blank = " " if field == "objective" else [" "]
    value[field] = blank if empty == "blank" else None
    if empty == "absent":
        del value[field]
    assert refused(lambda: normalize_task_brief(value, anchor())).field == field


def test_optional_fields_that_are_null_are_as_if_not_given() -> None:
    nothing = dict.fromkeys(
        ["reason", "parent_findings", "context", "constraints", "context_refs"], None
    )
    assert brief(anchor(), **nothing) == brief(anchor())


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": []}, "messages"),
        ({"context": float("nan")}, "context"),
        ({"context": {"a": [float("inf")]}}, "context"),
        ({"parent_findings": [float("-inf")]}, "parent_findings"),
        ({"context": {"a": "\udfff"}}, "context"),
        ({"context": {"\ud800": 1}}, "context"),
        ({"context": {1: 2}}, "context"),
        ({"context": b"bytes"}, "context"),
        ({"context": {1, 2}}, "context"),
        ({"context": 10**400}, "context"),
        ({"context": nested(MAX_DEPTH)}, "context"),
        ({"context": nested(100_000)}, "context"),
        ({"expected_outputs": [{"name": "x"}]}, "expected_outputs[0]"),
        ({"context_refs": ["r"]}, "context_refs[0]"),
        ({"context_refs": [{"ref_id": "r"}]}, "context_refs[0].version"),
        ({"context_refs": [{"ref_id": "", "version": "a" * 64}]}, "context_refs[0].ref_id"),
        ({"context_refs": [{"ref_id": "r", "version": "A" * 64}]}, "context_refs[0].version"),
        ({"context_refs": [{"ref_id": "r", "version": "a" * 63}]}, "context_refs[0].version"),
        (
            {"context_refs": [{"ref_id": "r", "version": "a" * 64, "trace": "t"}]},
            "context_refs[0].trace",
        ),
    ],
)
def test_a_malformed_brief_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    error = refused(lambda: brief(anchor(), **changes))
    assert error.field == field and "TaskBrief" in str(error)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    wide: Any = [1]
    for _ in range(30):
        wide = [wide, wide]
    for value in (loop, wide):
        assert refused(lambda value=value: brief(anchor(), context=value)).limit


def test_nesting_up_to_the_limit_is_kept() -> None:
    assert brief(anchor(), context=nested(MAX_DEPTH - 1)).context == nested(MAX_DEPTH - 1)


def test_a_brief_may_have_16000_characters_with_what_it_inherits() -> None:
    root = anchor(constraints=["界" * 3_000])
    room = 16_000 - len(brief(root, context="").text)
    assert len(brief(root, context="x" * room).text) == 16_000
    error = refused(lambda: brief(root, context="x" * (room + 1)))
    assert (error.field, error.limit) == ("context", 16_000)
    assert "16,001 characters" in str(error)


def test_a_brief_does_not_change_with_the_value_that_it_was_made_of() -> None:
    context = {"a": [1]}
    found = brief(anchor(), context=context, parent_findings=[context])
    context["a"].append(2)
    found.to_json()["context"]["a"].append(3)
    assert found.context == {"a": [1]} == found.to_json()["context"]
    assert found.parent_findings == ({"a": [1]},)


def test_a_context_that_is_a_list_loses_repetitions_and_lists_inside_it_do_not() -> None:
    assert brief(anchor(), context=[" a", " a", [1, 1], ""]).context == [" a", [1, 1], ""]
    assert brief(anchor(), context=" a ").context == "a"


def test_one_true_and_one_point_zero_are_three_findings() -> None:
    assert brief(anchor(), parent_findings=[1, True, 1.0, 1]).text.count("[1,true,1.0]") == 1


def test_an_approved_brief_matches_only_itself() -> None:
    root = anchor()
    approved = brief(root, constraints=["Own"])
    same = brief(root, constraints=[" Own", "No card number is logged"], reason="  ")
    assert matches(approved, same)
    other = brief(root, constraints=["Own"], objective="Write the refund calls")
    assert not matches(approved, other)
    assert differences(approved, other) == ["objective"]


# Refs ------------------------------------------------------------------------------------------


def snapshot(ref_id: str, characters: int) -> Snapshot:
    return Snapshot(ref_id, "reviewed_task_result", "x" * characters)


def holding(*snapshots: Snapshot) -> Catalogue:
    return Catalogue(tuple(Grant(s, 1) for s in snapshots))


def passing(*refs: ContextRef) -> Any:
    return brief(anchor(), context_refs=[r.to_json() for r in refs])


def test_a_child_of_the_root_gets_what_is_passed_on_and_nothing_else() -> None:
    a, b = snapshot("a", 10), snapshot("b", 20)
    access = build_child_context_access(holding(a, b), passing(b.ref), parent_trace="root")
    assert access == (b,)


def test_a_grandchild_also_gets_the_contract_of_its_direct_parent() -> None:
    own = brief(anchor(), objective="Own")
    access = build_child_context_access(holding(), passing(), parent_trace="t2", parent_brief=own)
    assert [(s.kind, s.text, s.version) for s in access] == [("task_brief", own.text, own.sha256)]


def test_only_exact_pairs_of_the_own_catalogue_can_be_passed_on() -> None:
    a, b = snapshot("a", 10), snapshot("b", 20)
    wrong = [
        ContextRef("a", b.version),
        ContextRef("b", a.version),
        ContextRef("A", a.version),
        ContextRef("task_brief:t2", brief(anchor()).sha256),
    ]
    for ref in wrong:
        with pytest.raises(RefRefused, match=f"'{ref.ref_id}'"):
            build_child_context_access(
                holding(a), passing(ref), parent_trace="t2", parent_brief=brief(anchor())
            )


def test_eight_refs_fit_and_nine_do_not() -> None:
    held = [snapshot(f"r{n}", 10) for n in range(9)]
    eight = passing(*(s.ref for s in held[:8]))
    assert len(build_child_context_access(holding(*held), eight, parent_trace="root")) == 8
    assert refused(lambda: passing(*(s.ref for s in held))).field == "context_refs"
    error = refused(
        lambda: build_child_context_access(
            holding(*held), eight, parent_trace="t", parent_brief=brief(anchor())
        )
    )
    assert (error.field, error.limit) == ("context_refs", 8)


def test_64000_characters_fit_and_one_more_does_not() -> None:
    held = [snapshot(f"r{n}", 16_000) for n in range(4)]
    refs = [s.ref for s in held]
    assert len(build_child_context_access(holding(*held), passing(*refs), parent_trace="r")) == 4
    more = snapshot("more", 1)
    error = refused(
        lambda: build_child_context_access(
            holding(*held, more), passing(*refs, more.ref), parent_trace="r"
        )
    )
    assert error.limit == 64_000 and "64,001 characters" in str(error)


def test_a_catalogue_says_why_a_snapshot_does_not_fit() -> None:
    assert holding().problem(snapshot("a", 16_000)) == ""
    assert "16,001" in holding().problem(snapshot("a", 16_001))
    full = [snapshot(f"r{n}", 10) for n in range(8)]
    assert holding(*full).problem(full[3]) == ""
    assert "9 refs" in holding(*full).problem(snapshot("new", 10))
    large = [snapshot(f"r{n}", 16_000) for n in range(4)]
    assert "64,001" in holding(*large).problem(snapshot("new", 1))


def test_a_listing_shows_metadata_and_no_contents() -> None:
    a = Snapshot("a", "task_brief", "secret words")
    assert holding(a).listing() == [
        {"ref_id": "a", "version": a.version, "kind": "task_brief", "characters": 12}
    ]
    assert a.version == hashlib.sha256(b"secret words").hexdigest()


# The tree --------------------------------------------------------------------------------------


def test_four_levels_below_the_root_are_allowed() -> None:
    check_tree(4, 2)
    with pytest.raises(TreeTooLarge, match="max_depth is 4"):
        check_tree(5, 6)


def test_a_tree_can_be_too_large() -> None:
    check_tree(1, 64)
    with pytest.raises(TreeTooLarge, match="64 are allowed"):
        check_tree(1, 65)
    with pytest.raises(InvalidInput, match="trace number 3"):
        check_tree(1, 3, max_traces=2)


# Properties ------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
SOME = st.sampled_from(["a", " a", "a\n", "b", "\u3000b", "", " ", "c"]) | TEXT
TEXTS = st.lists(SOME, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
ANCHORS = st.fixed_dictionaries(
    {
        "objective": TEXT.map(lambda t: f" x{t} "),
        "completion_criteria": TEXTS.map(lambda t: [*t, "always"]),
        "constraints": TEXTS,
    }
)
BRIEFS = st.fixed_dictionaries(
    {
        "objective": TEXT.map(lambda t: f"x{t}\n"),
        "completion_criteria": TEXTS.map(lambda t: ["c", *t]),
        "expected_outputs": TEXTS.map(lambda t: ["o", *t]),
    },
    optional={
        "reason": SOME | st.none(),
        "parent_findings": st.lists(JSON, max_size=5),
        "context": JSON,
        "constraints": TEXTS,
        "context_refs": st.lists(
            st.fixed_dictionaries(
                {"ref_id": st.sampled_from(["p", "q"]), "version": st.just("0" * 64)}
            ),
            max_size=5,
        ),
    },
)


def naive_texts(items: list[str]) -> list[str]:
    found: list[str] = []
    for item in (i.strip() for i in items):
        if item and item not in found:
            found.append(item)
    return found


@given(ANCHORS)
def test_normalising_an_anchor_is_what_its_description_says_and_once_is_enough(value: Any) -> None:
    found = normalize_root_task_anchor(value)
    expected = {
        "objective": value["objective"].strip(),
        "completion_criteria": naive_texts(value["completion_criteria"]),
        "constraints": naive_texts(value["constraints"]),
    }
    assert found.text == canonical(expected)
    assert normalize_root_task_anchor(found.to_json()) == found


@given(ANCHORS, BRIEFS, BRIEFS)
def test_normalising_a_brief_once_is_enough_and_removes_no_constraint(
    root: Any, upper: Any, lower: Any
) -> None:
    top = normalize_root_task_anchor(root)
    parent = normalize_task_brief(upper, top)
    child = normalize_task_brief(lower, top, parent)
    again = normalize_task_brief(json.loads(child.text), top, parent)
    assert matches(child, again) and again.text == child.text
    own = [*root["constraints"], *upper.get("constraints", []), *lower.get("constraints", [])]
    assert list(child.constraints) == naive_texts(own)
    assert child.text == canonical(json.loads(child.text))
    assert json.loads(child.text)["completion_criteria"] == naive_texts(
        lower["completion_criteria"]
    )


@given(st.lists(JSON, max_size=8))
def test_unique_keeps_the_first_of_each_in_order(values: list[Any]) -> None:
    expected: list[str] = []
    for value in map(canonical, values):
        if value not in expected:
            expected.append(value)
    assert [canonical(v) for v in unique(values)] == expected


@settings(deadline=None)
@given(st.integers(-3, 3), st.sampled_from(["x", "界", '"', "\n"]))
def test_the_limit_of_a_brief_is_at_the_exact_character(over: int, character: str) -> None:
    width = len(canonical(character)) - 2
    root = anchor()
    room = 16_000 - len(brief(root, context="aa").text) + over
    filler = character * (room // width) + "b" * (room % width)
    value = brief_json(context=f"a{filler}a")
    if over > 0:
        assert refused(lambda: normalize_task_brief(value, root)).limit == 16_000
    else:
        assert len(normalize_task_brief(value, root).text) == 16_000 + over
