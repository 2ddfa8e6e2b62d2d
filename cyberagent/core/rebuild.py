"""Opening the window of a past call: rebuild its payload, check its hash, compare it.

Source: docs/windows.md, "Opening a window".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from cyberagent.core.errors import NotFound
from cyberagent.core.ports import Store
from cyberagent.core.types import CallRecord, Json, canonical_json, sha256
from cyberagent.core.window import (
    FULL_EVERY,
    BrokenManifest,
    Item,
    Window,
    chain,
    expand,
    rebuild,
)

Projections = Mapping[str, Callable[[Window], dict[str, Json]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A past window. ``body``: the canonical payload as rebuilt now; ``holds``: whether its
    SHA-256 is the one of the bytes that were sent."""

    record: CallRecord
    window: Window
    payload: dict[str, Json]
    body: bytes
    sha256: str
    holds: bool


async def rebuilt(store: Store, trace_id: str, number: int, projections: Projections) -> Rebuilt:
    """Call ``number`` of a trace, rebuilt. Raises NotFound for an unknown trace or call,
    BrokenManifest where stored content or its projection is missing."""
    await store.trace(trace_id)
    record, window = await recorded_window(store, trace_id, number)
    project = projections.get(record.projection)
    if project is None:
        raise BrokenManifest(f"there is no projection {record.projection!r} any more")
    payload = project(window)
    body = canonical_json(payload)
    digest = sha256(body)
    return Rebuilt(
        record=record,
        window=window,
        payload=payload,
        body=body,
        sha256=digest,
        holds=digest == record.sha256,
    )


async def recorded_window(store: Store, trace_id: str, number: int) -> tuple[CallRecord, Window]:
    """A call's record and its window, not yet projected. Raises NotFound, BrokenManifest."""
    records = await _records(store, trace_id, number)
    expanded = expand(chain(number, lambda n: records[n].manifest))
    messages = await store.messages(trace_id, expanded.sequences())
    window = rebuild(expanded, messages, await store.blobs(expanded.hashes()))
    return records[number], window


async def _records(store: Store, trace_id: str, number: int) -> dict[int, CallRecord]:
    """The call and all that its manifest rests on; nearly always in one read."""
    records: dict[int, CallRecord] = {}
    wanted: Json = number
    while isinstance(wanted, int):
        span = range(max(1, wanted - FULL_EVERY), wanted + 1)
        records |= await store.calls(trace_id, list(span))
        if wanted not in records:
            raise NotFound("call", wanted)
        while wanted in records:
            wanted = records[wanted].manifest.get("b")
    return records


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two windows. ``sequence`` is 0 for what is not a message."""

    what: Literal["added", "removed", "replaced", "system", "tools", "parameters"]
    item: Item | None = None

    @property
    def sequence(self) -> int:
        return self.item.message.sequence if self.item else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``new`` against ``old``; ``same`` items at the head of both are unchanged (what a
    provider's prompt cache can live on, if the static part is unchanged too)."""

    changes: tuple[Change, ...]
    same: int


def difference(old: Window, new: Window) -> Difference:
    """What a window has that the one before had not, and the other way round."""
    static: list[Change] = []
    if old.system != new.system:
        static.append(Change("system"))
    if old.tools != new.tools:
        static.append(Change("tools"))
    if dict(old.params) != dict(new.params):
        static.append(Change("parameters"))
    same = 0
    for a, b in zip(old.items, new.items, strict=False):
        if a != b:
            break
        same += 1
    before = {_key(i): i for i in old.items[same:]}
    after = {_key(i): i for i in new.items[same:]}
    removed = [Change("removed", i) for k, i in before.items() if k not in after]
    changed = [
        Change("added" if k not in before else "replaced", i)
        for k, i in after.items()
        if before.get(k) != i
    ]
    return Difference(changes=(*static, *removed, *changed), same=same)


def _key(item: Item) -> Json:
    """A stored message is itself in whatever form; an inserted one is its content."""
    if item.kind == "inserted":
        return ("inserted", item.strategy, item.message.text)
    return item.message.sequence
