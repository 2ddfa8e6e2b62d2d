"""One verdict with what was claimed for it, the evidence, and the packet as sent.

Put together from the messages, which say what was claimed and decided. Source: docs/verdicts.md,
"One verdict".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.protocol import ProtocolState, replay_protocol
from cyberagent.core.reports import Artifact, Claim, TaskReport
from cyberagent.core.reports import Evidence as Named
from cyberagent.core.types import Text, ToolCall, Usage, part_from_json, sha256
from cyberagent.trace.plan_text import flat
from traces import packets, records, trees
from traces.models import AnchorRevision, ModelCall, ValidationResult, VerdictReview
from traces.models import Message as MessageRow
from traces.packets import Packet
from traces.rows import MESSAGE_COLUMNS, held, message_from
from traces.verdict_queue import LARGEST, Judged, criteria_of, state_of_review


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a word leans on: a message of the judged run by its ``sequence``, with who wrote it
    and its first words; or an output by its ``name``, with its ``place`` among the artifacts, from
    1 on (0: it is none). ``is_there``: whether there is such a one."""

    sequence: int | None = None
    who: str = ""
    said: str = ""
    name: str = ""
    place: int = 0
    is_there: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """``claim``: what the report says of it, None where it says nothing; ``person``: the word of
    the newest review, "" where there is none."""

    judged: Judged
    evidence: tuple[Evidence, ...] = ()
    claim: Claim | None = None
    claimed_by: tuple[Evidence, ...] = ()
    person: str = ""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The packet as it stands in the validator's trace. ``holds``: whether its text has the hash
    that the verdict names."""

    text: str
    told_sha256: str
    packet: Packet

    @cached_property
    def sha256(self) -> str:
        return sha256(self.text.encode("utf-8", "surrogatepass"))

    @property
    def holds(self) -> bool:
        return self.sha256 == self.told_sha256


@dataclass(frozen=True, kw_only=True)
class VerdictView:
    """A verdict with all that a reviewer needs. ``version``: number of the brief's version that
    was in force; ``answer``: sequence and text of a root's candidate answer; ``sent``: None where
    no packet was; ``call``: the validator's first; ``reviews``: the newest first."""

    row: ValidationResult
    criteria: tuple[Criterion, ...]
    anchor: RootTaskAnchor | None
    anchor_number: int | None
    brief: TaskBrief | None
    version: int
    report: TaskReport | None
    answer: tuple[int, str] | None
    sent: Sent | None
    usage: Usage | None
    call: ModelCall | None
    reviews: tuple[VerdictReview, ...]

    @property
    def newest(self) -> VerdictReview | None:
        return self.reviews[0] if self.reviews else None

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.sent.packet.artifacts if self.sent else ()

    @property
    def state(self) -> str:
        return state_of_review(self.row)


def view_of(row: ValidationResult) -> VerdictView:
    """A verdict put together from what is stored of the judged trace and of its validator."""
    root = trees.root_id(row.trace_id)
    sent = _sent(row)
    number, anchor = _anchor_then(
        row, AnchorRevision.objects.filter(trace=root).order_by("number"), sent
    )
    state = _state_then(row, anchor)
    reviews = tuple(row.reviews.select_related("by").order_by("-pk"))
    row.newest = reviews[0] if reviews else None  # type: ignore[attr-defined]
    report = state.report if state else None
    return VerdictView(
        row=row,
        criteria=_criteria(row, report, sent, reviews[0] if reviews else None),
        anchor=anchor,
        anchor_number=number,
        brief=_brief(state, sent),
        version=len(state.briefs) if state else 0,
        report=report,
        answer=_answer(row, sent),
        sent=sent,
        usage=_usage(state),
        call=_call(row),
        reviews=reviews,
    )


def _state_then(row: ValidationResult, anchor: RootTaskAnchor | None) -> ProtocolState | None:
    """The judged trace's protocol at the message of the verdict."""
    if anchor is None:
        return None
    path = records.recorded(row.trace_id, row.sequence)
    try:
        return replay_protocol(path, trace_id=row.trace_id, anchor=anchor)
    except InvalidTaskValue:
        return None


def _sent(row: ValidationResult) -> Sent | None:
    """The first message of the validator's trace, which is the packet."""
    if row.validator_id is None:
        return None
    found = MessageRow.objects.filter(trace=row.validator_id, role="user").order_by("sequence")
    columns = found.values(*MESSAGE_COLUMNS).first()
    if columns is None:
        return None
    text = message_from(columns).text
    return Sent(text=text, told_sha256=row.packet_sha256, packet=packets.read_packet(text))


