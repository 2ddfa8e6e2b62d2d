"""The tools that come with the engine. Presets choose from them by name."""

from cyberagent.tools.builtin.agents import agent, review_child, submit_report
from cyberagent.tools.builtin.compress import compress_context
from cyberagent.tools.builtin.context import get_current_context, read_context_ref
from cyberagent.tools.builtin.explore import delegate_research, explore, read_conclusion
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
    agent,
    submit_report,
    review_child,
    read_context_ref,
    explore,
    delegate_research,
    read_conclusion,
)
