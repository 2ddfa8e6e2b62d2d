"""What keeps compaction from doing harm, as pure values: budget, breaker, verdict, calibration.

Nothing here reads a clock or keeps state of its own: the caller hands the time in (seconds of
the Unix epoch, so that a value outlives its process) and stores what comes back.
Source: docs/compaction.md, "Guards".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

from cyberagent.core.errors import InvalidInput, WindowTooLarge
from cyberagent.core.types import Json
from cyberagent.core.window import Item

# Budget ------------------------------------------------------------------------------------

RESERVE_FRACTION = 8
"""Where the output limit is unknown, this part of the window (an eighth) is kept free."""


def reserve(window: int | None, max_output_tokens: int | None) -> int:
    """Tokens kept free for the answer. An unknown output limit is a fraction of the window: it
    is never 0, and never as large as the window itself."""
    if max_output_tokens:
        return max_output_tokens
    return max(1, (window or 0) // RESERVE_FRACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a history may cost, in tokens as the provider counts them.

    ``fixed``: system prompt and tools' schemas; ``window``: the model's, None where unknown;
    ``threshold``: above it a pass is due, None for never; ``target``: the low-water mark that a
    pass aims at; ``ratio``: reported tokens per estimated one (see :class:`Calibration`).
    """

    fixed: int = 0
    reserve: int = 1
    window: int | None = None
    threshold: int | None = None
    target: int = 0
    ratio: float = 1.0

    @property
    def limit(self) -> int | None:
        """The most that can be sent; None where the window is unknown."""
        return None if self.window is None else max(0, self.window - self.reserve)

    def size(self, items: Sequence[Item]) -> int:
        """Tokens of a window with these items. Messages carry their own counts."""
        return self.corrected(self.fixed + raw_size(items))

    def corrected(self, estimate: int) -> int:
        return math.ceil(estimate * self.ratio)

    def fits(self, size: int) -> bool:
        return self.limit is None or size <= self.limit

    def is_due(self, size: int) -> bool:
        """Whether an automatic pass is due. A window that cannot be sent always wants one."""
        return self.threshold is not None and (size > self.threshold or not self.fits(size))


def raw_size(items: Sequence[Item]) -> int:
    return sum([item.message.tokens for item in items])


# Floor -------------------------------------------------------------------------------------


def above_floor(budget: Budget, floor: int, size: int) -> tuple[Budget, bool]:
    """The budget that a pass may work with, and whether to warn, once, that the floor is high.

    ``floor``: tokens that no strategy can remove. Between the threshold and the limit, a pass
    could never get under the threshold: the run goes on without one until the window overflows,
    and then aims half-way between floor and limit. Raises WindowTooLarge, with the numbers,
    where the floor alone does not fit.
    """
    if budget.limit is not None and floor > budget.limit:
        raise WindowTooLarge(size, budget.limit, floor)
    if budget.threshold is None:
        return budget, False
    if floor <= budget.threshold:
        return replace(budget, target=max(budget.target, floor)), False
    if budget.limit is None:
        return replace(budget, threshold=None), True
    half_way = floor + (budget.limit - floor) // 2
    return replace(budget, threshold=budget.limit, target=max(budget.target, half_way)), True


# Verdict -----------------------------------------------------------------------------------

LEAST_SAVING_PERCENT = 5


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a pass was worth it, and why not. ``dear``: it would cost more than it saves, which
    is no failure of the policy."""

    success: bool
    why: str = ""
    dear: bool = False


CACHE_READ, CACHE_WRITE = 0.1, 1.25
"""What providers ask for a cached token, and for one that is written to the cache, of the price
of one that is neither."""

PAYS_WITHIN_CALLS = 50
"""A pass that is not forced must have paid for the cache it breaks within so many calls."""


def judge(before: int, after: int, budget: Budget, rewritten: int = 0) -> Judgement:
    """An automatic pass as a whole, by its sizes: at least 5 % fewer tokens, and it fits. Fewer
    messages are no success, nor is a smaller window that still cannot be sent.

    ``rewritten``: tokens that stay but stand behind the first edit, so that the provider's cache
    loses them. Where the window could be sent as it is, they must be paid for soon by what each
    later call saves: a smaller prompt can be the dearer one.
    """
    if after >= before or after * 100 > before * (100 - LEAST_SAVING_PERCENT):
        return Judgement(False, f"{before - after:,} of {before:,} tokens saved, under 5 %")
    if not budget.fits(after):
        return Judgement(False, f"{after:,} tokens are left; {budget.limit:,} fit")
    calls = rewritten * (CACHE_WRITE - CACHE_READ) / ((before - after) * CACHE_READ)
    if budget.fits(before) and calls > PAYS_WITHIN_CALLS:
        why = (
            f"{before - after:,} tokens less, but {rewritten:,} cached ones lost: "
            f"it would pay after {math.ceil(calls):,} calls"
        )
        return Judgement(False, why, dear=True)
    return Judgement(True)


# Circuit breaker -----------------------------------------------------------------------------

MAX_CONSECUTIVE_FAILURES = 3
RECOVERY_SECONDS = 300.0

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Stops automatic compaction after 3 failures in a row, for 300 seconds; then one try
    decides. One per trace."""

    state: BreakerState = "closed"
    failures: int = 0
    opened_at: float = 0.0

    def at(self, now: float) -> Breaker:
        """The breaker at time ``now``: an open one is half open after 300 seconds. A clock that
        was set back starts the wait anew."""
        if self.state != "open":
            return self
        if now < self.opened_at:
            return replace(self, opened_at=now)
        is_over = now - self.opened_at >= RECOVERY_SECONDS
        return replace(self, state="half_open") if is_over else self

    def can_attempt(self, now: float) -> bool:
        return self.at(now).state != "open"

    def after_success(self) -> Breaker:
        return Breaker()

    def after_failure(self, now: float) -> Breaker:
        failures = self.failures + 1
        opens = self.at(now).state != "closed" or failures >= MAX_CONSECUTIVE_FAILURES
        if not opens:
            return replace(self, failures=failures)
        return Breaker(state="open", failures=failures, opened_at=now)

    def to_json(self) -> dict[str, Json]:
        return {"state": self.state, "failures": self.failures, "opened_at": self.opened_at}

    @classmethod
    def from_json(cls, value: Json) -> Breaker:
        """What :meth:`to_json` wrote; a closed one of None. Raises InvalidInput."""
        if value is None:
            return cls()
        data = _object(value, "breaker")
        state, failures = data.get("state"), _count(data.get("failures"), "breaker")
        opened_at = _number(data.get("opened_at"), "breaker")
        if state not in ("closed", "open", "half_open"):
            raise InvalidInput("malformed breaker")
        return cls(state=state, failures=failures, opened_at=opened_at)


