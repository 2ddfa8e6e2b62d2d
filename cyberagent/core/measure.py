"""What a window is made of, in tokens. Source: docs/windows.md, "Size"."""

from __future__ import annotations

from collections import Counter

from cyberagent.core.lineage import TOLD
from cyberagent.core.ports import TokenCounter
from cyberagent.core.tokens import count_tools
from cyberagent.core.types import Message
from cyberagent.core.window import Window

KINDS = (
    "system", "schemas", "anchor", "plan", "skills", "injected", "memory", "summary", "user",
    "assistant", "tool",
)  # fmt: skip
"""Kinds of the stacked bar, in the order in which they are drawn."""

_BY_TOOL = {
    "goal": "plan",
    "todo_write": "plan",
    "skill": "skills",
    "get_current_context": "injected",
    "memory": "memory",
    "save_memory": "memory",
}


def kind_of(message: Message) -> str:
    """The kind that a message counts under."""
    if message.source == "summary":
        return "summary"
    if message.role == "tool":
        return _BY_TOOL.get(message.name, "tool")
    if message.source == "framework":
        return "anchor" if TOLD in message.metadata else "injected"
    return "assistant" if message.role == "assistant" else "user"


def composition(window: Window, counter: TokenCounter) -> dict[str, int]:
    """Tokens by kind; kinds with none are left out. Messages carry their own count, so that each
    text is counted once in its life."""
    found: Counter[str] = Counter()
    found["system"] = counter.count(window.system)
    found["schemas"] = count_tools(counter, window.tools)
    for message in window.messages:
        found[kind_of(message)] += message.tokens
    return {kind: found[kind] for kind in KINDS if found[kind]}
