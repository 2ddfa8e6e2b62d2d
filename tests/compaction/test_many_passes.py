"""Up to fifty compactions in a row on a history that keeps growing: nothing fades."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.compaction.keep import kept_users, said_in
from cyberagent.compaction.passes import finish, run_policy
from cyberagent.compaction.policy import policy_from, policy_named
from cyberagent.compaction.summary import settled
from cyberagent.compaction.values import Facts, Items, is_said
from cyberagent.core.guards import Budget
from cyberagent.core.tokens import count_message
from cyberagent.core.types import Message
from cyberagent.core.window import Item, Window
from cyberagent.providers.anthropic import project_anthropic
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import project_openai
from cyberagent.trace.goals import GoalOperation, GoalTree, replay
from tests.compaction.histories import COUNTER, call, operator, result, says, user, work
from tests.examples import examples
from tests.providers.windows import READ

USERS_BUDGET = 300
"""Tokens of people's words that come back word for word: small, so that excerpts are made."""

OWN = {name: {"user_messages_budget": USERS_BUDGET} for name in ("summary", "full", "auto")}
POLICIES = [
    policy_named("cyber", {"summary": OWN["summary"]}),
    policy_named("opencode", {"full": OWN["full"]}),
    policy_named("layered", {"auto": OWN["auto"], "snip": {"max_messages": 12}}),
    policy_from(["micro", "goal", "summary"], {"summary": OWN["summary"]}),
    policy_from(["snip", "micro"], {"snip": {"max_messages": 12}}),
]
BUDGET = Budget(fixed=100, reserve=100, window=60_000, threshold=2_000, target=1_400)


class Growing:
    """A history that grows between passes, as a run's does."""

    def __init__(self) -> None:
        self.items: Items = ()
        self.said: list[Message] = []
        self.plan = GoalTree(mission="the mission")
        self.skills: dict[str, int] = {}
        self.rounds = self.count = 0
        self.add(user("FIRST keep the login page as it is"))

    def add(self, *messages: Message) -> None:
        for message in messages:
            self.count += 1
            stored = replace(message, sequence=self.count, tokens=count_message(COUNTER, message))
            self.items += (Item(stored),)
            self.said += [stored] if is_said(stored) else []
            if stored.name == "skill":
                self.skills["plan-well"] = stored.sequence

    def facts(self) -> Facts:
        return Facts(counter=COUNTER, plan=self.plan, skills=self.skills)

    def grow(self, turns: int, words: int, loads: bool, closes: bool) -> None:
        self.rounds += 1
        n = self.rounds
        self.plan, _ = self.plan.apply(GoalOperation(add=[f"goal of round {n}"], focus=None))
        goal = str(n)
        if closes:
            self.plan, _ = self.plan.apply(GoalOperation(done=goal, summary=f"round {n} is over"))
        person = operator if n % 3 == 0 else user
        self.add(person(f"SAID-{n}- " + "word " * words))
        if loads:
            self.add(says(call(f"k{n}", "skill", '{"name": "plan-well"}')),
                     result(f"k{n}", "SKILL plan in small steps", name="skill"))  # fmt: skip
        for turn in range(turns):
            self.add(*work(f"{n}-{turn}", goal, text=f"OUT-{n}-{turn} " + "output " * 120))


def passed(policy, history: Growing, size: int, *, manual: bool = True) -> tuple[Items, bool]:
    """The history after one pass, with a summary of about ``size`` words, and whether it was
    changed."""
    state = run_policy(policy, history.items, BUDGET, history.facts(), manual=manual)
    asked = 0
    while state.request is not None:
        asked += 1
        assert asked <= len(policy.strategies), "a pass ends"
        earlier = [i for i in history.items if i.message.source == "summary"]
        requested = {id(i) for i in state.request.items}
        assert all(id(i) in requested for i in earlier), "a summary is an input of the next"
        state = finish(state, f"[1-{history.count}] found: " + "fact " * size)
    items = state.result(automatic=not manual)
    changed = bool(state.edits) and items is not history.items
    draft = next((i.message for i in items if i.kind == "inserted" and
                  i.message.source == "summary"), None)  # fmt: skip
    if draft is not None:
        history.count += 1
        items = settled(items, replace(draft, sequence=history.count))
    return items, changed


