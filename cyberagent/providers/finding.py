"""Words that a script takes from the window: ids, versions, sequences that nobody knew when it
was written.

They are sought by plain text before and after them and by no pattern, so that the time this takes
is bounded whatever the script says. Source: docs/providers.md, "Finding".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PLACE = "{}"

MAX_WORD = 200
"""Characters of a word that is found."""

MAX_SEARCHED = 2_000_000
"""Characters of the window that one search looks at, the newest."""

MAX_PLACES = 10_000
"""Places that one search looks at."""

_NAMED = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")


@dataclass(frozen=True, slots=True)
class Find:
    """``text`` holds PLACE once, where the word stands; ``nth`` counts different words from the
    newest, which is 1."""

    name: str
    text: str
    nth: int = 1

    def word(self, texts: Sequence[str], found: Mapping[str, str]) -> str | None:
        """The word in ``texts``, the last of which is the newest; ``found``: earlier words,
        which the text may use."""
        before, _, after = self.text.partition(PLACE)
        seen: dict[str, None] = {}
        for word in _words(texts, filled(before, found), filled(after, found)):
            seen.setdefault(word)
            if len(seen) == self.nth:
                return word
        return None


def filled(text: str, words: Mapping[str, str]) -> str:
    """``text`` with ``{name}`` replaced for the names in ``words``, and nothing else."""
    return _NAMED.sub(lambda m: words.get(m[1], m[0]), text)


def names_in(text: str) -> set[str]:
    """Names that stand in ``text`` as ``{name}``."""
    return set(_NAMED.findall(text))


def _words(texts: Sequence[str], before: str, after: str) -> Iterator[str]:
    """Every word between ``before`` and ``after``, the last place of the last text first."""
    chars, places = MAX_SEARCHED, MAX_PLACES
    for text in reversed(texts):
        part = text[-chars:]
        at = part.rfind(before)
        while at >= 0 and places:
            places -= 1
            start = at + len(before)
            if word := _word(part[start : start + MAX_WORD + len(after) + 1], after):
                yield word
            at = part.rfind(before, 0, start - 1)
        chars -= len(part)
        if chars <= 0 or not places:
            return


def _word(text: str, after: str) -> str:
    """The word at the start of ``text``, up to ``after``; "" where there is none."""
    words = text.split(maxsplit=1)
    if not after:
        word = words[0] if words and text.startswith(words[0]) else ""
        return word if len(word) <= MAX_WORD else ""
    word, ended, _ = text.partition(after)
    is_one = len(word) <= MAX_WORD and word.split() == [word]
    return word if ended and is_one else ""
