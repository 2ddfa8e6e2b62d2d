"""The merged view as text: mission, goals, and under each what was done for it.

    Mission: Implement user authentication
    [✓] 1. Analyse code (5 steps, 1.2s)
        → user model in models/user.py
        ├─ glob_files("**/user*.py")
        ├─ read_file("models/user.py")
        └─ [3 steps folded]
    [→] 2. Build it  ← current
        └─ edit_file("app.py")
    Progress: 1/2 goals | Current: 2

Source: docs/messages.md, "The merged view".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cyberagent.core.types import Json, Message
from cyberagent.trace.goals import Goal, GoalTree
from cyberagent.trace.plan_text import INDENT, MARKS, flat
from cyberagent.trace.rows import (
    BranchRow,
    CallRow,
    ChildRow,
    GhostRow,
    GoalRow,
    MessageRow,
    MissionRow,
    Note,
    Row,
    SummaryRow,
    cut_to_width,
    row_count,
    rows_of,
    terminal_safe,
)
from cyberagent.trace.tree import Branch, pair

__all__ = [
    "BranchRow", "CallRow", "ChildRow", "GhostRow", "GoalRow", "MessageRow", "MissionRow", "Row",
    "SummaryRow", "goal_rows", "happened", "merged_text", "row_count", "rows_of", "terminal_safe",
]  # fmt: skip

FOLDED_ROWS = 2
"""Rows that a folded goal still shows."""

_WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "mission": "Mission: ",
        "totals": " ({steps} {step_word}, {time})",
        "abandoned": " (abandoned)",
        "here": "  ← current",
        "folded": "[{} folded]",
        "step": "step",
        "steps": "steps",
        "message": "message",
        "messages": "messages",
        "progress": "Progress: {done}/{all} goals",
        "current": " | Current: {id}",
        "user": "user: ",
        "operator": "operator: ",
        "assistant": "assistant: ",
        "system": "system: ",
        "framework": "framework: ",
        "thought": "(thinking) ",
        "extras": " [+{} attached]",
        "orphan": "result without a call: ",
        "summary": "[summary of {messages} messages, {before:,} → {after:,} tokens] ",
        "plain_summary": "[summary] ",
        "branch": "side branch {type} ({count} messages)",
        "ghost": "left behind by a rewind ({count} messages)",
        "child": "{name} {id} ({status}): {mission}",
        "child_steps": "{status}, {steps} {step_word}",
        "child_goal": " — {goal}",
        "child_verdict": " [verdict: {word}]",
        "judged": "verdict of validator {id}: {word}",
        "names": {
            "": "sub-agent",
            "agent": "agent",
            "validator": "validator",
            "explore": "explorer",
            "research": "researcher",
        },
        "statuses": {},
        "verdicts": {},
        "decisions": {
            "ACCEPT": "accepted",
            "REVISE_CHILD": "to be revised",
            "REPLACE": "to be replaced",
            "ABANDON": "abandoned",
        },
        "anchor": "root anchor: ",
        "contract": "contract: ",
        "report": " [report: {word}]",
        "verdict": " [verdict: {word}]",
        "review": " [review: {word}]",
        "review_by": " [review by {who}: {word}]",
        "against": "{word}, against the verdict {against}",
        "ChildStarted": "{name} {child} begins: {mission}",
        "resumed": "{name} {child} goes on: {mission}",
        "ChildEnded": "{name} {child} ended: {status}",
        "Judged": "verdict of {name} {child}: {verdict}",
        "Verdict": "verdict on this run: {verdict}",
        "AnchorRevised": "the root anchor was revised by {by}",
    },
    "zh": {
        "mission": "任务: ",
        "totals": " ({steps} 步, {time})",
        "abandoned": " (已放弃)",
        "here": "  ← 当前",
        "folded": "[{}已折叠]",
        "step": "步",
        "steps": "步",
        "message": "条消息",
        "messages": "条消息",
        "progress": "进度: {done}/{all} 个目标",
        "current": " | 当前: {id}",
        "user": "用户: ",
        "operator": "操作员: ",
        "assistant": "助手: ",
        "system": "系统: ",
        "framework": "框架: ",
        "thought": "(思考) ",
        "extras": " [附件 {} 个]",
        "orphan": "没有对应调用的结果: ",
        "summary": "[{messages} 条消息的摘要, {before:,} → {after:,} tokens] ",
        "plain_summary": "[摘要] ",
        "branch": "侧分支 {type} ({count} 条消息)",
        "ghost": "回溯留下的路径 ({count} 条消息)",
        "child": "{name} {id} ({status}): {mission}",
        "child_steps": "{status}, {steps} {step_word}",
        "child_goal": " — {goal}",
        "child_verdict": " [裁决: {word}]",
        "judged": "验证者 {id} 的裁决: {word}",
        "names": {
            "": "子代理",
            "agent": "代理",
            "validator": "验证者",
            "explore": "探索者",
            "research": "研究者",
        },
        "statuses": {
            "queued": "排队中",
            "running": "运行中",
            "paused": "已暂停",
            "waiting": "等待批准",
            "completed": "已完成",
            "partial": "部分完成",
            "failed": "失败",
            "stopped": "已停止",
            "interrupted": "已中断",
        },
        "verdicts": {"passed": "通过", "failed": "失败", "unknown": "无法判断"},
        "decisions": {
            "ACCEPT": "已接受",
            "REVISE_CHILD": "需修订",
            "REPLACE": "需替换",
            "ABANDON": "已放弃",
        },
        "anchor": "根锚点: ",
        "contract": "任务书: ",
        "report": " [报告: {word}]",
        "verdict": " [裁决: {word}]",
        "review": " [审核: {word}]",
        "review_by": " [{who} 的审核: {word}]",
        "against": "{word}，与裁决“{against}”相反",
        "ChildStarted": "{name} {child} 开始: {mission}",
        "resumed": "{name} {child} 继续: {mission}",
        "ChildEnded": "{name} {child} 结束: {status}",
        "Judged": "{name} {child} 的裁决: {verdict}",
        "Verdict": "对本次运行的裁决: {verdict}",
        "AnchorRevised": "根锚点由 {by} 修订",
    },
}
_COLORS = {"completed": "32", "abandoned": "31", "in_progress": "36;1", "pending": "0", "dim": "2"}


@dataclass(slots=True)
class _Shown:
    """What stands under one goal, in order: a message's own rows, and what hangs on it."""

    units: list[tuple[Message, list[Row]]] = field(
        default_factory=list[tuple[Message, "list[Row]"]]
    )


