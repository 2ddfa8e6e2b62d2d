"""Rows of a trace as JSON and back, checked field by field: a trace folder may come from anyone.

Source: docs/formats.md, "Trace folder".
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cyberagent.core.anchor import AnchorRevision
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidInput
from cyberagent.core.events import Event, event_from_json
from cyberagent.core.types import CallRecord, Json, Message, TraceState, Usage
from cyberagent.trace.formats.reading import is_list, is_object

VERSION = "cyberagent-trace/1"


def state_to_json(state: TraceState) -> dict[str, Json]:
    """The content of ``meta.json`` that is the trace's own. The id it had where it was first
    exported stays with it as ``original_id``."""
    context = dict(state.context)
    original = context.pop("original_id", None) or state.id
    out: dict[str, Json] = {"version": VERSION}
    out |= {f.name: getattr(state, f.name) for f in fields(TraceState)}
    return out | {"config": dict(state.config), "context": context, "original_id": original}


def state_from_json(value: Json) -> TraceState:
    """Raises InvalidInput where a field is missing or of the wrong type."""
    meta = an_object(value, "meta.json")
    if meta.get("version") != VERSION:
        raise InvalidInput(f"meta.json has version {meta.get('version')!r}, not {VERSION!r}")
    known = {f.name: meta[f.name] for f in fields(TraceState) if f.name in meta}
    state = _made(TraceState, known, "meta.json")
    original = meta.get("original_id")
    if not isinstance(original, str):
        raise InvalidInput("meta.json has no original_id")
    return replace(state, context={**state.context, "original_id": original})


def message_from_json(value: Json, where: str) -> Message:
    message = _read(Message.from_json, value, where)
    check_fields(message, where)
    for part in message.parts:
        check_fields(part, f"{where}, a part")
    if message.usage is not None:
        check_fields(message.usage, f"{where}, usage")
    return message


def event_value(value: Json, where: str) -> Event:
    event = _read(event_from_json, value, where)
    # JSON has no tuples; events hold nothing that is a list.
    lists = {f.name: tuple(v) for f in fields(event) if is_list(v := getattr(event, f.name))}
    event = replace(event, **lists) if lists else event
    check_fields(event, where)
    return event


def call_to_json(call: CallRecord) -> dict[str, Json]:
    """Every field that does not hold its default."""
    out: dict[str, Json] = {}
    for f in fields(CallRecord):
        value = getattr(call, f.name)
        if f.name in ("manifest", "composition"):
            out[f.name] = dict(value)
        elif isinstance(value, Usage):
            out[f.name] = value.to_json()
        elif value != f.default:
            out[f.name] = value
    return out


def call_from_json(value: Json, where: str) -> CallRecord:
    data = dict(an_object(value, where))
    if "usage" in data:
        data["usage"] = _read(Usage.from_json, data["usage"], where)
        check_fields(data["usage"], f"{where}, usage")
    return _made(CallRecord, data, where)


def revisions_from_json(value: Json, where: str) -> tuple[AnchorRevision, ...]:
    """The revisions of an anchor, each with the hash that it says and the one before it. Raises
    InvalidInput."""
    if not is_list(value):
        raise InvalidInput(f"{where} has malformed anchors")
    found: list[AnchorRevision] = []
    for number, item in enumerate(value, 1):
        data = dict(an_object(item, f"{where}, anchor {number}"))
        hashed = data.pop("sha256", None)
        data["anchor"] = normalize_root_task_anchor(data.get("anchor"))
        revision = _made(AnchorRevision, data, f"{where}, anchor {number}")
        before = found[-1].anchor.sha256 if found else ""
        if (hashed, revision.supersedes) != (revision.anchor.sha256, before):
            raise InvalidInput(f"{where}, anchor {number} does not have the hashes that it names")
        found.append(revision)
    return tuple(found)


def an_object(value: Json, where: str) -> dict[str, Any]:
    if not is_object(value):
        raise InvalidInput(f"{where} is not a JSON object")
    return value


# Checking ------------------------------------------------------------------------------------


def _read(reader: Callable[[Any], Any], value: Json, where: str) -> Any:
    try:
        return reader(an_object(value, where))
    except ValueError as error:
        raise InvalidInput(f"{where}: {error}") from None


def _made(cls: type[Any], data: dict[str, Json], where: str) -> Any:
    try:
        made = cls(**data)
    except TypeError as error:
        raise InvalidInput(f"{where}: {error}") from None
    check_fields(made, where)
    return made


def check_fields(value: Any, where: str) -> None:
    """Raises InvalidInput where a field of a dataclass value is not of its declared type."""
    for name, allowed, choices in _types(value.__class__):
        found = getattr(value, name)
        wrong = not isinstance(found, allowed) or (isinstance(found, bool) and bool not in allowed)
        if wrong or (choices and found not in choices):
            raise InvalidInput(f"{where}: {name} is {found!r:.80}")


@cache
def _types(cls: type[Any]) -> tuple[tuple[str, tuple[type, ...], tuple[str, ...]], ...]:
    """Of each field: its name, the types its value may have, and the words it may be."""
    # Types named in annotations of one module are looked up there.
    hints = get_type_hints(cls)
    found: list[tuple[str, tuple[type, ...], tuple[str, ...]]] = []
    for spec in _fields(cls):
        kinds, words = _allowed(hints[spec.name])
        if kinds:
            found.append((spec.name, kinds, words))
    return tuple(found)


def _fields(cls: type[Any]) -> tuple[Field[Any], ...]:
    return fields(cls)


def _allowed(hint: Any) -> tuple[tuple[type, ...], tuple[str, ...]]:
    origin = get_origin(hint)
    if hint is Any:
        return (), ()
    if origin is Literal:
        return (str,), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [_allowed(arm)[0] for arm in get_args(hint)]
        return (() if () in kinds else tuple(k for group in kinds for k in group)), ()
    if hint is float:
        return (int, float), ()
    if origin is not None:
        return (origin,), ()
    return (hint,), ()
