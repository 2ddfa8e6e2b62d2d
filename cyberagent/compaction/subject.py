"""What the lab replays, and under what: a trace made ready, context windows, policies.

Source: docs/lab.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cyberagent.compaction.goal import GoalCompaction
from cyberagent.compaction.policy import (
    POLICIES,
    TOKEN_SOFT_LIMIT,
    Policy,
    policy_from,
    policy_named,
)
from cyberagent.compaction.recall import identifiers_of
from cyberagent.compaction.segments import Segmented, segmented, whole_path
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig, InvalidInput
from cyberagent.core.ports import TokenCounter
from cyberagent.core.tokens import count_message, count_tools, counter_for
from cyberagent.core.types import Json, Message, TraceState
from cyberagent.trace.goals import GoalTree

DEFAULT_WINDOW = 128_000
"""The context window for which ``token_soft_limit`` is made, and that of a trace without one."""

LARGEST_WINDOW = 100_000_000


# What is replayed ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A trace, ready to be replayed under any policy. ``messages``: counted, with their goals;
    ``names``: the identifiers of each; ``fixed``: tokens of system prompt and schemas;
    ``plan_of``: the plan before the message at a place."""

    messages: tuple[Message, ...]
    names: tuple[frozenset[str], ...]
    plan_of: Callable[[int], GoalTree]
    segmented: Segmented
    counter: TokenCounter
    fixed: int = 0
    system: str = ""
    tools: tuple[Json, ...] = ()
    params: Mapping[str, Json] = field(default_factory=dict[str, Json])
    language: str = "en"
    context_window: int | None = None
    max_output_tokens: int | None = None

    def is_call(self, place: int) -> bool:
        """Whether a model was asked for the message at ``place``."""
        message = self.messages[place]
        own = message.source not in ("framework", "summary")
        return place > 0 and message.role == "assistant" and own

    @property
    def calls(self) -> list[int]:
        """Places of the messages that a model was asked for."""
        return [n for n in range(len(self.messages)) if self.is_call(n)]

    @property
    def raw_peak(self) -> int:
        """Tokens of the last call's window if nothing is ever compacted."""
        last = max(self.calls, default=0)
        return self.fixed + sum(m.tokens for m in self.messages[:last])


def lab_subject(
    state: TraceState, messages: Mapping[int, Message], tools: Sequence[Json] = ()
) -> Subject:
    """The trace with all its ``messages`` by sequence. ``tools``: neutral schemas, as far as
    they are known. Messages that have no count yet are counted."""
    config = _config(state)
    model = config.model or ""
    counter = counter_for(config.provider or "", model)
    path = [_counted(m, counter) for m in whole_path(messages, state.head_sequence)]
    segments = segmented(path, state.mission)
    return Subject(
        messages=segments.messages,
        names=tuple(identifiers_of(m) for m in segments.messages),
        plan_of=segments.plan_of,
        segmented=segments.by,
        counter=counter,
        fixed=counter.count(state.system_prompt) + count_tools(counter, tools),
        system=state.system_prompt,
        tools=tuple(tools),
        params={"model": model or "model"},
        language=config.language,
        context_window=config.context_window,
        max_output_tokens=config.max_output_tokens,
    )


def _config(state: TraceState) -> RunConfig:
    """The trace's settings; the defaults where it came with some that no run here could have."""
    try:
        return RunConfig.from_json(state.config)
    except InvalidConfig:
        return RunConfig()


def _counted(message: Message, counter: TokenCounter) -> Message:
    if message.tokens or not message.parts:
        return message
    return replace(message, tokens=count_message(counter, message))


# Under what ----------------------------------------------------------------------------------


def default_window(subject: Subject) -> tuple[int, str]:
    """The context window to replay under where none is named, and why that one: the trace's
    own, unless no window of the trace fills half of it; then half of the trace's largest."""
    own = subject.context_window or DEFAULT_WINDOW
    why = "the trace's own" if subject.context_window else "where a trace names none"
    if subject.raw_peak * 2 > own:
        return own, why
    half = max(1, subject.raw_peak // 2)
    return half, f"half of the trace's largest window; under {own:,} no policy would act"


def lab_policies(names: Sequence[str]) -> list[str]:
    """``names`` without doubles. Raises InvalidConfig for one that is no policy."""
    found = list(dict.fromkeys(n.strip() for n in names if n.strip()))
    if not found:
        raise InvalidConfig(f"name at least one policy; there are {', '.join(POLICIES)}")
    for name in found:
        lab_policy(name, DEFAULT_WINDOW)
    return found


def lab_policy(name: str, window: int, by: Segmented = "goals") -> Policy:
    """The policy ``name`` (one of POLICIES, or strategies of one's own: ``prune+summary``), its
    soft limit scaled with the context window; the other triggers are shares of it anyway.

    Where the trace had no goals of its own there are no goal calls to keep what came of them:
    Level 1 then leaves its summary line. Raises InvalidConfig, InvalidInput.
    """
    if not 1 <= window <= LARGEST_WINDOW:
        raise InvalidInput(f"the window must be 1 to {LARGEST_WINDOW:,} tokens, not {window}")
    policy = policy_from(name.split("+"), name=name) if "+" in name else policy_named(name)
    strategies = tuple(
        replace(s, form="summary_line") if isinstance(s, GoalCompaction) and by != "goals" else s
        for s in policy.strategies
    )
    limit = max(1, TOKEN_SOFT_LIMIT * window // DEFAULT_WINDOW)
    return replace(policy, strategies=strategies, token_soft_limit=limit)
