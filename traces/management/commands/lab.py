"""``manage.py lab``: a trace replayed under several compaction policies."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from cyberagent.compaction.policy import POLICIES
from traces.lab import lab, lines, policies_in
from traces.management.terminal import TerminalCommand, existing_trace


class Command(TerminalCommand):
    help = "Replay a trace under several compaction policies, side by side; it is not touched."
    examples = """
  manage.py lab 3f2a9c0d41b7
  manage.py lab 3f2a9c0d41b7 --policies cyber,off --window 32000
  manage.py lab 3f2a9c0d41b7 --policies cyber,prune+summary      strategies of one's own
  manage.py lab 3f2a9c0d41b7 --json | jq '.policies.cyber.recall'
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", help="the trace's id")
        parser.add_argument(
            "--policies", default="", help=f"with commas between (default: {','.join(POLICIES)})"
        )
        parser.add_argument(
            "--window",
            type=int,
            help="context window in tokens; each policy's trigger scales with it (default: the "
            "trace's own, or half of its largest window where no policy would act)",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def work(self, *, trace: str, policies: str, window: int | None, json: bool, **_: Any) -> None:
        result = lab(existing_trace(trace), policies_in(policies), window)
        if json:
            self.say_json(result.to_json(), indent=2)
            return
        for line in lines(result):
            self.say(line)
