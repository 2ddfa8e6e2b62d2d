"""The TaskBrief as a value: the whole contract of one child.

Source: docs/protocol.md, "TaskBrief".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cyberagent.core.normal import Fields, canonical_text, strip, unique, within
from cyberagent.core.refs import MAX_REFS, ContextRef, read_refs
from cyberagent.core.types import Json, sha256

BRIEF = "TaskBrief"
BRIEF_FIELDS = (
    "objective", "reason", "completion_criteria", "expected_outputs", "parent_findings",
    "context", "constraints", "context_refs",
)  # fmt: skip
MAX_BRIEF_CHARS = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBrief:
    """A brief in normal form. ``text`` is its canonical JSON, with all fields, and decides
    whether two briefs are the same."""

    objective: str = field(compare=False)
    reason: str = field(compare=False)
    completion_criteria: tuple[str, ...] = field(compare=False)
    expected_outputs: tuple[str, ...] = field(compare=False)
    parent_findings: tuple[Json, ...] = field(compare=False)
    context: Json = field(compare=False)
    constraints: tuple[str, ...] = field(compare=False)
    context_refs: tuple[ContextRef, ...] = field(compare=False)
    text: str

    @property
    def sha256(self) -> str:
        """Also the version under which the brief can be passed on."""
        return sha256(self.text.encode())

    def to_json(self) -> dict[str, Json]:
        return json.loads(self.text)


def read_brief(value: object, inherited: Sequence[str] = ()) -> TaskBrief:
    """A brief whose constraints begin with the ``inherited`` ones. Raises InvalidTaskValue."""
    fields = Fields(BRIEF, value, BRIEF_FIELDS)
    refs = read_refs(fields, "context_refs")
    if len(refs) > MAX_REFS:
        raise fields.refuse("context_refs", f"has {len(refs)} refs; at most {MAX_REFS} fit")
    parts = {
        "objective": fields.text("objective", required=True),
        "reason": fields.text("reason"),
        "completion_criteria": fields.texts("completion_criteria", required=True),
        "expected_outputs": fields.texts("expected_outputs", required=True),
        "parent_findings": fields.values("parent_findings"),
        "context": _context(fields),
        "constraints": tuple(unique([*inherited, *fields.texts("constraints")])),
    }
    whole: dict[str, Json] = {**parts, "context_refs": [ref.to_json() for ref in refs]}
    text = within(canonical_text(whole, BRIEF), MAX_BRIEF_CHARS, BRIEF, whole)
    return TaskBrief(**cast("dict[str, Any]", parts), context_refs=refs, text=text)


def _context(fields: Fields) -> Json:
    found = fields.value("context")
    if isinstance(found, list):
        return unique(cast("list[Json]", found))
    return strip(found or "") if found is None or isinstance(found, str) else found
