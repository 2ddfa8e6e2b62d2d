"""The skill tool: load a skill's whole text into the conversation."""

from __future__ import annotations

from cyberagent.core.errors import ToolFailed
from cyberagent.core.ports import ToolContext
from cyberagent.tools.registry import tool

MAX_SKILL_CHARS = 50_000


@tool(framework=True, read_only=True, parallel_safe=True, idempotent=True)
def skill(context: ToolContext, name: str) -> str:
    """Load a skill: instructions for one kind of work, to follow from then on.

    Args:
        name: The skill's name, as the index of skills gives it.
    """
    found = context.skills.get(name)
    if found is None:
        there = ", ".join(f"`{n}`" for n in sorted(context.skills)) or "none"
        raise ToolFailed(f"there is no skill `{name[:64]}`; there are: {there}")
    if len(found.text) <= MAX_SKILL_CHARS:
        return found.text
    left_out = len(found.text) - MAX_SKILL_CHARS
    return f"{found.text[:MAX_SKILL_CHARS]}\n[{left_out:,} characters left out]"
