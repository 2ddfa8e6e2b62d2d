"""Compaction at work in a run: decides when, asks the model on side branches, applies what a
pass made of the history, and tells of it. Source: docs/compaction.md, "In a run"."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from cyberagent.compaction.goal import compress_completed_goals
from cyberagent.compaction.keep import kept_items, kept_json, kept_sequences
from cyberagent.compaction.knowledge import (
    MAX_PENDING,
    Entry,
    entry_from_json,
    extracted,
    judged,
    listed,
)
from cyberagent.compaction.passes import Pass, finish, run_policy
from cyberagent.compaction.policy import Policy, policy_for
from cyberagent.compaction.summary import piece_prompt, pieces, settled
from cyberagent.compaction.telling import compacted
from cyberagent.compaction.values import Facts, Items, SummaryRequest, inserted
from cyberagent.core.control import ended, who
from cyberagent.core.events import BreakerChanged, Compacted, Event, Knowledge, Nudge
from cyberagent.core.filecache import restored
from cyberagent.core.guards import Budget, Judgement, may_compact
from cyberagent.core.lane import Lane
from cyberagent.core.lineage import PINNED
from cyberagent.core.parts import Branched, Branching
from cyberagent.core.ports import CommandEnd, PendingCommand, Store, TokenCounter
from cyberagent.core.state import RunState
from cyberagent.core.streams import Paused
from cyberagent.core.tokens import count_tools
from cyberagent.core.types import (
    BranchType,
    Json,
    Message,
    sha256,
    stored_json,
    text_message,
)
from cyberagent.core.window import Item
from cyberagent.core.wording import wording
from cyberagent.trace.goals import GoalTree

REFLECTION_TURNS = 6
"""Turns of a side branch that may use tools; the last one must answer."""

LEAST_PIECE_TOKENS, MOST_PIECES = 200, 50
"""Of a history that is summarised piece by piece: in smaller or more pieces it would cost more
calls than it is worth, and say nothing."""

READING_TOOLS = frozenset({"read_file", "glob_files", "search_files", "terminal"})


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asked for a pass ("": it is due by itself), under which policy, and the operator's
    command that ends with it."""

    policy: Policy
    by: str = ""
    command: PendingCommand | None = None

    def ended(self, success: bool, result: str) -> tuple[CommandEnd | None, list[Event]]:
        """The end of the command, to be stored with what the pass made."""
        if self.command is None:
            return None, []
        end, told = ended(self.command, "applied" if success else "refused", result)
        return end, [told]