def goal_rows(tree: GoalTree, path: Sequence[Message]) -> list[GoalRow]:
    """A row per goal in the order shown, with the model answers and the time of its messages and
    of those of all goals below it."""
    steps: defaultdict[str, int] = defaultdict(int)
    times: defaultdict[str, int] = defaultdict(int)
    for message in path:
        goal_id = message.goal_id if message.goal_id in tree else ""
        while goal_id:
            steps[goal_id] += _is_step(message)
            times[goal_id] += message.duration_ms or 0
            goal_id = goal_id.rpartition(".")[0]
    return [
        GoalRow(
            goal=goal,
            is_current=goal.id == tree.current,
            steps=steps[goal.id],
            duration_ms=times[goal.id],
        )
        for goal in tree.walk()
    ]


def merged_text(
    tree: GoalTree,
    path: Sequence[Message],
    *,
    children: Sequence[ChildRow] = (),
    branches: Sequence[Branch] = (),
    ghosts: Sequence[Branch] = (),
    width: int = 0,
    color: bool = False,
    fold: bool = True,
    language: str = "en",
) -> Iterator[str]:
    """The lines of the view of ``path``, safe for a terminal.

    Messages stand under their goal, those without one (or with one that the plan does not know)
    under the mission. Closed goals are folded to their first rows if ``fold``. ``width``: columns
    (0: lines are not cut). ``color``: with ANSI colours.
    """
    text = _Text(_WORDS.get(language, _WORDS["en"]), width, color)
    shown = _grouped(tree, path, _hanging(children, branches, ghosts))
    yield text.line(text.words["mission"] + flat(tree.mission))
    yield from text.rows(shown[""].units, "", folded=False)
    for row in goal_rows(tree, path):
        yield from text.goal(row)
        is_folded = fold and not row.goal.is_open
        indent = INDENT * (row.goal.level + 1)
        yield from text.rows(shown[row.goal.id].units, indent, folded=is_folded)
    done, total = tree.progress()
    progress = text.words["progress"].format(done=done, all=total)
    yield text.line(
        progress + (text.words["current"].format(id=tree.current) if tree.current else "")
    )


def happened(event: Mapping[str, Json], *, language: str = "en") -> str:
    """A line for an event that no row shows at once: what sub-agents do, a verdict, another
    anchor; "" for all others. ``Judged``, which is no stored event, is a validator's verdict on
    another trace. Indented, as what hangs on a row is; safe for a terminal."""
    words = _WORDS.get(language, _WORDS["en"])
    kind = str(event.get("event", ""))
    if kind not in _HAPPENED:
        return ""
    told = {name: flat(str(event.get(name) or ""), 120) for name in _HAPPENED_FIELDS}
    told["name"] = words["names"].get(told["agent"], words["names"][""])
    told["status"] = words["statuses"].get(told["status"], told["status"])
    told["verdict"] = words["verdicts"].get(told["verdict"], told["verdict"])
    form: str = words["resumed" if event.get("resumed") else kind]
    why = f" — {told['why']}" if told["why"] else ""
    return terminal_safe(f"{INDENT}↳ {form.format(**told)}{why}")


