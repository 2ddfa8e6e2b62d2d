"""``manage.py show``: one trace as its merged view, or as JSON."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from django.core.management.base import CommandParser

from cyberagent.core.types import Json
from traces.management.terminal import TerminalCommand, existing_trace
from traces.picture import Picture
from traces.shapes import goals_json, message_json, trace_json


class Command(TerminalCommand):
    help = "Show a trace: the plan with what was done for each goal."
    examples = """
  manage.py show 3f2a9c0d41b7
  manage.py show 3f2a9c0d41b7 --all          unfolded, with side branches and rewound paths
  manage.py show 3f2a9c0d41b7 --json | jq '.goals[] | select(.status == "abandoned")'
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", help="the trace's id")
        parser.add_argument("--all", action="store_true", help="also what is off the main path")
        parser.add_argument("--json", action="store_true", help="trace, goals, messages as JSON")
        parser.add_argument("--language", choices=("en", "zh"), default="en")

    def work(self, *, trace: str, all: bool, json: bool, language: str, **_: Any) -> None:
        picture = Picture(existing_trace(trace).pk)
        if json:
            self.say_json(picture_json(picture, everything=all), indent=2)
            return
        for line in picture.lines(
            everything=all, width=columns(), color=colored(), language=language
        ):
            self.say(line)


def picture_json(picture: Picture, *, everything: bool) -> dict[str, Json]:
    """``messages``: those of the main path, or all that are stored."""
    messages = picture.messages.values() if everything else picture.path
    out: dict[str, Json] = {
        "trace": trace_json(picture.trace),
        "goals": goals_json(picture.plan),
        "messages": [message_json(m) for m in messages],
    }
    return out


def columns() -> int:
    """The terminal's width; 0 (lines are not cut) where the output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def colored() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
