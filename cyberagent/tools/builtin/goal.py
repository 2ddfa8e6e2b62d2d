"""``goal`` and ``todo_write``: how a model edits its plan. Source: docs/goals.md."""

from __future__ import annotations

from typing import Literal, TypedDict

from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.tools.registry import tool
from cyberagent.trace.goals import Change, GoalOperation, GoalTree
from cyberagent.trace.plan_text import updated_text
from cyberagent.trace.todos import read_todos

PLAN_LIMIT_CHARS = 12_000
"""The result shows at most about this much of the plan, around the focus."""


@tool(framework=True)
def goal(
    context: ToolContext,
    add: str | list[str] | None = None,
    reason: str | None = None,
    after: str | None = None,
    under: str | None = None,
    focus: str | None = None,
    done: str | None = None,
    summary: str | None = None,
    abandon: str | None = None,
) -> ToolOutcome:
    """Keep the plan: add goals, focus the one you work on, close it when it is done or given up.

    Details of a closed goal may be cleared from the conversation later; its summary stays. So
    write into the summary what later goals need to know. Several arguments in one call work in
    the order done, abandon, add, focus.

    Args:
        add: Goals to add, separated by commas, or a list of texts if a text holds a comma. They
            become children of the goal in focus, or top-level goals if there is none.
        reason: Why these goals are added.
        after: Id of the goal to add them after, beside it. After an abandoned goal the first one
            takes its place.
        under: Id of the goal to add them under.
        focus: Id of the goal to work on now.
        done: Id of the goal that is done (with summary), or the summary itself for the goal in
            focus.
        summary: What came of the goal in done, or why the one in abandon is given up.
        abandon: Id of the goal to give up (with summary), or the reason itself for the goal in
            focus.
    """
    operation = GoalOperation(
        add=add,
        reason=reason,
        after=after,
        under=under,
        focus=focus,
        done=done,
        summary=summary,
        abandon=abandon,
    )
    return _store(context, *_plan(context).apply(operation))


class _Todo(TypedDict):
    content: str
    status: Literal["pending", "in_progress", "completed", "cancelled"]


class TodoItem(_Todo, total=False):
    priority: Literal["high", "medium", "low"]


@tool(framework=True)
def todo_write(context: ToolContext, todos: list[TodoItem]) -> ToolOutcome:
    """Write the list of todos, which is the plan. Send the whole list every time.

    Keep one todo in progress. A todo that is not in the list any more is abandoned; one that is
    completed stays so.

    Args:
        todos: Every todo, in order, each with its text, its state and how urgent it is.
    """
    return _store(context, *_plan(context).apply_todos(read_todos(todos)))


def _plan(context: ToolContext) -> GoalTree:
    return context.state.goals


def _store(context: ToolContext, plan: GoalTree, changes: tuple[Change, ...]) -> ToolOutcome:
    context.state.goals = plan
    language = context.config.language
    lines = [c.line(language) for c in changes]
    text = updated_text(plan, lines, language, PLAN_LIMIT_CHARS)
    return ToolOutcome(text=text, shorten=False, metadata={"changes": lines})
