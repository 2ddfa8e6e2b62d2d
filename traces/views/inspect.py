"""The inspector: one row of the tree with all there is to it.

Source: docs/pages.md, "Inspector".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from cyberagent.compaction.values import is_said
from cyberagent.core.types import File, Image, Message, Reasoning, Text, ToolCall
from cyberagent.trace.rows import CallRow, rows_of
from traces import rendering, treerows
from traces.models import ModelCall, Trace
from traces.rows import held
from traces.treerows import Where


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message: its heading ("" for none) and what is shown of it. ``thought`` sets
    it apart."""

    title: str
    html: SafeString
    thought: bool = False


def inspector_context(trace: Trace, place: Where, *, raw: bool = False) -> dict[str, Any]:
    message = treerows.read_message(trace, place.sequence)
    call, result = _call_at(trace, message, place)
    made = ModelCall.objects.filter(trace=trace, message_sequence=message.sequence).first()
    shown = result or message
    url_part = f"?part={place.part}" if place.part else ""
    return {
        "trace": trace,
        "message": message,
        "call": call,
        "result": result,
        "made": made,
        "title": _title(message, call),
        "pieces": _raw(message, call, result) if raw else _pieces(message, call, result),
        "raw": raw,
        "query": url_part,
        "goal": _goal(trace, message.goal_id),
        "window": _in_windows(trace, shown.sequence, on_path=place.row is not None),
        "exact": _exact(trace),
        "beside": place.row is None and message.role != "tool",
        "leads": not message.branch_type,
        "editable": is_said(message) and place.row is not None and trace.origin == "run",
    }


def _call_at(
    trace: Trace, message: Message, place: Where
) -> tuple[ToolCall | None, Message | None]:
    """The call that the row shows, and its result where there is one."""
    own = rows_of(message)
    row = own[min(place.part, len(own) - 1)] if own else None
    if not isinstance(row, CallRow) or not message.tool_calls:
        return None, None
    number = place.part - (len(own) - len(message.tool_calls))
    call = message.tool_calls[number]
    if place.row is None:
        return call, None
    page = treerows.goal_page(trace, place.goal_id, place.row, 1)
    result = getattr(page[0].row, "result", 0) if page else 0
    return call, treerows.read_message(trace, result) if result else None


def _title(message: Message, call: ToolCall | None) -> str:
    if call is not None:
        return call.name
    if message.role == "tool":
        return message.name or _("tool result")
    names = {
        "user": _("User"), "operator": _("Operator"), "framework": _("Framework"),
        "summary": _("Summary"), "assistant": _("Model"), "system": _("System"),
    }  # fmt: skip
    who = message.source if message.source in ("operator", "framework", "summary") else message.role
    return names.get(who, who)


# Rendered ----------------------------------------------------------------------------------


def _pieces(message: Message, call: ToolCall | None, result: Message | None) -> list[Piece]:
    if call is not None:
        pieces = [Piece(_("Arguments"), _arguments(call))]
        if result is not None:
            pieces += _result_pieces(result)
        return pieces
    if message.role == "tool":
        return _result_pieces(message)
    return [p for part in message.parts if (p := _piece(part)) is not None]


def _piece(part: object) -> Piece | None:
    if isinstance(part, Text):
        return Piece("", rendering.prose(part.text))
    if isinstance(part, Reasoning):
        return Piece(_("Thinking"), rendering.prose(part.text), thought=True) if part.text else None
    if isinstance(part, Image):
        return Piece(_("Image"), rendering.image(part))
    if isinstance(part, File):
        shown = part.text or _("%(n)s characters of base64") % {"n": f"{len(part.data):,}"}
        return Piece(f"{_('File')} {rendering.page_text(part.name[:200])}", rendering.plain(shown))
    return None


def _arguments(call: ToolCall) -> SafeString:
    value = call.parsed()
    if value is None:
        return rendering.plain(call.arguments)
    return rendering.json_html(value)


def _result_pieces(result: Message) -> list[Piece]:
    whole = result.full_output
    title = _("Failed with") if result.is_error else _("Result")
    pieces = [Piece(title, rendering.tool_output(whole if whole is not None else result.text))]
    if whole is not None and whole != result.text:
        pieces.append(Piece(_("What the model was given of it"), rendering.plain(result.text)))
    pieces += [Piece(_("Image"), rendering.image(p)) for p in result.parts if isinstance(p, Image)]
    return pieces


def _raw(message: Message, call: ToolCall | None, result: Message | None) -> list[Piece]:
    """The stored messages as JSON, character by character."""
    own = [message, *([result] if result else [])]
    return [Piece(_("Message %(n)d as stored") % {"n": m.sequence}, _as_json(m)) for m in own]


def _as_json(message: Message) -> SafeString:
    # Escaped to ASCII: what no screen can show, such as a lone surrogate, is told apart here.
    text = json.dumps(message.to_json(), ensure_ascii=True, indent=1)
    return rendering.code(text[: 4 * rendering.LONGEST], "json")


# Facts -------------------------------------------------------------------------------------


def _goal(trace: Trace, goal_id: str) -> str:
    if not goal_id:
        return ""
    row = trace.goals.filter(goal_id=goal_id).first()
    return f"{goal_id} {held(row.description)}" if row else goal_id


def _exact(trace: Trace) -> bool:
    newest = trace.calls.order_by("-number").values_list("exact", flat=True).first()
    return bool(newest)


@dataclass(frozen=True, slots=True)
class InWindows:
    """``first``: the first call of the main path after the message was stored; ``newest``: the
    newest one; ``now``: whole, changed, gone or later (stored after it); ``strategy``: by what."""

    first: int | None
    newest: int
    now: str
    strategy: str = ""


def _in_windows(trace: Trace, sequence: int, *, on_path: bool) -> InWindows | None:
    """None where no window is known. Only the newest window is looked into: what calls between
    it and the first one held stands on their own pages."""
    marks = treerows.newest_window(trace)
    if not marks.call or not on_path:
        return None
    first = (
        trace.calls.filter(branch_id="", after_sequence__gte=sequence)
        .order_by("number").values_list("number", flat=True).first()
    )  # fmt: skip
    if sequence > marks.upto:
        return InWindows(first, marks.call, "later")
    if marks.gone(sequence):
        return InWindows(first, marks.call, "gone", treerows.compacted(trace).get_at(sequence))
    if sequence in marks.changed:
        return InWindows(first, marks.call, "changed", marks.changed[sequence])
    return InWindows(first, marks.call, "whole")
