"""How many examples property tests try, and how many they tried.

``HYPOTHESIS_PROFILE`` is ``ci`` (the default: the numbers that stand in the tests) or ``soak``
(the same, times ``SOAK_FACTOR``; ``make soak``).
"""

from __future__ import annotations

import os
import re

from hypothesis import HealthCheck, settings

SOAK_FACTOR = 100
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
FACTORS = {"ci": 1, "soak": SOAK_FACTOR}
if PROFILE not in FACTORS:
    raise ValueError(f"HYPOTHESIS_PROFILE must be one of {', '.join(FACTORS)}, not {PROFILE!r}")


def examples(count: int) -> settings:
    """Settings with ``count`` examples, times the profile's factor. No deadline: no test here is
    a timed one."""
    return settings(
        max_examples=count * FACTORS[PROFILE],
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def load_profile() -> None:
    """The profile's settings for tests that name none of their own."""
    settings.register_profile(PROFILE, examples(100))
    settings.load_profile(PROFILE)


def tried(statistics: str) -> int:
    """The examples that passed, in what hypothesis tells of one test."""
    return sum(int(n) for n in re.findall(r"(\d+) passing", statistics))
