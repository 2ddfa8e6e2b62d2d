"""The system prompt: built once, when a trace is made. Source: docs/prompts.md.

Its sections stand in the order of how rarely they change (identity, principles, goals; then
tools, skills, memory), so that the runs of one preset share the longest prefix in a provider's
prompt cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cyberagent.core.ports import Skill
from cyberagent.core.types import Message, clean_text
from cyberagent.core.wording import label, wording

DEFAULT_SYSTEM_PREFIX = "identity"
"""Name of the wording that says who the agent is where nobody else does."""

MAX_MEMORIES = 5
MAX_SKILL_LINE_CHARS = 400
MAX_MEMORY_CHARS = 500


def choose_system_prompt(
    messages: Sequence[Message],
    configured: str | None,
    preset: str | None,
    language: str = "en",
) -> tuple[str, bool]:
    """The text that says who the agent is, and whether it is already a whole system prompt.

    The first that is there: the system messages in ``messages`` (which are whole: nothing is
    added to them), ``config.system_prompt``, the preset's, DEFAULT_SYSTEM_PREFIX.
    """
    given = "\n\n".join(m.text for m in messages if m.role == "system" and m.text.strip())
    if given:
        return given, True
    return configured or preset or wording(language, DEFAULT_SYSTEM_PREFIX), False


def build_system_prompt(
    *,
    messages: Sequence[Message] = (),
    configured: str | None = None,
    preset: str | None = None,
    tools: Iterable[tuple[str, str]] = (),
    skills: Mapping[str, Skill] | None = None,
    memories: Sequence[str] = (),
    language: str = "en",
) -> str:
    """The whole system prompt of a trace.

    ``tools``: name and one line of each (:meth:`cyberagent.core.ports.Tools.index`); ``skills``:
    those that this preset and call site offer; ``memories``: newest last, of which the last five
    are shown.
    """
    identity, is_whole = choose_system_prompt(messages, configured, preset, language)
    if is_whole:
        return clean_text(identity)
    offered = list(tools)
    names = {name for name, _ in offered}
    sections = [identity.strip(), wording(language, "principles")]
    if "goal" in names:
        sections.append(wording(language, "goals"))
    elif "todo_write" in names:
        sections.append(wording(language, "todo"))
    if "agent" in names:
        sections.append(wording(language, "recursive"))
    sections.append(tools_section(offered, language))
    if "skill" in names:
        sections.append(skills_section(skills or {}, language))
    sections.append(memory_section(memories, language))
    return clean_text("\n\n".join(s for s in sections if s))


def tools_section(tools: Sequence[tuple[str, str]], language: str = "en") -> str:
    """One line for each tool; "" where there are none."""
    lines = [f"- `{name}`: {line}" for name, line in tools]
    return "\n".join([label(language, "tools"), "", *lines]) if lines else ""


def skills_section(skills: Mapping[str, Skill], language: str = "en") -> str:
    """The index of skills, sorted by name, in a ``<system-reminder>`` block; "" for none."""
    lines = [
        f"- `{name}`: {_one_line(skills[name].description, MAX_SKILL_LINE_CHARS)}"
        for name in sorted(skills)
    ]
    if not lines:
        return ""
    body = "\n".join([label(language, "skills"), "", *lines])
    return f"<system-reminder>\n{body}\n</system-reminder>"


def memory_section(memories: Sequence[str], language: str = "en") -> str:
    """The last five memories; "" for none."""
    lines = [f"- {_one_line(m, MAX_MEMORY_CHARS)}" for m in memories[-MAX_MEMORIES:] if m.strip()]
    return "\n".join([label(language, "memory"), "", *lines]) if lines else ""


def _one_line(text: str, most: int) -> str:
    """Text from a file, on one line. A ``<`` is escaped: it must not close the block around it."""
    line = " ".join(text.split()).replace("<", "&lt;")
    return line if len(line) <= most else line[: most - 1] + "…"
