"""What holds whatever is stored: any history, every strategy and policy, every projection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.compaction.goal import GoalCompaction
from cyberagent.compaction.keep import kept_items, kept_sequences, said_in
from cyberagent.compaction.layered import Identity, Micro, Snip
from cyberagent.compaction.passes import Pass, complete, finish, run_policy
from cyberagent.compaction.policy import POLICIES, policy_from, policy_named
from cyberagent.compaction.prune import Prune
from cyberagent.compaction.summary import SummaryCompaction, pieces, settled
from cyberagent.compaction.values import (
    Facts,
    Items,
    Step,
    Strategy,
    SummaryRequest,
    is_said,
    newest_turn,
)
from cyberagent.core.errors import WindowTooLarge
from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.types import INTERRUPTED_RESULT, Text, clean_text
from cyberagent.core.window import Recorder, Window, expand, rebuild
from cyberagent.providers.anthropic import project_anthropic
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import DIALECTS, project_openai
from cyberagent.providers.project import repair
from cyberagent.trace.goals import replay
from tests.compaction.histories import HISTORIES, known
from tests.examples import examples
from tests.providers.windows import READ

ANY = examples(60)

BUDGET = Budget(fixed=10, reserve=50, window=100_000, threshold=40, target=20)
QUIET: list[Strategy] = [
    GoalCompaction(mode="on_complete"),
    GoalCompaction(),
    GoalCompaction(form="summary_line"),
    Prune(keep_turns=0, protect_tokens=30, minimum_tokens=0),
    Snip(max_messages=6, head=3),
    Micro(keep_recent=2),
    Micro(name="aggressive", keep_recent=0),
    Identity(at_most=50),
]
SUMMARIES: list[Strategy] = [
    SummaryCompaction(user_messages_budget=60),
    SummaryCompaction(name="full", prompt="compaction", role="assistant", continues=True),
    SummaryCompaction(name="auto", prompt="auto_summary", characters=50, user_messages_budget=0),
]
NAMES = [f"{s.name}-{n}" for n, s in enumerate(QUIET + SUMMARIES)]


def applied(strategy: Strategy, items: Items, facts: Facts) -> Step:
    """The strategy's step, with a summary where it asks for one."""
    found = strategy.apply(items, BUDGET, facts)
    if not isinstance(found, SummaryRequest):
        return found
    assert isinstance(strategy, SummaryCompaction)
    return strategy.rebuild(items, '[3-4] the notes say "done"', BUDGET, facts)


every_strategy = pytest.mark.parametrize("strategy", QUIET + SUMMARIES, ids=NAMES)
without_a_model = pytest.mark.parametrize("strategy", QUIET, ids=NAMES[: len(QUIET)])
with_a_model = pytest.mark.parametrize("strategy", SUMMARIES, ids=NAMES[len(QUIET) :])


@every_strategy
@ANY
@given(HISTORIES, known(), st.sampled_from(sorted(DIALECTS)), st.sampled_from([None, 2000]))
def test_no_provider_refuses_what_a_strategy_leaves(strategy, items, facts, dialect, thinking):
    after = applied(strategy, items, facts).items
    chat = Window(system="s", items=after, tools=(READ,), params={"model": "m", "dialect": dialect})
    assert problems_openai(project_openai(chat), dialect) == []
    params = {"model": "m", "thinking": thinking, "max_output_tokens": 4000}
    messages = Window(system="s", items=after, tools=(READ,), params=params)
    assert problems_anthropic(project_anthropic(messages)) == []


@every_strategy
@ANY
@given(HISTORIES, known())
def test_no_real_result_gives_way_to_a_placeholder(strategy, items, facts):
    def stand_ins(some: Items) -> int:
        return sum(m.text == INTERRUPTED_RESULT for m in repair(some) if m.role == "tool")

    def strays(some: Items) -> int:
        return sum(m.text.count("[A stored result of") for m in repair(some))

    after = applied(strategy, items, facts).items
    assert stand_ins(after) <= stand_ins(items)
    assert strays(after) <= strays(items)


@without_a_model
@ANY
@given(HISTORIES, known())
def test_what_people_said_stays_word_for_word(strategy, items, facts):
    after = applied(strategy, items, facts).items
    kept = {id(i) for i in after}
    quoted = {s.sequence: s for s in said_in(after) if s.item is None}
    shown = "\n".join(i.message.text for i in after)
    for item in items:
        if is_said(item.message) and id(item) not in kept:
            assert quoted[item.message.sequence].whole
            for line in clean_text(item.message.text).split("\n"):
                assert f"> {line}" in shown


@with_a_model
@ANY
@given(HISTORIES, known())
def test_a_summary_puts_back_what_people_said_whole_or_as_an_excerpt(strategy, items, facts):
    step = applied(strategy, items, facts)
    said = [i for i in items if is_said(i.message)]
    back = {s.sequence: s for s in said_in(step.items)}
    assert sorted(back) == [i.message.sequence for i in said]
    if said:
        assert any(i is said[0] for i in step.items) or said_in(step.items)[0].whole
    assert all(i in step.items for i in items if i.message.role == "system")
    assert all(i in step.items for i in said if i.message.sequence in facts.pinned)
    shown = "\n".join(i.message.text for i in step.items)
    assert all(str(n) in shown for n, s in back.items() if s.item is None)


@with_a_model
@ANY
@given(HISTORIES, known())
def test_a_summary_brings_no_closed_goal_back_as_open(strategy, items, facts):
    step = applied(strategy, items, facts)
    if not step.edits:
        return
    path = [i.message for i in step.items if is_said(i.message)][:1]
    path += [i.message for i in step.items if i.message.source == "summary"]
    plan = replay(path, facts.plan.mission)
    assert plan.to_json() == facts.plan.to_json()


