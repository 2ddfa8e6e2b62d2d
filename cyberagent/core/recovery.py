"""What to do when a model call fails: wait and try again, change the model, or give up.

The policy is pure; :func:`retrying` drives it. Source: docs/providers.md, "Trying again".
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from cyberagent.core.errors import Overloaded, ProviderError
from cyberagent.core.ports import Answer, Delta

FIRST_DELAY_MS = 500
LONGEST_DELAY_MS = 32_000


def backoff(attempt: int, key: str = "") -> int:
    """Milliseconds to wait after failed try ``attempt`` (0 is the first): 500 doubled each
    time, at most 32,000, and up to a quarter more by a hash of ``key`` and ``attempt``, so that
    runs which failed together do not come back together."""
    delay = min(FIRST_DELAY_MS * 2 ** min(attempt, 16), LONGEST_DELAY_MS)
    digest = hashlib.sha256(f"{key}/{attempt}".encode("utf-8", "replace")).digest()
    return delay + delay * int.from_bytes(digest[:4], "big") // (4 * 2**32)


@dataclass(frozen=True, slots=True)
class Wait:
    """Try again after ``delay_ms``."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class UseFallback:
    """The model is overloaded for good: go on with the fallback model. Its window must be
    measured and projected anew, so this is the caller's to do."""

    error: ProviderError


@dataclass(frozen=True, slots=True)
class GiveUp:
    error: ProviderError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """``max_tries`` counts the first try too. ``fallback_after``: Overloaded this many times in
    a row asks for the fallback model; 0 where there is none."""

    max_tries: int = 10
    fallback_after: int = 0

    def after(
        self, failures: Sequence[ProviderError], key: str = ""
    ) -> Wait | UseFallback | GiveUp:
        """What to do after these failures of one call, oldest first; at least one."""
        error = failures[-1]
        if not error.retryable:
            return GiveUp(error)
        last = failures[-self.fallback_after :] if self.fallback_after else ()
        if len(last) == self.fallback_after > 0 and all(isinstance(e, Overloaded) for e in last):
            return UseFallback(error)
        if len(failures) >= self.max_tries:
            return GiveUp(error)
        asked = round((error.retry_after or 0) * 1_000)
        return Wait(max(asked, backoff(len(failures) - 1, key)))


OnRetry = Callable[[int, int, ProviderError], Awaitable[None]]
"""``(attempt, delay_ms, error)``: what was read of the failed try is void, and try number
``attempt`` (from 2 up) comes after the delay."""


async def retrying(
    attempt_once: Callable[[int], AsyncIterator[Delta | Answer]],
    *,
    policy: RetryPolicy,
    stop: asyncio.Event,
    on_retry: OnRetry,
    key: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Delta | Answer | UseFallback, None]:
    """Deltas, then the Answer of the first try that works; or UseFallback as the last item.

    ``attempt_once`` is called with the number of the try, from 1 up. Deltas of a failed try are
    void once ``on_retry`` is called or UseFallback comes. Raises the last error when the policy
    gives up, or when ``stop`` is set while it would wait. Closing this closes the try.
    """
    failures: list[ProviderError] = []
    while True:
        stream = attempt_once(len(failures) + 1)
        try:
            async for item in stream:
                yield item
            return
        except ProviderError as error:
            failures.append(error)
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        step = policy.after(failures, key)
        if isinstance(step, UseFallback):
            yield step
            return
        if isinstance(step, GiveUp) or stop.is_set():
            raise failures[-1]
        await on_retry(len(failures) + 1, step.delay_ms, failures[-1])
        if not await _waited(step.delay_ms / 1_000, stop, sleep):
            raise failures[-1]


async def _waited(
    seconds: float, stop: asyncio.Event, sleep: Callable[[float], Awaitable[None]]
) -> bool:
    """Whether the time went by; False as soon as ``stop`` is set."""
    pause = asyncio.ensure_future(sleep(seconds))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({pause, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return not stop.is_set()
    finally:
        pause.cancel()
        stopped.cancel()
