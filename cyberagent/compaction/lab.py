"""The compaction lab: a policy replayed over a whole trace as if the trace had run under it.

    subject = lab_subject(state, messages)
    report = replayed(subject, lab_policy("cyber", 128_000), 128_000)

Pure and deterministic, but for ``seconds``; nothing stored is touched. Source: docs/lab.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from cyberagent.compaction.keep import said_in
from cyberagent.compaction.lab_report import PassReport, Report
from cyberagent.compaction.passes import Pass, finish, run_policy
from cyberagent.compaction.policy import COMPACTION_TARGET, COMPRESSION_THRESHOLD, Policy
from cyberagent.compaction.recall import NextUse, identifiers, identifiers_of
from cyberagent.compaction.subject import (
    Subject,
    default_window,
    lab_policies,
    lab_policy,
    lab_subject,
)
from cyberagent.compaction.summary import settled, stub_summary
from cyberagent.compaction.values import Facts, Items, SummaryRequest, is_said
from cyberagent.core.errors import WindowTooLarge
from cyberagent.core.guards import Breaker, Budget, reserve
from cyberagent.core.tokens import MESSAGE_OVERHEAD
from cyberagent.core.types import Json, Message, Text, ToolCall
from cyberagent.core.window import Item, Window
from cyberagent.providers.anthropic import project_anthropic
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import project_openai

__all__ = [
    "Report",
    "Subject",
    "at_equal_tokens",
    "default_window",
    "lab_policies",
    "lab_policy",
    "lab_subject",
    "payload_problems",
    "replayed",
]

CACHE_READ, CACHE_WRITE, OUTPUT = 0.1, 1.25, 5.0
"""Price of a token, in tokens of uncached input: read from the cache, written to it, and made by
the model that summarises. The answers of the trace itself cost the same under every policy and
are left out."""

CHECKED_CALLS = 16
"""Besides the call after each pass and the last one, about this many are checked."""

SECONDS_PER_CALL = 10.0
"""How the circuit breaker's clock goes: a replay has no time of its own."""

LOW_WATER = COMPACTION_TARGET / COMPRESSION_THRESHOLD
"""Of a threshold that was moved: where its passes aim at, as every policy's do."""


def payload_problems(window: Window) -> list[str]:
    """Rules that the window's payload breaks, with either provider."""
    chat, messages = project_openai(window), project_anthropic(window)
    return [
        *(f"openai: {p}" for p in problems_openai(chat)),
        *(f"anthropic: {p}" for p in problems_anthropic(messages)),
    ]


# The replay ------------------------------------------------------------------------------------


