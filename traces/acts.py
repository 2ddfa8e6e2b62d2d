"""What operators do that changes what the model sees: rewind, edit, fork, compact, another policy,
a skill.

As in ``traces.commands``: each act is stored with who, when and what became of it. Where the run
is driven its owner applies the act at the next safe point, or pauses there for what needs a run
at rest; where nobody drives it, it is applied here at once, in one transaction. What an act
depends on is checked when it is applied. Source: docs/running.md, "Commands"; docs/rewind.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction

from cyberagent import presets
from cyberagent.compaction.policy import policy_for
from cyberagent.compaction.values import is_said
from cyberagent.core.config import SKILL_RECENCY_THRESHOLD
from cyberagent.core.control import recent
from cyberagent.core.errors import Conflict, CyberAgentError, InvalidInput, NotFound
from cyberagent.core.events import Injected
from cyberagent.core.injection import ASKED, SKILL_TOOL, WANTED, skill_in_window
from cyberagent.core.tokens import count_message, counter_for
from cyberagent.core.types import Json, Message, text_message
from traces import child_reviews, lease, paths, ports, rows
from traces import rewind as rewinding
from traces.acting import (
    Person,
    at_rest_only,
    end,
    end_of,
    free,
    go_on,
    locked,
    name_of,
    pending,
)
from traces.compacting import Preview, compaction_preview, config_of, opened
from traces.models import Command, Trace
from traces.models import Message as MessageRow
from traces.rewind import Receipt

__all__ = [
    "Preview",
    "apply_at_rest",
    "compact",
    "compaction_preview",
    "edit",
    "fork",
    "inject_skill",
    "rewind",
    "set_policy",
]

# Going back --------------------------------------------------------------------------------


def rewind(trace: Trace, to: int, *, by: Person, why: str = "", expected_head: int) -> Command:
    """Go back to message ``to``, or to the safe point before it; to undo that, to the former
    head. A run that is driven pauses for it, and ``to`` must then be on its main path. Raises
    NotFound, and Conflict where that cannot be or the head is not ``expected_head`` any more."""
    arguments: dict[str, Json] = {"to": to, "expected_head": expected_head, "why": why}
    receipt = _aim(trace, to)
    with transaction.atomic():
        now = locked(trace)
        at_rest_only(now, "the run cannot be rewound")
        if _is_driven(now):
            _on_main_path(now, to)
            return pending(now, "rewind", by, arguments)
        _expect(now, expected_head)
        _expect(now, receipt.head)
        command = pending(now, "rewind", by, arguments)
        _go_back(now, command, receipt, why=why)
    command.refresh_from_db()
    return command


def edit(
    trace: Trace,
    sequence: int,
    text: str,
    *,
    by: Person,
    resume: bool = True,
    expected_head: int | None = None,
) -> Command:
    """Go back to before message ``sequence``, which a person wrote, and say ``text`` instead;
    ``resume``: the run then goes on from it. Raises NotFound, InvalidInput for an empty text,
    and Conflict."""
    if not text.strip():
        raise InvalidInput("the edited text is empty")
    arguments: dict[str, Json] = {"sequence": sequence, "text": text, "resume": resume}
    with transaction.atomic():
        now = locked(trace)
        at_rest_only(now, "the message cannot be edited")
        if expected_head is not None and not _is_driven(now):
            _expect(now, expected_head)
        _editable(now, sequence)
        command = pending(now, "edit", by, arguments)
        if not _is_driven(now):
            _edit_now(now, command, arguments)
    command.refresh_from_db()
    return command


def fork(trace: Trace, at: int, *, by: Person) -> Trace:
    """A new trace of ``by`` with all up to message ``at``; see :func:`traces.rewind.fork`. The
    original keeps the act as a command. Raises NotFound, Conflict, InvalidInput."""
    with transaction.atomic():
        now = Trace.objects.get(pk=trace.pk)
        made = rewinding.fork(now, at, owner=by)
        command = pending(now, "fork", by, {"at": at, "trace": made.pk})
        end(now, command, "applied", f"run {made.pk} begins from message {made.head_sequence}")
    return made


# The window --------------------------------------------------------------------------------


def compact(trace: Trace, policy: str | None = None, *, by: Person) -> Command:
    """Have the run compact before its next call, under ``policy`` this once (None: its own). A
    run that nobody drives does it when it goes on. Raises InvalidConfig, InvalidInput, and
    Conflict where that was asked for already."""
    if _policy_name(trace, policy) == "off":
        raise InvalidInput("the policy off removes nothing; choose another one")
    with transaction.atomic():
        now = locked(trace)
        if Command.objects.filter(trace=now, name="compact", status="pending").exists():
            raise Conflict("a compaction was asked for already; it comes before the next call")
        return pending(now, "compact", by, {"policy": policy} if policy else {})


def set_policy(trace: Trace, policy: str, *, by: Person) -> Command:
    """Keep the run's windows small by another policy from now on. Raises InvalidConfig."""
    name = _policy_name(trace, policy)
    with transaction.atomic():
        now = locked(trace)
        command = pending(now, "policy", by, {"policy": name})
        if not now.is_live:
            _policy_now(now, command, {"policy": name})
    command.refresh_from_db()
    return command


