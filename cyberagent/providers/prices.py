"""What a call cost, where its prices are known. Source: docs/providers.md, "Prices"."""

from __future__ import annotations

from collections.abc import Mapping

from cyberagent.core.types import Usage


def price(usage: Usage, prices: Mapping[str, float] | None) -> float | None:
    """US dollars. ``prices``: dollars per million tokens under ``input`` and ``output``, and
    ``cache_read`` and ``cache_write`` where these differ from ``input``. None where prices or
    token counts are not known."""
    if prices is None or "input" not in prices or "output" not in prices:
        return None
    if usage.prompt is None or usage.completion is None:
        return None
    read, written = usage.cached or 0, usage.cache_write or 0
    fresh = max(0, usage.prompt - read - written)
    dollars = (
        fresh * prices["input"]
        + read * prices.get("cache_read", prices["input"])
        + written * prices.get("cache_write", prices["input"])
        + usage.completion * prices["output"]
    )
    return dollars / 1_000_000
