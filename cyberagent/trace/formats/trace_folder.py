"""A whole trace as a folder, or as one zip file: nothing is lost on the way out and in again.

    meta.json  goal.json  messages.jsonl  events.jsonl  calls.jsonl  blobs/{sha256}
    children/{id}/…  the same again, for each sub-agent

Source: docs/formats.md, "Trace folder".
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cyberagent.core.errors import ImportRefused, InvalidInput
from cyberagent.core.types import Json, sha256, stored_json
from cyberagent.trace.formats.reading import JsonReader, is_list
from cyberagent.trace.formats.trace_values import (
    an_object,
    call_from_json,
    call_to_json,
    event_value,
    message_from_json,
    revisions_from_json,
    state_from_json,
    state_to_json,
)
from cyberagent.trace.formats.values import Imported, Notes, TraceBundle

NAME = "trace"
MAX_UNPACKED = 400 * 1024 * 1024
"""Bytes that a trace may have unpacked, over all its files and children."""
MAX_FILES = 200_000
MAX_CHILDREN_DEPTH = 20
_HASH = re.compile(r"[0-9a-f]{64}")
_CHILD = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A zip keeps times; a fixed one makes equal traces equal files. It is the earliest a zip can hold.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_T = TypeVar("_T")


# Writing -------------------------------------------------------------------------------------


def files_of(bundle: TraceBundle, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Every file of the export, as relative POSIX path and content, in a fixed order."""
    try:
        meta = state_to_json(bundle.state) | {"counts": _counts(bundle)}
        names = _child_names(bundle.children)
        if bundle.anchors:
            meta["anchors"] = [r.to_json() for r in bundle.anchors]
        yield prefix + "meta.json", _document(meta | {"children": names})
        yield prefix + "goal.json", _document(bundle.goals)
        yield prefix + "messages.jsonl", _lines(m.to_json() for m in bundle.messages)
        yield prefix + "events.jsonl", _lines(e.to_json() for e in bundle.events)
        yield prefix + "calls.jsonl", _lines(call_to_json(c) for c in bundle.calls)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"trace {bundle.state.id} cannot be written: {error}") from None
    for name in sorted(bundle.blobs):
        yield f"{prefix}blobs/{name}", bundle.blobs[name]
    for name, child in zip(names, bundle.children, strict=True):
        yield from files_of(child, f"{prefix}children/{name}/")


def _counts(bundle: TraceBundle) -> dict[str, int]:
    return {
        "messages": len(bundle.messages),
        "events": len(bundle.events),
        "calls": len(bundle.calls),
        "blobs": len(bundle.blobs),
    }


def _child_names(children: Iterable[TraceBundle]) -> list[str]:
    """Folder names of child traces: their ids, or their numbers where they have none yet. The
    first export's id is kept, so that exporting an imported trace gives the same folders."""
    names: list[str] = []
    for number, child in enumerate(children, 1):
        name = str(child.state.context.get("original_id") or child.state.id)
        usable = _CHILD.fullmatch(name) and name not in names
        names.append(name if usable else f"child-{number}")
    return names


def _document(value: Json) -> bytes:
    return json.dumps(
        json.loads(stored_json(value)), sort_keys=True, indent=1, allow_nan=False
    ).encode() + b"\n"  # fmt: skip


def _lines(values: Iterable[Json]) -> bytes:
    return "".join(stored_json(value) + "\n" for value in values).encode()


