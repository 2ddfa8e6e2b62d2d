"""What all commands of the terminal share: first use, errors as one sentence, exit codes.

Exit codes: 0 done, 1 the run failed, 2 what was asked for cannot be done, 130 stopped by
Ctrl-C. Source: docs/terminal.md.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from cyberagent.core.errors import CyberAgentError, InvalidInput, NotFound
from cyberagent.core.types import Json, clean_text
from traces.access import local_admin
from traces.database import ensure_database
from traces.models import Trace

BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class TerminalCommand(BaseCommand):
    """A command for people and scripts. Subclasses write :meth:`work`; whatever the domain
    refuses there is told in one sentence on stderr, with exit code 2 and no traceback."""

    examples = ""
    """Lines shown under the options of ``--help``."""

    # The rows' own rules hold without the checks of the pages, which cost half a second.
    requires_system_checks: list[str] = []
    suppressed_base_arguments = {
        "--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color",
        "--force-color", "--skip-checks",
    }  # fmt: skip

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=f"examples:\n{self.examples.strip(chr(10))}" if self.examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _hold_any_text()
        try:
            ensure_database()
            code = self.work(**options)
        except (CyberAgentError, CommandError) as error:
            code = self.refuse(str(error))
        except BrokenPipeError:
            _quiet_pipe()
            code = PIPE_CLOSED
        except (DatabaseError, ImproperlyConfigured, OSError) as error:
            code = self.refuse(_told(error))
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code:
            sys.exit(code)

    def work(self, **options: Any) -> int | None:
        """Do it; the exit code, None or 0 for success."""
        raise NotImplementedError

    def refuse(self, sentence: str) -> int:
        self.stderr.write(f"error: {clean_text(sentence)}")
        return BAD_INPUT

    def say(self, text: str) -> None:
        """A line for people or programs, at once."""
        self.stdout.write(clean_text(text))
        self.stdout.flush()

    def say_json(self, value: Json, *, indent: int | None = None) -> None:
        """Any value as JSON; escapes what a terminal's encoding or UTF-8 cannot hold."""
        self.say(json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent))


def existing_trace(trace_id: str) -> Trace:
    """The trace of this id. Whoever can run commands here may read the database itself, so no
    owner is asked for. Raises NotFound."""
    trace = None
    if "\0" not in trace_id and len(trace_id) <= 32:
        trace = Trace.objects.filter(pk=clean_text(trace_id)).first()
    if trace is None:
        raise NotFound("trace", trace_id)
    return trace


LARGEST_FILE = 4_000_000
"""Bytes of a text file that a command's option names."""


def text_of(file: Path, option: str) -> str:
    """The text of a file that ``option`` names. Raises InvalidInput where it is too large or
    not UTF-8, OSError where it cannot be read."""
    with file.open("rb") as opened:
        content = opened.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise InvalidInput(f"{option}: {file} is larger than {LARGEST_FILE:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{option}: {file} is not UTF-8 text") from None


def owner_named(name: str | None) -> Any:
    """The user of this name; without a name the local admin. Raises NotFound."""
    if name is None:
        return local_admin()
    user = get_user_model().objects.filter(username=name).first() if "\0" not in name else None
    if user is None:
        raise NotFound("user", name)
    return user


def _hold_any_text() -> None:
    """A terminal of another encoding shows ``?`` for what it does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _quiet_pipe() -> None:
    """A reader such as ``head`` went away: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def keep_address(url: str) -> None:
    """Note where the dashboard is, for commands that print links to it."""
    (settings.DATA_DIR / "address").write_text(url)


def last_address() -> str:
    """Where the dashboard last started; its usual place where it never did."""
    path = settings.DATA_DIR / "address"
    return path.read_text().strip() if path.is_file() else "http://127.0.0.1:8000"
