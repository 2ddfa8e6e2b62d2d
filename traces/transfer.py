"""Transcripts in and traces out: files on one side, rows on the other.

Source: docs/terminal.md, "import_trace and export_trace".
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cyberagent.core.errors import Conflict, InvalidInput
from cyberagent.core.types import Json
from cyberagent.trace.formats import (
    FORMATS,
    Imported,
    export_bytes,
    read_transcript,
    trace_folder,
    write_export,
)
from traces.bundle import bundle_of, store_imports
from traces.models import Trace

_ALIASES = {"openai": "openai_chat", "chat_completions": "openai_chat"}
EXPORTS = ("trace", "openai")


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation that was read, and the trace that it became."""

    trace: Trace
    imported: Imported

    def counts(self) -> dict[str, Json]:
        return {
            "trace": self.trace.pk,
            "messages": self.imported.messages,
            "tool_calls": self.imported.tool_calls,
            "side_branches": self.imported.side_branches,
            "children": self.imported.children,
            "skipped_lines": self.imported.skipped_lines,
        }


def format_named(name: str) -> str:
    """The format that a person means: ``claude-code`` is ``claude_code``, ``openai`` is
    ``openai_chat``. Raises InvalidInput, naming those there are."""
    plain = name.strip().lower().replace("-", "_")
    plain = _ALIASES.get(plain, plain)
    if plain != "auto" and plain not in FORMATS:
        known = ", ".join(["auto", *FORMATS])
        raise InvalidInput(f"there is no format {name!r}; known are {known}")
    return plain


def import_file(path: Path, *, owner: Any, format: str = "auto") -> list[Stored]:
    """Every conversation of a file (or trace folder) as a trace of ``owner``: all of them, or
    none. Raises ImportRefused and InvalidInput; then nothing was stored."""
    found = read_transcript(path, format_named(format))
    traces = store_imports(found, owner)
    return [Stored(trace, one) for trace, one in zip(traces, found, strict=True)]


@contextmanager
def kept_as_file(stream: BinaryIO, name: str, *, most: int) -> Iterator[Path]:
    """``stream`` as a file for as long as it is needed, whatever its size; ``name`` is what
    errors call it. Raises InvalidInput for more than ``most`` bytes."""
    folder = Path(tempfile.mkdtemp(prefix="cyberagent-import-"))
    try:
        path = folder / safe_name(name)
        with path.open("wb") as file:
            left = most
            while chunk := stream.read(min(1 << 20, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise InvalidInput(f"the file is larger than {most:,} bytes")
                file.write(chunk)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def safe_name(name: str) -> str:
    """The last part of a file's name without anything that a path, a terminal or a page would
    act on."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in last)[-80:].lstrip(".")
    return plain or "upload"


def export_text(trace: Trace, format: str) -> bytes:
    """An export as one file's content: ``trace`` is a zip then."""
    kind = {"trace": "trace_zip", "openai": "openai_chat"}.get(format)
    if kind is None:
        raise _no_export(format)
    return export_bytes(bundle_of(trace), kind)


def export_file(trace: Trace, path: Path, format: str, *, force: bool = False) -> Path:
    """Write a trace: ``trace`` is everything (a folder, or a zip where the name ends in
    ``.zip``), ``openai`` its main path as chat messages. It appears whole or not at all. Raises
    Conflict where something is there already, unless ``force``; InvalidInput for the format."""
    if format not in EXPORTS:
        raise _no_export(format)
    _check_target(path, force)
    kind = "openai_chat" if format == "openai" else format
    if kind == "trace" and path.suffix == ".zip":
        kind = "trace_zip"
    return write_export(bundle_of(trace), path, kind)


def _no_export(format: str) -> InvalidInput:
    return InvalidInput(f"there is no export format {format!r}; known are {', '.join(EXPORTS)}")


def _check_target(path: Path, force: bool) -> None:
    """A folder of anything else must not vanish for an export, whatever was asked for."""
    if not os.path.lexists(path):
        return
    if path.is_dir() and any(path.iterdir()) and not trace_folder.is_trace(path):
        raise Conflict(f"{path} is a folder with something else in it")
    if not force:
        raise Conflict(f"{path} exists already; --force replaces it")
