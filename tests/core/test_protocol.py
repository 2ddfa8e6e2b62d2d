"""The protocol state of a trace: what is in force follows from what is on its path, no more."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from cyberagent.core.context_policy import matches, normalize_task_brief
from cyberagent.core.errors import InvalidInput, InvalidTaskValue, ProtocolRefused, RefRefused
from cyberagent.core.protocol import ProtocolState, replay_protocol
from cyberagent.core.refs import ContextRef, Snapshot
from cyberagent.core.types import Message, text_message
from cyberagent.tools.builtin.context import read_context_ref
from tests.core.protocol_values import anchor, brief, brief_json, report, result, review
from tests.tools.helpers import call, error, make_context, ok

ANCHOR = anchor()
BRIEF = brief(ANCHOR)
OLD = Snapshot("old", "reviewed_task_result", '{"a":1}')


def root() -> ProtocolState:
    return ProtocolState(trace_id="root", anchor=ANCHOR)


def child(*access: Snapshot) -> ProtocolState:
    state = ProtocolState(trace_id="c1", anchor=ANCHOR)
    return state.briefed(1, BRIEF, access, parent="root")


def ended(verdict: Any = "passed", **told: Any) -> ProtocolState:
    """A root whose child c1 is at its end."""
    state, _ = root().delegated(3, "c1", BRIEF)
    return state.child_ended(4, "c1", report(**told), result(verdict))


def accepted(**told: Any) -> tuple[ProtocolState, str]:
    return ended(**told).reviewed(5, "c1", review("ACCEPT", ANCHOR))


# Contracts -------------------------------------------------------------------------------------


def test_the_root_has_no_contract_and_a_child_has_versions() -> None:
    assert root().brief is None and root().briefs == ()
    second = brief(ANCHOR, objective="Write it again")
    state = child().briefed(9, second, [], parent="root")
    assert [(v.number, v.given_at_sequence, v.brief) for v in state.briefs] == [
        (1, 1, BRIEF),
        (2, 9, second),
    ]
    assert state.brief == second


def test_a_revised_contract_clears_all_earlier_grants_and_the_old_report() -> None:
    state = child(OLD).reported(5, report())
    assert state.catalogue.refs == {OLD.ref} and state.report == report()
    new = Snapshot("new", "reviewed_task_result", "{}")
    state = state.briefed(9, BRIEF, [new], parent="root")
    assert state.catalogue.refs == {new.ref} and state.report is None


def test_results_that_a_child_reviewed_itself_are_cleared_with_its_contract_too() -> None:
    state, _ = child().delegated(3, "g1", brief(ANCHOR, BRIEF))
    state = state.child_ended(4, "g1", report(), result("passed"))
    state, _ = state.reviewed(5, "g1", review("ACCEPT", ANCHOR))
    assert len(state.catalogue.refs) == 1
    assert state.briefed(9, BRIEF, [], parent="root").catalogue.refs == frozenset()


def test_a_contract_that_lacks_a_constraint_is_refused_on_both_sides() -> None:
    bare = brief(anchor(constraints=[]))
    with pytest.raises(ProtocolRefused, match="No card number"):
        ProtocolState(trace_id="c1", anchor=ANCHOR).briefed(1, bare, [], parent="root")
    with pytest.raises(ProtocolRefused, match="inherited constraints"):
        root().delegated(3, "c1", bare)
    own = brief(ANCHOR, constraints=["Own"])
    state = ProtocolState(trace_id="c1", anchor=ANCHOR).briefed(1, own, [], parent="root")
    with pytest.raises(ProtocolRefused, match="inherited constraints"):
        state.delegated(3, "g1", BRIEF)


def test_a_report_is_handed_in_once_and_only_on_a_contract() -> None:
    with pytest.raises(ProtocolRefused, match="no task brief"):
        root().reported(3, report())
    with pytest.raises(ProtocolRefused, match="already"):
        child().reported(3, report()).reported(4, report())


def test_a_verdict_belongs_to_the_report_before_it() -> None:
    state = child().reported(3, report()).validated(4, result("failed"))
    assert state.result == result("failed")
    again = state.briefed(5, BRIEF, [], parent="root").reported(6, report())
    assert again.result is None


# Children --------------------------------------------------------------------------------------


def test_a_child_of_a_child_gets_its_parents_contract_as_a_ref() -> None:
    state, access = child(OLD).delegated(3, "g1", brief(ANCHOR, BRIEF))
    assert [(s.ref_id, s.kind, s.text) for s in access] == [
        ("task_brief:c1", "task_brief", BRIEF.text)
    ]
    assert state.children["g1"].access == {access[0].ref}


def test_a_ref_that_is_not_passed_on_is_cut_off_below() -> None:
    passing = brief(ANCHOR, context_refs=[OLD.ref.to_json()])
    _, access = child(OLD).delegated(3, "g1", brief(ANCHOR, BRIEF))
    grandchild = ProtocolState(trace_id="g1", anchor=ANCHOR).briefed(
        1, brief(ANCHOR, BRIEF), access, parent="c1"
    )
    below = normalize_task_brief(passing.to_json(), ANCHOR, grandchild.brief)
    with pytest.raises(RefRefused, match="'old'"):
        grandchild.delegated(3, "gg1", below)


def test_a_review_is_due_when_a_child_has_ended_and_only_then() -> None:
    state, _ = root().delegated(3, "c1", BRIEF)
    with pytest.raises(ProtocolRefused, match="no review of the child c1 is due"):
        state.reviewed(4, "c1", review("ACCEPT", ANCHOR))
    assert [c.id for c in ended().reviews_due] == ["c1"]
    done, warning = accepted()
    assert (warning, done.reviews_due) == ("", ())
    with pytest.raises(ProtocolRefused, match="is due"):
        done.reviewed(6, "c1", review("ABANDON", ANCHOR))
    with pytest.raises(ProtocolRefused, match="no child 'c2'"):
        done.reviewed(6, "c2", review("ABANDON", ANCHOR))
    with pytest.raises(ProtocolRefused, match="ended already"):
        ended().child_ended(5, "c1", None, result("unknown"))


def test_a_review_made_for_another_verdict_is_refused() -> None:
    with pytest.raises(ProtocolRefused, match="another verdict"):
        ended("failed").reviewed(5, "c1", review("ACCEPT", ANCHOR))
    marked = review("ACCEPT", ANCHOR, verdict="failed", reason="known")
    state, _ = ended("failed").reviewed(5, "c1", marked)
    found = state.children["c1"].review
    assert found is not None and found.against_verdict == "failed"


def test_a_reviewed_result_becomes_a_ref_of_report_result_and_review() -> None:
    state, _ = accepted()
    [grant] = state.catalogue.grants
    assert (grant.granted_at_sequence, grant.granted_by) == (5, "")
    assert grant.snapshot.ref_id == "reviewed_task_result:c1"
    assert json.loads(grant.snapshot.text) == {
        "report": report().to_json(),
        "result": result("passed").to_json(),
        "review": review("ACCEPT", ANCHOR).to_json(),
    }
    digest = hashlib.sha256(grant.snapshot.text.encode()).hexdigest()
    assert grant.snapshot.version == digest


def test_a_result_of_exactly_16000_characters_becomes_a_ref_and_one_more_a_warning() -> None:
    state, _ = accepted(summary="s")
    room = 16_000 - len(state.catalogue.grants[0].snapshot.text)
    fits, warning = accepted(summary="s" * (room + 1))
    assert (warning, fits.catalogue.characters) == ("", 16_000)
    over, warning = accepted(summary="s" * (room + 2))
    assert over.catalogue.refs == frozenset() and "16,001" in warning
    found = over.children["c1"].review
    assert found is not None and found.decision == "ACCEPT"


def test_a_child_without_a_report_gives_no_ref() -> None:
    state, _ = root().delegated(3, "c1", BRIEF)
    state = state.child_ended(4, "c1", None, result("unknown"))
    state, warning = state.reviewed(5, "c1", review("ABANDON", ANCHOR))
    assert state.catalogue.refs == frozenset() and "no report" in warning


def test_the_ninth_result_of_a_trace_gives_no_ref() -> None:
    state, warnings = root(), []
    for n in range(9):
        state, _ = state.delegated(n, f"c{n}", BRIEF)
        state = state.child_ended(n, f"c{n}", report(), result("passed"))
        state, warning = state.reviewed(n, f"c{n}", review("ACCEPT", ANCHOR))
        warnings.append(warning)
    assert len(state.catalogue.refs) == 8
    assert not any(warnings[:8]) and "9 refs" in warnings[8]


# The next brief ----------------------------------------------------------------------------------


def test_a_replacement_must_be_called_with_the_approved_brief_exactly() -> None:
    following = brief_json(objective="Write the refund call in Go")
    state, _ = ended("failed").reviewed(
        5, "c1", review("REPLACE", ANCHOR, verdict="failed", next_brief=following)
    )
    assert [a.child for a in state.approved] == [""]
    with pytest.raises(ProtocolRefused, match="differs in: objective, context"):
        state.delegated(6, "c2", brief(ANCHOR, context="in C"))
    called = normalize_task_brief(following | {"objective": " Write the refund call in Go"}, ANCHOR)
    state, _ = state.delegated(6, "c2", called)
    assert state.approved == ()
    state.delegated(7, "c3", brief(ANCHOR, objective="Free again"))


def test_a_revision_goes_to_the_same_child_with_the_approved_brief() -> None:
    following = brief_json(reason="tests are missing")
    asked = review("REVISE_CHILD", ANCHOR, verdict="failed", next_brief=following)
    state, _ = ended("failed").reviewed(5, "c1", asked)
    with pytest.raises(ProtocolRefused, match="differs in: reason"):
        state.delegated(6, "c1", BRIEF)
    state.delegated(6, "c2", BRIEF)  # Another child is another matter.
    state, _ = state.delegated(6, "c1", normalize_task_brief(following, ANCHOR))
    found = state.children["c1"]
    assert (found.rounds, found.report, found.review) == (2, None, None)
    assert state.approved == ()


@pytest.mark.parametrize("decision", ["ACCEPT", "ABANDON", "REPLACE"])
def test_a_child_that_is_done_with_is_not_resumed(decision: str) -> None:
    more = {"next_brief": brief_json()} if decision == "REPLACE" else {}
    state, _ = ended().reviewed(5, "c1", review(decision, ANCHOR, **more))
    with pytest.raises(ProtocolRefused, match="no review asked for a revision"):
        state.delegated(6, "c1", BRIEF)


def test_a_running_child_cannot_get_another_contract() -> None:
    state, _ = root().delegated(3, "c1", BRIEF)
    with pytest.raises(ProtocolRefused, match="no review asked"):
        state.delegated(4, "c1", BRIEF)


def test_an_anchor_revised_between_approval_and_call_binds_both() -> None:
    following = brief_json(reason="again")
    state, _ = ended().reviewed(5, "c1", review("REPLACE", ANCHOR, next_brief=following))
    newer = anchor(constraints=["No card number is logged", "Euro only"])
    state = state.under(newer)
    with pytest.raises(ProtocolRefused, match="inherited constraints"):
        state.delegated(6, "c2", normalize_task_brief(following, ANCHOR))
    state, _ = state.delegated(6, "c2", normalize_task_brief(following, newer))
    assert state.children["c2"].brief.constraints == ("No card number is logged", "Euro only")


def test_a_revised_anchor_adds_to_the_contract_in_force_and_leaves_the_versions() -> None:
    state = child().under(anchor(constraints=["Euro only"]))
    assert state.brief is not None and state.briefs[0].brief == BRIEF
    assert state.brief.constraints == ("No card number is logged", "Euro only")
    below = brief(state.anchor, state.brief)
    _, access = state.delegated(3, "g1", below)
    assert access[0].text == state.brief.text


def test_a_revision_of_the_anchor_that_does_not_fit_is_refused_at_once() -> None:
    bare = brief(ANCHOR, context="")
    full = brief(ANCHOR, context="x" * (16_000 - len(bare.text)))
    state = ProtocolState(trace_id="c1", anchor=ANCHOR).briefed(1, full, [], parent="root")
    with pytest.raises(InvalidTaskValue, match="16,000"):
        state.under(anchor(constraints=["Euro only"]))


# What a parent loses, its children lose ----------------------------------------------------------


def passed_down() -> tuple[ProtocolState, ProtocolState]:
    """A trace c1 that holds OLD, and its child g1, to which it passed OLD on."""
    below = brief(ANCHOR, BRIEF, context_refs=[OLD.ref.to_json()])
    upper, access = child(OLD).delegated(3, "g1", below)
    lower = ProtocolState(trace_id="g1", anchor=ANCHOR).briefed(1, below, access, parent="c1")
    return upper, lower


def test_a_child_holds_its_copies_while_its_parent_does() -> None:
    upper, lower = passed_down()
    assert lower.under_parent(upper).catalogue.refs == {OLD.ref, _brief_ref()}
    revised = upper.briefed(9, BRIEF, [], parent="root")
    assert lower.under_parent(revised).catalogue.refs == {_brief_ref()}


def test_a_rewind_of_the_parent_before_the_call_takes_everything_from_the_child() -> None:
    upper, lower = passed_down()
    assert lower.under_parent(upper.rewound(2)).catalogue.refs == frozenset()
    assert lower.under_parent(upper.rewound(3)).catalogue.refs == {OLD.ref, _brief_ref()}


def test_from_the_review_on_a_child_that_is_to_be_revised_is_handed_nothing() -> None:
    upper, lower = passed_down()
    upper = upper.child_ended(4, "g1", report(), result("failed"))
    asked = review("REVISE_CHILD", ANCHOR, verdict="failed", own=BRIEF, next_brief=brief_json())
    upper, _ = upper.reviewed(5, "g1", asked)
    assert lower.under_parent(upper).catalogue.refs == frozenset()


def _brief_ref() -> ContextRef:
    return ContextRef("task_brief:c1", hashlib.sha256(BRIEF.text.encode()).hexdigest())


# Rewind and replay -------------------------------------------------------------------------------


def test_a_rewind_removes_grants_that_came_after_the_cut_and_brings_cleared_ones_back() -> None:
    new = Snapshot("new", "reviewed_task_result", "{}")
    state = child(OLD).briefed(9, BRIEF, [new], parent="root")
    assert state.rewound(9) == state
    assert state.rewound(8).catalogue.refs == {OLD.ref}
    assert state.rewound(0).catalogue.refs == frozenset()
    done, _ = accepted()
    assert done.rewound(4).catalogue.refs == frozenset()
    assert [c.id for c in done.rewound(4).reviews_due] == ["c1"]


def test_what_happens_later_stands_on_a_later_message() -> None:
    with pytest.raises(ProtocolRefused, match="message 4 comes before message 5"):
        accepted()[0].delegated(4, "c2", BRIEF)


def recorded(sequence: int, state: ProtocolState, **fields: Any) -> Message:
    """The message that the newest entry of a state stands on."""
    fields = {"source": "tool", "name": "agent"} | fields
    return Message(role="tool", sequence=sequence, metadata={"protocol": [state.newest]}, **fields)


def run() -> tuple[list[Message], list[ProtocolState]]:
    """A root's path with one entry of each kind that a root can have, and each state."""
    first, _ = root().delegated(3, "c1", BRIEF)
    second = first.child_ended(4, "c1", report(), result("failed"))
    asked = review("REPLACE", ANCHOR, verdict="failed", next_brief=brief_json(reason="r"))
    third, _ = second.reviewed(5, "c1", asked)
    fourth = third.validated(6, result("passed"))
    states = [first, second, third, fourth]
    return [recorded(n, s) for n, s in enumerate(states, 3)], states