# May a pass start? ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Permission:
    allowed: bool
    why: str = ""


def may_compact(
    *,
    breaker: Breaker,
    now: float,
    compacting: bool,
    branch_type: str = "",
    manual: bool = False,
    just_compacted: bool = False,
) -> Permission:
    """Whether a pass may start now.

    ``compacting``: a pass of this trace is under way; ``branch_type``: of the call that asks. A
    model call made by compaction never starts one, whoever asks. ``manual`` ignores the breaker,
    and is skipped where an automatic pass has ``just_compacted``.
    """
    if compacting or branch_type:
        return Permission(False, "a call made by compaction or in a side branch never starts one")
    if manual:
        if just_compacted:
            return Permission(False, "an automatic compaction has just run")
        return Permission(True)
    if not breaker.can_attempt(now):
        left = math.ceil(RECOVERY_SECONDS - (now - breaker.at(now).opened_at))
        return Permission(False, f"{breaker.failures} compactions failed; next try in {left} s")
    return Permission(True)


# No progress ---------------------------------------------------------------------------------

MAX_IDLE_PASSES = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """Whether work gets on between passes. ``mark``: anything that changes when it does (the
    plan and the number of writes, say); ``idle``: passes in a row that found the same mark."""

    mark: str = ""
    idle: int = 0

    def after(self, mark: str) -> Progress:
        return Progress(mark, self.idle + 1 if mark == self.mark else 0)

    @property
    def is_stalled(self) -> bool:
        """Compact, repeat, compact: the run goes in circles and only costs money."""
        return self.idle >= MAX_IDLE_PASSES


# Calibration ---------------------------------------------------------------------------------

SMALLEST_RATIO, LARGEST_RATIO = 0.5, 4.0
_WEIGHT = 0.5
"""Of the newest report against all before it: within four calls a changed mix is followed."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How many tokens a provider reports for each that was estimated, for one model. What it has
    not seen yet is 1. A ratio outside 0.5 to 4 is a broken report and is cut to that."""

    ratio: float = 1.0
    model: str = ""
    seen: int = 0

    def after(self, estimate: int, reported: int | None, model: str = "") -> Calibration:
        """``reported``: prompt tokens, cached ones included. None and 0 mean unknown and change
        nothing; another ``model`` starts anew."""
        before = self if model == self.model else Calibration(model=model)
        if not reported or reported < 0 or estimate <= 0:
            return before
        ratio = min(max(reported / estimate, SMALLEST_RATIO), LARGEST_RATIO)
        if before.seen:
            ratio = _WEIGHT * ratio + (1 - _WEIGHT) * before.ratio
        return Calibration(ratio, model, before.seen + 1)

    def for_model(self, model: str) -> float:
        """The ratio for the call about to be sent: 1 after a change of model."""
        return self.ratio if model == self.model else 1.0

    def to_json(self) -> dict[str, Json]:
        return {"ratio": self.ratio, "model": self.model, "seen": self.seen}

    @classmethod
    def from_json(cls, value: Json) -> Calibration:
        """What :meth:`to_json` wrote; a new one of None. Raises InvalidInput."""
        if value is None:
            return cls()
        data = _object(value, "calibration")
        ratio = _number(data.get("ratio"), "calibration")
        model, seen = data.get("model"), _count(data.get("seen"), "calibration")
        in_bounds = SMALLEST_RATIO <= ratio <= LARGEST_RATIO
        if not in_bounds or not isinstance(model, str):
            raise InvalidInput("malformed calibration")
        return cls(ratio, model, seen)


def _object(value: Json, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"malformed {what}")
    return cast("dict[str, Any]", value)


def _number(value: Json, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"malformed {what}")
    return float(value)


def _count(value: Json, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"malformed {what}")
    return value
