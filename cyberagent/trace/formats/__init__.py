"""Importers and exporters of traces, one format a module.

    for imported in read_transcript(Path("session.jsonl")):
        print(imported.report())
    write_export(bundle, Path("run.zip"), "trace_zip")

Source: docs/formats.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from cyberagent.core.errors import ImportRefused, InvalidInput
from cyberagent.core.types import Json
from cyberagent.trace.formats import claude_code, openai_chat, openai_export, trace_folder
from cyberagent.trace.formats.claude_sessions import Found, find_claude_sessions
from cyberagent.trace.formats.lineages import foreign
from cyberagent.trace.formats.reading import (
    MAX_BYTES,
    JsonReader,
    check_size,
    is_object,
    json_lines,
)
from cyberagent.trace.formats.redaction import redacted
from cyberagent.trace.formats.values import Imported, Notes, Skipped, TraceBundle

__all__ = [
    "EXPORTS",
    "FORMATS",
    "MAX_BYTES",
    "Format",
    "Found",
    "Imported",
    "Skipped",
    "TraceBundle",
    "detect",
    "export_bytes",
    "find_claude_sessions",
    "read_transcript",
    "redacted",
    "write_export",
]  # fmt: skip

_LOOK_AT = 200
"""Lines looked at before a file counts as unknown."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format that can be read; ``title`` is for people. ``is_ours``: what the framework
    itself noted comes with it."""

    name: str
    title: str
    read: Callable[[Path], list[Imported]]
    is_ours: bool = False


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format(claude_code.NAME, "Claude Code session", lambda path: [claude_code.read(path)]),
        Format(openai_chat.NAME, "chat-completions messages", openai_chat.read),
        Format(
            trace_folder.NAME,
            "trace folder or zip",
            lambda path: [trace_folder.read(path)],
            is_ours=True,
        ),
    )
}
EXPORTS = ("trace", "trace_zip", openai_chat.NAME)


def read_transcript(path: Path, format: str = "auto") -> list[Imported]:
    """Every conversation in ``path``; most formats hold one.

    Raises ImportRefused where the file is of no known format, too large, or holds nothing that
    can be used; InvalidInput for an unknown ``format``.
    """
    name = detect(path) if format == "auto" else format
    if name not in FORMATS:
        raise InvalidInput(f"unknown format {name!r}; known are {', '.join(FORMATS)}")
    found = FORMATS[name].read(path)
    if FORMATS[name].is_ours:
        return found
    return [replace(one, trace=foreign(one.trace)) for one in found]


def detect(path: Path) -> str:
    """The name of the format of ``path``, by its content. Raises ImportRefused where it is
    none of the known ones, saying what was found."""
    if not path.exists():
        raise ImportRefused(f"there is no file {path.name}")
    if trace_folder.is_trace(path):
        return trace_folder.NAME
    if path.is_dir():
        raise ImportRefused(f"the folder {path.name} has no meta.json: it is not a trace folder")
    if not check_size(path):
        raise ImportRefused(f"{path.name} is empty")
    notes = Notes()
    lines = [value for _, value in islice(json_lines(path, notes), _LOOK_AT)]
    if any(claude_code.looks_like(value) for value in lines):
        return claude_code.NAME
    if any(openai_chat.looks_like(value) for value in lines):
        return openai_chat.NAME
    document = lines[0] if lines else _document(path)
    if openai_chat.looks_like(document):
        return openai_chat.NAME
    known = ", ".join(f.title for f in FORMATS.values())
    raise ImportRefused(f"{path.name} is {_what(document, notes)}. Known formats: {known}")


def _document(path: Path) -> Json:
    """The file as one JSON document; None where it is none."""
    try:
        return JsonReader(Notes()).parse(path.read_bytes().strip(b"\xef\xbb\xbf\x00 \t\r\n"))
    except ValueError:
        return None


def _what(document: Json, notes: Notes) -> str:
    if is_object(document):
        keys = ", ".join(str(key)[:40] for key in list(document)[:6])
        return f"JSON of an unknown form (its first object has the keys {keys or 'none'})"
    if document is not None:
        return f"JSON of an unknown form (a {type(document).__name__})"
    if notes.skipped:
        return f"no transcript; line {notes.skipped[0].line}: {notes.skipped[0].why}"
    return "without any text"


def write_export(bundle: TraceBundle, path: Path, format: str = "trace") -> Path:
    """Write a trace as a folder (``trace``), a zip (``trace_zip``), or its main path as chat
    messages (``openai_chat``). The file or folder appears whole or not at all. Raises
    InvalidInput for an unknown ``format``."""
    if format == "trace":
        return trace_folder.write_folder(bundle, path)
    return _write_whole(path, export_bytes(bundle, format))


def export_bytes(bundle: TraceBundle, format: str) -> bytes:
    """A trace as one file's content: ``trace_zip`` or ``openai_chat``."""
    if format == "trace_zip":
        return trace_folder.export_zip(bundle)
    if format == openai_chat.NAME:
        return openai_export.export_text(bundle.state.system_prompt, bundle.main_path())
    raise InvalidInput(f"unknown export format {format!r}; known are {', '.join(EXPORTS)}")


def _write_whole(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
