"""Globs over a workspace: ``*``, ``?``, ``[ab]``, ``{a,b}`` and ``**`` for any folders.

A pattern is matched folder by folder while walking down, so a walk never enters a folder that
cannot lead to a match, and no pattern takes exponential time. Links to folders are not entered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cyberagent.core.errors import InvalidInput

MAX_ENTRIES = 200_000
"""Entries that one walk looks at; then it stops and says so."""

MAX_FOLDERS_DEEP = 100

_MOST_ALTERNATIVES = 64
_SKIPPED = ".git"


@dataclass(frozen=True, slots=True)
class Entry:
    """``path`` is relative to the walk's start, with ``/``."""

    path: str
    is_folder: bool
    is_link: bool


class Walk:
    """Entries below ``start`` that match ``pattern``, sorted by path; ``complete`` is False
    after a walk that met MAX_ENTRIES or MAX_FOLDERS_DEEP. ``.git`` is entered only where the
    pattern names it."""

    def __init__(self, start: Path, pattern: str) -> None:
        self.complete = True
        self._left = MAX_ENTRIES
        self._start = start
        self._patterns = [tuple(p.split("/")) for p in _alternatives(_tidy(pattern))]
        self._with_git = _SKIPPED in pattern

    def __iter__(self) -> Iterator[Entry]:
        states = [_closed(p, {0}) for p in self._patterns]
        yield from self._below(self._start, "", states)

    def _below(self, folder: Path, prefix: str, states: list[set[int]]) -> Iterator[Entry]:
        for entry in sorted(self._entries(folder), key=_place_in_order):
            if self._left == 0:
                self.complete = False
                return
            self._left -= 1
            is_link = entry.is_symlink()
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name == _SKIPPED and not self._with_git:
                continue
            inner = [_step(p, s, entry.name) for p, s in zip(self._patterns, states, strict=True)]
            path = prefix + entry.name
            if any(len(p) in s for p, s in zip(self._patterns, inner, strict=True)):
                yield Entry(path, is_folder, is_link)
            if is_folder and any(inner):
                if path.count("/") >= MAX_FOLDERS_DEEP:
                    self.complete = False
                    continue
                yield from self._below(folder / entry.name, path + "/", inner)

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except OSError:
            # Unreadable, or gone meanwhile: what cannot be listed holds no match.
            return []


def _place_in_order(entry: os.DirEntry[str]) -> str:
    """A folder sorts as "name/", so that entries come in the order of their whole paths."""
    return entry.name + "/" * entry.is_dir(follow_symlinks=False)


def matches(pattern: str, path: str) -> bool:
    """Whether a relative path fits a pattern; one without ``/`` is matched on the name alone."""
    pattern = _tidy(pattern)
    parts = path.split("/") if "/" in pattern else path.split("/")[-1:]
    for alternative in _alternatives(pattern):
        pieces = tuple(alternative.split("/"))
        state = _closed(pieces, {0})
        for part in parts:
            state = _step(pieces, state, part)
        if len(pieces) in state:
            return True
    return False


def _tidy(pattern: str) -> str:
    """Raises InvalidInput for a pattern that is empty, absolute, or climbs."""
    tidy = "/".join(p for p in pattern.split("/") if p not in ("", "."))
    if not tidy or "\0" in pattern or len(pattern) > 1_000:
        raise InvalidInput("the pattern must have from 1 to 1,000 characters and no NUL")
    if pattern.startswith("/") or ".." in tidy.split("/"):
        raise InvalidInput(f"the pattern {pattern!r} leaves the folder that it is matched in")
    return tidy


def _step(pattern: tuple[str, ...], states: set[int], name: str) -> set[int]:
    reached: set[int] = set()
    for at in states:
        if at < len(pattern):
            if pattern[at] == "**":
                reached.add(at)
            elif fnmatchcase(name, pattern[at]):
                reached.add(at + 1)
    return _closed(pattern, reached)


def _closed(pattern: tuple[str, ...], states: set[int]) -> set[int]:
    """``**`` may stand for no folder at all."""
    closed = set(states)
    for at in states:
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            closed.add(at)
    return closed


def _alternatives(pattern: str) -> list[str]:
    """``a.{b,c}`` as ``a.b`` and ``a.c``. Raises InvalidInput above 64 alternatives."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        current = todo.pop(0)
        close = current.find("}")
        opening = current.rfind("{", 0, max(close, 0))
        if close < 0 or opening < 0:
            done.append(current)
        else:
            head, tail = current[:opening], current[close + 1 :]
            todo += [head + part + tail for part in current[opening + 1 : close].split(",")]
        if len(done) + len(todo) > _MOST_ALTERNATIVES:
            raise InvalidInput(f"the pattern has more than {_MOST_ALTERNATIVES} alternatives")
    return done
