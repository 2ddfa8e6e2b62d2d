"""Policies: ordered lists of strategies with a trigger, and their parameters.

Source: docs/compaction.md, "Policies".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from cyberagent.compaction.goal import GoalCompaction
from cyberagent.compaction.layered import Identity, Micro, Snip
from cyberagent.compaction.prune import Prune
from cyberagent.compaction.summary import SummaryCompaction
from cyberagent.compaction.values import Strategy
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig
from cyberagent.core.guards import Budget, reserve
from cyberagent.core.types import Json

Trigger = Literal["window_share", "overflow", "soft_limit", "never"]

COMPRESSION_THRESHOLD = 0.5
COMPACTION_TARGET = 0.35
TOKEN_SOFT_LIMIT = 32_000


# Policies ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``trigger``: what the threshold is made of: ``compression_threshold`` of the context
    window, the overflow of the usable window, ``token_soft_limit``, or nothing. A pass aims at
    ``compaction_target`` of the window, and at no more than 70 % of the threshold."""

    name: str
    strategies: tuple[Strategy, ...] = ()
    trigger: Trigger = "window_share"
    compression_threshold: float = COMPRESSION_THRESHOLD
    compaction_target: float = COMPACTION_TARGET
    token_soft_limit: int = TOKEN_SOFT_LIMIT

    def threshold(self, window: int | None, output_reserve: int) -> int | None:
        """Tokens above which a pass is due; None for never, also where the window would have
        to be known and is not."""
        usable = None if window is None else max(0, window - output_reserve)
        if self.trigger == "soft_limit":
            return self.token_soft_limit if usable is None else min(self.token_soft_limit, usable)
        if self.trigger == "never" or window is None or usable is None:
            return None
        if self.trigger == "overflow":
            return usable
        return min(int(window * self.compression_threshold), usable)

    def budget(
        self,
        *,
        window: int | None,
        max_output_tokens: int | None = None,
        fixed: int = 0,
        ratio: float = 1.0,
    ) -> Budget:
        """The budget of a run: ``fixed`` tokens of system prompt and schemas, ``ratio`` from
        the calibration."""
        kept = reserve(window, max_output_tokens)
        threshold = self.threshold(window, kept)
        share = self.compaction_target / self.compression_threshold
        target = 0 if threshold is None else int(threshold * min(1.0, share))
        if window is not None:
            target = min(target, int(window * self.compaction_target))
        return Budget(
            fixed=fixed,
            reserve=kept,
            window=window,
            threshold=threshold,
            target=target,
            ratio=ratio,
        )


STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        GoalCompaction(),
        SummaryCompaction(),
        SummaryCompaction(name="recent", recent_share=0.5),
        Prune(),
        SummaryCompaction(name="full", prompt="compaction", role="assistant", continues=True),
        Snip(),
        Micro(),
        SummaryCompaction(name="auto", prompt="auto_summary", characters=500),
        Micro(name="aggressive", level=3, last_resort=True, keep_recent=2),
        Identity(),
    )
}

_NAMED: dict[str, tuple[Trigger, tuple[str, ...]]] = {
    "cyber": ("window_share", ("goal", "summary")),
    "cyber_recent": ("window_share", ("goal", "recent")),
    "opencode": ("overflow", ("prune", "full")),
    "layered": ("soft_limit", ("snip", "micro", "auto", "aggressive", "identity")),
    "off": ("never", ()),
}
POLICIES = tuple(_NAMED)