rounds = st.lists(
    st.tuples(
        st.integers(0, 4), st.sampled_from([2, 30, 120]), st.booleans(), st.booleans(),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=50,
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES, ids=[p.name + str(n) for n, p in enumerate(POLICIES)])
@examples(30)
@given(rounds)
def test_what_must_hold_still_holds_after_up_to_fifty_passes(policy, rounds):
    history = Growing()
    for turns, words, loads, closes, size in rounds:
        history.grow(turns, words, loads, closes)
        history.items, _ = passed(policy, history, size)
        people_are_heard(policy, history)
        plan_and_skills_are_there(history)
        window = Window(system="s", items=history.items, tools=(READ,), params={"model": "m"})
        assert problems_openai(project_openai(window)) == []
        assert problems_anthropic(project_anthropic(window)) == []
    summaries = [i for i in history.items if i.message.source == "summary"]
    assert len(summaries) <= 1, "summaries do not pile up"


def people_are_heard(policy, history: Growing) -> None:
    """The first words whole; the others whole or as excerpts that name their message, and whole
    as long as they are among the newest that fit in the budget."""
    back = {s.sequence: s for s in said_in(history.items)}
    assert sorted(back) == [m.sequence for m in history.said]
    first, *others = history.said
    assert back[first.sequence].whole
    shown = "\n".join(i.message.text for i in history.items)
    left = USERS_BUDGET
    for message in reversed(others):
        left -= message.tokens
        if left >= 0:
            assert back[message.sequence].whole
            assert message.text in shown or f"> {message.text}" in shown
        assert message.text.split()[0] in shown, "an excerpt begins as the message does"
        if back[message.sequence].item is None:
            assert str(message.sequence) in shown


def plan_and_skills_are_there(history: Growing) -> None:
    path = [i.message for i in history.items]
    summaries = [m for m in path if m.source == "summary"]
    if summaries:
        plan = replay([history.said[0], summaries[-1]], "the mission")
        closed = {g.id for g in history.plan.walk() if not g.is_open}
        known = {g.id for g in plan.walk()}
        assert {g.id for g in plan.walk() if g.is_open} == known - closed
        assert all(g.description in summaries[-1].text for g in plan.walk() if g.is_open)
        if summaries[-1].sequence == history.count and history.skills:
            # Made just now: it knows the newest, so that what did not come back is loaded again.
            record = summaries[-1].metadata["snapshot"]["injected_skills"]["plan-well"]
            assert record["sequence"] == history.skills["plan-well"]


@pytest.mark.parametrize("policy", POLICIES, ids=[p.name + str(n) for n, p in enumerate(POLICIES)])
@examples(30)
@given(rounds)
def test_fifty_passes_grow_no_more_than_what_comes_back(policy, rounds):
    """Beside people's words and the plan, what is left does not depend on how often it was
    compacted: one summary, one block of quotations, one word on what follows."""
    history = Growing()
    for turns, words, loads, closes, size in rounds:
        history.grow(turns, words, loads, closes)
        history.items, _ = passed(policy, history, size)
    inserted = [i for i in history.items if i.kind == "inserted"]
    by = [i.strategy for i in inserted]
    assert all(by.count(name) <= 2 for name in set(by) - {"goal"}), by
    users = kept_users(history.items, history.facts(), USERS_BUDGET)
    whole = sum(i.message.tokens for i in users.whole)
    assert whole <= USERS_BUDGET + sum(m.tokens for m in history.said[:1]), (
        "people's words come back within their budget"
    )


@pytest.mark.parametrize("policy", POLICIES, ids=[p.name + str(n) for n, p in enumerate(POLICIES)])
@examples(30)
@given(rounds)
def test_after_a_pass_that_succeeded_a_second_one_edits_nothing(policy, rounds):
    history = Growing()
    for turns, words, loads, closes, size in rounds[:10]:
        history.grow(turns, words, loads, closes)
        history.items, succeeded = passed(policy, history, size, manual=False)
        if succeeded:
            again, edited = passed(policy, history, 1, manual=False)
            assert not edited and again == history.items


@pytest.mark.parametrize("policy", POLICIES, ids=[p.name + str(n) for n, p in enumerate(POLICIES)])
@examples(30)
@given(rounds)
def test_passes_that_are_asked_for_again_and_again_come_to_an_end(policy, rounds):
    """Each may go one strategy further than the one before; then there is nothing left to do."""
    history = Growing()
    for turns, words, loads, closes, _ in rounds[:5]:
        history.grow(turns, words, loads, closes)
    for _ in policy.strategies:
        history.items, _ = passed(policy, history, 1)
    again, edited = passed(policy, history, 1)
    assert not edited and again == history.items
