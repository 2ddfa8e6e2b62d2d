"""``manage.py anchor``: the root anchor of a recursive run, and a new revision of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from cyberagent.core.context_policy import read_root_task_anchor
from cyberagent.trace.rows import terminal_safe
from traces import anchors
from traces.management.terminal import TerminalCommand, existing_trace, owner_named, text_of
from traces.models import AnchorRevision
from traces.protocols import root_of


class Command(TerminalCommand):
    help = "The task that a whole tree of runs is held against: show it, or revise it."
    examples = """
  manage.py anchor show 3f2a9c0d41b7                  the newest revision, and all there were
  manage.py anchor revise 3f2a9c0d41b7 task.json --dry-run
  manage.py anchor revise 3f2a9c0d41b7 task.json --why "the budget was cut"

FILE is JSON: {"objective": "…", "completion_criteria": ["…"], "constraints": []}.
"""

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="show|revise")
        show = acts.add_parser("show", help="every revision")
        revise = acts.add_parser("revise", help="a new revision from a file")
        for one in (show, revise):
            one.add_argument("trace", help="the trace's id; show: any of its tree")
        revise.add_argument("file", type=Path, help="the anchor as JSON")
        revise.add_argument("--why", default="", help="needed: kept, and told to the agents")
        revise.add_argument("--by", metavar="USER", help="an admin (default: the user admin)")
        revise.add_argument("--expect", metavar="SHA256", help="of the anchor that you saw")
        revise.add_argument("--dry-run", action="store_true", help="what it would mean, alone")
        for one in (show, revise):
            one.add_argument("--json", action="store_true", help="one JSON object on one line")

    def work(self, *, act: str, trace: str, json: bool, **options: Any) -> None:
        found = existing_trace(trace)
        if act == "show":
            self._show(anchors.revisions(root_of(found)), json)
            return
        value = read_root_task_anchor(text_of(options["file"], "FILE")).to_json()
        if options["dry_run"]:
            self._preview(anchors.preview(found, value), json)
            return
        made = anchors.revise(
            found,
            value,
            by=owner_named(options["by"]),
            why=options["why"],
            expected_sha256=options["expect"],
        )
        if json:
            self.say_json(anchors.revision_json(made))
        else:
            self.say(f"revision {made.number} is in force: {made.sha256}")

    def _line(self, text: str) -> None:
        """What people wrote, without anything that a terminal would act on."""
        self.say(terminal_safe(text))

    def _show(self, rows: list[AnchorRevision], json: bool) -> None:
        told = [anchors.revision_json(row) for row in rows]
        if json:
            self.say_json({"trace": rows[-1].trace_id, **told[-1], "revisions": told})
            return
        anchor = anchors.anchor_in(rows[-1])
        self._line(f"root anchor of run {rows[-1].trace_id}")
        self._line(f"objective: {anchor.objective}")
        for name in ("completion_criteria", "constraints"):
            self._line(f"{name.replace('_', ' ')}:{'' if getattr(anchor, name) else ' none'}")
            for text in getattr(anchor, name):
                self._line(f"  - {text}")
        for one in told:
            why = f": {one['why']}" if one["why"] else ""
            self._line(f"{one['number']}. {one['sha256']} {one['at']} by {one['by'] or '-'}{why}")

    def _preview(self, found: anchors.Preview, json: bool) -> None:
        if json:
            self.say_json(anchors.preview_json(found))
            return
        for name, added, removed in found.changes():
            self._line(f"{name.replace('_', ' ')}:{'' if added or removed else ' another order'}")
            for mark, texts in (("+", added), ("-", removed)):
                for text in texts:
                    self._line(f"  {mark} {text}")
        for one in found.contracts:
            self._line(f"contract of {one.trace}, {one.objective}:")
            for mark, texts in (("+", one.gets), ("-", one.loses)):
                for text in texts:
                    self._line(f"  {mark} {text}")
            if one.problem:
                self._line(f"  no room: {one.problem}")
        self._line(f"told: {', '.join(found.told)}")
        self.say("it would be refused" if found.problem else "nothing was changed")