def policy_named(name: str, parameters: Mapping[str, Json] | None = None) -> Policy:
    """One of POLICIES, with ``parameters`` as in :func:`policy_from`. Raises InvalidConfig."""
    if name not in _NAMED:
        raise InvalidConfig(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")
    trigger, names = _NAMED[name]
    return _made(name, names, trigger, parameters or {})


def policy_from(
    names: Sequence[str], parameters: Mapping[str, Json] | None = None, name: str = "custom"
) -> Policy:
    """A policy of one's own: strategies in this order. ``parameters``: ``{"policy": {…}}`` and
    ``{strategy: {parameter: value}}``. Raises InvalidConfig, naming what is wrong."""
    if not names:
        raise InvalidConfig("a policy needs at least one strategy; the policy off has none")
    return _made(name, tuple(names), "window_share", parameters or {})


def policy_for(config: RunConfig, parameters: Mapping[str, Json] | None = None) -> Policy:
    """The policy of a run: ``config.policy`` (a name, or names with commas; None: ``cyber``),
    with what the run's other settings say. Raises InvalidConfig."""
    wanted = config.policy or "cyber"
    given = {k: dict(_mapping(v, k)) for k, v in (parameters or {}).items()}
    own: dict[str, dict[str, Json]] = {
        "goal": {"mode": config.goal_compression, "form": config.goal_compression_form},
        "snip": {"max_messages": config.limits.max_messages or Snip().max_messages},
        "policy": {"token_soft_limit": config.limits.token_soft_limit or TOKEN_SOFT_LIMIT},
    }
    names = _NAMED[wanted][1] if wanted in _NAMED else tuple(n.strip() for n in wanted.split(","))
    merged = {
        key: {**own.get(key, {}), **given.get(key, {})}
        for key in {*own, *given}
        if key in given or key == "policy" or key in names
    }
    if wanted in _NAMED:
        return policy_named(wanted, merged)
    return policy_from(names, merged)


def _made(
    name: str, names: Sequence[str], trigger: Trigger, parameters: Mapping[str, Json]
) -> Policy:
    for one in names:
        if one not in STRATEGIES:
            raise InvalidConfig(f"there is no strategy {one!r}; there are {', '.join(STRATEGIES)}")
    if len(set(names)) < len(names):
        raise InvalidConfig("a strategy stands twice in a policy")
    for one in parameters:
        if one != "policy" and one not in names:
            raise InvalidConfig(f"parameters of {one!r}, which is not in the policy {name}")
    strategies = tuple(_with(STRATEGIES[n], parameters.get(n, {}), n) for n in names)
    policy = Policy(name=name, strategies=strategies, trigger=trigger)
    return _checked(_with(policy, parameters.get("policy", {}), "policy"))


# Parameters ------------------------------------------------------------------------------------

_OWN = ("name", "level", "last_resort", "always", "strategies", "prompt", "role", "continues")
_ALLOWED: dict[str, tuple[str, ...]] = {
    "mode": ("none", "on_complete", "on_overflow"),
    "form": ("keep_goal_calls", "summary_line"),
    "trigger": ("window_share", "overflow", "soft_limit", "never"),
}
_LEAST = {"max_messages": 6, "characters": 50, "keep_turns": 0, "at_most": 0, "token_soft_limit": 1}
_MOST = {"recent_share": 1}


def _with(value: Any, parameters: Json, name: str) -> Any:
    """``value`` with these parameters. Raises InvalidConfig for one that it does not have, or
    whose value cannot work."""
    given = _mapping(parameters, name)
    known = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in _OWN}
    if name != "auto":
        known.pop("characters", None)
    changes: dict[str, Any] = {}
    for key, new in given.items():
        if key not in known:
            raise InvalidConfig(f"{name} has no parameter {key!r}; it has {', '.join(known)}")
        changes[key] = _value(f"{name}.{key}", key, known[key], new)
    return replace(value, **changes)


def _value(where: str, key: str, old: Any, new: Json) -> Any:
    """``new`` if it is of the kind of ``old``."""
    if key in _ALLOWED:
        if new not in _ALLOWED[key]:
            raise InvalidConfig(f"{where} must be one of {', '.join(_ALLOWED[key])}, not {new!r}")
        return new
    if isinstance(old, tuple):
        if not isinstance(new, list | tuple) or not all(
            isinstance(n, str) for n in cast("list[Json]", new)
        ):
            raise InvalidConfig(f"{where} must be a list of names, not {new!r}")
        return tuple(cast("list[str]", new))
    is_whole = isinstance(old, int)
    if isinstance(new, bool) or not isinstance(new, int if is_whole else (int, float)):
        kind = "a whole number" if is_whole else "a number"
        raise InvalidConfig(f"{where} must be {kind}, not {new!r}")
    if new < _LEAST.get(key, 0):
        raise InvalidConfig(f"{where} must be at least {_LEAST.get(key, 0)}, not {new!r}")
    if new > _MOST.get(key, new):
        raise InvalidConfig(f"{where} must be at most {_MOST[key]}, not {new!r}")
    return new


def _checked(policy: Policy) -> Policy:
    low, high = policy.compaction_target, policy.compression_threshold
    if not 0 < low <= high <= 1:
        raise InvalidConfig(
            "0 < compaction_target <= compression_threshold <= 1 must hold, "
            f"not {low!r} and {high!r}"
        )
    for strategy in policy.strategies:
        if isinstance(strategy, Snip) and strategy.head > strategy.max_messages - 2:
            raise InvalidConfig("snip.head must leave room for a placeholder and a last message")
    return policy


def _mapping(value: Json, name: str) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise InvalidConfig(f"the parameters of {name} must be an object, not {value!r}")
    return cast("Mapping[str, Json]", value)
