"""Goals, the operations on them, and the texts and ids that they are made of. Source:
docs/goals.md."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from cyberagent.core.errors import InvalidGoalOperation
from cyberagent.core.types import Json, clean_text
from cyberagent.trace.plan_text import change_line

Status = Literal["pending", "in_progress", "completed", "abandoned"]
Priority = Literal["", "high", "medium", "low"]

LONGEST_ID = 100
"""Characters of an id; this also bounds how deep goals nest."""


class UnknownGoal(InvalidGoalOperation):
    def __init__(self, goal_id: str) -> None:
        super().__init__(f"there is no goal {goal_id}")
        self.goal_id = goal_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``id``: "2", "2.1", or "2'" for a goal that replaced an abandoned one; never changed.
    ``reason``: why it was added. ``summary``: what came of it, or why it was abandoned.
    ``children``: ids, in the order shown."""

    id: str
    description: str
    status: Status = "pending"
    summary: str = ""
    reason: str = ""
    priority: Priority = ""
    children: tuple[str, ...] = ()

    @property
    def parent(self) -> str:
        """The id of the goal above; empty at the top."""
        return self.id.rpartition(".")[0]

    @property
    def level(self) -> int:
        """0 at the top."""
        return self.id.count(".")

    @property
    def is_open(self) -> bool:
        return self.status in ("pending", "in_progress")

    @property
    def label(self) -> str:
        """The id as it stands in a plan: with a full stop at the top only."""
        return self.id if self.parent else f"{self.id}."


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOperation:
    """What one call of the goal tool asks for; None and "" both mean "not given".

    Several at once run in the order done, abandon, add, focus. ``done`` and ``abandon`` hold an
    id, or the summary itself for the goal in focus; whatever is shaped like an id is one.
    """

    add: str | Sequence[str] | None = None
    reason: str | None = None
    after: str | None = None
    under: str | None = None
    focus: str | None = None
    done: str | None = None
    summary: str | None = None
    abandon: str | None = None

    @classmethod
    def from_arguments(cls, arguments: Json) -> GoalOperation:
        """The operation of a goal call's arguments. Raises InvalidGoalOperation, naming the
        argument that is unknown or of a wrong type."""
        if not isinstance(arguments, dict):
            raise InvalidGoalOperation("the arguments must be an object")
        given = cast("dict[str, Any]", arguments)
        known = {f.name for f in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise InvalidGoalOperation(f"there is no argument {name!r}")
            texts = name == "add" and isinstance(value, list)
            if not (value is None or isinstance(value, str) or texts):
                raise InvalidGoalOperation(f"{name} must be a text, not {value!r:.60}")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that an operation did to the goal ``id`` ("" for "no focus")."""

    kind: Literal["added", "completed", "abandoned", "focused", "prioritised"]
    id: str
    text: str = ""

    def line(self, language: str = "en") -> str:
        return change_line(self.kind, self.id, self.text, language)


# Ids and texts -------------------------------------------------------------------------------

ID = re.compile(r"[0-9]+'*(?:\.[0-9]+'*)*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def one_line(text: str) -> str:
    """The text without control characters and lone surrogates, blanks run together."""
    return " ".join(_CONTROL.sub(" ", clean_text(text)).split())


def paragraphs(text: str | None) -> str:
    """The same, but lines are kept."""
    return _CONTROL.sub("", clean_text((text or "").replace("\r\n", "\n"))).strip()


def given(value: object) -> bool:
    return value is not None and value != "" and value != []


def as_id(value: str) -> str | None:
    """``value`` as a goal id if it is shaped like one ("2.", as plans show it, is "2")."""
    plain = value.strip().replace("’", "'").replace("′", "'").removesuffix(".")
    return plain if ID.fullmatch(plain) else None


def descriptions(add: str | Sequence[str]) -> list[str]:
    """The goals that ``add`` names: a list, a JSON list, or a text with commas between them.
    Raises InvalidGoalOperation for one that is empty or not a text."""
    items: Sequence[object] = add.split(",") if isinstance(add, str) else add
    if isinstance(add, str) and add.lstrip().startswith("["):
        # What is not a JSON list is a description that begins with a bracket.
        with contextlib.suppress(ValueError, RecursionError):
            items = cast("list[object]", json.loads(add))
    found: list[str] = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, str):
            raise InvalidGoalOperation(f"goal {number} of {len(items)} to add is not a text")
        if not (text := one_line(item)):
            raise InvalidGoalOperation(f"goal {number} of {len(items)} to add has no description")
        found.append(text)
    return found