def replayed(
    subject: Subject,
    policy: Policy,
    window: int,
    *,
    threshold: int | None = None,
    problems_of: Callable[[Window], Sequence[str]] | None = payload_problems,
) -> Report:
    """The whole trace under ``policy`` with a context window of ``window`` tokens. Each call's
    window is followed, none is copied; time grows with the messages, and with each pass by what
    stands in the window. ``threshold``: tokens above which a pass is due, in place of what the
    policy's trigger makes of the window; ``problems_of``: the rules that payloads are checked by,
    None for no checks."""
    budget = _budget(subject, policy, window)
    if threshold is not None and budget.threshold is not None:
        budget = replace(budget, threshold=threshold, target=int(threshold * LOW_WATER))
    replay = _Replay(subject, policy, budget, problems_of)
    calls = subject.calls
    last = calls[-1] if calls else -1
    every = max(1, -(-len(calls) // CHECKED_CALLS))
    for place in range(last + 1):
        if subject.is_call(place):
            replay.call(place, check=replay.calls % every == every - 1 or place == last)
        if place < last:
            replay.append(place)
    return replay.report()


def at_equal_tokens(
    subject: Subject, policy: Policy, window: int, mean: float, *, within: float = 0.02
) -> Report:
    """The replay whose windows have ``mean`` tokens on average, by bisection of the threshold;
    the nearest one found where none comes ``within`` that share of it (windows jump where a pass
    comes a call earlier)."""
    low, high = subject.fixed, max(1, subject.raw_peak)
    best: Report | None = None
    while low <= high:
        middle = (low + high) // 2
        report = replayed(subject, policy, window, threshold=middle, problems_of=None)
        if best is None or abs(report.mean_tokens - mean) < abs(best.mean_tokens - mean):
            best = report
        if abs(report.mean_tokens - mean) <= within * mean:
            break
        low, high = (middle + 1, high) if report.mean_tokens < mean else (low, middle - 1)
    return best or replayed(subject, policy, window)


def _budget(subject: Subject, policy: Policy, window: int) -> Budget:
    """An output limit that would leave less than half of the window is not this window's."""
    limit = subject.max_output_tokens
    fits = limit is not None and 2 * limit <= window
    kept = limit if fits else reserve(window, None)
    return policy.budget(window=window, max_output_tokens=kept, fixed=subject.fixed)


@dataclass(slots=True)
class _Replay:
    """The state of one replay: the window as it is, and what was measured so far."""

    subject: Subject
    policy: Policy
    budget: Budget
    problems_of: Callable[[Window], Sequence[str]] | None
    items: list[Item] = field(default_factory=list[Item])
    size: int = 0
    calls: int = 0
    peak: int = 0
    total: int = 0
    shares: float = 0.0
    recalls: list[float] = field(default_factory=list[float])
    price: float = 0.0
    sent: int = 0
    sent_items: int = 0
    passes: list[PassReport] = field(default_factory=list[PassReport])
    summary_calls: int = 0
    checked: int = 0
    problems: list[str] = field(default_factory=list[str])
    overflows: int = 0
    breaker: Breaker = field(default_factory=Breaker)
    seconds: float = 0.0
    use: NextUse = field(init=False)
    places: dict[int, int] = field(init=False)
    tools: tuple[Json, ...] = field(init=False)

    def __post_init__(self) -> None:
        messages = self.subject.messages
        self.use = NextUse(self.subject.names)
        self.places = {m.sequence: n for n, m in enumerate(messages)}
        self.tools = self.subject.tools or _tools_called(messages)

    @property
    def tokens(self) -> int:
        return self.budget.fixed + self.size

    # Steps -----------------------------------------------------------------------------------

    def append(self, place: int) -> None:
        message = self.subject.messages[place]
        self.items.append(Item(message))
        self.size += message.tokens
        self.use.append(place)

    def call(self, place: int, *, check: bool) -> None:
        """The window before the message at ``place``: compacted if it is due, then measured."""
        unchanged = self.sent
        if self.budget.is_due(self.tokens) and self.breaker.can_attempt(self._now()):
            before = self.items
            if self._compact(place):
                unchanged = self.budget.fixed + _common(before[: self.sent_items], self.items)
                check = True
        if not self.budget.fits(self.tokens):
            self.overflows += 1
        if self.calls:
            self.shares += unchanged / self.tokens if self.tokens else 0.0
            self._pay(self.tokens, unchanged)
        else:
            self._pay(self.tokens, 0)
        self.calls += 1
        self.peak = max(self.peak, self.tokens)
        self.total += self.tokens
        if self.use.recall is not None:
            self.recalls.append(self.use.recall)
        self.sent, self.sent_items = self.tokens, len(self.items)
        if check:
            self._check()

    def _now(self) -> float:
        return self.calls * SECONDS_PER_CALL

    def _pay(self, tokens: int, cached: int) -> None:
        self.price += CACHE_READ * cached + CACHE_WRITE * (tokens - cached)

    def _check(self) -> None:
        if self.problems_of is None:
            return
        window = Window(
            system=self.subject.system,
            items=tuple(self.items),
            tools=self.tools,
            params=self.subject.params,
        )
        self.checked += 1
        self.problems += self.problems_of(window)

    # Passes ----------------------------------------------------------------------------------

    def _compact(self, place: int) -> bool:
        """A pass; whether it changed the window."""
        begun = time.perf_counter()
        try:
            found = self._pass(place)
        except WindowTooLarge as error:
            self.breaker = self.breaker.after_failure(self._now())
            self._note(self.tokens, self.tokens, str(error))
            return False
        finally:
            self.seconds += time.perf_counter() - begun
        if not found.edits and not found.failures and found.tight:
            return False
        verdict = found.judged()
        if verdict.dear:
            return False
        if not verdict.success:
            self.breaker = self.breaker.after_failure(self._now())
            self._note(found.tokens_before, found.tokens_before, verdict.why, found)
            return False
        self.breaker = self.breaker.after_success()
        self._note(found.tokens_before, found.tokens_after, "", found)
        self._take(found.items)
        return True

    def _pass(self, place: int) -> Pass:
        plan = self.subject.plan_of(place)
        facts = Facts(
            counter=self.subject.counter,
            plan=plan,
            skills=self._skills(),
            language=self.subject.language,
        )
        state = run_policy(self.policy, tuple(self.items), self.budget, facts)
        while state.request is not None:
            text = stub_summary(plan, self.subject.language, state.request.characters)
            self._pay_summary(state.request, text)
            state = finish(state, text)
        return state

    def _skills(self) -> dict[str, int]:
        """The newest whole result of each loaded skill in the window."""
        found: dict[str, int] = {}
        named: dict[str, str] = {}
        for item in self.items:
            message = item.message
            for call in message.tool_calls if message.role == "assistant" else ():
                if name := _skill_of(call):
                    named[call.id] = name
            if message.role == "tool" and item.kind == "whole" and message.tool_call_id in named:
                found[named[message.tool_call_id]] = message.sequence
        return found

    def _pay_summary(self, request: SummaryRequest, text: str) -> None:
        """The call that asks for a summary: the window as it is and the instruction after it,
        or, where that does not fit, the history as text, which no cache knows."""
        counter = self.subject.counter
        prompt = self.tokens + counter.count(request.instruction) + MESSAGE_OVERHEAD
        self.summary_calls += 1
        self._pay(prompt, self.sent if self.budget.fits(prompt) else 0)
        self.price += OUTPUT * counter.count(text)

    def _take(self, items: Items) -> None:
        """Go on with the history that a pass made. Its summary is stored as a run would store
        it, with a number of its own."""
        draft = next((i.message for i in items if _is_draft(i)), None)
        if draft is not None:
            highest = max(self.places, default=0)
            number = highest + 1 + self.summary_calls
            items = settled(items, replace(draft, sequence=number))
        old, new = {id(i) for i in self.items}, {id(i) for i in items}
        for item in self.items:
            if id(item) not in new:
                self.use.drop(self._names(item))
        for item in items:
            if id(item) not in old:
                self.use.keep(self._names(item))
        self.items = list(items)
        self.size = sum(i.message.tokens for i in items)

    def _names(self, item: Item) -> frozenset[str]:
        """The identifiers that an item holds for good: what it has word for word, and what a
        summary says. What a strategy put in place of a text does not count."""
        message = item.message
        place = self.places.get(message.sequence)
        if item.kind == "whole" and place is not None:
            return self.subject.names[place]
        if message.source == "summary" or (item.kind == "inserted" and item.strategy == "goal"):
            return identifiers_of(message)
        if item.kind == "replaced" and place is not None:
            original = self.subject.messages[place].parts
            return identifiers(p for p in message.parts if p in original)
        return identifiers(Text(s.text) for s in said_in((item,)))

    def _note(self, before: int, after: int, why: str, found: Pass | None = None) -> None:
        sums: dict[tuple[str, str], list[int]] = {}
        for edit in found.edits if found else ():
            one = sums.setdefault((edit.strategy, edit.what), [0, 0])
            one[0] += len(edit.sequences)
            one[1] += edit.tokens_saved
        self.passes.append(
            PassReport(
                call=self.calls + 1,
                tokens_before=before,
                tokens_after=after,
                success=not why,
                why=why,
                edits=tuple((s, w, n, t) for (s, w), (n, t) in sums.items()),
            )
        )

    # The end ---------------------------------------------------------------------------------

    def report(self) -> Report:
        """All of it; ``items`` are those of the last call's window."""
        before = self.subject.messages[: max(self.subject.calls, default=0)]
        said = {m.sequence for m in before if is_said(m)}
        kept = {s.sequence for s in said_in(self.items) if s.whole}
        forms = {i.message.sequence: i.kind for i in self.items if i.kind != "inserted"}
        good = sum(p.success for p in self.passes)
        return Report(
            policy=self.policy.name,
            calls=self.calls,
            peak_tokens=self.peak,
            mean_tokens=round(self.total / self.calls, 1) if self.calls else 0.0,
            passes=good,
            failed_passes=len(self.passes) - good,
            summary_calls=self.summary_calls,
            prefix_share=round(self.shares / (self.calls - 1), 4) if self.calls > 1 else 0.0,
            price=round(self.price, 2),
            recall=round(sum(self.recalls) / len(self.recalls), 4) if self.recalls else None,
            user_messages=len(said),
            user_messages_kept=len(said & kept),
            violations=len(self.problems),
            checked=self.checked,
            overflows=self.overflows,
            hidden=sum(m.sequence not in forms for m in before),
            shortened=sum(forms.get(m.sequence) == "replaced" for m in before),
            seconds=round(self.seconds, 3),
            problems=tuple(self.problems[:5]),
            log=tuple(self.passes),
        )


def _common(old: Sequence[Item], new: Sequence[Item]) -> int:
    """Tokens of the items with which both begin."""
    tokens = 0
    for a, b in zip(old, new, strict=False):
        if a is not b:
            break
        tokens += a.message.tokens
    return tokens


def _skill_of(call: ToolCall) -> str:
    """The skill that a call loads; empty for any other call."""
    value = call.parsed() if call.name == "skill" else None
    name = cast("dict[str, Json]", value).get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""


def _is_draft(item: Item) -> bool:
    return item.kind == "inserted" and item.message.source == "summary"


def _tools_called(messages: Sequence[Message]) -> tuple[Json, ...]:
    """Schemas for the tools that were called, where a trace does not tell them: a payload
    without tools would have no calls to check."""
    names = dict.fromkeys(c.name for m in messages for c in m.tool_calls)
    return tuple({"name": n, "description": "", "parameters": {"type": "object"}} for n in names)
