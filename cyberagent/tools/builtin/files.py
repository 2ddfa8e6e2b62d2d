"""File tools: read, glob, search, write, edit; confined to the run's workspace.

Each result is bounded and says in its last line what was left out. Source: docs/tools.md, "Files".
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyberagent.core.errors import CyberAgentError, InvalidInput, ToolFailed
from cyberagent.core.ports import ToolContext
from cyberagent.tools import search_worker
from cyberagent.tools.globs import Walk, matches
from cyberagent.tools.registry import tool
from cyberagent.tools.workspace import (
    is_binary,
    kind_of,
    read_bytes,
    read_text,
    resolve,
    shown,
    write_text,
)

MAX_CHARS = 100_000
MAX_LINE_CHARS = 2_000
MAX_PATHS = 1_000
MAX_MATCHES = 200
MAX_MATCH_CHARS = 500
MAX_CONTEXT_LINES = 20
SEARCH_SECONDS = 20.0
"""Time that one search may take, reading and matching together."""


# Reading -------------------------------------------------------------------------------------


@tool(read_only=True, parallel_safe=True, idempotent=True, in_thread=True)
def read_file(context: ToolContext, path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a UTF-8 text file of the workspace, with line numbers.

    Each line is shown as its number, a tab, then the text; the number and the tab are not part
    of the file. The last line says how to go on where the file has more.

    Args:
        path: The file, relative to the workspace.
        offset: The first line to show; 1 is the first line of the file.
        limit: How many lines to show at most.
    """
    if offset < 1 or limit < 1:
        raise InvalidInput("`offset` and `limit` must be 1 or more")
    text = read_text(context.workspace, path).removeprefix("\ufeff")
    if not text:
        return "[the file is empty]"
    lines = text.removesuffix("\n").split("\n")
    if offset > len(lines):
        raise InvalidInput(f"`offset` is {offset}, but `{path}` has {len(lines):,} lines")
    out: list[str] = []
    size = 0
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        row = f"{number:>6}\t{search_worker.short(line.removesuffix(chr(13)), MAX_LINE_CHARS)}"
        size += len(row) + 1
        if size > MAX_CHARS:
            break
        out.append(row)
    last = offset + len(out) - 1
    if last < len(lines):
        out.append(f"[lines {offset}-{last} of {len(lines):,}; go on with offset={last + 1}]")
    return "\n".join(out)


@tool(read_only=True, parallel_safe=True, idempotent=True, in_thread=True)
def glob_files(context: ToolContext, pattern: str, path: str = ".") -> str:
    """List files and folders of the workspace whose path fits a glob pattern.

    Sorted by path; folders end with `/`. `**` stands for any number of folders, and `{a,b}` for
    alternatives. Links to folders are listed but not entered; `.git` only where it is named.

    Args:
        pattern: For example `**/*.py` (everywhere) or `*.md` (in `path` itself).
        path: The folder to start from, relative to the workspace.
    """
    start = _folder(context.workspace, path)
    walk = Walk(start, pattern)
    found: list[str] = []
    more = 0
    for entry in walk:
        if len(found) < MAX_PATHS:
            found.append(_under(context, start, entry.path) + ("/" if entry.is_folder else ""))
        else:
            more += 1
    if not found:
        found.append(f"[nothing fits {pattern!r}]")
    if more:
        found.append(f"[{more:,} more left out; use a narrower pattern]")
    if not walk.complete:
        found.append("[the folder is too large: not all of it was looked at]")
    return "\n".join(found)


def _folder(workspace: Path | None, path: str) -> Path:
    real = resolve(workspace, path)
    kind = kind_of(real)
    if kind != "folder":
        raise ToolFailed(f"`{path}` is {'not there' if kind == 'nothing' else 'not a folder'}")
    return real


def _under(context: ToolContext, start: Path, path: str) -> str:
    """A path below ``start``, relative to the workspace and on one line."""
    return _one_line(str(Path(shown(context.workspace, start)) / path))


def _one_line(name: str) -> str:
    return name.replace("\n", "\\n").replace("\r", "\\r")


# Searching -----------------------------------------------------------------------------------


@tool(read_only=True, parallel_safe=True, idempotent=True, in_thread=True)
def search_files(
    context: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str = "*",
    ignore_case: bool = False,
    context_lines: int = 0,
) -> str:
    """Search the workspace's text files, line by line, for a regular expression.

    A match is shown as `path:line: text`, a line around it as `path-line- text`, in the order of
    paths. Binary files are skipped.

    Args:
        pattern: A regular expression in Python's syntax, matched within single lines.
        path: A folder to search, or one file, relative to the workspace.
        glob: Search only files whose name fits; with a `/`, whose path below `path` fits.
        ignore_case: Let upper and lower case match each other.
        context_lines: How many lines to show before and after each match, at most 20.
    """
    if not 0 <= context_lines <= MAX_CONTEXT_LINES:
        raise InvalidInput(f"`context_lines` must be from 0 to {MAX_CONTEXT_LINES}")
    order = {
        "pattern": pattern,
        "ignore_case": ignore_case,
        "before": context_lines,
        "after": context_lines,
        "limit": MAX_MATCHES,
        "line_chars": MAX_MATCH_CHARS,
    }
    files = _Files(context, path, glob)
    result = _match(order, files, _seconds(context))
    return _report(result, files)


def _seconds(context: ToolContext) -> float:
    limit = context.config.limits.tool_timeout_seconds
    return min(limit, SEARCH_SECONDS) if limit else SEARCH_SECONDS


