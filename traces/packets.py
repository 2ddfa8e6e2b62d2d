"""A validator's packet taken apart again: the values that it was made of.

The text is what was sent and decides; whatever of it cannot be read is left out here.
Source: docs/protocol.md, "The validator's packet".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief, read_brief
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.reports import ARTIFACT_KINDS, Artifact
from cyberagent.core.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """``candidate``: sequence and text of a root's answer, None for a child; ``messages``: how
    many messages are in it, ``left_out``: how many of the path are not."""

    anchor: RootTaskAnchor | None = None
    brief: TaskBrief | None = None
    artifacts: tuple[Artifact, ...] = ()
    candidate: tuple[int, str] | None = None
    messages: int = 0
    left_out: int = 0


def read_packet(text: str) -> Packet:
    """The values in a packet; of anything else an empty one."""
    sections = _sections(text)
    return Packet(
        anchor=_anchor(_value(sections, "RootTaskAnchor")),
        brief=_brief(_value(sections, "TaskBrief")),
        artifacts=tuple(_artifacts(_value(sections, "Artifacts"))),
        candidate=_candidate(_value(sections, "CandidateAnswer")),
        messages=len(sections.get("Messages, newest first", ())),
        left_out=_left_out(_value(sections, "Left out")),
    )


def _sections(text: str) -> dict[str, list[str]]:
    """Lines by their heading. No line of JSON begins as a heading does."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("# "):
            lines = found.setdefault(line[2:], [])
        elif line:
            lines.append(line)
    return found


def _value(sections: Mapping[str, Sequence[str]], name: str) -> Json:
    try:
        return json.loads(next(iter(sections.get(name, ())), "null"))
    except (ValueError, RecursionError):
        return None


def _anchor(value: Json) -> RootTaskAnchor | None:
    try:
        return None if value is None else normalize_root_task_anchor(value)
    except InvalidTaskValue:
        return None


def _brief(value: Json) -> TaskBrief | None:
    try:
        return None if value is None else read_brief(value)
    except InvalidTaskValue:
        return None


def _artifacts(value: Json) -> list[Artifact]:
    listed = cast("list[Json]", value) if isinstance(value, list) else []
    found: list[Artifact] = []
    for item in listed:
        given = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        if given.get("kind") in ARTIFACT_KINDS and isinstance(given.get("name"), str):
            known = {k: v for k, v in given.items() if k in Artifact.__dataclass_fields__}
            found.append(Artifact(**known))
    return found


def _candidate(value: Json) -> tuple[int, str] | None:
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    sequence, text = given.get("sequence"), given.get("text")
    if isinstance(sequence, int) and isinstance(text, str):
        return sequence, text
    return None


def _left_out(value: Json) -> int:
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    count = given.get("messages")
    return count if isinstance(count, int) else 0
