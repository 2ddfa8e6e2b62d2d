"""The RootTaskAnchor as a value, and the revisions that operators make of it.

Source: docs/protocol.md, "RootTaskAnchor".
"""

from __future__ import annotations

from dataclasses import dataclass

from cyberagent.core.normal import canonical_text
from cyberagent.core.types import Json, sha256

ANCHOR = "RootTaskAnchor"
ANCHOR_FIELDS = ("objective", "completion_criteria", "constraints")
MAX_ANCHOR_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RootTaskAnchor:
    """The task of a whole tree of traces, in normal form; made by
    :func:`cyberagent.core.context_policy.normalize_root_task_anchor` alone."""

    objective: str
    completion_criteria: tuple[str, ...]
    constraints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "objective": self.objective,
            "completion_criteria": list(self.completion_criteria),
            "constraints": list(self.constraints),
        }

    @property
    def text(self) -> str:
        """The canonical JSON: what is stored, counted, hashed and shown."""
        return canonical_text(self.to_json(), ANCHOR)

    @property
    def sha256(self) -> str:
        return sha256(self.text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRevision:
    """One version of a tree's anchor. ``supersedes``: SHA-256 of the one before, "" for the
    first; ``by``, ``at`` (ISO 8601, UTC) and ``why`` of the operator who made it."""

    anchor: RootTaskAnchor
    by: str = ""
    at: str = ""
    why: str = ""
    supersedes: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "anchor": self.anchor.to_json(),
            "sha256": self.anchor.sha256,
            "by": self.by,
            "at": self.at,
            "why": self.why,
            "supersedes": self.supersedes,
        }
