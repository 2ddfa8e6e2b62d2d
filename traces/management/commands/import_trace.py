"""``manage.py import_trace``: transcripts of other agents, and exported traces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from cyberagent.trace.formats import FORMATS, MAX_BYTES
from traces.management.terminal import TerminalCommand, owner_named
from traces.transfer import Stored, import_file, kept_as_file


class Command(TerminalCommand):
    help = "Import a transcript. Each conversation in it becomes a trace; all of them or none."
    examples = """
  manage.py import_trace session.jsonl
  manage.py import_trace run.zip --json      {"trace": …, "messages": …, "tool_calls": …, …}
  manage.py import_trace - --format openai < messages.json
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="a file, a trace folder, or - for standard input")
        parser.add_argument(
            "--format", default="auto", help=f"auto (default), {', '.join(FORMATS)}"
        )
        parser.add_argument("--owner", help="whose trace it becomes (default: the user admin)")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def work(self, *, file: str, format: str, owner: str | None, json: bool, **_: Any) -> None:
        person = owner_named(owner)
        with _opened(file) as path:
            stored = import_file(path, owner=person, format=format)
        if json:
            self.say_json(summed(stored))
        for one in stored:
            if not json:
                self.say(sentence(one))
            self._warn(one)

    def _warn(self, one: Stored) -> None:
        for skipped in one.imported.skipped:
            self.stderr.write(f"line {skipped.line} skipped: {skipped.why}")
        for warning in one.imported.warnings:
            self.stderr.write(warning)


def summed(stored: list[Stored]) -> dict[str, Any]:
    """The counts of a file as one object; ``traces`` names all where it held more than one
    conversation."""
    counts = [one.counts() for one in stored]
    out: dict[str, Any] = {"trace": counts[0]["trace"]}
    out |= {k: sum(c[k] for c in counts) for k in counts[0] if k != "trace"}
    return out | ({"traces": [c["trace"] for c in counts]} if len(counts) > 1 else {})


def sentence(one: Stored) -> str:
    counts = one.counts()
    named = {
        "messages": ("message", "messages"),
        "tool_calls": ("tool call", "tool calls"),
        "side_branches": ("side branch", "side branches"),
        "children": ("sub-agent", "sub-agents"),
        "skipped_lines": ("line skipped", "lines skipped"),
    }
    told = [
        f"{counts[name]:,} {single if counts[name] == 1 else many}"
        for name, (single, many) in named.items()
        if counts[name] or name == "messages"
    ]
    return f"{counts['trace']}: {one.imported.format}, {', '.join(told)}"


@contextmanager
def _opened(file: str) -> Iterator[Path]:
    if file == "-":
        with kept_as_file(sys.stdin.buffer, "standard-input", most=MAX_BYTES) as path:
            yield path
    else:
        yield Path(file)
