"""``manage.py rewind``: go back in a run, with the receipt of what that means."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from cyberagent.core.errors import NotFound
from traces import acts
from traces.api_schemas import LARGEST
from traces.management.terminal import TerminalCommand, existing_trace, owner_named
from traces.rewind import Receipt, preview
from traces.shapes import command_json, receipt_json


class Command(TerminalCommand):
    help = "Go back to a message; what came after it is kept beside the path."
    examples = """
  manage.py rewind 3f2a9c0d41b7 6 --dry-run     only say what it would mean
  manage.py rewind 3f2a9c0d41b7 6 --why "the wrong file"
  manage.py rewind 3f2a9c0d41b7 0               to before the first message
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("trace", help="the trace's id")
        parser.add_argument("to", type=int, help="a message's sequence; 0: before the first")
        parser.add_argument("--why", default="", help="for the record")
        parser.add_argument("--dry-run", action="store_true", help="the receipt alone")
        parser.add_argument("--json", action="store_true", help="one JSON object on one line")

    def work(self, *, trace: str, to: int, why: str, dry_run: bool, json: bool, **_: Any) -> None:
        found = existing_trace(trace)
        if not 0 <= to <= LARGEST:
            raise NotFound("message", to)
        receipt = preview(found, to)
        command = None
        if not dry_run:
            command = acts.rewind(
                found, to, by=owner_named(None), why=why[:500], expected_head=receipt.head
            )
        if json:
            told = command_json(command) if command else None
            self.say_json({"receipt": receipt_json(receipt), "command": told})
            return
        for line in receipt_lines(receipt):
            self.say(line)
        if command is None:
            self.say("nothing was changed")
        elif command.status == "pending":
            self.say("asked for: the run pauses for it at its next safe point")
        else:
            self.say(f"done: {command.result}")
            self.say(f"to undo it: manage.py rewind {found.pk} {receipt.head}")


def receipt_lines(receipt: Receipt) -> list[str]:
    """The receipt as people read it."""
    done, total = receipt.plan.progress()
    asked = "" if receipt.to == receipt.asked else f" (asked for {receipt.asked})"
    lines = [
        f"from message {receipt.head} to message {receipt.to}{asked}: "
        f"{receipt.leaves} left, {receipt.brings_back} brought back",
        f"plan there: {done}/{total} goals, current {receipt.plan.current or 'none'}",
        f"skills there: {', '.join(receipt.skills) or 'none'}",
        f"windows on the path: {receipt.calls}, checked {receipt.checked}, held {receipt.held}",
    ]
    if receipt.first_broken is not None:
        lines.append(f"the window of call {receipt.first_broken} does NOT rebuild")
    if receipt.then is not None:
        lines += [
            f"sent there in call {receipt.then}: {receipt.then_sha256}",
            f"would be sent now:       {receipt.now_sha256}",
            "equal" if receipt.equal else f"DIFFERENT: {receipt.difference or 'the projection'}",
        ]
    return lines