def inject_skill(trace: Trace, name: str, *, by: Person) -> Command:
    """Have a skill injected: with the next batch of tools, or where the run is at rest when it
    goes on. One that stands among the window's last messages is held back: the command is
    refused with the reason. Raises NotFound (the skill), and Conflict where the run cannot load
    skills."""
    with transaction.atomic():
        if name not in ports.current_skills():
            raise NotFound("skill", name)
    if SKILL_TOOL not in (tool for tool, _ in presets.tools_for(config_of(trace)).index()):
        raise Conflict("this run was not given the tool skill, with which skills are loaded")
    is_recent = not trace.is_live and async_to_sync(_is_recent)(trace.pk, name)
    with transaction.atomic():
        now = locked(trace)
        command = pending(now, "inject", by, {"skill": name})
        if not now.is_live and is_recent:
            why = recent(SKILL_RECENCY_THRESHOLD)
            held = Injected(what=f"skill {name}", why=why, fired=False)
            end(now, command, "refused", why, also=[held])
        elif not now.is_live:
            _inject_now(now, command, {"skill": name})
    command.refresh_from_db()
    return command


async def _is_recent(trace_id: str, name: str) -> bool:
    state, _ = await opened(trace_id)
    return skill_in_window(name, state.injected, state.history, SKILL_RECENCY_THRESHOLD)


# Applying to a run that nobody drives ----------------------------------------------------------


def apply_at_rest(trace: Trace, command: Command) -> bool:
    """Apply a pending command of AT_REST to a trace that the caller has locked and that nobody
    drives, or refuse it with the reason; whether the run is queued now."""
    try:
        with transaction.atomic():
            return AT_REST[command.name](trace, command, json.loads(command.arguments))
    except CyberAgentError as error:
        end(trace, command, "refused", str(error))
        return False


def _rewind_now(trace: Trace, command: Command, arguments: Mapping[str, Any]) -> bool:
    """What was asked for while the run was driven: the head has moved since, so the message must
    still be on the main path."""
    to = int(arguments["to"])
    _on_main_path(trace, to)
    _go_back(trace, command, _aim(trace, to), why=str(arguments.get("why", "")))
    return False


def _go_back(trace: Trace, command: Command, receipt: Receipt, *, why: str) -> None:
    if receipt.to == trace.head_sequence:
        raise Conflict(f"there is nothing to go back over: message {receipt.to} is the newest")
    ended, told = end_of(command, "applied", _went_back(receipt))
    free(trace)
    rewinding.apply(
        trace,
        receipt,
        by=name_of(command.by),
        why=why,
        expected_head=trace.head_sequence,
        told=told,
        command=ended,
    )


def _went_back(receipt: Receipt) -> str:
    back = f", {receipt.brings_back} brought back" if receipt.brings_back else ""
    return f"from message {receipt.head} to {receipt.to}: {receipt.leaves} left{back}"


