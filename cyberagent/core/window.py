"""The window: what ONE model call is sent, and the record from which it can be rebuilt.

A history is a list of :class:`Item` s. A :class:`Window` is a history with the system prompt,
the tools' schemas and the parameters. Its **manifest** names stored messages by ranges, replaced
and inserted ones by the hash of their content, and is delta-coded against an earlier call, so
that a call which changes nothing costs a few bytes. Source: docs/windows.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cyberagent.core.errors import CyberAgentError
from cyberagent.core.types import Json, Message, sha256, stored_json

FULL_EVERY = 50
"""At most this many deltas stand between a manifest and a full one: rebuilding stays cheap."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a window. ``whole``: as stored. ``replaced``: the stored message
    ``message.sequence`` in another form. ``inserted``: not a stored message at all."""

    message: Message
    kind: Literal["whole", "replaced", "inserted"] = "whole"
    strategy: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``tools``: neutral schemas ``{"name", "description", "parameters"}``. ``params``: what
    else the payload depends on (``model``, ``temperature``, ``max_output_tokens``,
    ``tool_choice``, ``dialect``); keys that are None are left out."""

    system: str
    items: tuple[Item, ...]
    tools: tuple[Json, ...] = ()
    params: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(i.message for i in self.items)


class BrokenManifest(CyberAgentError):
    """A manifest names something that is not stored any more, or is malformed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A window's manifest with the blobs that it needs and nobody stored before."""

    manifest: Mapping[str, Json]
    blobs: Mapping[str, bytes]


class Recorder:
    """Writes the manifests of one trace's calls, each against the one before.

    Pure state in memory: after a restart the first manifest is a full one again.
    """

    def __init__(self) -> None:
        self._call = 0
        self._since_full = 0
        self._entries: list[_Entry] = []
        self._heads: dict[str, str] = {}
        self._stored: set[str] = set()

    def record(self, call: int, window: Window) -> Recorded:
        """The manifest of ``window`` as call number ``call``."""
        blobs: dict[str, bytes] = {}
        entries = [_entry(item, blobs) for item in window.items]
        heads = {
            "s": _blob({"system": window.system}, blobs),
            "t": _blob({"tools": list(window.tools)}, blobs),
            "p": _blob({"params": dict(window.params)}, blobs),
        }
        keep = _common(self._entries, entries)
        if self._call and self._since_full < FULL_EVERY and keep:
            manifest: dict[str, Json] = {"b": self._call, "k": keep}
            manifest |= {k: v for k, v in heads.items() if self._heads.get(k) != v}
            if len(entries) > keep:
                manifest["i"] = _pack(entries[keep:])
            self._since_full += 1
        else:
            manifest = {**heads, "i": _pack(entries)}
            self._since_full = 0
        self._call, self._entries, self._heads = call, entries, heads
        new = {h: data for h, data in blobs.items() if h not in self._stored}
        self._stored.update(new)
        return Recorded(manifest, new)


def chain(
    number: int, manifest_of: Callable[[int], Mapping[str, Json]]
) -> list[Mapping[str, Json]]:
    """The manifests that ``number`` rests on, the full one first. ``manifest_of`` raises
    NotFound for a call that is not stored; BrokenManifest where they run in a circle."""
    found: list[Mapping[str, Json]] = []
    while True:
        manifest = manifest_of(number)
        found.append(manifest)
        base = manifest.get("b")
        if base is None:
            return found[::-1]
        if not isinstance(base, int) or base >= number:
            raise BrokenManifest(f"the manifest of call {number} rests on call {base!r}")
        number = base


@dataclass(frozen=True, slots=True)
class Expanded:
    """A manifest with its deltas applied; still names, not contents."""

    entries: tuple[tuple[Json, ...], ...]
    system: str
    tools: str
    params: str

    def sequences(self) -> list[int]:
        return sorted({e[1] for e in self.entries if e[0] != "i"})

    def hashes(self) -> list[str]:
        own = {e[2] if e[0] == "r" else e[1] for e in self.entries if e[0] != "w"}
        return sorted(own | {self.system, self.tools, self.params})


def expand(manifests: Iterable[Mapping[str, Json]]) -> Expanded:
    """Apply the deltas of :func:`chain` in order."""
    entries: list[_Entry] = []
    heads: dict[str, str] = {}
    for manifest in manifests:
        entries = entries[: manifest["k"]] if "b" in manifest else []
        entries += _unpack(manifest.get("i", ()))
        heads |= {k: manifest[k] for k in "stp" if k in manifest}
    try:
        return Expanded(tuple(entries), heads["s"], heads["t"], heads["p"])
    except KeyError as error:
        raise BrokenManifest(f"no full manifest below: {error} is missing") from None


def rebuild(
    expanded: Expanded, messages: Mapping[int, Message], blobs: Mapping[str, bytes]
) -> Window:
    """The window that was recorded, from stored messages and blobs."""

    def blob(name: str) -> Json:
        if name not in blobs:
            raise BrokenManifest(f"the content {name[:12]}… of this window is not stored")
        return json.loads(blobs[name])

    def message(sequence: int) -> Message:
        if sequence not in messages:
            raise BrokenManifest(f"message {sequence} of this window is not stored")
        return messages[sequence]

    items: list[Item] = []
    for entry in expanded.entries:
        if entry[0] == "w":
            items.append(Item(message(entry[1])))
        elif entry[0] == "r":
            new = Message.from_json(blob(entry[2]))
            items.append(Item(new, "replaced", entry[3], entry[4]))
        else:
            items.append(Item(Message.from_json(blob(entry[1])), "inserted", entry[2], entry[3]))
    return Window(
        system=blob(expanded.system)["system"],
        items=tuple(items),
        tools=tuple(blob(expanded.tools)["tools"]),
        params=blob(expanded.params)["params"],
    )


# Manifest entries: ("w", sequence) | ("r", sequence, hash, strategy, why) | ("i", hash, strategy,
# why). Packed, runs of whole messages with consecutive sequences become ["w", first, last].

_Entry = tuple[Json, ...]


def _blob(value: Json, blobs: dict[str, bytes]) -> str:
    data = stored_json(value).encode()
    name = sha256(data)
    blobs[name] = data
    return name


def _entry(item: Item, blobs: dict[str, bytes]) -> _Entry:
    if item.kind == "whole":
        return ("w", item.message.sequence)
    name = _blob(item.message.to_json(), blobs)
    if item.kind == "replaced":
        return ("r", item.message.sequence, name, item.strategy, item.why)
    return ("i", name, item.strategy, item.why)


def _common(old: Sequence[_Entry], new: Sequence[_Entry]) -> int:
    count = 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        count += 1
    return count


def _pack(entries: Sequence[_Entry]) -> list[list[Json]]:
    packed: list[list[Json]] = []
    for entry in entries:
        last = packed[-1] if packed else None
        if entry[0] == "w" and last and last[0] == "w" and last[2] == entry[1] - 1:
            last[2] = entry[1]
        elif entry[0] == "w":
            packed.append(["w", entry[1], entry[1]])
        else:
            packed.append(list(entry))
    return packed


def _unpack(packed: Sequence[Sequence[Json]]) -> list[_Entry]:
    entries: list[_Entry] = []
    for item in packed:
        if item[0] == "w":
            entries += [("w", n) for n in range(item[1], item[2] + 1)]
        else:
            entries.append(tuple(item))
    return entries
