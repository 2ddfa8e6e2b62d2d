"""A pass: a policy at work on one history.

    state = run_policy(policy, items, budget, facts)
    while state.request is not None:
        state = finish(state, text_of_a_model(state.request))
    history = state.result()

Pure: a model is asked by the caller, between two steps. Source: docs/compaction.md, "A pass".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from cyberagent.compaction.keep import floor
from cyberagent.compaction.policy import Policy
from cyberagent.compaction.summary import SummaryCompaction, problems_of_summary
from cyberagent.compaction.values import (
    Edit,
    Facts,
    Items,
    Step,
    Strategy,
    Summarising,
    SummaryRequest,
    sequences,
)
from cyberagent.core.guards import Budget, Judgement, above_floor, judge, raw_size
from cyberagent.core.ports import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A policy at work on one history. ``before`` is untouched; ``items`` is what has become of
    it. While ``request`` is not None, a model must be asked and :func:`finish` called.

    ``next``: the strategy that comes next; ``failures``: why summaries were not taken; ``tight``:
    the floor is above the threshold, which is worth a warning, once.
    """

    policy: Policy
    budget: Budget
    facts: Facts
    before: Items
    items: Items
    edits: tuple[Edit, ...] = ()
    next: int = 0
    request: SummaryRequest | None = None
    failures: tuple[str, ...] = ()
    tight: bool = False
    manual: bool = False

    @property
    def tokens_before(self) -> int:
        return self.budget.size(self.before)

    @property
    def tokens_after(self) -> int:
        return self.budget.size(self.items)

    @property
    def tokens_saved(self) -> int:
        """As estimated, uncorrected: what the edits' savings add up to."""
        return raw_size(self.before) - raw_size(self.items)

    def judged(self) -> Judgement:
        """Whether an automatic pass, now at its end, was a success."""
        if not self.edits:
            return Judgement(False, "; ".join(self.failures) or "there was nothing to remove")
        return judge(self.tokens_before, self.tokens_after, self.budget, self.tokens_rewritten)

    @property
    def tokens_rewritten(self) -> int:
        """Of what stays, the tokens that stand behind the first edit."""
        same = 0
        for a, b in zip(self.before, self.items, strict=False):
            if a is not b:
                break
            same += 1
        stayed = {id(i) for i in self.before[same:]}
        return self.budget.corrected(raw_size([i for i in self.items[same:] if id(i) in stayed]))

    def result(self, *, automatic: bool = True) -> Items:
        """The history to go on with: a failed automatic pass changes nothing."""
        return self.items if not automatic or self.judged().success else self.before

    def lost_skills(self) -> list[str]:
        """Loaded skills that have left the history, or were edited: to be injected again."""
        had, has = _whole(self.before), _whole(self.items)
        return [n for n, s in self.facts.skills.items() if s in had and s not in has]


def _whole(items: Items) -> set[int]:
    return set(sequences([i for i in items if i.kind == "whole"]))


def run_policy(
    policy: Policy, items: Items, budget: Budget, facts: Facts, *, manual: bool = False
) -> Pass:
    """Run the strategies in order until the history is down to the target; stops with a request
    where a model is needed. ``manual``: somebody asked for it, whether or not it is due.

    Raises WindowTooLarge, with the numbers, where what nobody can remove does not fit.
    """
    size = budget.size(items)
    start = Pass(
        policy=policy, budget=budget, facts=facts, before=items, items=items, manual=manual
    )
    if not policy.strategies or not (manual or budget.is_due(size)):
        return start
    lowest = floor(items, budget, facts, user_messages_budget=user_budget(policy))
    allowed, tight = above_floor(budget, lowest, size)
    start = replace(start, budget=allowed, tight=tight)
    return _go_on(start) if manual or allowed.is_due(size) else start


def user_budget(policy: Policy) -> int:
    """How much of what people said comes back word for word: all of it, where no strategy may
    excerpt it."""
    own = [s.user_messages_budget for s in policy.strategies if isinstance(s, SummaryCompaction)]
    return min(own, default=sys.maxsize)


def finish(
    state: Pass,
    text: str | None,
    *,
    finish_reason: FinishReason = "stop",
    has_calls: bool = False,
    why: str = "",
) -> Pass:
    """Go on after the request was answered with ``text``; None where the call failed (``why``).
    A text that cannot stand for the history changes nothing, and the next strategy has its
    turn."""
    request = state.request
    if request is None:
        raise ValueError("this pass asked for nothing")
    strategy = cast("Summarising", state.policy.strategies[state.next])
    state = replace(state, request=None, next=state.next + 1)
    if text is None:
        problem = why or "the summary call failed"
    else:
        problem = problems_of_summary(
            text, request.tokens, finish_reason, has_calls, state.facts.counter
        )
    if text is None or problem:
        return _go_on(_failed(state, strategy, problem))
    # Asked for by somebody, a summary must leave much less than there was, also far below the
    # target.
    most = state.tokens_before // 2 if state.manual else state.budget.target
    budget = replace(state.budget, target=min(state.budget.target, most))
    step = strategy.rebuild(state.items, text, budget, state.facts)
    if raw_size(step.items) >= raw_size(state.items):
        return _go_on(_failed(state, strategy, "the history would not become smaller"))
    return _go_on(_taken(state, step))


def _failed(state: Pass, strategy: Strategy, problem: str | None) -> Pass:
    return replace(state, failures=(*state.failures, f"{strategy.name}: {problem}"))


def _taken(state: Pass, step: Step) -> Pass:
    return replace(state, items=step.items, edits=(*state.edits, *step.edits))


def _go_on(state: Pass) -> Pass:
    while state.next < len(state.policy.strategies):
        strategy = state.policy.strategies[state.next]
        if _has_turn(state, strategy):
            # Asked for by somebody, a strategy does all it can; whether a further one is needed
            # is still a matter of the target.
            budget = replace(state.budget, target=0) if state.manual else state.budget
            found = strategy.apply(state.items, budget, state.facts)
            if isinstance(found, SummaryRequest):
                return replace(state, request=found)
            state = _taken(state, found)
        state = replace(state, next=state.next + 1)
    return state


def _has_turn(state: Pass, strategy: Strategy) -> bool:
    if strategy.always:
        return bool(state.edits)
    size = state.tokens_after
    if state.manual:
        return size > state.budget.target or not state.edits
    if strategy.last_resort and state.budget.threshold is not None:
        return size > state.budget.threshold or not state.budget.fits(size)
    return size > state.budget.target


def complete(state: Pass, summarise: Callable[[SummaryRequest], str | None]) -> Pass:
    """The pass at its end, each request answered by ``summarise`` (the lab's stub, a test's
    text)."""
    while state.request is not None:
        state = finish(state, summarise(state.request))
    return state
