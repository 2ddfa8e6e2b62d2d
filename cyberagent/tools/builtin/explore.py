"""``explore`` and ``delegate_research``: questions that sub-agents answer in contexts of their own.

What comes back is what they did and what they concluded, nothing else. Source: docs/tools.md,
"Sub-agents".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from cyberagent.core.delegation import activity
from cyberagent.core.errors import InvalidInput, ToolFailed
from cyberagent.core.family import ENDED, AgentKind, Ask, Family, Outcome
from cyberagent.core.lineage import spawned
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.core.state import RunState
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.types import Message, Reasoning, text_message
from cyberagent.core.validating import briefly
from cyberagent.core.window import Item
from cyberagent.core.wording import label
from cyberagent.tools.registry import tool

MOST_BRANCHES = 8
MAX_TASK_CHARS = 16_000
CONCLUSION_CHARS = 6_000
"""Characters of a conclusion that come back; the rest is read with ``read_conclusion``."""

TOLD_TASK_CHARS = 200
"""Characters of a question that are told with its conclusion: who asked knows it."""

ASKING = ("explore", "research")
"""Kinds of sub-agents that look into a question and make no contract."""


@tool(framework=True, idempotent=True, parallel_safe=True, delegates=True)
async def explore(context: ToolContext, branches: list[str], background: str = "") -> ToolOutcome:
    """Have several questions or directions looked into, each by a sub-agent that only reads.

    Their conclusions come back together, in order.

    Args:
        branches: One question or direction each, 8 at most.
        background: What they need to know. Empty: they begin with this whole conversation.
    """
    wanted = [b.strip() for b in branches if b.strip()]
    if not 1 <= len(wanted) <= MOST_BRANCHES:
        raise InvalidInput(f"branches: from 1 to {MOST_BRANCHES} are needed, not {len(wanted)}")
    state: RunState = context.state
    if state.protocol is not None and not background.strip():
        raise InvalidInput(
            "background is needed: in a recursive run no sub-agent inherits the conversation"
        )
    before = () if background.strip() else inherited(state.history)
    asks = [
        _ask(context, "explore", n, branch, before, background) for n, branch in enumerate(wanted)
    ]
    return await _answered(context, asks)


@tool(framework=True, idempotent=True, parallel_safe=True, delegates=True)
async def delegate_research(run: ToolContext, task: str, context: str = "") -> ToolOutcome:
    """Have a question researched by a sub-agent that only reads and sees nothing of this
    conversation.

    Args:
        task: What it is to find out.
        context: What it needs to know.
    """
    if not task.strip():
        raise InvalidInput("task is empty")
    return await _answered(run, [_ask(run, "research", 0, task, (), context)])


@tool(framework=True, idempotent=True, read_only=True)
async def read_conclusion(
    context: ToolContext, child: str, offset: int = 0, limit: int = CONCLUSION_CHARS
) -> str:
    """Read the conclusion or the report of a sub-agent of yours in slices, where it was too long
    to be shown.

    Args:
        child: The sub-agent's id.
        offset: Characters to pass over.
        limit: Characters to read, 16000 at most.
    """
    if not 1 <= limit <= MAX_TASK_CHARS or offset < 0:
        raise InvalidInput(f"limit must be from 1 to {MAX_TASK_CHARS}, offset 0 or more")
    name, language = child.strip(), context.config.language
    text = await _handed_over(context, name)
    if not text:
        return label(language, "nothing_there")
    if offset >= len(text):
        raise InvalidInput(f"offset must be from 0 to {len(text) - 1}, not {offset}")
    shown = text[offset : offset + limit]
    if left := len(text) - offset - len(shown):
        shown += " " + label(language, "conclusion_cut").format(count=left, child=name)
    return shown


async def _handed_over(context: ToolContext, child: str) -> str:
    """What a sub-agent of this very run handed over: its report, as this run's own record has it,
    or the answer of one that looked into a question. Nothing else can be read by a trace's id,
    and not what an agent said without a report."""
    family = _family(context)
    state: RunState = context.state
    known = state.protocol.children.get(child) if state.protocol else None
    if known is not None and known.report is not None:
        return known.report.text
    members = await family.store.tree(state.trace.id)
    one = next((t.state for t in members if t.state.id == child), None)
    mine = one is not None and one.parent_trace == state.trace.id
    if one is None or not mine or spawned(one).get("kind") not in ASKING:
        raise InvalidInput(f"this run has no sub-agent {child[:80]!r} that handed something over")
    if one.status not in ENDED:
        raise InvalidInput(f"the sub-agent {child} has not come to its end")
    return (await family.outcome(state, child)).answer


# The sub-agents ------------------------------------------------------------------------------


def _family(context: ToolContext) -> Family:
    if context.family is None:
        raise ToolFailed("this run cannot ask sub-agents")
    return context.family


def _ask(
    context: ToolContext,
    kind: AgentKind,
    index: int,
    task: str,
    before: Sequence[Message],
    background: str,
) -> Ask:
    for name, text in (("branches", task), ("background", background)):
        if len(text) > MAX_TASK_CHARS:
            raise InvalidInput(f"{name}: {len(text):,} characters; {MAX_TASK_CHARS:,} fit")
    family, language = _family(context), context.config.language
    head = label(language, "background").format(text=background.strip()) + "\n\n"
    question = (head if background.strip() else "") + label(language, "task").format(text=task)
    return Ask(
        kind=kind,
        call=context.call,
        message=context.message,
        index=index,
        mission=task,
        config=family.spawner.settings(kind, context.config),
        opening=(*before, text_message("user", question, source="framework")),
    )


def inherited(history: Sequence[Item]) -> tuple[Message, ...]:
    """The conversation as a sub-agent begins with it: what the next call would be made from, up
    to the batch that asks; as the sub-agent's own copies, without reasoning."""
    items = list(history)
    while items and items[-1].message.role == "tool":
        items.pop()
    if items and items[-1].message.tool_calls:
        items.pop()
    return tuple(
        replace(
            i.message,
            parts=tuple(p for p in i.message.parts if not isinstance(p, Reasoning)),
            source="import",
            sequence=0,
            parent_sequence=None,
            depth=0,
            goal_id="",
            usage=None,
            metadata={},
            full_output=None,
            created_at="",
        )
        for i in items
    )


