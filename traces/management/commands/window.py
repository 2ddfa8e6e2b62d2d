"""``manage.py window``: the exact payload of one model call."""

from __future__ import annotations

import json as json_lines
from typing import Any

from django.core.management.base import CommandParser

from cyberagent.core.errors import NotFound
from traces.api_schemas import LARGEST
from traces.management.terminal import TerminalCommand, existing_trace
from traces.windows import window_of


class Command(TerminalCommand):
    help = "Show what one model call was sent, rebuilt, and whether its hash still holds."
    examples = """
  manage.py window 3f2a9c0d41b7 2
  manage.py window 3f2a9c0d41b7 2 --json     {"sha256": …, "holds": true, "payload": {…}}
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", help="the trace's id")
        parser.add_argument("call", type=int, help="the call's number: 1, 2, 3 …")
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def work(self, *, trace: str, call: int, json: bool, **_: Any) -> None:
        found = existing_trace(trace)
        if not 0 < call <= LARGEST:
            raise NotFound("call", call)
        view = window_of(found, call)
        payload = json_lines.loads(view.payload)
        if json:
            self.say_json({"sha256": view.sha256, "holds": view.holds, "payload": payload})
            return
        self.say(f"SHA-256 sent: {view.sha256}")
        self.say("rebuilt: " + ("the same" if view.holds else "DIFFERENT from what was sent"))
        self.say_json(payload, indent=2)