def _anchor_then(
    row: ValidationResult, revisions: Iterable[AnchorRevision], sent: Sent | None
) -> tuple[int | None, RootTaskAnchor | None]:
    """Number and value of the anchor that was judged by: that of the packet, else the revision
    in force at the time."""
    known = {r.sha256: r.number for r in revisions}
    if sent and sent.packet.anchor:
        return known.get(sent.packet.anchor.sha256), sent.packet.anchor
    then = [r for r in revisions if r.created_at <= row.created_at] or list(revisions)[:1]
    if not then:
        return None, None
    try:
        return then[-1].number, normalize_root_task_anchor(json.loads(then[-1].text))
    except InvalidTaskValue:
        return then[-1].number, None


def _brief(state: ProtocolState | None, sent: Sent | None) -> TaskBrief | None:
    if sent and sent.packet.brief:
        return sent.packet.brief
    return state.brief if state else None


def _usage(state: ProtocolState | None) -> Usage | None:
    return state.result.usage if state and state.result else None


def _answer(row: ValidationResult, sent: Sent | None) -> tuple[int, str] | None:
    """A root's candidate answer; without a packet the newest message of the model before it."""
    if sent and sent.packet.candidate:
        return sent.packet.candidate
    if not row.is_root:
        return None
    found = MessageRow.objects.filter(
        trace=row.trace_id, sequence__lt=row.sequence, source="model", branch_type=""
    )
    columns = found.order_by("-sequence").values(*MESSAGE_COLUMNS).first()
    if columns is None:
        return None
    message = message_from(columns)
    return message.sequence, message.text


def _call(row: ValidationResult) -> ModelCall | None:
    if row.validator_id is None:
        return None
    return ModelCall.objects.filter(trace=row.validator_id).order_by("number").first()


# Evidence ------------------------------------------------------------------------------------


def _criteria(
    row: ValidationResult,
    report: TaskReport | None,
    sent: Sent | None,
    newest: VerdictReview | None,
) -> tuple[Criterion, ...]:
    judged = criteria_of(row)
    claims = {c.criterion: c for c in report.criteria} if report else {}
    named = [e for j in judged for e in j.evidence]
    named += [e for c in claims.values() for e in c.evidence]
    look = _Lookup(row, named, report, sent)
    words: Mapping[str, str] = json.loads(newest.criteria) if newest else {}
    return tuple(
        Criterion(
            judged=one,
            evidence=look.all(one.evidence),
            claim=(claim := claims.get(one.criterion) if one.decides else None),
            claimed_by=look.all(claim.evidence) if claim else (),
            person=words.get(one.id, ""),
        )
        for one in judged
    )


class _Lookup:
    """What there is of all that a verdict and its report name; one query."""

    def __init__(
        self,
        row: ValidationResult,
        named: Sequence[Named],
        report: TaskReport | None,
        sent: Sent | None,
    ) -> None:
        asked = {e for e in named if isinstance(e, int) and e <= LARGEST}
        found = MessageRow.objects.filter(trace=row.trace_id, sequence__in=asked)
        columns = found.values_list("sequence", "role", "name", "parts") if asked else ()
        self._messages = {n: (role, held(name), parts) for n, role, name, parts in columns}
        artifacts = sent.packet.artifacts if sent else ()
        self._places = {a.name: place for place, a in enumerate(artifacts, 1)}
        self._outputs = {o.name for o in (report.outputs if report else ())}

    def all(self, named: Sequence[Named]) -> tuple[Evidence, ...]:
        return tuple(self._one(e) for e in named)

    def _one(self, named: Named) -> Evidence:
        if not isinstance(named, int):
            place = self._places.get(named, 0)
            return Evidence(name=named, place=place, is_there=bool(place) or named in self._outputs)
        if named not in self._messages:
            return Evidence(sequence=named, is_there=False)
        role, name, parts = self._messages[named]
        return Evidence(sequence=named, who=name or role, said=_first_words(json.loads(parts)))


def _first_words(parts: Sequence[Any]) -> str:
    """Of a message's text; of one that only calls tools, what it calls."""
    read = [part_from_json(p) for p in parts]
    text = " ".join(p.text[:2000] for p in read if isinstance(p, Text))
    return flat(text or ", ".join(p.name for p in read if isinstance(p, ToolCall)), 160)
