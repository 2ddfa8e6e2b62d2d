"""What the payload checkers share. They are written from docs/providers.md alone and know
nothing of the projections that they check."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from cyberagent.core.types import Json


def mapping(value: Json) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def sequence(value: Json) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def messages_of(payload: Mapping[str, Json]) -> list[dict[str, Any]]:
    """The messages that are objects; the others have a rule of their own."""
    return [mapping(m) for m in sequence(payload.get("messages")) if isinstance(m, dict)]


def is_blank(value: Json) -> bool:
    return isinstance(value, str) and not value.strip()


def is_whole_number(value: Json, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Json, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_base64_text(value: Json) -> bool:
    try:
        return isinstance(value, str) and bool(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        return False


def encoding_problems(payload: Mapping[str, Json]) -> Iterator[str]:
    """Text that UTF-8 cannot hold, and numbers that JSON has no form for."""
    try:
        json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        yield f"the payload has no JSON form: {type(error).__name__}"
