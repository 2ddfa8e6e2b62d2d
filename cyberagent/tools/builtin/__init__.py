"""The tools that come with the engine. Presets choose from them by name."""

from cyberagent.tools.builtin.compress import compress_context
from cyberagent.tools.builtin.context import get_current_context
from cyberagent.tools.builtin.files import FILE_TOOLS
from cyberagent.tools.builtin.goal import goal, todo_write
from cyberagent.tools.builtin.skill import skill
from cyberagent.tools.builtin.terminal import terminal
from cyberagent.tools.registry import Tool

ALL_TOOLS: tuple[Tool, ...] = (
    goal,
    todo_write,
    get_current_context,
    compress_context,
    skill,
    *FILE_TOOLS,
    terminal,
)
