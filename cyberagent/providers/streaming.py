"""Answers that are known beforehand, told as a model would tell them: bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cyberagent.core.ports import Delta
from cyberagent.core.tokens import count_parts, counter_for
from cyberagent.core.types import Part, Reasoning, Text, Usage

DELTA_SECONDS = 0.05
"""Time between two deltas of a paced answer."""

_COUNTER = counter_for("scripted", "")


async def paced(parts: tuple[Part, ...], speed: float) -> AsyncIterator[Delta]:
    """The texts and thoughts of ``parts`` as deltas, at ``speed`` characters a second; with 0 at
    once, one delta a part. Can be cancelled between any two deltas."""
    size = max(1, round(speed * DELTA_SECONDS))
    for part in parts:
        if not isinstance(part, Text | Reasoning):
            continue
        stream = "text" if isinstance(part, Text) else "reasoning"
        if not speed:
            await asyncio.sleep(0)
            yield Delta(part.text, stream)
            continue
        for start in range(0, len(part.text), size):
            piece = part.text[start : start + size]
            await asyncio.sleep(len(piece) / speed)
            yield Delta(piece, stream)


def counted(payload: bytes, parts: tuple[Part, ...]) -> Usage:
    """Usage as counted here, since nobody reports any: the payload's text and the parts'."""
    return Usage(
        prompt=_COUNTER.count(payload.decode("utf-8", "replace")),
        completion=count_parts(_COUNTER, parts),
    )
