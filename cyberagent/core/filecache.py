"""Files that the model has read, so that compaction can give the newest back.

Before a pass the cache is snapshotted and cleared; after it the newest files come back, shortened,
as text of the window. Source: docs/compaction.md, "File cache".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from cyberagent.core.types import Json, ToolCall, clean_text, sha256
from cyberagent.core.wording import label

MAX_ENTRIES = 100
MAX_BYTES = 25 * 1024 * 1024
MAX_FILES_RESTORED = 5
MAX_CHARS_PER_FILE = 4_000


@dataclass(frozen=True, slots=True)
class CachedFile:
    """``content`` as the model was shown it; ``sequence`` of the message that shows it (0: not
    stored yet)."""

    path: str
    content: str
    sequence: int = 0

    @property
    def size(self) -> int:
        """Bytes of the content in UTF-8."""
        return len(clean_text(self.content).encode())

    @property
    def sha256(self) -> str:
        return sha256(clean_text(self.content).encode())


class FileCache:
    """At most 100 files and 25 MB; the one not used for longest goes first. A file that is
    larger than that alone is not kept."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._files: OrderedDict[str, CachedFile] = OrderedDict()
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    @property
    def bytes(self) -> int:
        return self._bytes

    def put(self, path: str, content: str, sequence: int = 0) -> None:
        """Remember ``content`` as what ``path`` holds, in place of what was known of it."""
        self.forget(path)
        file = CachedFile(path, content, sequence)
        if file.size > self._max_bytes or self._max_entries < 1:
            return
        self._files[path] = file
        self._bytes += file.size
        while len(self._files) > self._max_entries or self._bytes > self._max_bytes:
            _, oldest = self._files.popitem(last=False)
            self._bytes -= oldest.size

    def get(self, path: str) -> CachedFile | None:
        """The file, which now counts as just used."""
        if path in self._files:
            self._files.move_to_end(path)
        return self._files.get(path)

    def forget(self, path: str) -> None:
        """Drop a file that was written, say."""
        if file := self._files.pop(path, None):
            self._bytes -= file.size

    def snapshot(self) -> tuple[CachedFile, ...]:
        """Every file, the newest first."""
        return tuple(reversed(self._files.values()))

    def clear(self) -> None:
        self._files.clear()
        self._bytes = 0

    def restore(self, files: Sequence[CachedFile]) -> None:
        """Put files of a snapshot back (newest first), as if read in that order."""
        for file in reversed(files):
            self.put(file.path, file.content, file.sequence)


READING_TOOL = "read_file"


def reading_key(call: ToolCall) -> str | None:
    """What a call reads, as the cache names it: the path, with the part of the file where the
    call named one. None for calls that read no file."""
    arguments = call.parsed() if call.name == READING_TOOL else None
    if not isinstance(arguments, dict):
        return None
    given = cast("dict[str, Json]", arguments)
    path = given.get("path")
    if not isinstance(path, str) or not path:
        return None
    part = [f"{name} {given[name]}" for name in ("offset", "limit") if name in given]
    return f"{path} ({', '.join(part)})" if part else path


def unchanged_stub(
    file: CachedFile | None, content: str, in_window: Callable[[int], bool], language: str = "en"
) -> str | None:
    """The short answer to a second reading of an unchanged file; None where the whole content
    must be shown: it changed, was never read, or has left the window. ``in_window`` tells
    whether the message with that sequence stands in the window, unedited."""
    if file is None or file.content != content or not in_window(file.sequence):
        return None
    return label(language, "file_unchanged").format(path=_one_line(file.path))


def restored(files: Sequence[CachedFile], language: str = "en") -> list[tuple[CachedFile, str]]:
    """The newest files of a snapshot, at most 5, each with the block that brings it back: at most
    4,000 characters of its content, and a line that says how much is left out."""
    blocks: list[tuple[CachedFile, str]] = []
    for file in files[:MAX_FILES_RESTORED]:
        lines = [label(language, "file_restored").format(path=_one_line(file.path))]
        lines.append(clean_text(file.content[:MAX_CHARS_PER_FILE]))
        if (left := len(file.content) - MAX_CHARS_PER_FILE) > 0:
            lines.append(label(language, "context_cut").format(count=left))
        blocks.append((file, "\n".join(lines)))
    return blocks


def _one_line(path: str) -> str:
    return " ".join(clean_text(path).split())