@dataclass(slots=True)
class CompactionStage:
    """Policies in a run: see :class:`cyberagent.core.parts.Compaction`. ``schemas``: what is
    sent as tools; ``now``: seconds of the Unix epoch. The policy is read from the run's config
    each time, since an operator may change it."""

    counter: TokenCounter
    schemas: tuple[Json, ...]
    now: Callable[[], float] = time.time

    # The history of a path -------------------------------------------------------------------

    async def restored(self, store: Store, trace_id: str, path: Sequence[Message]) -> list[Item]:
        """The history that the newest summary of ``path`` began, then what came after it."""
        for place in range(len(path) - 1, -1, -1):
            summary = path[place]
            if summary.source == "summary" and "kept" in summary.metadata:
                kept = await store.messages(trace_id, kept_sequences(summary))
                return [*kept_items(summary, kept), *(Item(m) for m in path[place + 1 :])]
        return [Item(m) for m in path]

    # When ------------------------------------------------------------------------------------

    async def manage(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        """Compact if it is due or was asked for. Raises WindowTooLarge where what nobody can
        remove does not fit."""
        just_compacted, state.just_compacted = state.just_compacted, False
        if state.config.goal_compression == "on_complete" and self._clears_goals(state):
            async for event in self._on_complete(state, runner):
                yield event
        asked = self._asked(state)
        budget = self.budget(state, asked.policy)
        if not asked.by and not budget.is_due(budget.size(state.history)):
            return
        allowed = may_compact(
            breaker=state.breaker,
            now=self.now(),
            compacting=False,
            manual=bool(asked.by),
            just_compacted=just_compacted,
        )
        if not allowed.allowed:
            if asked.by:
                held = Nudge(what="compaction_held_back", text=allowed.why)
                end, told = asked.ended(False, allowed.why)
                for event in await runner.write(state, [], [held, *told], command=end):
                    yield event
            return
        if not asked.by:
            _must_get_on(state)
        async for event in self._pass(state, runner, budget, asked):
            yield event

    @staticmethod
    def _asked(state: RunState) -> Asked:
        by, state.compact_asked = state.compact_asked, ""
        command, state.compact_command = state.compact_command, None
        if command is None:
            return Asked(policy_for(state.config), by)
        policy = command.arguments.get("policy") or state.config.policy
        return Asked(policy_for(state.config.with_(policy=policy)), who(command), command)

    def budget(self, state: RunState, policy: Policy | None = None) -> Budget:
        fixed = self.counter.count(state.system_prompt) + count_tools(self.counter, self.schemas)
        return (policy or policy_for(state.config)).budget(
            window=state.config.context_window,
            max_output_tokens=state.config.max_output_tokens,
            fixed=fixed,
            ratio=state.calibration.for_model(state.model or state.calibration.model),
        )

    def facts(self, state: RunState) -> Facts:
        return Facts(
            counter=self.counter,
            plan=cast("GoalTree", state.goals),
            skills={name: record["sequence"] for name, record in state.injected.items()},
            pinned=frozenset(
                i.message.sequence for i in state.history if PINNED in i.message.metadata
            ),
            language=state.config.language,
        )

    @staticmethod
    def _clears_goals(state: RunState) -> bool:
        return any(s.name == "goal" for s in policy_for(state.config).strategies)

    async def _on_complete(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        """Clear what has been closed since; neither judged nor counted by the breaker."""
        before = tuple(state.history)
        form = state.config.goal_compression_form
        step = compress_completed_goals(before, self.facts(state), form=form)
        if not step.edits:
            return
        budget = self.budget(state)
        told = compacted(
            policy_for(state.config).name,
            step.edits,
            before=budget.size(before),
            after=budget.size(step.items),
            trigger="on_complete",
            breaker=state.breaker,
        )
        state.history = list(step.items)
        for event in await runner.write(state, [], [told]):
            yield event

    # A pass ----------------------------------------------------------------------------------

    async def _pass(
        self, state: RunState, runner: Branching, budget: Budget, asked: Asked
    ) -> AsyncIterator[Event]:
        history, facts = tuple(state.history), self.facts(state)
        found = run_policy(asked.policy, history, budget, facts, manual=bool(asked.by))
        if found.tight and not state.warned_tight:
            state.warned_tight = True
            text = wording(state.config.language, "floor_high")
            for event in await runner.write(state, [], [Nudge(what="floor_high", text=text)]):
                yield event
        cost: list[float] = []
        while found.request is not None:
            outcome = Branched()
            async for event in self._ask(state, runner, found.request, outcome):
                yield event
            if outcome.cost is not None:
                cost.append(outcome.cost)
            found = finish(
                found,
                outcome.text,
                finish_reason=cast("Any", outcome.finish_reason),
                has_calls=outcome.has_calls,
                why=outcome.why,
            )
        if not asked.by and not found.edits and not found.failures and found.tight:
            return
        for event in await self._apply(state, runner, found, asked, sum(cost) if cost else None):
            yield event

    async def _apply(
        self, state: RunState, runner: Branching, found: Pass, asked: Asked, cost: float | None
    ) -> list[Event]:
        """Take over what the pass made, or note that it failed: then nothing changes."""
        verdict = found.judged()
        if verdict.dear and not asked.by:
            return await self._too_dear(state, runner, verdict.why)
        state.told_dear = False
        success = bool(found.edits) if asked.by else verdict.success
        breaker = state.breaker.at(self.now())
        after = breaker.after_success() if success else breaker.after_failure(self.now())
        if asked.by and not success:
            after = breaker
        end, told_of = asked.ended(success, _result(found, verdict, success))
        told: list[Event] = [
            replace(
                compacted(
                    found.policy.name,
                    found.edits,
                    before=found.tokens_before,
                    after=found.tokens_after if success else found.tokens_before,
                    trigger="manual" if asked.by else "overflow",
                    breaker=after,
                ),
                success=success,
                by=asked.by,
                cost=cost,
                why="" if success else verdict.why,
            ),
            *told_of,
        ]
        if after.state != state.breaker.state:
            told.append(BreakerChanged(state=after.state, failures=after.failures))
        state.breaker = after
        context = {**state.trace.context, "breaker": after.to_json()}
        draft = next((i.message for i in found.items if _is_draft(i)), None)
        if not success:
            return await runner.write(state, [], told, context=context, command=end)
        state.just_compacted = True
        items = (*found.items, *self._files_back(state, found))
        if draft is None:
            state.history = list(items)
            return await runner.write(state, [], told, context=context, command=end)
        return await self._store_summary(state, runner, items, draft, told, context, end)

    @staticmethod
    async def _too_dear(state: RunState, runner: Branching, why: str) -> list[Event]:
        """Wait until there is more to gain; said once, since it is looked at before each call."""
        if state.told_dear:
            return []
        state.told_dear = True
        return await runner.write(state, [], [Nudge(what="compaction_held_back", text=why)])

    def _files_back(self, state: RunState, found: Pass) -> list[Item]:
        """The newest files that were read and have left the window, for as long as it stays
        within the target. Where closed goals alone were cleared nothing comes back: what they
        had read is not needed any more."""
        if all(e.strategy == "goal" for e in found.edits):
            return []
        shown = {i.message.sequence for i in found.items if i.kind == "whole"}
        files = [f for f in state.files.snapshot() if f.sequence not in shown]
        state.files.clear()
        back: list[Item] = []
        for file, text in restored(files, state.config.language):
            why = f"{file.path} was read as message {file.sequence}"
            item = inserted(text, self.facts(state), strategy="file cache", why=why)
            if found.budget.size((*found.items, *back, item)) > found.budget.target:
                break
            back.append(item)
        return back

    async def _store_summary(
        self,
        state: RunState,
        runner: Branching,
        items: Items,
        draft: Message,
        told: list[Event],
        context: Mapping[str, Json],
        command: CommandEnd | None,
    ) -> list[Event]:
        """The summary becomes a message below the first user message, and the new head."""
        first = next((i.message.sequence for i in items if i.message.role == "user"), 0)
        snapshot = {**draft.metadata["snapshot"], "answers": state.answers}
        if state.protocol is not None:
            snapshot["protocol"] = state.protocol.to_json()
        metadata = {**draft.metadata, "snapshot": snapshot, "kept": kept_json(items)}
        draft = replace(draft, metadata=metadata)
        lane = Lane(head=first)
        told = [replace(e, message=-1) if isinstance(e, Compacted) else e for e in told]
        events = await runner.write(
            state, [draft], told, context=context, lane=lane, command=command
        )
        state.history = list(settled(items, lane.items[-1].message))
        return events

    # Side branches ---------------------------------------------------------------------------

    async def _ask(
        self, state: RunState, runner: Branching, request: SummaryRequest, outcome: Branched
    ) -> AsyncIterator[Event]:
        """The queue before a summary: reflection, evaluation of what waits, the summary."""
        if state.config.enable_extraction:
            async for event in self.reflect(state, runner):
                yield event
        if pending_entries(state):
            async for event in self._evaluate(state, runner):
                yield event
        async for event in self._summarise(state, runner, request, outcome):
            yield event

    async def _summarise(
        self, state: RunState, runner: Branching, request: SummaryRequest, outcome: Branched
    ) -> AsyncIterator[Event]:
        """Ask with the window as it is, which the provider has cached; where that does not fit,
        with the history as text, piece by piece."""
        lane = self._lane(state, "compression")
        budget = self.budget(state)
        asking = budget.corrected(self.counter.count(request.instruction) + 16)
        if budget.fits(budget.size(state.history) + asking):
            async for event in self._say(state, runner, lane, request.instruction, outcome):
                yield event
            return
        room = ((budget.limit or 0) - budget.corrected(budget.fixed) - asking) // 2
        room = int(room / budget.ratio)
        if room < LEAST_PIECE_TOKENS:
            outcome.why = f"only {max(0, room):,} tokens of the window are free for a summary"
            return
        texts = pieces(request, room, self.counter)
        if len(texts) > MOST_PIECES:
            outcome.why = f"the history would be summarised in {len(texts):,} pieces"
            return
        earlier = ""
        for part in range(len(texts)):
            lane.items.clear()
            text = piece_prompt(request, texts, part, earlier, state.config.language)
            outcome.text = None
            async for event in self._say(state, runner, lane, text, outcome):
                yield event
            if outcome.text is None:
                return
            earlier = outcome.text

    async def reflect(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        """Extract knowledge on a side branch; its entries wait to be judged."""
        outcome = Branched(max_turns=REFLECTION_TURNS)
        lane = self._lane(state, "reflection", READING_TOOLS)
        after, began = lane.head, state.trace.last_sequence
        text = wording(state.config.language, "reflection")
        async for event in self._say(state, runner, lane, text, outcome):
            yield event
        goal = state.goals.current or ""
        entries = extracted(outcome.text or "", after=after, began=began, goal_id=goal)
        if not entries:
            return
        found = [
            Knowledge(
                entry=e.name, status="pending", text=e.text, sources=e.sources, goal_id=e.goal_id
            )
            for e in entries
        ]
        waiting = [*pending_entries(state), *entries][-MAX_PENDING:]
        for event in await self._keep(state, runner, waiting, found):
            yield event

    async def _evaluate(self, state: RunState, runner: Branching) -> AsyncIterator[Event]:
        pending = pending_entries(state)
        outcome = Branched(max_turns=REFLECTION_TURNS)
        lane = self._lane(state, "knowledge_eval", READING_TOOLS)
        text = wording(state.config.language, "knowledge_eval").format(entries=listed(pending))
        async for event in self._say(state, runner, lane, text, outcome):
            yield event
        done = judged(outcome.text or "", pending)
        if not done:
            return
        found = [
            Knowledge(
                entry=j.entry.name, status=j.status, by="knowledge_eval", why=j.why,
                text=j.entry.text, sources=j.entry.sources, goal_id=j.entry.goal_id,
            )
            for j in done
        ]  # fmt: skip
        names = {j.entry.name for j in done}
        left = [e for e in pending if e.name not in names]
        for event in await self._keep(state, runner, left, found):
            yield event

    @staticmethod
    async def _keep(
        state: RunState, runner: Branching, waiting: Sequence[Entry], found: Sequence[Knowledge]
    ) -> list[Event]:
        context = {**state.trace.context, "pending_knowledge": [e.to_json() for e in waiting]}
        return await runner.write(state, [], found, context=context)

    @staticmethod
    def _lane(state: RunState, kind: BranchType, allowed: frozenset[str] = frozenset()) -> Lane:
        return Lane(
            head=state.trace.head_sequence,
            items=list(state.history),
            branch_type=kind,
            branch_id=f"{kind}-{state.trace.last_sequence + 1}",
            allowed=allowed,
        )

    @staticmethod
    async def _say(
        state: RunState, runner: Branching, lane: Lane, text: str, outcome: Branched
    ) -> AsyncIterator[Event]:
        """Put the instruction on the lane, and ask."""
        draft = text_message("user", text, source="framework")
        for event in await runner.write(state, [draft], [], lane=lane):
            yield event
        async for event in runner.branch(state, lane, outcome):
            yield event


def _must_get_on(state: RunState) -> None:
    """Raises Paused where one automatic pass after the other found the same plan and nothing
    called that had not been called before: the run goes in circles and only costs money. A
    person may resume it."""
    plan = sha256(stored_json(state.goals.to_json()).encode())
    state.progress = state.progress.after(f"{plan} {len(state.deeds)} {state.trace.turn}")
    if state.progress.is_stalled:
        raise Paused(
            f"the run goes in circles: {state.progress.idle} compactions in a row found the "
            "same plan, and no call that had not been made before"
        )


def pending_entries(state: RunState) -> list[Entry]:
    kept = cast("list[Json]", state.trace.context.get("pending_knowledge", []))
    return [entry_from_json(e) for e in kept]


def _result(found: Pass, verdict: Judgement, success: bool) -> str:
    if not success:
        return verdict.why
    return f"{found.tokens_before:,} → {found.tokens_after:,} tokens"


def _is_draft(item: Item) -> bool:
    return item.kind == "inserted" and item.message.source == "summary"
