"""Having a report, or the root's answer, validated: the packet goes to a trace of its own, and
whatever comes back is a verdict, never ``passed`` by mistake.

Source: docs/protocol.md, "The validator's packet".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.family import Ask, Family, Outcome
from cyberagent.core.lineage import contract_in_force
from cyberagent.core.ports import Store
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.reports import TaskReport
from cyberagent.core.state import RunState
from cyberagent.core.streams import Stopped
from cyberagent.core.types import Json, Message, text_message, utc_now
from cyberagent.core.validation import (
    ValidationPacket,
    build_validation_packet,
    read_verdict,
    resolve_artifacts,
)
from cyberagent.core.verdicts import (
    ValidationPlan,
    ValidationResult,
    plan_validation,
    read_plan,
    unknown_result,
)

REASON_CHARS = 1_000
"""Characters of a validator's reason that an agent is told; the whole stands in the record."""


def briefly(text: str, most: int = REASON_CHARS) -> str:
    """``text`` as an agent is told it: what one model wrote must not flood another's window."""
    return text if len(text) <= most else f"{text[:most]}… [{len(text) - most:,} more characters]"


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and the trace of the validator that gave it, "" where none was asked."""

    result: ValidationResult
    validator: str = ""

    def metadata(self) -> dict[str, Json]:
        """What the message that carries the verdict keeps beside its record."""
        return {"validator": self.validator, "verdict": self.result.verdict}


async def judge(
    family: Family,
    state: RunState,
    *,
    call: str,
    message: int,
    report: TaskReport | None = None,
    candidate: Message | None = None,
) -> Judged:
    """The verdict on ``report``, or on the root's ``candidate`` answer. ``call`` and ``message``
    name what is judged, so that it is judged once. Raises Paused, Stopped, LimitReached."""
    protocol = cast("ProtocolState", state.protocol)
    path = await opened(family.store, state.trace.id, await family.store.path(state.trace.id))
    plan = await _plan(family, state.config, protocol)
    artifacts = await asyncio.to_thread(
        resolve_artifacts, report, lambda name: family.spawner.read(state.config, name)
    )
    packet = await asyncio.to_thread(  # a long path takes a while, and others share the loop
        build_validation_packet,
        anchor=protocol.anchor,
        plan=plan,
        path=path,
        brief=protocol.brief,
        report=report,
        artifacts=artifacts,
        candidate=candidate,
    )
    if isinstance(packet, ValidationResult):
        return Judged(replace(packet, created_at=utc_now()))
    ask = Ask(
        kind="validator",
        call=call,
        message=message,
        mission=f"Validate: {(protocol.brief or protocol.anchor).objective}",
        config=family.spawner.settings("validator", state.config),
        opening=(text_message("user", packet.text, source="framework"),),
        # What is sent decides: a packet that changed since is another one to judge.
        mark={"packet": packet.sha256},
        seconds=state.config.limits.validator_timeout_seconds,
    )
    outcome = await family.attend(state, ask)
    if outcome.status == "stopped" and family.is_stopped:
        raise Stopped  # the run's stop is no verdict: it is asked for again when the run goes on
    return Judged(_read(outcome, packet), outcome.trace.id)


async def opened(store: Store, trace_id: str, path: Sequence[Message]) -> list[Message]:
    """A path with what its summaries stand for in their places: a summary is the agent's own
    word, and what it stands for holds the real results. One whose messages are not stored stays."""
    for place in range(len(path) - 1, -1, -1):
        last = _stands_for(path[place])
        if last and last in await store.messages(trace_id, [last]):
            before = await store.path(trace_id, head=last)
            return [*await opened(store, trace_id, before), *path[place + 1 :]]
    return list(path)


def _stands_for(message: Message) -> int:
    """The last message that a summary stands for; 0 where it names none, or is no summary."""
    note = message.metadata.get("stands_for") if message.source == "summary" else None
    last = cast("Mapping[str, Json]", note).get("last") if isinstance(note, Mapping) else None
    return last if isinstance(last, int) and 0 < last < message.sequence else 0


async def _plan(family: Family, config: RunConfig, protocol: ProtocolState) -> ValidationPlan:
    """The plan that was fixed with the contract; a new one where the anchor was revised since,
    and for the root."""
    contract = await contract_in_force(family.store, protocol)
    if contract is not None:
        try:
            plan = read_plan(contract.metadata.get("plan"))
        except InvalidTaskValue:
            plan = None
        if plan is not None and plan.anchor_sha256 == protocol.anchor.sha256:
            return plan
    return plan_validation(protocol.anchor, protocol.brief, model=family.validator_of(config))


def _read(outcome: Outcome, packet: ValidationPacket) -> ValidationResult:
    """The verdict of a validator that ended; ``unknown`` where it broke down or was stopped."""
    if outcome.status != "completed":
        why = f"the validator {outcome.status}: {outcome.why or 'no reason is known'}"
        found = unknown_result(packet.plan, why)
        return replace(
            found,
            packet_sha256=packet.sha256,
            model=outcome.model or packet.plan.model,
            usage=outcome.usage,
            cost=outcome.cost,
            created_at=utc_now(),
        )
    return read_verdict(
        outcome.answer,
        packet,
        model=outcome.model,
        usage=outcome.usage,
        cost=outcome.cost,
        created_at=utc_now(),
    )
