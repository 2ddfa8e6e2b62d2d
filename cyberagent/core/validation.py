"""The validator's packet and its answer. Neither is put together by the agent under test.

Source: docs/protocol.md, "The validator's packet".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.briefs import TaskBrief
from cyberagent.core.errors import CyberAgentError, InvalidTaskValue
from cyberagent.core.normal import Fields, canonical_text, parse_json, strip
from cyberagent.core.reports import Artifact, Output, TaskReport, read_evidence
from cyberagent.core.types import File, Image, Json, Message, Text, Usage, clean_text, sha256
from cyberagent.core.verdicts import (
    WORDS,
    CriterionVerdict,
    ValidationPlan,
    ValidationResult,
    Word,
    decided,
    unknown_result,
)

PACKET = "packet"
MAX_PACKET_CHARS = 50_000

ReadFile = Callable[[str], bytes]
"""The whole content of a file of the workspace, by its path; raises CyberAgentError."""


# Artifacts -----------------------------------------------------------------------------------


def resolve_artifacts(report: TaskReport | None, read: ReadFile) -> tuple[Artifact, ...]:
    """The report's outputs as the framework finds them; hashes and sizes are computed here. An
    output that is not there stays in the list, with the ``problem``."""
    return tuple(_artifact(output, read) for output in (report.outputs if report else ()))


def _artifact(output: Output, read: ReadFile) -> Artifact:
    if not output.artifact:
        return _of_bytes(Artifact(name=output.name, kind="text"), output.text.encode())
    if re.match("https?://", output.artifact, re.IGNORECASE):
        return Artifact(
            name=output.name, kind="url", location=output.artifact, problem="it was not fetched"
        )
    bare = Artifact(name=output.name, kind="file", location=output.artifact)
    try:
        return _of_bytes(bare, read(output.artifact))
    except CyberAgentError as error:
        return Artifact(
            name=bare.name, kind="file", location=bare.location, problem=clean_text(str(error))
        )


def _of_bytes(bare: Artifact, data: bytes) -> Artifact:
    try:
        content = None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        content = None
    return Artifact(
        name=bare.name,
        kind=bare.kind,
        location=bare.location,
        sha256=sha256(data),
        size=len(data),
        content=content,
    )


# The packet ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPacket:
    """What a validator is sent. ``parts``: the fixed part by name, each in ``text`` as it
    stands; ``sequences``: the messages that are in it; ``left_out``: how many of the main path
    are not."""

    text: str
    parts: Mapping[str, str]
    plan: ValidationPlan
    artifacts: frozenset[str] = frozenset()
    sequences: frozenset[int] = field(default_factory=frozenset[int])
    left_out: int = 0

    @property
    def sha256(self) -> str:
        return sha256(self.text.encode())


def build_validation_packet(
    *,
    anchor: RootTaskAnchor,
    plan: ValidationPlan,
    path: Sequence[Message],
    brief: TaskBrief | None = None,
    report: TaskReport | None = None,
    artifacts: Sequence[Artifact] = (),
    candidate: Message | None = None,
) -> ValidationPacket | ValidationResult:
    """The packet, at most 50,000 characters; or the verdict ``unknown``, with the reason, where
    the fixed part alone is over. Nothing of the fixed part is ever shortened.

    ``path``: the stored messages of the trace under test, in order; those of side branches are
    left out here, as is all reasoning. ``candidate``: the root's candidate answer.
    """
    parts = {
        "RootTaskAnchor": anchor.text,
        "TaskBrief": brief.text if brief else "null",
        "TaskReport": report.text if report else "null",
        "ValidationPlan": plan.text,
        "Artifacts": canonical_text([a.to_json() for a in artifacts], PACKET),
        "CandidateAnswer": _candidate(candidate),
    }
    fixed = "\n\n".join(f"# {name}\n{text}" for name, text in parts.items())
    if len(fixed) > MAX_PACKET_CHARS:
        longest = max(parts, key=lambda name: len(parts[name]))
        return unknown_result(
            plan,
            f"nothing was validated: the fixed part of the packet has {len(fixed):,} characters "
            f"(the longest is {longest} with {len(parts[longest]):,}); {MAX_PACKET_CHARS:,} fit",
        )
    shown = [m for m in path if _belongs(m, candidate)]
    tail, taken = _newest(shown, MAX_PACKET_CHARS - len(fixed))
    own = {candidate.sequence} if candidate and candidate.sequence else set[int]()
    return ValidationPacket(
        text=fixed + tail,
        parts=parts,
        plan=plan,
        artifacts=frozenset(a.name for a in artifacts),
        sequences=taken | own,
        left_out=len(shown) - len(taken),
    )


def _candidate(message: Message | None) -> str:
    if message is None:
        return "null"
    value = {"sequence": message.sequence, "text": clean_text(message.text)}
    return canonical_text(value, PACKET)


def _belongs(message: Message, candidate: Message | None) -> bool:
    """Whether a message is of the main path and not in the packet already. A placeholder is no
    real tool result."""
    if message.branch_id or message.branch_type or message.is_placeholder:
        return False
    return candidate is None or message.sequence != candidate.sequence


_HEAD = "\n\n# Messages, newest first"


def _newest(path: Sequence[Message], room: int) -> tuple[str, frozenset[int]]:
    """Lines of as many messages as fit into ``room`` characters, the newest first, and their
    sequences. A message is there whole or not at all; what is left out is counted at the end."""
    lines, taken = _fitting(path, room - len(_HEAD))
    if len(lines) == len(path):
        return (_HEAD + "".join(lines) if lines else ""), frozenset(taken)
    lines, taken = _fitting(path, room - len(_HEAD) - len(_left_out(len(path))))
    note = _left_out(len(path) - len(lines))
    tail = (_HEAD + "".join(lines) if lines else "") + note
    return (tail if len(tail) <= room else ""), frozenset(taken)


def _left_out(count: int) -> str:
    return f'\n\n# Left out\n{{"messages":{count}}}'


def _fitting(path: Sequence[Message], room: int) -> tuple[list[str], list[int]]:
    lines: list[str] = []
    taken: list[int] = []
    for message in reversed(path):
        for line in _forms(message):
            if len(line) <= room:
                room -= len(line)
                lines.append(line)
                taken.append(message.sequence)
                break
    return lines, taken


def _forms(message: Message) -> Iterator[str]:
    """A tool's whole output, then the form that the model was shown."""
    if message.full_output is not None:
        yield _line(message, message.full_output, "")
    text = "\n".join(_texts(message))
    yield _line(message, text, "" if message.full_output is None else "as shown to the agent")