_HAPPENED = frozenset({"ChildStarted", "ChildEnded", "Judged", "Verdict", "AnchorRevised"})
_HAPPENED_FIELDS = ("agent", "child", "mission", "status", "verdict", "by", "why")


def _is_step(message: Message) -> bool:
    return message.role == "assistant" and message.source in ("model", "import")


def _hanging(
    children: Sequence[ChildRow], branches: Sequence[Branch], ghosts: Sequence[Branch]
) -> dict[int, list[Row]]:
    hanging: dict[int, list[Row]] = {}
    for child in children:
        hanging.setdefault(child.sequence, []).append(child)
    for branch in branches:
        hanging.setdefault(branch.left_from, []).append(BranchRow(branch=branch))
    for ghost in ghosts:
        hanging.setdefault(ghost.left_from, []).append(GhostRow(branch=ghost))
    return hanging


def _grouped(
    tree: GoalTree, path: Sequence[Message], hanging: Mapping[int, list[Row]]
) -> defaultdict[str, _Shown]:
    found = pair(path)
    results: defaultdict[int, list[Message]] = defaultdict(list)
    for one in found.answered:
        results[one.caller].append(path[one.result])
    orphans = set(found.orphans)
    shown: defaultdict[str, _Shown] = defaultdict(_Shown)
    if path and 0 in hanging:
        shown[""].units.append((path[0], hanging[0]))
    for place, message in enumerate(path):
        rows: list[Row] = []
        if message.role != "tool" or place in orphans:
            rows += rows_of(message, results[place])
        rows = _with_children(rows, hanging.get(message.sequence, ()))
        if rows:
            goal_id = message.goal_id if message.goal_id in tree else ""
            shown[goal_id].units.append((message, rows))
    return shown


def _with_children(rows: Sequence[Row], hung: Sequence[Row]) -> list[Row]:
    """The rows of a message with what hangs on it: sub-agents below the call that asked for
    them, all else below the last row."""
    left = list(hung)
    shown: list[Row] = []
    for row in rows:
        shown.append(row)
        if isinstance(row, CallRow) and row.call_id:
            own = [h for h in left if isinstance(h, ChildRow) and h.call == row.call_id]
            left = [h for h in left if h not in own]
            shown += own
    return [*shown, *left]


