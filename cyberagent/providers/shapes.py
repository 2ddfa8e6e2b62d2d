"""Reading JSON that somebody else wrote: the value where it has the shape, else an empty one."""

from __future__ import annotations

import json
from typing import Any, cast

from cyberagent.core.types import Json, canonical_json, clean_text

DEEPEST = 64
"""Nesting of a JSON value that is sent as a value; deeper ones are sent as text."""


def as_dict(value: Json) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_str(value: Json) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: Json) -> int | None:
    """A whole number from 0 up; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def parse_json(text: str | bytes) -> Json:
    """The value of a JSON text. Raises ValueError for anything that is not JSON: NaN, broken
    UTF-8, nesting that the parser cannot follow."""

    def refuse(constant: str) -> Json:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sendable(value: Json) -> Json:
    """The value as it can be sent: lone surrogates replaced. None where it has no canonical
    form (NaN, say) or is nested deeper than DEEPEST."""
    if _depth(value) > DEEPEST:
        return None
    cleaned = _clean(value)
    try:
        canonical_json(cleaned)
    except (ValueError, TypeError):
        return None
    return cleaned


def json_object(text: str) -> dict[str, Json] | None:
    """The JSON object that ``text`` is, fit to be sent; None where it is anything else."""
    try:
        value = sendable(parse_json(text))
    except ValueError:
        return None
    return as_dict(value) if isinstance(value, dict) else None


def _clean(value: Json) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean(v) for v in as_list(value)]
    if isinstance(value, dict):
        return {clean_text(str(k)): _clean(v) for k, v in as_dict(value).items()}
    return value


def _depth(value: Json) -> int:
    """Levels of lists and objects; stops counting past DEEPEST. No recursion: any depth."""
    level, depth = [value], 0
    while depth <= DEEPEST:
        inner: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(as_dict(item).values())
            elif isinstance(item, list):
                inner.extend(as_list(item))
            else:
                continue
            inner.append(None)
        if not inner:
            return depth
        level, depth = inner, depth + 1
    return depth
