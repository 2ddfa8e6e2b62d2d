"""The one door to files: everything a tool opens lies inside the run's workspace.

:func:`resolve` follows every symlink and refuses what leaves. Opening then walks down from the
workspace, folder by folder, and follows no link on the way, so that a link that is put there
between the check and the opening leads nowhere. Source: docs/tools.md, "Files".
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from cyberagent.core.errors import InvalidInput, PathRefused, ToolFailed

MAX_FILE_BYTES = 10_000_000
"""Larger files are neither read whole nor written."""

MAX_PATH_CHARS = 4_096

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def root_of(workspace: Path | None) -> Path:
    """The workspace, resolved. Raises ToolFailed where the run has none."""
    if workspace is None:
        raise ToolFailed("this run has no workspace, so there are no files to work on")
    root = Path(os.path.realpath(workspace))
    if not root.is_dir():
        raise ToolFailed("the workspace folder of this run does not exist")
    return root


def resolve(workspace: Path | None, path: str, *, base: Path | None = None) -> Path:
    """The real, absolute path of ``path``, which may not exist yet.

    Relative paths start at ``base`` (default: the workspace). Raises PathRefused where it leaves
    the workspace by ``..``, as an absolute path or through a symlink, or cannot be a path.
    """
    root = root_of(workspace)
    if not path.strip():
        raise PathRefused("the path is empty; the workspace itself is `.`")
    if "\0" in path:
        raise PathRefused("a path cannot hold a NUL character")
    if len(path) > MAX_PATH_CHARS:
        raise PathRefused(f"the path is longer than {MAX_PATH_CHARS:,} characters")
    try:
        real = Path(os.path.realpath((base or root) / path))
    except (OSError, ValueError) as error:
        raise PathRefused(f"`{path}` is not a usable path: {_why(error)}") from None
    if real != root and root not in real.parents:
        raise PathRefused(
            f"`{path}` leaves the workspace; paths are relative to it, and links out of it are not "
            "followed"
        )
    return real


def shown(workspace: Path | None, real: Path) -> str:
    """A resolved path as models see it: relative to the workspace."""
    return str(real.relative_to(root_of(workspace)))


def kind_of(real: Path) -> Literal["file", "folder", "other", "nothing"]:
    """What stands at a resolved path; "nothing" also where that cannot be told."""
    try:
        mode = real.stat().st_mode
    except OSError:
        return "nothing"
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def read_bytes(workspace: Path | None, path: str) -> bytes:
    """The content of a regular file. Raises PathRefused or ToolFailed, in plain words."""
    real = resolve(workspace, path)
    root = root_of(workspace)
    if real == root:
        raise PathRefused(f"`{path}` is a folder; list it with glob_files")
    with _told(path), _folder(root, real.parent) as folder:
        handle = os.open(real.name, _READ, dir_fd=folder)
        try:
            _check_regular(os.fstat(handle), path)
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(MAX_FILE_BYTES)
        finally:
            os.close(handle)


def read_text(workspace: Path | None, path: str) -> str:
    """The text of a UTF-8 file, line ends and byte order mark as they are."""
    return decode(read_bytes(workspace, path), path)


def decode(data: bytes, path: str) -> str:
    """``data`` as text. Raises ToolFailed for binary files and other encodings."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ToolFailed(f"`{path}` is UTF-16 text; only UTF-8 can be read")
    if is_binary(data):
        raise ToolFailed(f"`{path}` is a binary file ({len(data):,} bytes)")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailed(
            f"`{path}` is not UTF-8 text: byte {data[error.start]:#04x} at offset {error.start:,}"
        ) from None


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:8_192]


def write_text(workspace: Path | None, path: str, text: str) -> bool:
    """Replace or create a file, whole or not at all; True if it is new.

    Missing folders are made; an existing file keeps its mode. Raises PathRefused for what is
    not a regular file, ToolFailed where it cannot be written.
    """
    data = text.encode("utf-8")
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(
            f"the content has {len(data):,} bytes; {MAX_FILE_BYTES:,} can be written"
        )
    real = resolve(workspace, path)
    root = root_of(workspace)
    if real == root or path.endswith("/"):
        raise PathRefused(f"`{path}` names a folder, not a file")
    with _told(path), _folder(root, real.parent, create=True) as folder:
        mode = _mode_to_keep(folder, real.name, path)
        _replace(folder, real.name, data, mode)
        return mode is None


def _mode_to_keep(folder: int, name: str, path: str) -> int | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_regular(found, path)
    if not found.st_mode & 0o222:
        raise ToolFailed(f"`{path}` is read-only")
    return stat.S_IMODE(found.st_mode)


def _replace(folder: int, name: str, data: bytes, mode: int | None) -> None:
    temporary = f".{secrets.token_hex(8)}.tmp"
    handle = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


@contextmanager
def _folder(root: Path, real: Path, *, create: bool = False) -> Generator[int]:
    """A handle on the folder ``real``, reached from ``root`` without following a link."""
    handle = os.open(root, _FOLDER)
    try:
        for part in real.relative_to(root).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            inner = os.open(part, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _check_regular(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise PathRefused(f"`{path}` is a folder; list it with glob_files")
    if not stat.S_ISREG(found.st_mode):
        raise PathRefused(f"`{path}` is not a regular file")
    if found.st_size > MAX_FILE_BYTES:
        raise PathRefused(
            f"`{path}` has {found.st_size:,} bytes; files above {MAX_FILE_BYTES:,} are not read "
            "whole"
        )


@contextmanager
def _told(path: str) -> Generator[None]:
    """Turn the system's errors into words for the model, without a path of this machine."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailed(f"there is no `{path}` in the workspace") from None
    except OSError as error:
        raise ToolFailed(f"`{path}`: {_why(error)}") from None


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
