"""Matches a regular expression against texts that arrive on standard input.

Run as a process of its own, since nothing but a kill stops a regular expression that backtracks
without end. It opens no file: the parent reads them, confined to the workspace, and sends each
as ``<bytes of name> <bytes of data>\\n`` + name + data. Standard library only.

The first input line is a JSON object: pattern, ignore_case, before, after, limit, line_chars.
The output is one JSON object: lines (``[name, number, text, is_match]``), more (True where
matches were left out), or error.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Iterator
from typing import IO, Any

MEMORY_BYTES = 1 << 30


def texts(stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    while header := stream.readline():
        name_size, data_size = map(int, header.split())
        name = stream.read(name_size).decode("utf-8", "surrogateescape")
        yield name, stream.read(data_size).decode("utf-8", "replace")


def search(order: dict[str, Any], stream: IO[bytes]) -> dict[str, Any]:
    pattern = re.compile(order["pattern"], re.IGNORECASE if order["ignore_case"] else 0)
    found: list[tuple[str, int, str, bool]] = []
    left = order["limit"]
    for name, text in texts(stream):
        lines = text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        hits: list[int] = []
        for number, line in enumerate(lines):
            if pattern.search(line.removesuffix("\r")):
                if left == 0:
                    return {"lines": found + around(name, lines, hits, order), "more": True}
                left -= 1
                hits.append(number)
        found += around(name, lines, hits, order)
    return {"lines": found, "more": False}


def around(
    name: str, lines: list[str], hits: list[int], order: dict[str, Any]
) -> list[tuple[str, int, str, bool]]:
    wanted = sorted(
        {
            n
            for hit in hits
            for n in range(hit - order["before"], hit + order["after"] + 1)
            if 0 <= n < len(lines)
        }
    )
    chosen, most = set(hits), order["line_chars"]
    return [(name, n + 1, short(lines[n].removesuffix("\r"), most), n in chosen) for n in wanted]


def short(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]}… (+{len(line) - most} characters)"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    order = json.loads(sys.stdin.buffer.readline())
    try:
        result = search(order, sys.stdin.buffer)
    except re.error as error:
        result = {"error": f"the pattern is not a regular expression: {error}"}
    except (MemoryError, RecursionError, OverflowError):
        result = {"error": "the pattern needs more memory than a search may use"}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
