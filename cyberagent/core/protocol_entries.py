"""What a trace's messages record of the protocol: one entry for each thing that happened.

Entries stand under ``metadata["protocol"]`` of the message that made them, written by the
framework. Source: docs/protocol.md, "Protocol state".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from cyberagent.core.briefs import TaskBrief, read_brief
from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.normal import Fields
from cyberagent.core.refs import ContextRef, Snapshot, read_refs, read_snapshots
from cyberagent.core.reports import TaskReport, normalize_task_report
from cyberagent.core.types import Json
from cyberagent.core.verdicts import (
    TaskReview,
    ValidationResult,
    read_result,
    read_review,
)

ENTRY = "protocol entry"


@dataclass(frozen=True, slots=True)
class Briefed:
    """This trace was given a contract by ``parent``, with copies of what it may read. Another
    one later (REVISE_CHILD) replaces both: all earlier grants are cleared."""

    brief: TaskBrief
    parent: str
    access: tuple[Snapshot, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "brief": self.brief.to_json(),
            "parent": self.parent,
            "access": [s.to_json() for s in self.access],
        }


@dataclass(frozen=True, slots=True)
class Delegated:
    """This trace gave ``child`` a contract and the refs ``access``."""

    child: str
    brief: TaskBrief
    access: tuple[ContextRef, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "child": self.child,
            "brief": self.brief.to_json(),
            "access": [r.to_json() for r in self.access],
        }


@dataclass(frozen=True, slots=True)
class Reported:
    """This trace handed in its report."""

    report: TaskReport

    def to_json(self) -> dict[str, Json]:
        return {"report": self.report.to_json()}


@dataclass(frozen=True, slots=True)
class Validated:
    """This trace's own report, or the root's candidate answer, got its verdict."""

    result: ValidationResult

    def to_json(self) -> dict[str, Json]:
        return {"result": self.result.to_json()}


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """``child`` ended with its verdict; no report where it broke down before it made one."""

    child: str
    report: TaskReport | None
    result: ValidationResult

    def to_json(self) -> dict[str, Json]:
        return {
            "child": self.child,
            "report": self.report.to_json() if self.report else None,
            "result": self.result.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Reviewed:
    """``child`` was reviewed. ``ref``: under which its result can be passed on; None: it is
    over a limit."""

    child: str
    review: TaskReview
    ref: ContextRef | None

    def to_json(self) -> dict[str, Json]:
        return {
            "child": self.child,
            "review": self.review.to_json(),
            "ref": [self.ref.to_json()] if self.ref else [],
        }


Entry: TypeAlias = Briefed | Delegated | Reported | Validated | ChildEnded | Reviewed


def entry_to_json(entry: Entry) -> dict[str, Json]:
    return {"entry": _TAGS[type(entry)], **entry.to_json()}


def entry_from_json(value: object) -> Entry:
    """The entry that :func:`entry_to_json` wrote. Raises InvalidTaskValue on anything else: a
    record that was damaged must not leave a grant standing that it took away."""
    data: Mapping[str, Json] = (
        cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else {}
    )
    tag = data.get("entry")
    read = _READERS.get(tag) if isinstance(tag, str) else None
    if read is None:
        raise InvalidTaskValue(ENTRY, "entry", "is of no known kind")
    return read(data)


def _briefed(value: object) -> Briefed:
    fields = Fields.wrapping(ENTRY, value, ("entry", "brief", "parent", "access"))
    return Briefed(
        read_brief(fields.value("brief")),
        fields.text("parent", required=True),
        read_snapshots(fields, "access"),
    )


def _delegated(value: object) -> Delegated:
    fields = Fields.wrapping(ENTRY, value, ("entry", "child", "brief", "access"))
    child = fields.text("child", required=True)
    return Delegated(child, read_brief(fields.value("brief")), read_refs(fields, "access"))


def _reported(value: object) -> Reported:
    fields = Fields.wrapping(ENTRY, value, ("entry", "report"))
    return Reported(normalize_task_report(fields.value("report")))


def _validated(value: object) -> Validated:
    fields = Fields.wrapping(ENTRY, value, ("entry", "result"))
    return Validated(read_result(fields.value("result")))


def _child_ended(value: object) -> ChildEnded:
    fields = Fields.wrapping(ENTRY, value, ("entry", "child", "report", "result"))
    report = fields.value("report")
    return ChildEnded(
        fields.text("child", required=True),
        None if report is None else normalize_task_report(report),
        read_result(fields.value("result")),
    )


def _reviewed(value: object) -> Reviewed:
    fields = Fields.wrapping(ENTRY, value, ("entry", "child", "review", "ref"))
    ref = read_refs(fields, "ref")
    return Reviewed(
        fields.text("child", required=True),
        read_review(fields.value("review")),
        ref[0] if ref else None,
    )


_TAGS: dict[type[Entry], str] = {
    Briefed: "briefed",
    Delegated: "delegated",
    Reported: "reported",
    Validated: "validated",
    ChildEnded: "child_ended",
    Reviewed: "reviewed",
}
_READERS: dict[str, Callable[[object], Entry]] = {
    "briefed": _briefed,
    "delegated": _delegated,
    "reported": _reported,
    "validated": _validated,
    "child_ended": _child_ended,
    "reviewed": _reviewed,
}
