"""Trying again: what the policy decides, and what the driver does of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from cyberagent.core.errors import (
    ConnectionBroken,
    ModelError,
    Overloaded,
    ProviderError,
    RateLimited,
)
from cyberagent.core.ports import Answer, Delta
from cyberagent.core.recovery import GiveUp, RetryPolicy, UseFallback, Wait, backoff, retrying
from cyberagent.core.types import Text

ANSWER = Answer(parts=(Text("done"),), finish_reason="stop")


def test_the_delay_doubles_to_32_seconds_with_at_most_a_quarter_of_jitter():
    bases = [500, 1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000, 32000]
    for attempt, base in enumerate(bases):
        assert base <= backoff(attempt, "run 1") <= base * 1.25
    assert backoff(10_000) <= 40_000


def test_the_jitter_is_the_same_each_time_and_differs_between_runs():
    assert backoff(3, "a") == backoff(3, "a")
    assert len({backoff(3, f"run {n}") for n in range(50)}) > 40


def test_a_longer_wait_that_the_provider_asks_for_is_obeyed():
    step = RetryPolicy().after([RateLimited("slow", retry_after=60)])
    assert step == Wait(60_000)


def test_the_tenth_failure_is_the_last():
    failures: list[ProviderError] = [ConnectionBroken("x")] * 9
    assert isinstance(RetryPolicy().after(failures), Wait)
    assert isinstance(RetryPolicy().after([*failures, ConnectionBroken("x")]), GiveUp)


def test_what_the_same_payload_cannot_mend_is_not_tried_again():
    assert isinstance(RetryPolicy().after([ModelError("no")]), GiveUp)


def test_three_overloads_in_a_row_ask_for_the_fallback_model():
    policy, busy = RetryPolicy(fallback_after=3), Overloaded("busy", status=529)
    assert isinstance(policy.after([busy, busy]), Wait)
    assert isinstance(policy.after([busy, RateLimited("x"), busy, busy]), Wait)
    assert policy.after([RateLimited("x"), busy, busy, busy]) == UseFallback(busy)
    assert isinstance(RetryPolicy().after([busy] * 5), Wait)


class Tries:
    """Tries that say some words and then fail, one error each, until none is left."""

    def __init__(self, *errors: ProviderError) -> None:
        self.errors, self.closed = list(errors), 0

    async def once(self, attempt: int) -> AsyncIterator[Delta | Answer]:
        try:
            yield Delta(f"try {attempt}")
            if attempt <= len(self.errors):
                raise self.errors[attempt - 1]
            yield ANSWER
        finally:
            self.closed += 1


class Clock:
    """Sleeps at once and notes for how long."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.slept: list[float] = []
        self.during = during

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.during()


async def drive(tries: Tries, policy: RetryPolicy | None = None, stop: asyncio.Event | None = None,
                clock: Clock | None = None) -> list[object]:  # fmt: skip
    seen: list[object] = []

    async def on_retry(attempt: int, delay_ms: int, error: ProviderError) -> None:
        seen.append((attempt, str(error)))

    stream = retrying(
        tries.once,
        policy=policy or RetryPolicy(),
        stop=stop or asyncio.Event(),
        on_retry=on_retry,
        sleep=(clock or Clock()).sleep,
    )
    try:
        async for item in stream:
            seen.append(item)
    except ProviderError as error:
        seen.append(error)
    return seen


async def test_the_consumer_hears_of_a_failed_try_before_the_next_one_begins():
    clock = Clock()
    seen = await drive(Tries(ConnectionBroken("cut"), RateLimited("slow")), clock=clock)
    assert seen == [
        Delta("try 1"), (2, "cut"),
        Delta("try 2"), (3, "slow"),
        Delta("try 3"), ANSWER,
    ]  # fmt: skip
    assert clock.slept == [backoff(0) / 1000, backoff(1) / 1000]


async def test_the_last_error_is_raised_when_tries_run_out():
    errors = [ConnectionBroken(f"cut {n}") for n in range(1, 4)]
    seen = await drive(Tries(*errors), RetryPolicy(max_tries=3))
    assert seen[-1] is errors[2]
    assert [s for s in seen if isinstance(s, tuple)] == [(2, "cut 1"), (3, "cut 2")]


async def test_the_fallback_is_the_callers_to_take():
    busy = [Overloaded(f"busy {n}") for n in range(3)]
    seen = await drive(Tries(*busy), RetryPolicy(fallback_after=3))
    assert seen[-1] == UseFallback(busy[2])


async def test_a_stop_ends_the_wait_at_once():
    stop = asyncio.Event()

    async def forever(seconds: float) -> None:
        stop.set()
        await asyncio.Event().wait()

    clock, error = Clock(), ConnectionBroken("cut")
    clock.sleep = forever
    seen = await asyncio.wait_for(drive(Tries(error), stop=stop, clock=clock), timeout=5)
    assert seen == [Delta("try 1"), (2, "cut"), error]


async def test_closing_the_driver_closes_the_try():
    tries = Tries()

    async def on_retry(attempt: int, delay_ms: int, error: ProviderError) -> None:
        pytest.fail("nothing failed")

    stream = retrying(tries.once, policy=RetryPolicy(), stop=asyncio.Event(), on_retry=on_retry)
    assert await anext(stream) == Delta("try 1")
    await stream.aclose()
    assert tries.closed == 1
