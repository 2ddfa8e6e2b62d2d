"""Skills read from folders: Markdown with YAML front matter, read as leniently as they are written.

A skill is ``NAME.md`` or ``NAME/SKILL.md``. Its name is the front matter's if that is a valid
one, else its folder's or file's. Source: docs/tools.md, "Skills".
"""

from __future__ import annotations

import logging
import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import cast

import yaml

from cyberagent.core.errors import CyberAgentError, InvalidInput
from cyberagent.core.ports import Skill
from cyberagent.tools.workspace import read_text

log = logging.getLogger(__name__)

MAX_DESCRIPTION_CHARS = 1_024
MAX_FRONT_MATTER_CHARS = 20_000

_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_MAX_NAME_CHARS = 64
_FIELD = re.compile(r"^([A-Za-z][\w-]*):[ \t]*(.*)$")


def load_skills(folder: Path) -> dict[str, Skill]:
    """The skills of a folder by name, sorted; none where there is no such folder.

    A file that cannot be read (not UTF-8, too large, a link that leaves the folder) and a second
    skill of the same name are left out with a warning in the log.
    """
    found: dict[str, Skill] = {}
    if not folder.is_dir():
        return found
    for entry in sorted(folder.iterdir()):
        path = f"{entry.name}/SKILL.md" if entry.is_dir() else entry.name
        if not path.endswith(".md") or not (folder / path).is_file():
            continue
        try:
            skill = parse_skill(read_text(folder, path), entry.name.removesuffix(".md"))
        except CyberAgentError as error:
            log.warning("skill %s left out: %s", path, error)
            continue
        if skill.name in found:
            log.warning("skill %s left out: another one is named %r", path, skill.name)
            continue
        found[skill.name] = skill
    return dict(sorted(found.items()))


def builtin_skills() -> dict[str, Skill]:
    """The skills that come with the package."""
    with as_file(files("cyberagent") / "prompts" / "skills") as folder:
        return load_skills(folder)


def parse_skill(text: str, fallback_name: str) -> Skill:
    """The skill of a Markdown text.

    Tolerates a missing front matter, name or description, YAML that does not parse, CRLF and a
    byte order mark. Without a description the first paragraph stands for it. Raises InvalidInput
    where there is no text, or no name can be made of ``fallback_name`` either.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    matter, body = _split(text)
    fields = _fields(matter)
    if not body.strip():
        raise InvalidInput("the skill has no text")
    name = fields.get("name", "").strip()
    if not is_skill_name(name):
        name = re.sub(r"[^a-z0-9_]+", "-", fallback_name.lower()).strip("-_")
        name = re.sub(r"[-_]{2,}", "-", name)[:_MAX_NAME_CHARS].strip("-_")
    if not is_skill_name(name):
        raise InvalidInput(f"no skill name can be made of {fallback_name!r}")
    description = " ".join((fields.get("description") or _first_paragraph(body)).split())
    if len(description) > MAX_DESCRIPTION_CHARS:
        description = description[: MAX_DESCRIPTION_CHARS - 1] + "…"
    return Skill(name=name, description=description, text=body.strip() + "\n")


def is_skill_name(name: str) -> bool:
    """Lower-case letters and digits in words joined by single ``-`` or ``_``, at most 64."""
    return len(name) <= _MAX_NAME_CHARS and _NAME.fullmatch(name) is not None


def _split(text: str) -> tuple[str, str]:
    """Front matter and body; an opening ``---`` that nothing closes is body."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        return "", text
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            matter = "\n".join(lines[1:number])
            return matter[:MAX_FRONT_MATTER_CHARS], "\n".join(lines[number + 1 :])
    return "", text


def _fields(matter: str) -> dict[str, str]:
    """The scalar fields of a front matter, as texts."""
    try:
        value = yaml.safe_load(matter)
    except (yaml.YAMLError, RecursionError, ValueError):
        # ValueError: a date such as 2024-99-99, which the YAML reader makes a date of.
        return _loose_fields(matter)
    if not isinstance(value, dict):
        return {}
    items = cast("dict[object, object]", value).items()
    return {str(k): str(v) for k, v in items if isinstance(v, str | int | float)}


def _loose_fields(matter: str) -> dict[str, str]:
    """``key: text`` lines with their indented continuations, for what is not quite YAML (a
    ``: `` inside an unquoted description)."""
    fields: dict[str, list[str]] = {}
    current = ""
    for line in matter.split("\n"):
        if entry := _FIELD.match(line):
            current = entry[1]
            first = entry[2].strip()
            fields[current] = [] if re.fullmatch(r"[>|][+-]?", first) else [first]
        elif current and line[:1] in (" ", "\t"):
            fields[current].append(line.strip())
    return {key: _unquoted(" ".join(lines).strip()) for key, lines in fields.items()}


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text


def _first_paragraph(body: str) -> str:
    paragraphs = (p.strip() for p in body.split("\n\n"))
    return next((p for p in paragraphs if p and not p.startswith("#")), "")
