"""The root anchor as fields of a form: lists are one item a line.

An item that holds a line break is written as a JSON text in quotes, so that an anchor goes into
a form and comes out of it as it was. Source: docs/access.md, "Root anchors".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from django.utils.translation import gettext as _

from cyberagent.core.anchor import ANCHOR_FIELDS, RootTaskAnchor
from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.errors import InvalidInput, InvalidTaskValue
from cyberagent.core.normal import strip

OBJECTIVE, CRITERIA, CONSTRAINTS = ANCHOR_FIELDS


class AnchorErrors(InvalidInput):
    """What is wrong with the fields, by their names; "form" for the whole."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(fields.values()))
        self.fields = dict(fields)


def fields_of(anchor: RootTaskAnchor) -> dict[str, str]:
    """The texts that a form shows of an anchor."""
    return {
        OBJECTIVE: anchor.objective,
        CRITERIA: lines(anchor.completion_criteria),
        CONSTRAINTS: lines(anchor.constraints),
    }


def anchor_of(given: Mapping[str, str]) -> RootTaskAnchor:
    """The anchor that a form's fields say. Raises AnchorErrors."""
    value = {
        OBJECTIVE: _unix(given.get(OBJECTIVE, "")),
        CRITERIA: items(given.get(CRITERIA, "")),
        CONSTRAINTS: items(given.get(CONSTRAINTS, "")),
    }
    missing = {
        OBJECTIVE: _("Say what the whole task is."),
        CRITERIA: _("Name at least one criterion."),
    }
    if empty := {n: text for n, text in missing.items() if not strip(given.get(n, ""))}:
        raise AnchorErrors(empty)
    try:
        return normalize_root_task_anchor(value)
    except InvalidTaskValue as error:
        name = error.field.partition("[")[0]
        raise AnchorErrors({name if name in ANCHOR_FIELDS else "form": str(error)}) from None


def lines(texts: Sequence[str]) -> str:
    """One text a line."""
    return "\n".join(_quoted(t) if _needs_quotes(t) else t for t in texts)


def items(text: str) -> list[str]:
    """The texts that :func:`lines` wrote, or that a person typed."""
    found = (strip(line) for line in _unix(text).split("\n"))
    return [_unquoted(line) or line for line in found if line]


def _unix(text: str) -> str:
    # Browsers send every line break of a text area as CR LF.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _needs_quotes(text: str) -> bool:
    """Also where it would be taken for a quoted one."""
    return "\n" in text or "\r" in text or _unquoted(text) is not None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unquoted(line: str) -> str | None:
    """The text of a quoted line; None for any other line, one in quotes for their own sake too."""
    if not (line.startswith('"') and line.endswith('"')):
        return None
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) and _needs_quotes(text) else None