def replayed(path: list[Message], trace_id: str = "root") -> ProtocolState:
    return replay_protocol(path, trace_id=trace_id, anchor=ANCHOR)


def test_replay_of_a_path_gives_the_state_and_of_its_beginning_the_rewound_one() -> None:
    path, states = run()
    stored = [Message.from_json(json.loads(json.dumps(m.to_json()))) for m in path]
    for n in range(len(path)):
        assert replayed(stored[: n + 1]) == states[n] == states[-1].rewound(n + 3)
    assert replayed([]) == root()


def test_a_childs_contract_stands_on_the_message_that_brought_it() -> None:
    state = child(OLD)
    first = text_message("user", "Go", source="framework", sequence=1)
    first = replace(first, metadata={"protocol": [state.newest]})
    done = state.reported(4, report())
    path = [first, recorded(4, done, name="submit_report")]
    assert replayed(path, "c1") == done


def test_a_summary_carries_the_state() -> None:
    path, states = run()
    first = text_message("user", "Go", source="user", sequence=1)
    summary = text_message(
        "user",
        "so far",
        source="summary",
        sequence=9,
        metadata={"snapshot": json.loads(json.dumps({"protocol": states[-1].to_json()}))},
    )
    later, _ = states[-1].delegated(11, "c2", brief(ANCHOR, reason="r"))
    assert replayed([first, summary]) == states[-1]
    assert replayed([first, summary, recorded(11, later)]) == later
    other = text_message("user", "so far", source="summary", sequence=9)
    assert replayed([*path, other]) == states[-1]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "read_file"},
        {"role": "assistant", "source": "model", "name": ""},
        {"role": "assistant", "source": "import"},
    ],
)
def test_what_a_model_or_another_tool_says_is_no_record(fields: dict[str, Any]) -> None:
    path, _ = run()
    assert replayed([replace(path[0], **fields)]) == root()


