"""Prices: only where they are given, and by hand."""

from __future__ import annotations

from cyberagent.core.types import Usage
from cyberagent.providers.prices import price

PRICES = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}


def test_cached_tokens_are_paid_at_their_own_price():
    usage = Usage(prompt=1_000_000, completion=100_000, cached=600_000, cache_write=200_000)
    # 0.2 M at 3, 0.6 M at 0.30, 0.2 M at 3.75, 0.1 M at 15: 0.6 + 0.18 + 0.75 + 1.5
    assert price(usage, PRICES) == 3.03


def test_without_cache_prices_all_input_costs_the_same():
    usage = Usage(prompt=1_000_000, completion=0, cached=600_000)
    assert price(usage, {"input": 2.0, "output": 8.0}) == 2.0


def test_a_price_that_is_not_known_is_none_and_not_zero():
    assert price(Usage(prompt=1, completion=1), None) is None
    assert price(Usage(prompt=1, completion=1), {"input": 1.0}) is None
    assert price(Usage(prompt=None, completion=1), PRICES) is None
    assert price(Usage(prompt=1), PRICES) is None
