"""What a compaction would do to a trace as it stands now; nothing is written.

Source: docs/compaction.md, "Asked for".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from asgiref.sync import async_to_sync

from cyberagent import presets
from cyberagent.compaction.keep import floor, said_in
from cyberagent.compaction.passes import Pass, complete, run_policy, user_budget
from cyberagent.compaction.policy import policy_for
from cyberagent.compaction.stage import CompactionStage
from cyberagent.compaction.summary import stub_summary
from cyberagent.compaction.telling import edit_json
from cyberagent.compaction.values import Facts, Items, SummaryRequest
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import WindowTooLarge
from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.ports import Replay, Store
from cyberagent.core.rebuild import recorded_window
from cyberagent.core.state import RunState, open_state
from cyberagent.core.types import Json
from cyberagent.core.window import BrokenManifest, Item
from cyberagent.trace.goals import replay
from traces.environment import environment
from traces.models import Trace
from traces.store import OrmStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a pass under ``policy`` would make of the next call's history. Tokens as the provider
    counts them, as far as known.

    ``edits``: as in a Compacted event; ``users_whole``, ``users_quoted``: sequences of what people
    said that stays word for word, and of what stays as an excerpt only; ``cached_lost``: tokens
    of the newest call that the next one would begin with, and no longer would; ``floor``: what
    no strategy can remove; ``limit``: the most that can be sent, None where unknown. ``stubbed``:
    a model would be asked for a summary, and the closed goals' own summaries stand for it here.
    ``worth_it``: whether an automatic pass like it would count as a success, else ``why`` not.
    """

    policy: str
    tokens_before: int
    tokens_after: int
    floor: int
    limit: int | None
    edits: tuple[Json, ...] = ()
    users_whole: tuple[int, ...] = ()
    users_quoted: tuple[int, ...] = ()
    cached_lost: int = 0
    stubbed: bool = False
    worth_it: bool = False
    why: str = ""

    @property
    def tokens_saved(self) -> int:
        return self.tokens_before - self.tokens_after


def compaction_preview(trace: Trace, policy: str | None = None) -> Preview:
    """A pass over the history that the next call would be made from, as if somebody had asked
    for it. ``policy``: another one than the run's. Raises InvalidConfig."""
    return async_to_sync(_preview)(trace.pk, policy)


async def _preview(trace_id: str, name: str | None) -> Preview:
    state, stage = await opened(trace_id)
    policy = policy_for(state.config.with_(policy=name or state.config.policy))
    history, budget, facts = tuple(state.history), stage.budget(state, policy), stage.facts(state)
    lowest = floor(history, budget, facts, user_messages_budget=user_budget(policy))
    size = budget.size(history)
    nothing = Preview(
        policy=policy.name,
        tokens_before=size,
        tokens_after=size,
        floor=lowest,
        limit=budget.limit,
    )
    try:
        found = run_policy(policy, history, budget, facts, manual=True)
    except WindowTooLarge as error:
        return replace(nothing, why=str(error))
    stubbed = found.request is not None
    done = complete(found, lambda request: _stub(request, facts))
    said = said_in(done.items)
    verdict = done.judged()
    return replace(
        nothing,
        tokens_after=done.tokens_after,
        edits=tuple(edit_json(e) for e in done.edits),
        users_whole=tuple(s.sequence for s in said if s.whole),
        users_quoted=tuple(s.sequence for s in said if not s.whole),
        cached_lost=await _cached_lost(state, budget, done),
        stubbed=stubbed,
        worth_it=verdict.success,
        why=verdict.why,
    )


def _stub(request: SummaryRequest, facts: Facts) -> str:
    return stub_summary(facts.plan, facts.language, request.characters)


async def _cached_lost(state: RunState, budget: Budget, done: Pass) -> int:
    """Of the newest call's items, those with which the next call would begin as it is now, and
    would not after the pass."""
    calls = await OrmStore().main_calls(state.trace.id)
    if not calls:
        return 0
    try:
        _, window = await recorded_window(OrmStore(), state.trace.id, calls[-1][0])
    except BrokenManifest:
        return 0
    now, then = _common(window.items, done.before), _common(window.items, done.items)
    return budget.corrected(raw_size(window.items[then:now]))


def _common(one: Sequence[Item], other: Items) -> int:
    """With how many items both begin."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


# The run as it would go on ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Opening:
    store: Store
    replay: Replay
    compaction: CompactionStage


async def opened(trace_id: str) -> tuple[RunState, CompactionStage]:
    """The state from which a run of this trace would go on now. Only read."""
    store = OrmStore()
    trace = await store.trace(trace_id)
    config = presets.resolve(RunConfig.from_json(trace.config), environment())
    stage = presets.compaction_for(config)
    return await open_state(store, trace, config, _Opening(store, replay, stage)), stage


def config_of(trace: Trace) -> RunConfig:
    """A trace's settings, with the policy that an operator chose since. Raises InvalidConfig."""
    config = RunConfig.from_json(json.loads(trace.config))
    chosen = json.loads(trace.context).get("policy")
    return config.with_(policy=str(chosen)) if chosen else config