def test_a_snapshot_on_a_models_message_is_not_taken() -> None:
    _, states = run()
    forged = text_message(
        "assistant",
        "",
        source="model",
        sequence=9,
        metadata={"snapshot": {"protocol": states[-1].to_json()}},
    )
    assert replayed([forged]) == root()


def damaged() -> list[Any]:
    entry = run()[1][0].newest
    tampered = json.loads(json.dumps(child(OLD).newest))
    tampered["access"][0]["text"] = '{"a":2}'
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    return [
        None,
        3,
        {},
        {"entry": "granted"},
        {"entry": ["delegated"]},
        entry | {"child": ""},
        entry | {"extra": 1},
        entry | {"brief": {}},
        entry | {"brief": deep},
        tampered,
    ]


@pytest.mark.parametrize("place", range(10))
def test_a_damaged_record_is_an_error_and_never_passed_over(place: int) -> None:
    message = replace(run()[0][0], metadata={"protocol": [damaged()[place]]})
    with pytest.raises(InvalidTaskValue):
        replayed([message])
    with pytest.raises(InvalidTaskValue, match="is not a list"):
        replayed([replace(message, metadata={"protocol": damaged()[place] or 0})])


@pytest.mark.parametrize("snapshot", [3, {}, {"entries": 1}, {"entries": [1]}, {"entries": [{}]}])
def test_a_damaged_snapshot_is_an_error(snapshot: Any) -> None:
    summary = text_message(
        "user", "s", source="summary", sequence=9, metadata={"snapshot": {"protocol": snapshot}}
    )
    with pytest.raises(InvalidTaskValue):
        replayed([summary])


