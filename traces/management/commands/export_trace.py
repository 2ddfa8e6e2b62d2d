"""``manage.py export_trace``: a trace as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from traces.management.terminal import TerminalCommand, existing_trace
from traces.transfer import EXPORTS, export_file, export_text


class Command(TerminalCommand):
    help = "Export a trace: whole and without loss, or its main path as chat messages."
    examples = """
  manage.py export_trace 3f2a9c0d41b7                              the folder .trace/3f2a9c0d41b7
  manage.py export_trace 3f2a9c0d41b7 --output run.zip             the same as one file
  manage.py export_trace 3f2a9c0d41b7 --format openai              3f2a9c0d41b7.openai.json
  manage.py export_trace 3f2a9c0d41b7 --format openai --output -   to standard output
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", help="the trace's id")
        parser.add_argument(
            "--format", choices=EXPORTS, default="trace", help="trace (all of it) or openai"
        )
        parser.add_argument("--output", metavar="PATH", help="where to; - is standard output")
        parser.add_argument("--force", action="store_true", help="replace what is there")

    def work(self, *, trace: str, format: str, output: str | None, force: bool, **_: Any) -> None:
        found = existing_trace(trace)
        if output == "-":
            sys.stdout.buffer.write(export_text(found, format))
            sys.stdout.buffer.flush()
            return
        path = Path(output) if output else default_path(found.pk, format)
        self.say(str(export_file(found, path, format, force=force)))


def default_path(trace_id: str, format: str) -> Path:
    if format == "trace":
        return Path(".trace") / trace_id
    return Path(f"{trace_id}.openai.json")