@dataclass(frozen=True, slots=True)
class _Text:
    """Writes lines in one language, width and colour."""

    words: Mapping[str, Any]
    width: int
    color: bool

    def line(self, text: str, style: str = "") -> str:
        safe = terminal_safe(text)
        if self.width:
            safe = cut_to_width(safe, self.width)
        return f"\x1b[{_COLORS[style]}m{safe}\x1b[0m" if self.color and style else safe

    def goal(self, row: GoalRow) -> Iterator[str]:
        goal, indent = row.goal, INDENT * row.goal.level
        yield self.line(f"{indent}{self.head(row, goal)}", goal.status)
        if goal.status == "completed" and goal.summary:
            yield self.line(f"{indent}{INDENT}→ {flat(goal.summary)}")

    def head(self, row: GoalRow, goal: Goal) -> str:
        line = f"{MARKS[goal.status]} {goal.label} {flat(goal.description)}"
        if goal.status == "completed" and row.steps:
            line += self.words["totals"].format(
                steps=row.steps,
                step_word=self.words["step" if row.steps == 1 else "steps"],
                time=_duration(row.duration_ms),
            )
        if goal.status == "abandoned":
            line += self.words["abandoned"]
            line += f" → {flat(goal.summary)}" if goal.summary else ""
        return line + (self.words["here"] if row.is_current else "")

    def rows(
        self, units: Sequence[tuple[Message, list[Row]]], indent: str, *, folded: bool
    ) -> Iterator[str]:
        lines: list[tuple[str, str, int]] = []
        hidden: list[Message] = []
        for message, rows in units:
            if folded and (hidden or len(lines) >= FOLDED_ROWS):
                hidden.append(message)
            else:
                lines += [(self.row(row), "", _level(row)) for row in rows]
        if hidden:
            lines.append((self.folded(hidden), "dim", 0))
        levels = [level for _, _, level in lines]
        for place, (line, style, level) in enumerate(lines):
            yield self.line(f"{indent}{_branch(levels[place:], level)} {line}", style)

    def folded(self, hidden: Sequence[Message]) -> str:
        steps = sum(map(_is_step, hidden))
        counts = {"step": steps, "message": len(hidden) - steps}
        told = [
            f"{count} {self.words[word if count == 1 else word + 's']}"
            for word, count in counts.items()
            if count
        ]
        return self.words["folded"].format(", ".join(told))

    def row(self, row: Row) -> str:
        match row:
            case CallRow():
                return self.call(row)
            case MessageRow():
                return self.message(row)
            case SummaryRow():
                return self.summary(row)
            case BranchRow():
                count = len(row.branch.sequences)
                return self.words["branch"].format(type=row.branch.branch_type, count=count)
            case GhostRow():
                return self.words["ghost"].format(count=len(row.branch.sequences))
            case ChildRow():
                return self.child(row)
            case MissionRow():
                return self.words["mission"] + flat(row.text)
            case GoalRow():
                return self.head(row, row.goal)

    def call(self, row: CallRow) -> str:
        if row.status == "orphan":
            return self.words["orphan"] + row.outcome
        line = f"{flat(row.name)}({row.arguments})"
        if row.status == "error":
            return f"{line} ✗ {row.outcome}"
        return f"{line} …" if row.status == "waiting" else line + self.noted(row.notes)

    def message(self, row: MessageRow) -> str:
        author = row.source if row.source in ("operator", "framework") else row.role
        told = next((n.what for n in row.notes if n.what in ("anchor", "contract")), author)
        label = self.words["thought"] if row.is_thought else self.words.get(told, "")
        extras = self.words["extras"].format(row.extras) if row.extras else ""
        return f"{label}{row.text}{extras}{self.noted(row.notes)}"

    def noted(self, notes: Sequence[Note]) -> str:
        return "".join(map(self.note, notes))

    def note(self, note: Note) -> str:
        verdicts: Mapping[str, str] = self.words["verdicts"]
        match note.what:
            case "report":
                return self.words["report"].format(word=self.status(note.word))
            case "verdict":
                return self.words["verdict"].format(word=verdicts.get(note.word, note.word))
            case "review":
                word = self.words["decisions"].get(note.word, note.word)
                if note.against:
                    against = verdicts.get(note.against, note.against)
                    word = self.words["against"].format(word=word, against=against)
                form = self.words["review_by" if note.who else "review"]
                return form.format(who=flat(note.who, 80), word=word)
            case _:
                return ""

    def status(self, status: str) -> str:
        return self.words["statuses"].get(status, status)

    def child(self, row: ChildRow) -> str:
        """``agent 3f2a (running, 5 steps): Write the refund call — 2 Write it``, or a
        validator's verdict with its reason."""
        words, verdict = self.words, self.words["verdicts"].get(row.verdict, row.verdict)
        if row.agent == "validator" and row.verdict:
            line = words["judged"].format(id=row.trace_id, word=verdict)
            return f"{line} — {flat(row.why, 120)}" if row.why else line
        status = self.status(row.status)
        if row.steps:
            step_word = words["step" if row.steps == 1 else "steps"]
            form = words["child_steps"]
            status = form.format(status=status, steps=row.steps, step_word=step_word)
        name = words["names"].get(row.agent, words["names"][""])
        mission = flat(row.mission, 120)
        line = words["child"].format(name=name, id=row.trace_id, status=status, mission=mission)
        line += words["child_goal"].format(goal=flat(row.goal, 80)) if row.goal else ""
        return line + (words["child_verdict"].format(word=verdict) if row.verdict else "")

    def summary(self, row: SummaryRow) -> str:
        word = self.words["summary" if row.messages else "plain_summary"]
        told = word.format(messages=row.messages, before=row.tokens_before, after=row.tokens_after)
        return told + row.text


def _level(row: Row) -> int:
    """Sub-agents stand one further in than the message that asked for them."""
    return row.level + 1 if isinstance(row, ChildRow) else 0


def _branch(levels: Sequence[int], level: int) -> str:
    """The lines before a row at ``level``, with those of the rows from it on: whether at each
    level another one follows before the next shallower row."""
    drawn = ""
    for at in range(level + 1):
        following = next((other for other in levels[1:] if other <= at), -1)
        more = following == at
        if at == level:
            drawn += "├─" if more else "└─"
        else:
            drawn += "│  " if more else "   "
    return drawn


def _duration(ms: int) -> str:
    seconds = ms / 1000
    return f"{seconds:.1f}s" if seconds < 60 else f"{int(seconds) // 60}m {int(seconds) % 60:02}s"
