"""What one turn may use, and what the model is told on the way. Source: docs/running.md,
"Budget"."""

from __future__ import annotations

from cyberagent.core.config import Limits

NEAR_SHARE = 0.8

NUDGES = ("", "near_soft", "over_soft", "over_hard", "step_limit")
"""In rising order; each is told once a turn, and only the highest that applies."""

FINAL = frozenset({"over_hard", "step_limit"})
"""After these the model must answer without tools."""


def nudge_due(limits: Limits, *, steps: int, spent: int, told: str) -> str:
    """What the model is to be told before its next call of a turn; "" for nothing new.

    ``steps``: its answers in this turn; ``spent``: tokens of this turn, read and written;
    ``told``: the highest nudge that it was given. A limit of 0 is none.
    """
    soft, hard = limits.token_soft_limit, limits.token_hard_limit
    reached = ""
    if soft and spent >= soft * NEAR_SHARE:
        reached = "near_soft"
    if soft and spent >= soft:
        reached = "over_soft"
    if hard and spent >= hard:
        reached = "over_hard"
    if limits.max_steps and steps >= limits.max_steps:
        reached = "step_limit"
    return reached if NUDGES.index(reached) > NUDGES.index(told) else ""
