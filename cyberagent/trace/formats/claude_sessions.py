"""Sessions of Claude Code on this machine: found by name, size and time, never opened.

Source: docs/formats.md, "Claude Code".
"""

from __future__ import annotations

import heapq
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``modified`` is ISO 8601 in UTC; ``size`` in bytes; ``project`` the name of the folder
    that the session is kept in."""

    path: Path
    project: str
    modified: str
    size: int


def find_claude_sessions(home: Path, most: int = MOST) -> list[Found]:
    """Sessions under ``home``/.claude/projects, newest first, at most ``most``. Folders that
    cannot be read, links and empty files are passed over."""
    entries = (
        (entry.stat(follow_symlinks=False), Path(entry.path))
        for project in _scan(home / ".claude" / "projects")
        if project.is_dir(follow_symlinks=False)
        for entry in _scan(Path(project.path))
        if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False)
    )
    times = ((s.st_mtime, str(path), s.st_size) for s, path in entries if s.st_size > 0)
    return [
        Found(
            path=Path(path),
            project=Path(path).parent.name,
            modified=datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds"),
            size=size,
        )
        for when, path, size in heapq.nlargest(most, times)
    ]


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
