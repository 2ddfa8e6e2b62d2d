"""ContextRefs: immutable snapshots that a trace holds copies of, and may read and pass on.

A trace's :class:`Catalogue` is all it can reach. There is no look-up by trace, so nothing of an
ancestor, a sibling or another tree can be named that was not handed down. Source:
docs/protocol.md, "ContextRef".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from cyberagent.core.errors import InvalidTaskValue, RefRefused
from cyberagent.core.normal import Fields
from cyberagent.core.types import Json, sha256

MAX_REFS = 8
"""Refs a trace."""

MAX_SNAPSHOT_CHARS = 16_000
MAX_CATALOGUE_CHARS = 64_000
MAX_REF_ID_CHARS = 200

RefKind = Literal["task_brief", "reviewed_task_result"]
REF_KINDS = ("task_brief", "reviewed_task_result")

_VERSION = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class ContextRef:
    """An exact pair. ``version`` is the SHA-256 of the snapshot's text."""

    ref_id: str
    version: str

    def to_json(self) -> dict[str, Json]:
        return {"ref_id": self.ref_id, "version": self.version}


def read_refs(fields: Fields, name: str) -> tuple[ContextRef, ...]:
    """A list of ``{ref_id, version}``, stably de-duplicated. Raises InvalidTaskValue."""
    found: dict[ContextRef, None] = {}
    for one in fields.objects(name, ("ref_id", "version")):
        found[_read_ref(one)] = None
    return tuple(found)


def _read_ref(fields: Fields) -> ContextRef:
    ref_id = fields.text("ref_id", required=True)
    if len(ref_id) > MAX_REF_ID_CHARS:
        raise fields.refuse("ref_id", f"has more than {MAX_REF_ID_CHARS} characters")
    version = fields.text("version", required=True)
    if not _VERSION.fullmatch(version):
        raise fields.refuse("version", "must be the 64 hexadecimal digits of the catalogue")
    return ContextRef(ref_id, version)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a ref stands for: ``text`` is canonical JSON and never changes."""

    ref_id: str
    kind: RefKind
    text: str

    @property
    def version(self) -> str:
        return sha256(self.text.encode())

    @property
    def ref(self) -> ContextRef:
        return ContextRef(self.ref_id, self.version)

    def to_json(self) -> dict[str, Json]:
        return {
            "ref_id": self.ref_id,
            "version": self.version,
            "kind": self.kind,
            "text": self.text,
        }


def read_snapshots(fields: Fields, name: str) -> tuple[Snapshot, ...]:
    """Snapshots that ``to_json`` wrote. Raises InvalidTaskValue, also where a text is not the
    one that its version names."""
    found: list[Snapshot] = []
    for one in fields.objects(name, ("ref_id", "version", "kind", "text")):
        ref = _read_ref(one)
        kind = cast("RefKind", one.word("kind", REF_KINDS))
        snapshot = Snapshot(ref.ref_id, kind, one.text("text", required=True))
        if snapshot.ref != ref:
            raise one.refuse("version", "is not that of the text")
        found.append(snapshot)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Grant:
    """A trace's own copy. ``granted_at_sequence``: the message of this trace that gave it;
    ``granted_by``: the parent trace, "" for a result that this trace reviewed itself."""

    snapshot: Snapshot
    granted_at_sequence: int
    granted_by: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The refs that one trace holds, oldest first."""

    grants: tuple[Grant, ...] = ()

    @property
    def refs(self) -> frozenset[ContextRef]:
        return frozenset(g.snapshot.ref for g in self.grants)

    @property
    def characters(self) -> int:
        return sum(len(g.snapshot.text) for g in self.grants)

    def get(self, ref: ContextRef) -> Grant:
        """Raises RefRefused unless this very pair is here."""
        for grant in self.grants:
            if grant.snapshot.ref == ref:
                return grant
        raise RefRefused(f"this run does not hold the ref {ref.ref_id[:80]!r} at that version")

    def problem(self, snapshot: Snapshot) -> str:
        """Why ``snapshot`` cannot be added, as a sentence; "" where it can."""
        if snapshot.ref in self.refs:
            return ""
        return _over((*(g.snapshot for g in self.grants), snapshot))

    def listing(self) -> list[dict[str, Json]]:
        """The metadata that a model is shown: never the contents."""
        return [
            {
                **grant.snapshot.ref.to_json(),
                "kind": grant.snapshot.kind,
                "characters": len(grant.snapshot.text),
            }
            for grant in self.grants
        ]


def once(snapshots: Iterable[Snapshot]) -> tuple[Snapshot, ...]:
    """Each pair once, in the order of the first. Raises InvalidTaskValue over a limit."""
    found = tuple({s.ref: s for s in snapshots}.values())
    if why := _over(found):
        limit = MAX_REFS if len(found) > MAX_REFS else MAX_CATALOGUE_CHARS
        raise InvalidTaskValue(
            "TaskBrief", "context_refs", f"cannot be granted: {why}", limit=limit
        )
    return found


def _over(snapshots: tuple[Snapshot, ...]) -> str:
    if len(snapshots) > MAX_REFS:
        return f"{len(snapshots)} refs; a run can hold {MAX_REFS}"
    largest = max((len(s.text) for s in snapshots), default=0)
    if largest > MAX_SNAPSHOT_CHARS:
        return f"a snapshot of {largest:,} characters; at most {MAX_SNAPSHOT_CHARS:,} fit"
    total = sum(len(s.text) for s in snapshots)
    if total > MAX_CATALOGUE_CHARS:
        return f"{total:,} characters in all; a run can hold {MAX_CATALOGUE_CHARS:,}"
    return ""
