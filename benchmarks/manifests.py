"""Manifests of 1,000 calls over 10,000 messages, against the messages' own text.

    python -m benchmarks.manifests

Bars: all manifests and their blobs at most 3 times the text; a call that changes nothing at most
200 bytes.
"""

from __future__ import annotations

from benchmarks.common import history, report
from cyberagent.core.types import stored_json
from cyberagent.core.window import Item, Recorder, Window

CALLS, MESSAGES = 1_000, 10_000


def main() -> None:
    messages = history(MESSAGES)
    recorder = Recorder()
    tools = ({"name": "read_file", "description": "Read a file.", "parameters": {}},)
    size = 0
    for call in range(1, CALLS + 1):
        items = tuple(Item(m) for m in messages[: call * MESSAGES // CALLS])
        window = Window(system="You work.", items=items, tools=tools, params={"model": "m"})
        recorded = recorder.record(call, window)
        size += len(stored_json(recorded.manifest)) + sum(map(len, recorded.blobs.values()))
    again = recorder.record(CALLS + 1, window)
    idle = len(stored_json(again.manifest))
    text = sum(len(m.text.encode()) for m in messages)
    report(
        f"{CALLS:,} calls over {MESSAGES:,} messages",
        [
            ("text of the messages", f"{text:,} bytes"),
            ("manifests and blobs", f"{size:,} bytes"),
            ("a call that changes nothing", f"{idle} bytes"),
        ],
        within=size <= 3 * text and idle <= 200,
        text_bytes=text,
        manifest_bytes=size,
        ratio=round(size / text, 3),
        idle_bytes=idle,
    )


if __name__ == "__main__":
    main()
