"""How a plan and its changes are worded, in English and Chinese. Source: docs/goals.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyberagent.trace.goals import Goal, GoalTree

MARKS = {"pending": "[ ]", "in_progress": "[→]", "completed": "[✓]", "abandoned": "[✗]"}
INDENT = "    "

_LONGEST_MISSION = 300
_LONGEST_REASON = 120

_WORDS = {
    "en": {
        "plan": "## Current Plan",
        "mission": "**Mission**: ",
        "current": "**Current**: ",
        "progress": "**Progress**:",
        "here": "  ← current",
        "abandoned": "abandoned",
        "none": "(no goals yet)",
        "updated": "## Updated",
        "above": "[{} goals above not shown]",
        "below": "[{} goals below not shown]",
    },
    "zh": {
        "plan": "## 当前计划",
        "mission": "**任务**: ",
        "current": "**当前**: ",
        "progress": "**进度**:",
        "here": "  ← 当前",
        "abandoned": "已放弃",
        "none": "（还没有目标）",
        "updated": "## 更新",
        "above": "[上方 {} 个目标未显示]",
        "below": "[下方 {} 个目标未显示]",
    },
}
_CHANGES = {
    "en": {
        "added": "Added: {id} {text}",
        "completed": "Completed: {id}",
        "abandoned": "Abandoned: {id}",
        "focused": "Focus moved to: {id}",
        "unfocused": "Focus: none",
        "prioritised": "Priority of {id}: {text}",
    },
    "zh": {
        "added": "添加: {id} {text}",
        "completed": "完成: {id}",
        "abandoned": "放弃: {id}",
        "focused": "焦点切换到: {id}",
        "unfocused": "焦点: 无",
        "prioritised": "{id} 的优先级: {text}",
    },
}


def flat(text: str, longest: int = 0) -> str:
    """``text`` on one line, cut to ``longest`` characters with an ellipsis (0: whole)."""
    line = " ".join(text.split())
    return line if not longest or len(line) <= longest else line[: longest - 1] + "…"


def change_line(kind: str, goal_id: str, text: str, language: str) -> str:
    """One change as a sentence, without a bullet."""
    words = _CHANGES.get(language, _CHANGES["en"])
    return words["unfocused" if kind == "focused" and not goal_id else kind].format(
        id=goal_id, text=text
    )


def goal_line(goal: Goal, language: str = "en", *, why: int = 0) -> str:
    """``[✓] 1. Analyse the code`` without indent; why a goal was abandoned is cut to ``why``
    characters (0: whole)."""
    line = f"{MARKS[goal.status]} {goal.label} {flat(goal.description)}"
    if goal.status != "abandoned":
        return line
    word = _words(language)["abandoned"]
    return f"{line} ({word}: {flat(goal.summary, why)})" if goal.summary else f"{line} ({word})"


def plan_text(tree: GoalTree, include_summary: bool, language: str, limit: int) -> str:
    """See :meth:`cyberagent.trace.goals.GoalTree.to_prompt`."""
    words = _words(language)
    head = [words["plan"]]
    if tree.mission:
        head.append(words["mission"] + flat(tree.mission, _LONGEST_MISSION))
    if tree.focused:
        head.append(f"{words['current']}{tree.focused.label} {flat(tree.focused.description)}")
    head.append(words["progress"])
    entries: list[str] = []
    focus = 0
    for goal in tree.walk():
        entry = INDENT * goal.level + goal_line(
            goal, language, why=0 if include_summary else _LONGEST_REASON
        )
        if goal.id == tree.current:
            focus = len(entries)
            entry += words["here"]
        if include_summary and goal.status == "completed" and goal.summary:
            entry += f"\n{INDENT * (goal.level + 1)}→ {flat(goal.summary)}"
        entries.append(entry)
    if limit:
        entries = _around(entries, focus, limit - sum(map(len, head)), words)
    return "\n".join(head + (entries or [words["none"]]))


def updated_text(tree: GoalTree, lines: list[str], language: str, limit: int = 0) -> str:
    """The goal tools' result: a heading, one line a change, then the plan."""
    changed = "\n".join([_words(language)["updated"], *(f"- {line}" for line in lines)])
    return f"{changed}\n\n{tree.to_prompt(language=language, limit=limit)}"


def _words(language: str) -> dict[str, str]:
    return _WORDS.get(language, _WORDS["en"])


def _around(entries: list[str], focus: int, limit: int, words: dict[str, str]) -> list[str]:
    """Entries around the one at ``focus``, as many as fit into ``limit`` characters."""
    first, last = focus, focus + 1
    room = limit - sum(len(e) for e in entries[first:last])
    while room > 0 and (first > 0 or last < len(entries)):
        if last < len(entries) and (last - focus <= focus - first or first == 0):
            room -= len(entries[last]) + 1
            last += 1
        else:
            first -= 1
            room -= len(entries[first]) + 1
    shown = entries[first:last]
    if first:
        shown.insert(0, words["above"].format(first))
    if last < len(entries):
        shown.append(words["below"].format(len(entries) - last))
    return shown
