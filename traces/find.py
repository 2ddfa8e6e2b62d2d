"""Finding text in one run, on the server. Source: docs/pages.md, "Finding"."""

from __future__ import annotations

import json
from dataclasses import dataclass

from django.db.models import Q

from cyberagent.core.types import Message
from cyberagent.trace.plan_text import flat
from traces.models import Message as MessageRow
from traces.models import Trace
from traces.rows import MESSAGE_COLUMNS, message_from

MOST = 100
"""Hits that are listed; a search with more is told so."""

_AROUND = 60


@dataclass(frozen=True, slots=True)
class Hit:
    """``before``, ``found``, ``after``: a line around the first place that fits."""

    sequence: int
    who: str
    before: str
    found: str
    after: str


def in_trace(trace: Trace, words: str) -> tuple[list[Hit], bool]:
    """Messages of the trace, on whatever path, with ``words`` in them, in order; and whether
    there are more. Upper and lower case count as one in ASCII."""
    # Columns hold texts as in JSON: quotes, backslashes and line ends are looked for as written
    # there.
    stored = json.dumps(words, ensure_ascii=False)[1:-1]
    if "\0" in words:
        return [], False
    fits = Q(parts__icontains=stored) | Q(full_output__icontains=words) | Q(name__icontains=words)
    rows = MessageRow.objects.filter(fits, trace=trace).order_by("sequence")
    messages = [message_from(r) for r in rows.values(*MESSAGE_COLUMNS)[: MOST + 1]]
    return [_hit(m, words) for m in messages[:MOST]], len(messages) > MOST


def _hit(message: Message, words: str) -> Hit:
    who = message.name if message.role == "tool" else message.role
    for text in _texts(message):
        at = text.lower().find(words.lower())
        if at >= 0:
            start = max(0, at - _AROUND)
            end = at + len(words)
            return Hit(
                message.sequence,
                who,
                ("…" if start else "") + flat(text[start:at], 2 * _AROUND),
                text[at:end],
                flat(text[end : end + 3 * _AROUND], 3 * _AROUND),
            )
    return Hit(message.sequence, who, flat(message.text[:400], 120), "", "")


def _texts(message: Message) -> list[str]:
    texts = [message.text, *(r.text for r in message.reasoning)]
    texts += [f"{c.name} {c.arguments}" for c in message.tool_calls]
    return [*texts, message.full_output or "", message.name]
