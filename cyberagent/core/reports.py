"""What a child hands in: the TaskReport, and the Artifacts that the framework makes of it.

Source: docs/protocol.md, "Report, verdict, review".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from cyberagent.core.normal import Fields, canonical_text
from cyberagent.core.types import Json

REPORT = "TaskReport"

ReportStatus = Literal["completed", "partial", "failed"]
REPORT_STATUSES = ("completed", "partial", "failed")

Evidence = int | str
"""A message's sequence in the trace, or the name of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the child says of one criterion."""

    criterion: str
    met: bool
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {"criterion": self.criterion, "met": self.met, "evidence": list(self.evidence)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Something made: an ``artifact`` (a path in the workspace or a URL) or a ``text``."""

    name: str
    artifact: str = ""
    text: str = ""

    def to_json(self) -> dict[str, Json]:
        if self.artifact:
            return {"name": self.name, "artifact": self.artifact}
        return {"name": self.name, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """A child's report, in normal form. All of it is the child's own word."""

    status: ReportStatus
    summary: str
    criteria: tuple[Claim, ...] = ()
    outputs: tuple[Output, ...] = ()
    open_issues: tuple[str, ...] = ()
    knowledge: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "status": self.status,
            "summary": self.summary,
            "criteria": [c.to_json() for c in self.criteria],
            "outputs": [o.to_json() for o in self.outputs],
            "open_issues": list(self.open_issues),
            "knowledge": list(self.knowledge),
        }

    @property
    def text(self) -> str:
        return canonical_text(self.to_json(), REPORT)


def normalize_task_report(value: object, criteria: Sequence[str] | None = None) -> TaskReport:
    """The report in normal form. ``criteria``: those of the child's brief, where claims about
    anything else are to be refused. Raises InvalidTaskValue."""
    fields = Fields(REPORT, value, tuple(TaskReport.__dataclass_fields__))
    outputs = _outputs(fields)
    return TaskReport(
        status=cast("ReportStatus", fields.word("status", REPORT_STATUSES)),
        summary=fields.text("summary", required=True),
        criteria=_claims(fields, {o.name for o in outputs}, criteria),
        outputs=outputs,
        open_issues=fields.texts("open_issues"),
        knowledge=fields.texts("knowledge"),
    )


def _outputs(fields: Fields) -> tuple[Output, ...]:
    found: dict[str, Output] = {}
    for one in fields.objects("outputs", ("name", "artifact", "text")):
        name = one.text("name", required=True)
        if name in found:
            raise one.refuse("name", "is the name of another output too")
        if one.has("artifact") == one.has("text"):
            raise one.refuse("artifact", "or text must be given, and not both")
        if one.has("artifact"):
            found[name] = Output(name=name, artifact=one.text("artifact", required=True))
        else:
            found[name] = Output(name=name, text=one.text("text"))
    return tuple(found.values())


def _claims(fields: Fields, outputs: set[str], criteria: Sequence[str] | None) -> tuple[Claim, ...]:
    found: dict[str, Claim] = {}
    for one in fields.objects("criteria", ("criterion", "met", "evidence")):
        criterion = one.text("criterion", required=True)
        if criterion in found:
            raise one.refuse("criterion", "is claimed twice")
        if criteria is not None and criterion not in criteria:
            raise one.refuse("criterion", "is not one of the task's completion criteria")
        evidence = read_evidence(one, "evidence")
        for item in evidence:
            if isinstance(item, str) and item not in outputs:
                raise one.refuse("evidence", f"names {item[:80]!r}, which is not an output")
        found[criterion] = Claim(criterion=criterion, met=one.yes_or_no("met"), evidence=evidence)
    return tuple(found.values())


def read_evidence(fields: Fields, name: str) -> tuple[Evidence, ...]:
    """A list of message sequences (1 or more) and names. Raises InvalidTaskValue."""
    found = fields.values(name)
    for item in found:
        sequence = isinstance(item, int) and not isinstance(item, bool) and item > 0
        if not sequence and not isinstance(item, str):
            raise fields.refuse(name, "holds message sequences and names of artifacts only")
    return found


# Artifacts -----------------------------------------------------------------------------------

ARTIFACT = "Artifact"
ArtifactKind = Literal["file", "text", "url"]
ARTIFACT_KINDS = ("file", "text", "url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An output as the framework found it. ``location``: path in the workspace, or the URL;
    ``sha256`` and ``size`` (bytes) of the content as read, "" and None where nothing was read:
    ``problem`` says why. A URL is never fetched. ``content``: the whole text; None where there
    is none or it is not UTF-8 text."""

    name: str
    kind: ArtifactKind
    location: str = ""
    sha256: str = ""
    size: int | None = None
    problem: str = ""
    content: str | None = None

    def to_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