def test_the_deepest_brief_survives_its_record() -> None:
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    state, _ = root().delegated(3, "c1", brief(ANCHOR, context=deep))
    state = state.child_ended(4, "c1", report(), result("failed"))
    asked = review("REPLACE", ANCHOR, verdict="failed", next_brief=brief_json(context=deep))
    state, _ = state.reviewed(5, "c1", asked)
    path = [recorded(n.sequence, state.rewound(n.sequence)) for n in state.entries]
    assert replayed(path) == state
    assert matches(state.approved[0].brief, brief(ANCHOR, context=deep))


# read_context_ref --------------------------------------------------------------------------------


def holding(*access: Snapshot) -> Any:
    context = make_context()
    context.state.protocol = child(*access)
    return context


async def test_a_ref_is_read_whole_or_in_slices() -> None:
    text = json.dumps({"text": "数据" * 3_000}, ensure_ascii=False, separators=(",", ":"))
    snapshot = Snapshot("r", "reviewed_task_result", text)
    pair = snapshot.ref.to_json()
    read = ""
    for offset in range(0, len(text), 2_500):
        told = await ok(read_context_ref, holding(snapshot), **pair, offset=offset, limit=2_500)
        head, _, part = told.partition("\n")
        assert json.loads(head)["from"] == offset and json.loads(head)["characters"] == 6_011
        assert json.loads(head)["to"] == offset + len(part)
        read += part
    assert read == text
    whole = await call(read_context_ref, holding(snapshot), **pair, limit=16_000)
    assert whole.text.endswith("\n" + text) and whole.shorten is False


