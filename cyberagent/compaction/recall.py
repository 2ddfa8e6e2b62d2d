"""What of a window is needed next: identifiers and paths, and whether they are still there.

Source: docs/lab.md, "Next-use recall".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from cyberagent.core.types import File, Json, Message, Part, Text, ToolCall

LOOK_AHEAD = 40
"""Messages from an answer on, itself among them, whose identifiers count as used next."""

IDENTIFIER = re.compile(
    r"""(?<![\w./])(?:
        (?=[^A-Za-z\s]{0,80}+[A-Za-z])                            # a/path/of.py, a URL
            (?:[a-z]{1,9}:/|~|\.{1,2})?/?(?:[\w.@+-]{1,80}+/){1,20}[\w.@+-]{0,80}\w
      | (?=[\w.-]{4})[A-Za-z_][\w-]{0,80}(?:\.[A-Za-z_][\w-]{0,80}){1,20}  # dotted.name, file.py
      | (?=\w{4})[A-Za-z]\w{0,80}_\w{1,80}                        # snake_case
      | (?=\w{4})[A-Za-z]\w{0,80}[a-z0-9][A-Z]\w{0,80}            # camelCase
      | (?=[0-9a-f]{0,80}[a-f])(?=[0-9a-f]{0,80}[0-9])[0-9a-f]{7,80}  # a hex id
    )(?!\w)""",
    re.ASCII | re.VERBOSE,
)
"""What counts as an identifier or a path. Its repetitions are bounded, so that its time is linear
in any text."""


def identifiers(parts: Iterable[Part]) -> frozenset[str]:
    """The identifiers and paths in texts, files, and the names and arguments of calls. Thoughts
    do not count: providers drop old ones."""
    found: set[str] = set()
    for part in parts:
        for text in _texts(part):
            found.update(IDENTIFIER.findall(text))
    return frozenset(found)


def identifiers_of(message: Message) -> frozenset[str]:
    return identifiers(message.parts)


def _texts(part: Part) -> Iterator[str]:
    if isinstance(part, Text):
        yield part.text
    elif isinstance(part, File):
        yield part.name
        yield part.text
    elif isinstance(part, ToolCall):
        yield part.name
        # As values: in the JSON text, a line's end is the letter n before the next word.
        value = part.parsed()
        if value is None:
            yield part.arguments
        else:
            yield from _strings(value)


def _strings(value: Json) -> Iterator[str]:
    waiting: list[Json] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            for key, inner in cast("dict[str, Json]", one).items():
                yield key
                waiting.append(inner)
        elif isinstance(one, list):
            waiting += cast("list[Json]", one)


class NextUse:
    """Follows one window through a trace. ``used``: identifiers that the next messages use and
    that the trace held before; ``held``: those of them that the window still holds.

    ``names[place]`` are the identifiers of the message at ``place``. Each step costs what it
    changes, so that a whole trace costs the sum of its identifiers.
    """

    def __init__(self, names: Sequence[frozenset[str]]) -> None:
        self.used = self.held = 0
        self._names = names
        self._seen: set[str] = set()
        self._kept: Counter[str] = Counter()
        self._ahead: Counter[str] = Counter()
        for one in names[:LOOK_AHEAD]:
            self._ahead.update(one)

    @property
    def recall(self) -> float | None:
        """None where nothing that was there is used next."""
        return self.held / self.used if self.used else None

    def append(self, place: int) -> None:
        """The message at ``place`` has come, and stands in the window."""
        names = self._names
        for name in names[place]:
            self._ahead[name] -= 1
            if not self._ahead[name] and name in self._seen:
                self.used -= 1
                self.held -= self._kept[name] > 0
        if place + LOOK_AHEAD < len(names):
            for name in names[place + LOOK_AHEAD]:
                self._ahead[name] += 1
                if self._ahead[name] == 1 and name in self._seen:
                    self.used += 1
                    self.held += self._kept[name] > 0
        for name in names[place]:
            if name not in self._seen:
                self._seen.add(name)
                if self._ahead[name]:
                    self.used += 1
                    self.held += self._kept[name] > 0
        self.keep(names[place])

    def keep(self, names: Iterable[str]) -> None:
        """An item with these has come into the window."""
        for name in names:
            self._kept[name] += 1
            if self._kept[name] == 1 and self._ahead[name] and name in self._seen:
                self.held += 1

    def drop(self, names: Iterable[str]) -> None:
        """An item with these has left the window."""
        for name in names:
            self._kept[name] -= 1
            if not self._kept[name] and self._ahead[name] and name in self._seen:
                self.held -= 1
