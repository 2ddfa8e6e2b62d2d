"""Reading a protocol value field by field: strict JSON in, one canonical form out.

Every value of the recursive task protocol passes through :class:`Fields`, so that what is
hashed, compared and stored has one form, whoever wrote it. All errors are InvalidTaskValue and
name the field. Source: docs/protocol.md, "Normal form".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from cyberagent.core.errors import InvalidTaskValue
from cyberagent.core.types import Json, canonical_json

MAX_DEPTH = 32
"""Values nested deeper than this are refused."""

MAX_VALUES = 100_000
"""More values than this in one object are refused before anything else is done with them."""

MAX_BITS = 1_024
"""Whole numbers above this are refused: not every reader of JSON can hold them."""

WHITESPACE = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What is stripped. ``str.strip()`` follows the Unicode tables of its Python, hashes must not."""

_REFUSED = re.compile("[\0\ud800-\udfff]")


def strip(text: str) -> str:
    return text.strip(WHITESPACE)


def canonical_text(value: Json, what: str) -> str:
    """The canonical JSON of a checked value; characters are the code points of this text."""
    try:
        return canonical_json(value).decode()
    except ValueError as error:
        raise InvalidTaskValue(what, "", f"cannot be written as JSON: {error}") from None


def unique(values: Iterable[Json]) -> list[Json]:
    """The values without repetitions, in the order of their first. By their JSON: 1, 1.0 and
    true are three values, and an object's order of keys does not matter."""
    seen: dict[bytes, Json] = {}
    for value in values:
        seen.setdefault(canonical_json(value), value)
    return list(seen.values())


def parse_json(text: str, what: str) -> Json:
    """A JSON text, read strictly: a key that stands twice, NaN and Infinity are refused, and
    whatever is wrong is an InvalidTaskValue. A byte order mark before it is passed over."""

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        if len(found := dict(items)) < len(items):
            raise InvalidTaskValue(what, "", "has a key twice in one object")
        return found

    def constant(name: str) -> Json:
        raise InvalidTaskValue(what, "", f"holds {name}, which is not JSON")

    try:
        return json.loads(
            text.removeprefix("\ufeff"), object_pairs_hook=pairs, parse_constant=constant
        )
    except RecursionError:
        raise InvalidTaskValue(
            what, "", f"is nested deeper than {MAX_DEPTH} levels", limit=MAX_DEPTH
        ) from None
    except ValueError as error:
        raise InvalidTaskValue(what, "", f"is not JSON: {error}") from None


