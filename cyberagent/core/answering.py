"""What a recursive run does with its last word: a root's answer is validated against the anchor,
a child must hand in a report.

Source: docs/protocol.md, "In a run".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from cyberagent.core.control import Storing
from cyberagent.core.events import Event, Nudge, Verdict
from cyberagent.core.family import Family
from cyberagent.core.lineage import superseding, told_anchor
from cyberagent.core.protocol import ProtocolState
from cyberagent.core.protocol_entries import Validated, entry_to_json
from cyberagent.core.state import RunState, begins_turn
from cyberagent.core.types import Json, Message, TraceStatus, text_message
from cyberagent.core.validating import Judged, briefly, judge
from cyberagent.core.verdicts import ValidationResult
from cyberagent.core.wording import label, wording

MOST_REMINDERS = 2
"""How often a turn is reminded of a report or a review that it owes."""

MOST_REJECTIONS = 2
"""Answers of a root that may fail in one turn, and the run still goes on to another one."""

REMINDER = "reminder"
"""Key of what a framework's message reminds of, in its metadata."""


@dataclass(slots=True)
class Ending:
    """Whether, and how, the run ends now. ``status`` None: it goes on."""

    status: TraceStatus | None = None
    answer: str = ""
    why: str = ""


async def after_answer(
    family: Family, write: Storing, state: RunState, answer: Message, ending: Ending
) -> AsyncIterator[Event]:
    """What follows on an answer without calls in a recursive run; put into ``ending``."""
    protocol = cast("ProtocolState", state.protocol)
    ending.answer = answer.text
    if not state.final_asked and (text := _owed(state, protocol)):
        for event in await write(state, [text[0]], [text[1]]):
            yield event
        return
    if protocol.brief is not None:
        ending.status, ending.why = "completed", _without_report(state)
        return
    if due := protocol.reviews_due:  # what rests on an unreviewed result is not to be judged
        names = ", ".join(c.id for c in due)
        ending.status, ending.why = "failed", f"it answered while reviews are due: {names}"
        return
    name, at = f"answer {answer.sequence}", answer.sequence
    work = asyncio.ensure_future(judge(family, state, call=name, message=at, candidate=answer))
    async with aclosing(family.as_ended([work])) as each:
        async for _ in each:
            for event in state.with_told(()):
                yield event
    judged = work.result()
    failed = judged.result.verdict == "failed"
    goes_on = failed and await _rejections(family, state) < MOST_REJECTIONS
    draft = _verdict_message(judged, state.config.language, goes_on=goes_on)
    event = Verdict(
        verdict=judged.result.verdict,
        why=judged.result.reason,
        validator=judged.validator,
        message=-1,
    )
    for stored in await write(state, [draft], [event]):
        yield stored
    if not goes_on:
        ending.status, ending.why = _ended(judged.result)


async def after_verdict(family: Family, state: RunState) -> Ending:
    """The end that follows from a verdict on a root's answer, where the process that stored it
    died before it ended the run; no status where the verdict was not the end."""
    protocol = cast("ProtocolState", state.protocol)
    last = [i.message for i in state.history[-2:]]
    is_verdict = len(last) == 2 and "verdict" in last[1].metadata and protocol.brief is None
    if not is_verdict or protocol.result is None:
        return Ending()
    failed = protocol.result.verdict == "failed"
    if failed and await _rejections(family, state) <= MOST_REJECTIONS:
        return Ending()
    status, why = _ended(protocol.result)
    return Ending(status, last[0].text, why)


def _without_report(state: RunState) -> str:
    limits = state.config.limits
    at = {
        "step_limit": f", at its limit of {limits.max_steps} steps",
        "over_hard": f", at its limit of {limits.token_hard_limit:,} tokens",
    }
    return f"it ended without handing in a report{at.get(state.nudged, '')}"


def _ended(result: ValidationResult) -> tuple[TraceStatus, str]:
    if result.verdict == "failed":
        return "failed", f"the validator found the answer failed: {_reasons(result)}"
    if result.verdict == "unknown":
        return "completed", f"the validator could not tell: {result.reason}"
    return "completed", "the validator found the answer passed"


def _reasons(result: ValidationResult) -> str:
    failed = [
        f"{c.criterion}: {briefly(c.reason)}" for c in result.criteria if c.verdict == "failed"
    ]
    return "; ".join(failed) or briefly(result.reason) or "-"


def _owed(state: RunState, protocol: ProtocolState) -> tuple[Message, Event] | None:
    """A reminder of reviews or of the report that the trace owes, as long as it may be given."""
    if sum(REMINDER in m.metadata for m in _turn(state)) >= MOST_REMINDERS:
        return None
    if due := protocol.reviews_due:
        what, fills = "reviews_due", {"children": ", ".join(c.id for c in due)}
    elif protocol.brief is not None and protocol.report is None:
        what, fills = "report_reminder", {}
    else:
        return None
    text = wording(state.config.language, what).format(**fills)
    note = text_message("user", text, source="framework", metadata={REMINDER: what})
    return note, Nudge(what=what, text=text, message=-1)


def _turn(state: RunState) -> Sequence[Message]:
    """The messages since the person, or the contract, that the turn began with."""
    found: list[Message] = []
    for item in reversed(state.history):
        if begins_turn(item.message):
            break
        found.append(item.message)
    return found


async def _rejections(family: Family, state: RunState) -> int:
    """How often an answer of this turn failed; that the history was compacted since changes
    nothing."""
    entries = cast("ProtocolState", state.protocol).entries
    failed = [
        n.sequence
        for n in entries
        if isinstance(n.entry, Validated) and n.entry.result.verdict == "failed"
    ]
    found = await family.store.messages(state.trace.id, failed)
    return sum(m.turn == state.trace.turn for m in found.values())


def _verdict_message(judged: Judged, language: str, *, goes_on: bool) -> Message:
    """The framework's message that carries the verdict on a root's answer."""
    result = judged.result
    if goes_on:
        text = wording(language, "root_rejected").format(reasons=_reasons(result))
    else:
        text = label(language, "root_verdict").format(
            verdict=result.verdict, reason=briefly(result.reason) or _reasons(result)
        )
    record: Json = entry_to_json(Validated(result))
    metadata = {"protocol": [record], **judged.metadata()}
    return text_message("user", text, source="framework", metadata=metadata)


async def tell_anchor(family: Family, write: Storing, state: RunState) -> list[Event]:
    """Tell a run that operators gave its tree another anchor, if it was not told; its contract
    and those of its children are held to it from here on."""
    protocol = cast("ProtocolState", state.protocol)
    lineage = cast("Sequence[str]", state.trace.context["lineage"])
    revisions = await family.store.anchors(next(iter(lineage), state.trace.id))
    newest = revisions[-1]
    if told_anchor([i.message for i in state.history]) == newest.anchor.sha256:
        return []
    state.protocol = protocol.under(newest.anchor)
    return await write(state, [superseding(newest, state.config.language)], [])