def write_folder(bundle: TraceBundle, folder: Path) -> Path:
    """Write the trace as ``folder``; a folder of that name is replaced whole. Files appear all
    at once: they are written beside it, then renamed. Raises InvalidInput where a value cannot
    be written; then nothing is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        new, old = work / "new", work / "old"
        for name, data in files_of(bundle):
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if folder.exists():
            folder.replace(old)
        new.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def export_zip(bundle: TraceBundle) -> bytes:
    """The same files as one zip; equal traces give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files_of(bundle):
            info = zipfile.ZipInfo(name, _ZIP_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return out.getvalue()


# Reading -------------------------------------------------------------------------------------


class _Files(Protocol):
    def read(self, name: str, limit: int) -> bytes | None:
        """The file's content, cut after ``limit`` + 1 bytes; None where there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the files directly in ``folder``."""
        ...


@dataclass(slots=True)
class _Folder:
    root: Path

    def read(self, name: str, limit: int) -> bytes | None:
        path = self.root / name
        if path.is_symlink() or not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(limit + 1)

    def names(self, folder: str) -> list[str]:
        path = self.root / folder
        return sorted(p.name for p in path.iterdir()) if path.is_dir() else []


@dataclass(slots=True)
class _Zip:
    """Members are only ever read into memory, by names that we ask for: none is unpacked."""

    archive: zipfile.ZipFile
    prefix: str = ""
    members: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def __post_init__(self) -> None:
        names = self.archive.namelist()
        if len(names) > MAX_FILES:
            raise InvalidInput(f"the zip has {len(names):,} files; at most {MAX_FILES:,} are read")
        metas = [n for n in names if n == "meta.json" or n.endswith("/meta.json")]
        shortest = min(metas, key=lambda n: n.count("/"), default="meta.json")
        self.prefix = shortest.removesuffix("meta.json")
        for name in names:
            folder, _, base = name.rpartition("/")
            if base:
                self.members.setdefault(folder, []).append(base)

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with self.archive.open(self.prefix + name) as file:
                return file.read(limit + 1)
        except KeyError:
            return None
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as e:
            raise InvalidInput(f"{name} cannot be read: {e}") from None

    def names(self, folder: str) -> list[str]:
        return sorted(self.members.get((self.prefix + folder).rstrip("/"), []))


def is_trace(path: Path) -> bool:
    """Whether ``path`` is a folder or a zip that this module can try to read."""
    return (path / "meta.json").is_file() if path.is_dir() else zipfile.is_zipfile(path)


def read_bundle(path: Path) -> TraceBundle:
    """The trace in a folder or a zip. Raises ImportRefused where a file is missing, malformed,
    too large, or does not fit the others."""
    try:
        if path.is_dir():
            return _Reader(_Folder(path)).bundle("", 0)
        with zipfile.ZipFile(path) as archive:
            return _Reader(_Zip(archive)).bundle("", 0)
    except InvalidInput as error:
        raise ImportRefused(f"{path.name}: {error}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise ImportRefused(f"{path.name} cannot be read: {error}") from None


def read(path: Path) -> Imported:
    """:func:`read_bundle` with the account of an import."""
    bundle = read_bundle(path)
    branches = {
        (index, m.branch_id)
        for index, trace in enumerate(bundle.walk()) for m in trace.messages if m.branch_id
    }  # fmt: skip
    return Imported(format=NAME, trace=bundle, side_branches=len(branches))


@dataclass(slots=True)
class _Reader:
    files: _Files
    left: int = MAX_UNPACKED

    def bundle(self, prefix: str, depth: int) -> TraceBundle:
        if depth > MAX_CHILDREN_DEPTH:
            raise InvalidInput(f"child traces nest deeper than {MAX_CHILDREN_DEPTH}")
        meta = an_object(self._json(prefix + "meta.json"), f"{prefix}meta.json")
        found = TraceBundle(
            state=state_from_json(meta),
            messages=self._lines(prefix + "messages.jsonl", message_from_json),
            events=self._lines(prefix + "events.jsonl", event_value),
            calls=self._lines(prefix + "calls.jsonl", call_from_json),
            blobs=self._blobs(f"{prefix}blobs/"),
            goals=self._goals(prefix + "goal.json"),
            anchors=revisions_from_json(meta.get("anchors", []), f"{prefix}meta.json"),
        )
        if meta.get("counts") != _counts(found):
            raise InvalidInput(f"{prefix}meta.json counts other rows than there are: it was cut")
        return replace(found.checked(), children=self._children(meta, prefix, depth))

    def _children(
        self, meta: Mapping[str, Any], prefix: str, depth: int
    ) -> tuple[TraceBundle, ...]:
        names = meta.get("children", [])
        if not is_list(names) or not all(isinstance(n, str) and _CHILD.fullmatch(n) for n in names):
            raise InvalidInput(f"{prefix}meta.json has malformed children")
        return tuple(self.bundle(f"{prefix}children/{name}/", depth + 1) for name in names)

    def _goals(self, name: str) -> Mapping[str, Json] | None:
        value = self._json(name)
        return None if value is None else an_object(value, name)

    def _blobs(self, folder: str) -> dict[str, bytes]:
        blobs: dict[str, bytes] = {}
        for name in self.files.names(folder):
            if name.startswith("."):  # what file managers leave behind
                continue
            if not _HASH.fullmatch(name):
                raise InvalidInput(f"{folder}{name[:80]} is not named by a hash")
            data = self._read(folder + name)
            if sha256(data) != name:
                raise InvalidInput(f"the content of {folder}{name} was changed")
            blobs[name] = data
        return blobs

    def _lines(self, name: str, made: Callable[[Json, str], _T]) -> tuple[_T, ...]:
        lines = self._read(name).split(b"\n")
        if lines[-1].strip():
            raise InvalidInput(f"the last line of {name} is cut off")
        return tuple(
            made(self._value(line, f"{name} line {number}"), f"{name} line {number}")
            for number, line in enumerate(lines[:-1], 1)
        )

    def _json(self, name: str) -> Json:
        return self._value(self._read(name), name)

    def _value(self, data: bytes, where: str) -> Json:
        notes = Notes()
        try:
            value = JsonReader(notes).parse(data)
        except ValueError as error:
            raise InvalidInput(f"{where}: {error}") from None
        if notes.warned:
            raise InvalidInput(f"{where}: {notes.warnings()[0]}")
        return value

    def _read(self, name: str) -> bytes:
        data = self.files.read(name, self.left)
        if data is None:
            raise InvalidInput(f"there is no {name} in it")
        self.left -= len(data)
        if self.left < 0:
            raise InvalidInput(f"more than {MAX_UNPACKED // 1_048_576:,} MB unpacked")
        return data