class Fields:
    """One JSON object of the protocol, checked whole before a field of it is read.

    Raises InvalidTaskValue for what is no object, an unknown field, and anywhere inside: NaN,
    Infinity, lone surrogates, NUL, keys that are no texts, too deep nesting, other types. An
    optional field that is null is the same as one that is not given. ``prefix`` goes before
    the names of fields in errors.
    """

    def __init__(
        self,
        what: str,
        value: object,
        known: Sequence[str],
        prefix: str = "",
        room: int = 1,
    ) -> None:
        self.what, self._prefix = what, prefix
        if not isinstance(value, Mapping):
            raise self.refuse("", "must be an object")
        self._data: dict[str, Any] = dict(cast("Mapping[str, Any]", value))
        if not prefix:  # Inner objects were checked with the one they stand in.
            check_json(self._data, what, MAX_DEPTH * room, MAX_VALUES * room)
        if unknown := sorted(set(self._data) - set(known)):
            raise self.refuse(unknown[0][:80], f"is not known; there are {', '.join(known)}")

    @classmethod
    def wrapping(cls, what: str, value: object, known: Sequence[str]) -> Fields:
        """An object made of values that each keep the bounds by themselves."""
        return cls(what, value, known, room=4)

    def refuse(self, name: str, why: str) -> InvalidTaskValue:
        """The error that names a field ("": the whole object); also for rules of a caller's."""
        if not name:
            return InvalidTaskValue(self.what, self._prefix.rstrip("."), why)
        return InvalidTaskValue(self.what, self._prefix + name, why)

    def has(self, name: str) -> bool:
        return self._data.get(name) is not None

    def value(self, name: str) -> Json:
        """The field as it is: a JSON value of its own, that nobody else holds."""
        return _copy(self._data.get(name))

    def text(self, name: str, *, required: bool = False) -> str:
        """A text, stripped; required: not blank."""
        given = self._data.get(name)
        found: object = "" if given is None else given
        if not isinstance(found, str):
            raise self.refuse(name, "must be a text")
        if required and not strip(found):
            raise self.refuse(name, "is missing" if name not in self._data else "is empty")
        return strip(found)

    def word(self, name: str, words: Sequence[str]) -> str:
        """Exactly one of ``words``."""
        found: Any = self._data.get(name)
        if found not in words:
            raise self.refuse(name, f"must be one of {', '.join(words)}")
        return found

    def number(self, name: str) -> int:
        """A whole number, 0 or more."""
        found = self._data.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self.refuse(name, "must be a whole number, 0 or more")
        return found

    def yes_or_no(self, name: str) -> bool:
        found = self._data.get(name)
        if not isinstance(found, bool):
            raise self.refuse(name, "must be true or false")
        return found

    def items(self, name: str, *, given: bool = False) -> list[Json]:
        """A list as it is; ``given``: it must be there, though it may be empty."""
        found = self._data.get(name)
        if found is None:
            if given:
                raise self.refuse(name, "is missing")
            return []
        if not isinstance(found, list | tuple):
            raise self.refuse(name, "must be a list")
        return _copy(list(cast("list[Json]", found)))

    def values(self, name: str, *, required: bool = False) -> tuple[Json, ...]:
        """A list without repetitions; texts in it are stripped, blank ones and nulls left out.
        Required: something is left."""
        items = [strip(v) if isinstance(v, str) else v for v in self.items(name, given=required)]
        found = unique(v for v in items if v not in ("", None))
        if required and not found:
            raise self.refuse(name, "is empty")
        return tuple(found)

    def texts(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """Like :meth:`values`, of texts alone."""
        for place, item in enumerate(self.items(name)):
            if not isinstance(item, str):
                raise self.refuse(f"{name}[{place}]", "must be a text")
        return self.values(name, required=required)

    def objects(self, name: str, known: Sequence[str]) -> list[Fields]:
        """A list of objects, each to be read in turn."""
        return [
            Fields(self.what, item, known, f"{self._prefix}{name}[{place}].")
            for place, item in enumerate(self.items(name))
        ]


def within(text: str, limit: int, what: str, parts: Mapping[str, Json]) -> str:
    """``text``, if it has at most ``limit`` characters. Raises InvalidTaskValue, which names the
    longest of ``parts``."""
    if len(text) > limit:
        longest = max(parts, key=lambda name: len(canonical_text(parts[name], what)))
        raise InvalidTaskValue(
            what,
            longest,
            f"is the longest field of {len(text):,} characters in all; at most {limit:,} fit",
            limit=limit,
        )
    return text


def check_json(
    value: object, what: str, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES
) -> None:
    """Raises InvalidTaskValue where ``value`` is not plain JSON; names the outermost field."""
    waiting: list[tuple[object, int, str]] = [(value, 0, "")]
    left = max_values
    while waiting:
        one, depth, field = waiting.pop()
        left -= 1
        if why := _problem(one):
            raise InvalidTaskValue(what, field, why)
        if not isinstance(one, dict | list | tuple):
            continue
        if depth >= max_depth:
            why = f"is nested deeper than {max_depth} levels"
            raise InvalidTaskValue(what, field, why, limit=max_depth)
        inner = _inner(cast("Any", one), field, what)
        if len(inner) > left - len(waiting):
            why = f"holds more than {max_values:,} values"
            raise InvalidTaskValue(what, field, why, limit=max_values)
        waiting += [(v, depth + 1, name) for v, name in inner]


def _inner(
    one: dict[object, object] | list[object] | tuple[object, ...], field: str, what: str
) -> list[tuple[object, str]]:
    if not isinstance(one, dict):
        return [(v, field) for v in one]
    found: list[tuple[object, str]] = []
    for key, value in one.items():
        if not isinstance(key, str) or _REFUSED.search(key):
            raise InvalidTaskValue(what, field, "has a key that is not a plain text")
        found.append((value, field or key[:80]))
    return found


def _problem(one: object) -> str:
    if isinstance(one, str):
        if found := _REFUSED.search(one):
            nul = found.group() == "\0"
            return "holds a NUL character" if nul else "holds half a surrogate pair"
        return ""
    if isinstance(one, float):
        return "" if math.isfinite(one) else "holds NaN or Infinity, which is not JSON"
    if isinstance(one, int):
        return "holds a number of too many digits" if one.bit_length() > MAX_BITS else ""
    if one is None or isinstance(one, dict | list | tuple):
        return ""
    return f"holds a {type(one).__name__}, which is not JSON"


def _copy(value: Json) -> Json:
    """The same JSON value in containers of its own; tuples become lists."""
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in cast("dict[str, Json]", value).items()}
    if isinstance(value, list | tuple):
        return [_copy(v) for v in cast("list[Json]", value)]
    return value