@dataclass
class _Files:
    """The texts to search, in order; counts what was skipped, and holds the newest name."""

    context: ToolContext
    path: str
    glob: str
    skipped: list[str] = field(default_factory=list[str])
    complete: bool = True
    current: str = ""

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for name in self._names():
            self.current = name
            try:
                data = read_bytes(self.context.workspace, name)
            except CyberAgentError as error:
                self.skipped.append(str(error))
                continue
            if not is_binary(data):
                yield name, data

    def _names(self) -> Iterator[str]:
        start = resolve(self.context.workspace, self.path)
        if kind_of(start) == "file":
            yield shown(self.context.workspace, start)
            return
        folder = _folder(self.context.workspace, self.path)
        matches(self.glob, "")  # A malformed glob is an error before the walk.
        walk = Walk(folder, "**/*")
        prefix = shown(self.context.workspace, folder)
        for entry in walk:
            # A link within the workspace leads to a file that the walk meets anyway.
            if not entry.is_folder and not entry.is_link and matches(self.glob, entry.path):
                yield str(Path(prefix) / entry.path)
        self.complete = walk.complete


def _match(order: dict[str, Any], files: _Files, seconds: float) -> dict[str, Any]:
    """Run the worker over the files and kill it when its time is over."""
    command = [sys.executable, "-I", "-S", str(Path(search_worker.__file__))]
    pipe = subprocess.PIPE
    # Its errors are told in its answer; a traceback must not fill a pipe that nobody reads.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as worker:
        timer = threading.Timer(seconds, worker.kill)
        timer.start()
        try:
            answer = _talk(worker, order, files)
        finally:
            timer.cancel()
            worker.kill()
    if not answer:
        raise ToolFailed(
            f"the search was stopped after {seconds:g} s, at `{files.current}`: narrow `path` or "
            "`glob`, or use a simpler pattern"
        )
    result = json.loads(answer)
    if "error" in result:
        raise InvalidInput(result["error"])
    return result


def _talk(worker: subprocess.Popen[bytes], order: dict[str, Any], files: _Files) -> bytes:
    """Send the texts until the worker has enough or is dead; its answer, b"" if it has none."""
    if worker.stdin is None or worker.stdout is None:
        return b""
    with suppress(BrokenPipeError), worker.stdin as stream:
        stream.write(json.dumps(order).encode() + b"\n")
        stream.flush()
        for name, data in files:
            label = name.encode("utf-8", "surrogateescape")
            stream.write(b"%d %d\n" % (len(label), len(data)) + label)
            stream.write(data)
            stream.flush()
    return worker.stdout.read()


def _report(result: dict[str, Any], files: _Files) -> str:
    out: list[str] = []
    size = 0
    cut = bool(result["more"])
    for name, number, text, is_match in result["lines"]:
        mark = ":" if is_match else "-"
        row = f"{_one_line(name)}{mark}{number}{mark} {text}"
        size += len(row) + 1
        if size > MAX_CHARS:
            cut = True
            break
        out.append(row)
    if not out:
        out.append("[no match]")
    if cut:
        out.append("[more matches left out; narrow the pattern, `path` or `glob`]")
    if files.skipped:
        out.append(f"[not searched: {len(files.skipped):,}; the first: {files.skipped[0]}]")
    if not files.complete:
        out.append("[the folder is too large: not all of it was looked at]")
    return "\n".join(out)


# Writing -------------------------------------------------------------------------------------


@tool(writes=True, idempotent=True, in_thread=True)
def write_file(context: ToolContext, path: str, content: str) -> str:
    """Write a file of the workspace: create it, or replace its whole content.

    Missing folders are made. To change a part of a file, use edit_file.

    Args:
        path: The file, relative to the workspace.
        content: The new content, whole.
    """
    is_new = write_text(context.workspace, path, content)
    lines = content.count("\n") + (not content.endswith("\n") and bool(content))
    size = len(content.encode("utf-8"))
    act = "created" if is_new else "replaced"
    return f"{act} {path} (lines: {lines:,}, bytes: {size:,})"


@tool(writes=True, in_thread=True)
def edit_file(
    context: ToolContext, path: str, old: str, new: str, replace_all: bool = False
) -> str:
    """Replace a piece of text in a file of the workspace.

    `old` must be exactly as in the file, blanks included, without the line numbers that
    read_file shows, and stand there once, unless `replace_all` is true.

    Args:
        path: The file, relative to the workspace.
        old: The text to replace.
        new: The text to put in its place; empty to delete.
        replace_all: Replace every place where `old` stands.
    """
    if not old:
        raise InvalidInput("`old` is empty; to write a whole file use write_file")
    if old == new:
        raise InvalidInput("`old` and `new` are the same; nothing to do")
    text = read_text(context.workspace, path)
    if old not in text and "\r\n" in text and "\r" not in old + new:
        # Models are shown lines without the carriage return.
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    places = _lines_of(text, old)
    if not places:
        raise ToolFailed(f"`old` does not stand in `{path}`; read the file again and copy exactly")
    if len(places) > 1 and not replace_all:
        where = ", ".join(map(str, places[:10])) + (" …" if len(places) > 10 else "")
        raise ToolFailed(
            f"`old` stands {len(places)} times in `{path}` (lines {where}); give more of the text "
            "around it, or set `replace_all`"
        )
    write_text(context.workspace, path, text.replace(old, new))
    many = f"{len(places)} places, the first" if len(places) > 1 else "1 place,"
    return f"edited {path}: {many} at line {places[0]}"


def _lines_of(text: str, piece: str) -> list[int]:
    """The line at which each occurrence begins."""
    lines: list[int] = []
    line, done = 1, 0
    at = text.find(piece)
    while at >= 0:
        line += text.count("\n", done, at)
        lines.append(line)
        done, at = at, text.find(piece, at + len(piece))
    return lines


FILE_TOOLS = (read_file, glob_files, search_files, write_file, edit_file)
