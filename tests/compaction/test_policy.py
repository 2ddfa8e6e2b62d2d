"""Policies: triggers, parameters, and how a pass goes on, falls through and ends."""

from __future__ import annotations

import pytest

from cyberagent.compaction.passes import complete, finish, run_policy
from cyberagent.compaction.policy import policy_for, policy_from, policy_named
from cyberagent.compaction.values import Items
from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.errors import InvalidConfig, WindowTooLarge
from cyberagent.core.guards import Budget
from tests.compaction.histories import call, facts, history, plan, result, says, user, work

OUTPUT = "output " * 100


def worked(count: int, goal: str = ""):
    return [m for n in range(count) for m in work(f"{goal}-{n}", goal, text=OUTPUT)]


def budget(window: int = 100_000, threshold: int = 500, target: int = 350, **more) -> Budget:
    return Budget(window=window, reserve=100, threshold=threshold, target=target, **more)


def sequences(items: Items) -> list[int]:
    return [i.message.sequence for i in items if i.kind != "inserted"]


# Triggers -------------------------------------------------------------------------------------


def test_cyber_is_due_above_half_the_window_and_aims_at_35_percent():
    made = policy_named("cyber").budget(window=200_000, max_output_tokens=8_000)
    assert (made.threshold, made.target, made.limit) == (100_000, 70_000, 192_000)


def test_opencode_is_due_when_the_usable_window_overflows():
    made = policy_named("opencode").budget(window=200_000, max_output_tokens=32_000)
    assert (made.threshold, made.target) == (168_000, 70_000)


def test_layered_is_due_above_the_soft_limit_for_all_its_layers():
    made = policy_named("layered").budget(window=200_000, max_output_tokens=8_000)
    assert (made.threshold, made.target) == (32_000, 22_400)


def test_an_unknown_output_limit_leaves_most_of_a_small_window_usable():
    made = policy_named("opencode").budget(window=16_000)
    assert (made.reserve, made.threshold) == (2_000, 14_000)


def test_off_never_compacts_and_an_unknown_window_triggers_no_share_of_it():
    assert policy_named("off").budget(window=1_000).threshold is None
    assert policy_named("cyber").budget(window=None).threshold is None
    assert policy_named("layered").budget(window=None).threshold == 32_000


def test_a_run_chooses_policy_and_parameters_by_its_config():
    config = RunConfig(goal_compression="none", goal_compression_form="summary_line")
    goal = policy_for(config).strategies[0]
    assert (goal.mode, goal.form) == ("none", "summary_line")  # type: ignore[attr-defined]
    limits = Limits(max_messages=30, token_soft_limit=9_000)
    layered = policy_for(RunConfig(policy="layered", limits=limits), {"micro": {"keep_recent": 3}})
    assert layered.token_soft_limit == 9_000
    assert layered.strategies[0].max_messages == 30  # type: ignore[attr-defined]
    assert layered.strategies[1].keep_recent == 3  # type: ignore[attr-defined]
    own = policy_for(RunConfig(policy="micro, summary"))
    assert [s.name for s in own.strategies] == ["micro", "summary"]


