"""``compress_context``: the model asks for a compaction. Source: docs/compaction.md, "Asked
for"."""

from __future__ import annotations

from cyberagent.core.ports import ToolContext
from cyberagent.tools.registry import tool


@tool(framework=True, idempotent=True)
def compress_context(context: ToolContext) -> str:
    """Ask for the conversation so far to be shortened before your next step, when much of it is
    no longer needed. The plan, what people said and the newest steps stay."""
    context.state.compact_asked = "model"
    return "The context will be compressed before your next step."
