"""The texts that models are given, as files: ``cyberagent/prompts/<language>/<name>.md``.

Source: docs/prompts.md.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from cyberagent.core.errors import NotFound

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@cache
def wording(language: str, name: str) -> str:
    """The text ``name`` in ``language`` ("en", "zh"), without the blank lines around it.

    Places to fill, as ``{steps}``, are the caller's to fill. Raises NotFound.
    """
    if not (_NAME.fullmatch(language) and _NAME.fullmatch(name)):
        raise NotFound("wording", f"{language}/{name}")
    try:
        text = (files("cyberagent") / "prompts" / language / f"{name}.md").read_text("utf-8")
    except FileNotFoundError:
        raise NotFound("wording", f"{language}/{name}") from None
    return text.strip()


@cache
def label(language: str, key: str) -> str:
    """One short text of ``labels.md``, which holds ``key: text`` lines. Raises NotFound."""
    for line in wording(language, "labels").splitlines():
        name, colon, text = line.partition(": ")
        if colon and name == key:
            return text.strip()
    raise NotFound("label", f"{language}/{key}")