@pytest.mark.parametrize(
    ("names", "parameters", "word"),
    [
        ([], {}, "at least one"),
        (["nonsense"], {}, "nonsense"),
        (["micro", "micro"], {}, "twice"),
        (["micro"], {"snip": {}}, "snip"),
        (["micro"], {"micro": {"keep": 1}}, "keep"),
        (["micro"], {"micro": {"name": "x"}}, "name"),
        (["micro"], {"micro": {"keep_recent": -1}}, "keep_recent"),
        (["micro"], {"micro": {"keep_recent": "8"}}, "keep_recent"),
        (["micro"], {"micro": {"keep_recent": True}}, "keep_recent"),
        (["micro"], {"micro": {"keep_recent": 1.5}}, "keep_recent"),
        (["micro"], {"micro": 8}, "micro"),
        (["prune"], {"prune": {"protected_tools": [1]}}, "protected_tools"),
        (["goal"], {"goal": {"mode": "sometimes"}}, "mode"),
        (["snip"], {"snip": {"max_messages": 6, "head": 5}}, "head"),
        (["goal"], {"policy": {"compaction_target": 0.6}}, "compaction_target"),
        (["goal"], {"policy": {"compression_threshold": float("nan")}}, "compression_threshold"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_and_the_reason_named(names, parameters, word):
    with pytest.raises(InvalidConfig, match=word):
        policy_from(names, parameters)


def test_an_unknown_policy_is_refused():
    with pytest.raises(InvalidConfig, match="cyber, cyber_recent, opencode, layered, off"):
        policy_named("best")


# A pass ---------------------------------------------------------------------------------------


def test_level_1_alone_ends_a_pass_that_it_brings_to_the_target():
    items = history(user("x"), worked(8, "1"), says("next"))
    state = run_policy(policy_named("cyber"), items, budget(), facts(plan(g1="completed")))
    assert state.request is None
    assert sequences(state.result()) == [1, 18]
    assert state.judged().success


def test_level_2_follows_where_level_1_leaves_the_window_above_the_threshold():
    items = history(user("x"), worked(8, "1"), worked(8, "2"), says("next"))
    known = facts(plan(g1="completed", g2="in_progress"))
    state = run_policy(policy_named("cyber"), items, budget(), known)
    assert state.request is not None
    assert sequences(state.request.items) == [1, *range(18, 35)]
    ended = finish(state, "[18-33] found a.py")
    assert ended.request is None and ended.judged().success
    assert [e.strategy for e in ended.edits] == ["goal", "summary", "summary"]
    assert ended.tokens_saved == sum(e.tokens_saved for e in ended.edits)


@pytest.mark.parametrize(
    "answer", [None, "", "Error: 500", "User: hi\nUser: ho", "x " * 9_000], ids=str
)
def test_a_bad_summary_changes_nothing_and_the_next_strategy_has_its_turn(answer):
    items = history(user("x"), worked(10), says("next"))
    policy = policy_named("layered")
    state = run_policy(policy, items, budget(threshold=700, target=600), facts())
    while_asked = state.items
    assert state.request is not None and state.request.strategy == "auto"
    ended = finish(state, answer, why="the provider is gone" if answer is None else "")
    assert len(ended.failures) == 1 and ended.failures[0].startswith("auto: ")
    assert [e.strategy for e in ended.edits] == ["micro", "aggressive"]
    assert len(ended.items) == len(while_asked)


def test_a_pass_that_fails_writes_nothing():
    items = history(user("x"), worked(10), says("next"))
    state = complete(run_policy(policy_named("cyber"), items, budget(), facts()), lambda _: None)
    assert not state.judged().success
    assert state.judged().why == "summary: the summary call failed"
    assert state.result() is items


def test_identity_comes_also_after_an_earlier_layer_sufficed():
    items = history(user("x"), says(call("a")), result("a", OUTPUT * 9), says("next"))
    policy = policy_from(["micro", "auto", "identity"], {"micro": {"keep_recent": 0}})
    state = run_policy(policy, items, budget(), facts())
    assert state.request is None
    assert [e.strategy for e in state.edits] == ["micro", "identity"]


def test_identity_alone_is_no_pass():
    items = history(user("x"), says("thoughts " * 900), user("y"))
    state = complete(run_policy(policy_named("layered"), items, budget(), facts()), lambda _: None)
    assert state.edits == () and state.items is items


def test_a_summary_with_which_the_history_would_not_shrink_is_not_taken():
    tree = plan("mission " * 60, **{f"g{n}": "completed" for n in range(1, 40)})
    items = history(user("x"), worked(5), says("next"))
    state = run_policy(policy_named("cyber"), items, budget(threshold=400), facts(tree))
    ended = finish(state, "[2-11] read five files")
    assert ended.edits == () and ended.items is items
    assert ended.failures == ("summary: the history would not become smaller",)


def test_a_floor_that_does_not_fit_is_one_error_with_the_numbers():
    items = history(user("x"), worked(2))
    with pytest.raises(WindowTooLarge) as caught:
        run_policy(policy_named("cyber"), items, budget(window=5_000, fixed=6_000), facts())
    assert caught.value.limit == 4_900
    assert caught.value.floor == 6_000 + items[0].message.tokens


def test_a_floor_above_the_threshold_warns_and_does_not_compact_until_the_window_overflows():
    items = history(user("x"), worked(5))
    tight = budget(window=3_000, fixed=1_000)
    state = run_policy(policy_named("cyber"), items, tight, facts())
    assert state.tight and state.request is None and state.items is items
    more = history(user("x"), worked(30))
    full = run_policy(policy_named("cyber"), more, tight, facts())
    assert full.tight and full.request is not None


def test_users_words_count_as_floor_where_no_strategy_may_excerpt_them():
    said = [user("word " * 3_000) for _ in range(10)]
    items = history(user("x"), said, says("y"))
    small = Budget(window=28_000, reserve=1_000, threshold=20_000, target=10_000)
    with pytest.raises(WindowTooLarge):
        run_policy(policy_from(["micro"]), items, small, facts())
    run_policy(policy_named("cyber"), items, small, facts())


def test_a_manual_pass_runs_though_nothing_is_due():
    items = history(user("x"), worked(5), says("next"))
    state = run_policy(policy_named("cyber"), items, budget(50_000, 9_000, 9_000), facts(),
                       manual=True)  # fmt: skip
    assert state.request is not None
    assert len(finish(state, "[2-11] read five files").items) == 2


def test_finishing_a_pass_that_asked_for_nothing_is_an_error():
    state = run_policy(policy_named("off"), (), Budget(), facts())
    with pytest.raises(ValueError, match="asked for nothing"):
        finish(state, "x")


def test_skills_that_a_pass_lost_are_named():
    skill = [says(call("k", "skill", "{}"), goal="1"), result("k", OUTPUT, "1", "skill")]
    items = history(user("x"), skill, worked(5, "1"), says("next"))
    known = facts(plan(g1="completed"), skills={"ask": 3, "never loaded": 99})
    assert run_policy(policy_named("cyber"), items, budget(), known).lost_skills() == ["ask"]


def test_a_soft_limit_of_the_calibrated_size_decides():
    items = history(user("x"), worked(4), says("next"))
    policy = policy_from(["micro"], {"micro": {"keep_recent": 0}})
    size = budget().size(items)
    assert run_policy(policy, items, budget(threshold=size), facts()).edits == ()
    doubled = budget(threshold=size, target=10, ratio=1.01)
    assert run_policy(policy, items, doubled, facts()).edits != ()
