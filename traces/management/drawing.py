"""A run drawn while it goes on: in place on a terminal, as appended lines elsewhere.

Source: docs/terminal.md, "run".
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from cyberagent.core.types import Json, Message, clean_text
from cyberagent.trace.merged import happened, terminal_safe
from traces.management.commands.show import colored
from traces.models import LIVE_STATUSES
from traces.picture import Picture, message_lines
from traces.store import in_reader

REDRAW_SECONDS = 0.15

_CHANGES = frozenset(
    {"MessageStored", "GoalChanged", "Rewound", "StatusChanged", "ChildStarted", "ChildEnded",
     "Verdict"}
)  # fmt: skip


class Drawing:
    """Hears the events of one run and draws. The lines that fit the terminal are drawn over and
    over in place; what the model is writing stands below them."""

    def __init__(self, trace_id: str, *, language: str = "en") -> None:
        self.picture = Picture(trace_id)
        self.language = language
        self.in_place = sys.stdout.isatty()
        self._drawn = 0
        self._drawn_at = 0.0
        self._writing = ""
        self._written: dict[str, str] = {}
        self._waiting: list[Message] = list(self.picture.path)
        self._told: dict[str, bool] = {}

    async def hear(self, event: Json) -> None:
        kind = event["event"]
        if kind == "TextDelta":
            so_far = self._written.get(event["stream"], "")
            self._writing = so_far[: event["offset"]] + event["text"]
            self._written[event["stream"]] = self._writing
        elif kind in _CHANGES:
            self._writing, self._written = "", {}
            self._waiting += await in_reader(self.picture.refresh)
        elif kind == "ChildProgress" and self.in_place:
            # What the model writes goes on below it.
            self._waiting += await in_reader(self.picture.refresh)
        if self.in_place:
            self._redraw()
            return
        if kind in _CHANGES:
            self._append()
        if line := self._said(event):
            _write(f"{line}\n")

    def end(self, done: Json) -> None:
        """Draw the whole view once more, then how it ended, then the trace's id."""
        if self.in_place:
            self._redraw(last=True)
        else:
            self._append(everything=True)
            _write("\n")
            for line in self.picture.lines(language=self.language):
                _write(f"{line}\n")
        why = f": {terminal_safe(done['why'])}" if done.get("why") else ""
        _write(f"\n{done['status']}{why}\n{self.picture.trace_id}\n")

    # Appending -----------------------------------------------------------------------------

    def _said(self, event: Json) -> str:
        """The line for something that no row of this trace tells in time: its sub-agents' work.
        Those below them are known by their states, which may come late: each is told once when
        it is first seen at work and once when it is over, a validator once with its verdict."""
        if event["event"] != "ChildProgress":
            return happened(event, language=self.language)
        child, works = event["child"], event["status"] in LIVE_STATUSES
        judges = event["agent"] == "validator"
        if event["parent"] == self.picture.trace_id or self._told.get(child) == works:
            return ""
        if judges and not event["verdict"]:
            return ""
        seen = child in self._told
        self._told[child] = works
        kind = "Judged" if judges else "ChildStarted" if works else "ChildEnded"
        why = "" if seen or works or judges else event["mission"]
        return happened({**event, "event": kind, "why": why}, language=self.language)

    def _append(self, *, everything: bool = False) -> None:
        """Print what is whole: a message that called tools waits for their results."""
        batch = self._waiting if everything else _whole(self._waiting)
        self._waiting = self._waiting[len(batch) :]
        for line in message_lines(batch, language=self.language) if batch else ():
            _write(f"{line}\n")

    # In place ------------------------------------------------------------------------------

    def _redraw(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = now
        size = shutil.get_terminal_size()
        lines = list(
            self.picture.lines(width=size.columns - 1, color=colored(), language=self.language)
        )
        if self._writing and not last:
            # Half the columns: each character of Chinese takes two.
            tail = " ".join(terminal_safe(self._writing[-size.columns :]).split())
            lines.append("… " + tail[-(size.columns // 2 - 3) :])
        room = len(lines) if last else max(1, size.lines - 1)
        shown = lines[-room:]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        _write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._drawn = len(shown)


def _whole(messages: Sequence[Message]) -> Sequence[Message]:
    """Up to the newest message that is no tool result: later results may still come."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role != "tool":
            return messages[:place] if messages[place].tool_calls else messages[: place + 1]
    return messages[:0]


def _write(text: str) -> None:
    sys.stdout.write(clean_text(text))
    sys.stdout.flush()
