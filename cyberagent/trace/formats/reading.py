"""Reading untrusted JSON: lines and documents, bounded in size, told apart from noise.

Tolerated with a note: a byte order mark, CRLF, NUL padding, control characters in strings, bytes
that are not UTF-8, NaN and Infinity (read as null), a last line that was cut off. A line that is
no JSON object is skipped with its reason; nesting too deep to read counts as malformed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from cyberagent.core.errors import ImportRefused
from cyberagent.core.types import Json
from cyberagent.trace.formats.values import Notes

MAX_BYTES = 100 * 1024 * 1024
"""The largest transcript that is read, sub-agent files included."""

MAX_DEPTH = 100
"""Levels of lists and objects that a value may have: what is read can be written anywhere."""

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_PADDING = b"\x00 \t\r\n"


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


class JsonReader:
    """Parses JSON text; numbers that JSON does not have become null and are noted."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._parse = json.JSONDecoder(
            strict=False, parse_constant=self._no_number, parse_float=self._float
        ).decode

    def parse(self, data: bytes) -> Json:
        """The value. Raises ValueError with a short reason."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace")
            self._notes.warn("bytes that are not UTF-8 were replaced")
        try:
            value = self._parse(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
            raise ValueError("nested too deeply")
        return value

    def _no_number(self, name: str) -> None:
        self._notes.warn(f"{name} is not a JSON number and was read as null")

    def _float(self, text: str) -> float | None:
        value = float(text)
        return value if math.isfinite(value) else self._no_number("Infinity")


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The whole file without a byte order mark. Raises ImportRefused above ``limit``, for
    UTF-16 and for what cannot be opened."""
    check_size(path, limit)
    data = _open_refusing(path).removeprefix(_BOM)
    if data[:2] in _UTF16:
        raise ImportRefused(f"{path.name} is UTF-16 text; save it as UTF-8 first")
    return data


def _open_refusing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImportRefused(f"{path.name} cannot be read: {error.strerror}") from None


def check_size(path: Path, limit: int = MAX_BYTES) -> int:
    """The size of a regular file in bytes. Raises ImportRefused where there is none or it is
    larger than ``limit``."""
    if not path.is_file():
        raise ImportRefused(f"{path.name} is not a file")
    size = path.stat().st_size
    if size > limit:
        raise ImportRefused(
            f"{path.name} has {size / 1_048_576:,.1f} MB; "
            f"at most {MAX_BYTES // 1_048_576} MB are read"
        )
    return size


def json_lines(path: Path, notes: Notes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line that is a JSON object, with its number from 1. One line is in memory at a
    time. What is skipped goes to ``notes``; empty lines are nobody's loss."""
    reader = JsonReader(notes)
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                if raw[:2] in _UTF16:
                    raise ImportRefused(f"{path.name} is UTF-16 text; save it as UTF-8 first")
                raw = raw.removeprefix(_BOM)
            line = raw.strip(_PADDING)
            if not line:
                continue
            try:
                value = reader.parse(line)
            except ValueError as error:
                cut = not raw.endswith(b"\n") and "nested" not in str(error)
                notes.skip(number, f"the last line is cut off: {error}" if cut else str(error))
                continue
            if is_object(value):
                yield number, value
            else:
                notes.skip(number, f"JSON, but not an object: {type(value).__name__}")


def _deeper(value: Json, levels: int) -> bool:
    """Whether containers nest more than ``levels`` deep."""
    layer = [value] if is_object(value) or is_list(value) else []
    for _ in range(levels):
        layer = [inner for outer in layer for inner in _containers(outer)]
        if not layer:
            return False
    return True


def _containers(value: Json) -> list[Json]:
    inner: Iterable[Any] = value.values() if is_object(value) else value
    return [v for v in inner if is_object(v) or is_list(v)]


def trimmed(value: Json, limit: int = 2_000) -> Json:
    """``value`` where its JSON is small; of a larger object, the small scalars and the names of
    what was ``left_out``; of anything else that is large, only a mark with its type."""
    if _weight(value, limit, 6) >= 0:
        return value
    if not is_object(value):
        return {"left_out": [type(value).__name__]}
    items = list(value.items())[:50]
    kept = {k: v for k, v in items if not isinstance(v, dict | list) and _weight(v, 300, 1) >= 0}
    return kept | {"left_out": [str(k)[:60] for k, _ in items if k not in kept]}


def _weight(value: Json, left: int, depth: int) -> int:
    """``left`` minus the rough length of the value's JSON; negative as soon as it is too long
    or nested deeper than ``depth``. Stops early: large values cost no more than small ones."""
    if isinstance(value, str):
        return left - len(value) - 2
    parts: Iterable[Any]
    if is_object(value):
        parts = chain.from_iterable(value.items())
    elif is_list(value):
        parts = value
    else:
        return left - 5
    if depth == 0:
        return -1
    for part in parts:
        left = _weight(part, left, depth - 1)
        if left < 0:
            return -1
    return left