@pytest.mark.parametrize(
    "pair",
    [
        {"ref_id": "old", "version": "0" * 64},
        {"ref_id": "other", "version": OLD.version},
        {"ref_id": "task_brief:root", "version": BRIEF.sha256},
        {"ref_id": "c1", "version": ""},
    ],
)
async def test_only_exact_pairs_of_the_own_catalogue_are_read(pair: dict[str, str]) -> None:
    assert "does not hold the ref" in await error(read_context_ref, holding(OLD), **pair)


async def test_slices_outside_the_ref_are_refused() -> None:
    pair = OLD.ref.to_json()
    for wrong in ({"offset": -1}, {"offset": 7}, {"limit": 0}, {"limit": 16_001}):
        told = await error(read_context_ref, holding(OLD), **pair, **wrong)
        assert next(iter(wrong)) in told


async def test_a_run_without_a_protocol_holds_no_refs() -> None:
    context = make_context()
    context.state.protocol = None
    told = await error(read_context_ref, context, **OLD.ref.to_json())
    assert "holds no context refs" in told


async def test_a_ref_that_a_parent_took_away_is_not_read_any_more() -> None:
    upper, lower = passed_down()
    context = make_context()
    context.state.protocol = lower.under_parent(upper)
    assert '{"a":1}' in await ok(read_context_ref, context, **OLD.ref.to_json())
    context.state.protocol = lower.under_parent(upper.briefed(9, BRIEF, [], parent="root"))
    assert "does not hold" in await error(read_context_ref, context, **OLD.ref.to_json())


def test_every_refusal_is_an_invalid_input() -> None:
    assert issubclass(ProtocolRefused, InvalidInput) and issubclass(RefRefused, ProtocolRefused)