async def _answered(context: ToolContext, asks: Sequence[Ask]) -> ToolOutcome:
    family, state = _family(context), context.state
    new = [ask for ask in asks if await family.find(state, ask) is None]
    if new:  # all of them or none: what some found must not be lost to the lack of room
        await family.check_room(state, len(new))
    if context.config.children == "parallel":
        work = [asyncio.ensure_future(_attended(family, state, ask)) for ask in asks]
        try:
            await asyncio.wait(work)
        finally:
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        outcomes = _all_of(work)
    else:
        outcomes = [await _attended(family, state, ask) for ask in asks]
    if not any(outcomes):
        raise Stopped
    language = context.config.language
    lines = [label(language, "sub_activity")]
    lines += [_did(a, o, language) for a, o in zip(asks, outcomes, strict=True)]
    lines += ["", label(language, "sub_conclusion")]
    lines += [_concluded(a, o, language) for a, o in zip(asks, outcomes, strict=True)]
    return ToolOutcome(
        text="\n".join(lines),
        shorten=False,
        metadata={"children": [o.trace.id for o in outcomes if o is not None]},
    )


async def _attended(family: Family, state: RunState, ask: Ask) -> Outcome | None:
    """None: the run was stopped before this one began; what the others found still counts."""
    try:
        return await family.attend(state, ask)
    except Stopped:
        return None


def _all_of(work: Sequence[asyncio.Future[Outcome | None]]) -> list[Outcome | None]:
    """The outcomes, or the first trouble; a pause only where nothing worse happened."""
    errors = [e for w in work if (e := w.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, Paused)):
        raise error
    return [w.result() for w in work]


def _did(ask: Ask, outcome: Outcome | None, language: str) -> str:
    if outcome is None:
        return f"{ask.index + 1}. {label(language, 'not_begun')}"
    why = briefly(outcome.why)
    ended = "" if outcome.status == "completed" else f" ({outcome.status}: {why})"
    return f"{ask.index + 1}. {outcome.trace.id}: {activity(outcome, language)}{ended}"


def _concluded(ask: Ask, outcome: Outcome | None, language: str) -> str:
    text = (outcome.answer if outcome else "") or label(language, "nothing_there")
    shown = text[:CONCLUSION_CHARS]
    if outcome and (left := len(text) - len(shown)):
        shown += " " + label(language, "conclusion_cut").format(count=left, child=outcome.trace.id)
    task = (
        ask.mission if len(ask.mission) <= TOLD_TASK_CHARS else f"{ask.mission[:TOLD_TASK_CHARS]}…"
    )
    return f"{ask.index + 1}. {task}\n{shown}"