@every_strategy
@ANY
@given(HISTORIES, known())
def test_a_second_pass_edits_nothing(strategy, items, facts):
    once = applied(strategy, items, facts)
    again = applied(strategy, once.items, facts)
    assert again.edits == ()
    assert again.items == once.items


@every_strategy
@ANY
@given(HISTORIES, known())
def test_whole_items_are_the_stored_ones_and_edits_add_up(strategy, items, facts):
    before = tuple(i.message.to_json() for i in items)
    step = applied(strategy, items, facts)
    stored = {id(i) for i in items}
    assert all(id(i) in stored for i in step.items if i.kind == "whole")
    assert tuple(i.message.to_json() for i in items) == before
    assert sum(e.tokens_saved for e in step.edits) == raw_size(items) - raw_size(step.items)
    assert bool(step.edits) == (step.items != items)


@without_a_model
@ANY
@given(HISTORIES, known())
def test_the_newest_turn_and_what_is_pinned_are_never_edited(strategy, items, facts):
    after = applied(strategy, items, facts).items
    kept = {id(i) for i in after}
    tail = items[newest_turn(items) :]
    if len(tail) < len(items) or not isinstance(strategy, Identity):
        assert after[len(after) - len(tail) :] == tail
    assert all(id(i) in kept for i in items if i.message.sequence in facts.pinned and not (
        is_said(i.message)))  # fmt: skip


@every_strategy
@ANY
@given(HISTORIES, known())
def test_thinking_stays_whole_or_goes_whole(strategy, items, facts):
    before = {i.message.sequence: i.message for i in items}
    for item in applied(strategy, items, facts).items:
        if item.kind == "replaced" and item.message.role == "assistant":
            assert item.message.reasoning == ()
        elif item.kind == "whole":
            assert item.message == before[item.message.sequence]


@every_strategy
@ANY
@given(HISTORIES, known())
def test_the_window_of_every_result_can_be_rebuilt_from_its_manifest(strategy, items, facts):
    after = applied(strategy, items, facts).items
    recorder, blobs, manifests = Recorder(), {}, []
    for number, some in enumerate((items, after), 1):
        window = Window(system="s", items=some, tools=(READ,), params={"model": "m"})
        recorded = recorder.record(number, window)
        blobs |= recorded.blobs
        manifests.append(recorded.manifest)
    used = manifests if "b" in manifests[1] else manifests[1:]
    stored = {i.message.sequence: i.message for i in items}
    assert rebuild(expand(used), stored, blobs).items == after


@with_a_model
@ANY
@given(HISTORIES, known())
def test_a_run_that_goes_on_elsewhere_has_the_history_that_a_summary_began(strategy, items, facts):
    step = applied(strategy, items, facts)
    draft = next((i.message for i in step.items if i.message.source == "summary"), None)
    if not step.edits or draft is None:
        return
    stored = {i.message.sequence: i.message for i in items}
    assert set(kept_sequences(draft)) <= stored.keys()
    assert kept_items(draft, stored) == settled(step.items, draft)


# Policies ------------------------------------------------------------------------------------

ALL = [policy_named(name) for name in POLICIES]
ALL += [policy_from(["micro", "goal", "full", "prune", "auto", "summary", "identity"])]
TEXTS = st.sampled_from([None, "", "Error: 500", "User: hi", "[1-3] found a.py", "x " * 4000])


def passed(policy, items, facts, texts, *, manual=False, threshold=40) -> Pass:
    answers = iter(texts)
    budget = Budget(fixed=10, reserve=50, window=9_000, threshold=threshold, target=20)
    state = run_policy(policy, items, budget, facts, manual=manual)
    asked = 0
    while state.request is not None:
        asked += 1
        assert asked <= len(policy.strategies)
        state = (
            complete(state, lambda _: next(answers, None)) if asked > 3 else _one(state, answers)
        )
    return state


def _one(state: Pass, answers) -> Pass:
    return finish(state, next(answers, None))


@pytest.mark.parametrize("policy", ALL, ids=[p.name for p in ALL])
@ANY
@given(HISTORIES, known(), st.lists(TEXTS, max_size=5), st.booleans())
def test_every_policy_ends_and_its_edits_add_up(policy, items, facts, texts, manual):
    try:
        state = passed(policy, items, facts, texts, manual=manual)
    except WindowTooLarge:
        pytest.fail("the floor of these small histories fits")
    assert state.before is items
    assert sum(e.tokens_saved for e in state.edits) == state.tokens_saved
    assert state.result() == items or state.judged().success
    assert bool(state.edits) or state.items is items


@pytest.mark.parametrize("policy", ALL, ids=[p.name for p in ALL])
@ANY
@given(HISTORIES, known())
def test_a_second_pass_of_a_policy_without_a_model_edits_nothing(policy, items, facts):
    once = passed(policy, items, facts, [])
    again = passed(policy, once.items, facts, [])
    assert again.edits == () and again.items == once.items


@ANY
@given(HISTORIES, known())
def test_a_history_that_is_not_due_is_left_alone(items, facts):
    for policy in ALL:
        state = passed(policy, items, facts, [], threshold=8_000)
        assert state.items is items and state.request is None


@ANY
@given(HISTORIES, known())
def test_text_of_a_history_is_never_lost_on_the_way_to_a_summariser(items, facts):
    request = SummaryRequest(strategy="summary", items=items, instruction="", tokens=1)
    joined = "".join(pieces(request, 25, facts.counter)).replace("\n", "")
    for item in items:
        for part in item.message.parts:
            if isinstance(part, Text) and item.message.role != "tool":
                assert clean_text(part.text).replace("\n", "") in joined.replace("\n", "")