def _edit_now(trace: Trace, command: Command, arguments: Mapping[str, Any]) -> bool:
    row = _editable(trace, int(arguments["sequence"]))
    receipt = _aim(trace, row.parent_sequence or 0)
    by, turn = name_of(command.by), trace.turn + 1
    said = _said(trace, str(arguments["text"]), row.sequence, by, receipt.plan.current or "", turn)
    ended, told = end_of(command, "applied", f"said instead of message {row.sequence}")
    free(trace)
    rewinding.apply(
        trace,
        receipt,
        by=by,
        why=f"message {row.sequence} was edited",
        expected_head=trace.head_sequence,
        messages=[said],
        told=told,
        turn=turn,
        command=ended,
    )
    if not arguments.get("resume"):
        return False
    go_on(trace, f"resumed by {by}")
    return True


def _said(trace: Trace, text: str, edits: int, by: str, goal_id: str, turn: int) -> Message:
    fields: dict[str, Any] = {
        "source": "operator",
        "metadata": {"by": by, "edits": edits},
        "goal_id": goal_id,
        "turn": turn,
    }
    counter = counter_for(trace.provider, rows.held(trace.model))
    tokens = count_message(counter, text_message("user", text, **fields))
    return text_message("user", text, tokens=tokens, **fields)


def _policy_now(trace: Trace, command: Command, arguments: Mapping[str, Any]) -> bool:
    context = json.loads(trace.context) | {"policy": str(arguments["policy"])}
    end(trace, command, "applied", "", context=context)
    return False


def _inject_now(trace: Trace, command: Command, arguments: Mapping[str, Any]) -> bool:
    """Noted for the run's next start, which injects it, or holds it back."""
    name, context = str(arguments["skill"]), json.loads(trace.context)
    context[WANTED] = list(dict.fromkeys((*context.get(WANTED, ()), name)))
    context[ASKED] = {**context.get(ASKED, {}), name: name_of(command.by)}
    end(trace, command, "applied", "it comes when the run goes on", context=context)
    return False


AT_REST: dict[str, Callable[[Trace, Command, Mapping[str, Any]], bool]] = {
    "rewind": _rewind_now,
    "edit": _edit_now,
    "policy": _policy_now,
    "inject": _inject_now,
    child_reviews.COMMAND: child_reviews.review_now,
}
"""Acts that came while a run was driven, and what is made of them once it is not any more."""


# What an act depends on ------------------------------------------------------------------------


def _is_driven(trace: Trace) -> bool:
    return trace.is_live and not lease.is_free(trace.pk)


def _aim(trace: Trace, to: int) -> Receipt:
    """The receipt from the trace's head as it is stored now."""
    return rewinding.aim(Trace.objects.get(pk=trace.pk), to)


def _expect(trace: Trace, head: int) -> None:
    if head != trace.head_sequence:
        raise Conflict(
            f"the head is message {trace.head_sequence}, not {head}: "
            "something was appended or rewound meanwhile"
        )


def _on_main_path(trace: Trace, sequence: int) -> MessageRow | None:
    """The message's row; None for 0, which is before the first. Raises NotFound, Conflict."""
    if not sequence:
        return None
    row = MessageRow.objects.filter(trace=trace, sequence=sequence).first()
    if row is None:
        raise NotFound("message", sequence)
    spans = paths.ranges(trace)
    if not any(b == row.branch_id and s <= row.depth <= e for b, s, e in spans):
        raise Conflict(f"message {sequence} is not on the main path")
    return row


def _editable(trace: Trace, sequence: int) -> MessageRow:
    row = _on_main_path(trace, sequence)
    if row is None:
        raise NotFound("message", sequence)
    columns = MessageRow.objects.filter(pk=row.pk).values(*rows.MESSAGE_COLUMNS)[0]
    if not is_said(rows.message_from(columns)):
        raise Conflict(f"message {sequence} was not written by a person; only such can be edited")
    return row


def _policy_name(trace: Trace, policy: str | None) -> str:
    """``policy``, or that of the run's own settings. Raises InvalidConfig where it cannot be."""
    config = config_of(trace)
    preset = presets.preset_named(config.preset).policy
    name = policy or config.policy or preset
    policy_for(config.with_(policy=name))
    return name
