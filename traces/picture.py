"""A trace's merged view, as lines for a terminal, from its rows.

Source: docs/terminal.md, "The merged view".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cyberagent.core.types import Message
from cyberagent.trace.goals import GoalTree, replay
from cyberagent.trace.merged import ChildRow, merged_text
from cyberagent.trace.tree import Branch, branches, ghosts, path_of
from traces.below import below, child_rows
from traces.models import Message as MessageRow
from traces.models import Trace
from traces.rows import MESSAGE_COLUMNS, held, message_from


@dataclass(slots=True)
class Picture:
    """All messages of one trace in memory, and what is drawn of them. :meth:`refresh` reads only
    what is new; a plan is replayed only where the path changed."""

    trace_id: str
    trace: Trace = field(init=False)
    messages: dict[int, Message] = field(default_factory=dict)
    path: list[Message] = field(default_factory=list)
    plan: GoalTree = field(default_factory=GoalTree)
    children: list[ChildRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> list[Message]:
        """Read what is new; the messages that were not known before."""
        self.trace = Trace.objects.select_related("owner").get(pk=self.trace_id)
        last = max(self.messages, default=0)
        rows = MessageRow.objects.filter(trace=self.trace_id, sequence__gt=last)
        new = [message_from(r) for r in rows.order_by("sequence").values(*MESSAGE_COLUMNS)]
        self.messages |= {m.sequence: m for m in new}
        head = self.path[-1].sequence if self.path else 0
        if self.trace.head_sequence != head:
            self.path = path_of(self.messages, self.trace.head_sequence)
            self.plan = replay(self.path, held(self.trace.mission))
        elif not self.path:
            self.plan = GoalTree(mission=held(self.trace.mission))
        self.children = child_rows(below(self.trace_id))
        return new

    def branches(self) -> list[Branch]:
        return branches(self.messages)

    def ghosts(self) -> list[Branch]:
        return ghosts(self.messages, self.trace.head_sequence)

    def lines(
        self, *, everything: bool = False, width: int = 0, color: bool = False, language: str = "en"
    ) -> Iterator[str]:
        """The view. ``everything``: nothing folded, and what lies beside the main path is
        written out below it."""
        beside, left = self.branches(), self.ghosts()
        yield from merged_text(
            self.plan,
            self.path,
            children=self.children,
            branches=beside,
            ghosts=left,
            width=width,
            color=color,
            fold=not everything,
            language=language,
        )
        for branch in (*beside, *left) if everything else ():
            yield ""
            yield _heading(branch)
            own = [self.messages[s] for s in branch.sequences]
            yield from message_lines(own, width=width, language=language)


def message_lines(
    messages: Sequence[Message], *, width: int = 0, language: str = "en"
) -> list[str]:
    """The rows of some messages alone, without mission, goals and progress."""
    return list(merged_text(GoalTree(), messages, width=width, fold=False, language=language))[1:-1]


def _heading(branch: Branch) -> str:
    name = f"Side branch {branch.branch_id} ({branch.branch_type})" if branch.branch_id else "Ghost"
    at = f"left message {branch.left_from}" if branch.left_from else "from the beginning"
    return f"{name}, {at}:"