def _texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Image):
            yield f"[image {part.url or part.media_type}]"
        elif isinstance(part, File):
            yield f"[file {part.name}]" + (f"\n{part.text}" if part.text else "")
        elif isinstance(part, Text):
            yield part.text


def _line(message: Message, text: str, form: str) -> str:
    value: dict[str, Json] = {
        "sequence": message.sequence,
        "role": message.role,
        "source": message.source,
        "name": message.name,
        "text": text,
        "form": form,
        "is_error": message.is_error,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [
            {"id": c.id, "name": c.name, "arguments": c.arguments, "made_by": c.made_by}
            for c in message.tool_calls
        ],
    }
    kept = {k: _clean(v) for k, v in value.items() if v not in ("", False, [])}
    return "\n" + canonical_text(kept, PACKET)


def _clean(value: Json) -> Json:
    """Stored text may hold lone surrogates, which no packet can."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        calls = cast("list[dict[str, str]]", value)
        return [{k: clean_text(v) for k, v in call.items()} for call in calls]
    return value


# The answer ------------------------------------------------------------------------------------

_FENCE = re.compile(r"```(?:json)?\s(.*)\s```", re.DOTALL)


def read_verdict(
    text: str,
    packet: ValidationPacket,
    *,
    model: str = "",
    usage: Usage | None = None,
    cost: float | None = None,
    created_at: str = "",
) -> ValidationResult:
    """The verdict that a validator's answer states: one JSON object, bare or in one fence.

    ``{"verdict", "reason"?, "criteria": [{"criterion", "verdict", "reason", "evidence"}]}``,
    where ``criterion`` is an id or the text of the plan. Anything else is ``unknown`` with the
    reason: prose, other words or fields, a deciding criterion that is missing or said twice, a
    ``passed`` without evidence, evidence that is not in the packet, an overall verdict that does
    not follow from the criteria.
    """
    try:
        verdict, reason, criteria = _read(text, packet)
    except InvalidTaskValue as error:
        why = f"the validator's answer cannot be used: {error}"
        found = unknown_result(packet.plan, why)
    else:
        found = ValidationResult(verdict=verdict, reason=reason, criteria=criteria)
    return replace(
        found,
        packet_sha256=packet.sha256,
        model=model or packet.plan.model,
        usage=usage,
        cost=cost,
        created_at=created_at,
    )


def _read(text: str, packet: ValidationPacket) -> tuple[Word, str, tuple[CriterionVerdict, ...]]:
    bare = strip(text)
    if fenced := _FENCE.fullmatch(bare):
        bare = fenced.group(1)
    fields = Fields("verdict", parse_json(bare, "verdict"), ("verdict", "reason", "criteria"))
    word = cast("Word", fields.word("verdict", WORDS))
    found: dict[str, CriterionVerdict] = {}
    for one in fields.objects("criteria", ("criterion", "verdict", "reason", "evidence")):
        verdict = _criterion(one, packet)
        if verdict.id in found:
            raise one.refuse("criterion", "is judged twice")
        found[verdict.id] = verdict
    for planned in packet.plan.criteria:
        if planned.id not in found and planned.decides:
            raise fields.refuse("criteria", f"lacks {planned.id}: {planned.criterion[:200]}")
        found.setdefault(
            planned.id,
            CriterionVerdict(
                id=planned.id, criterion=planned.criterion, verdict="unknown", reason="not judged"
            ),
        )
    follows = decided([(c, found[c.id].verdict) for c in packet.plan.criteria])
    if word != follows:
        raise fields.refuse("verdict", f"is {word}, but {follows} follows from the criteria")
    return word, fields.text("reason"), tuple(found[c.id] for c in packet.plan.criteria)


def _criterion(fields: Fields, packet: ValidationPacket) -> CriterionVerdict:
    planned = packet.plan.find(fields.text("criterion", required=True))
    if planned is None:
        raise fields.refuse("criterion", "is not in the plan")
    word = cast("Word", fields.word("verdict", WORDS))
    evidence = read_evidence(fields, "evidence")
    if word == "passed" and not evidence:
        raise fields.refuse("evidence", "is missing, though the criterion is called passed")
    for item in evidence:
        if item not in (packet.artifacts if isinstance(item, str) else packet.sequences):
            raise fields.refuse("evidence", f"names {item!r:.80}, which is not in the packet")
    return CriterionVerdict(
        id=planned.id,
        criterion=planned.criterion,
        verdict=word,
        reason=fields.text("reason", required=True),
        evidence=evidence,
    )
