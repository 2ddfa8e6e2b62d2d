"""Importing a transcript of 20,000 messages, parsing and rows together.

    python -m benchmarks.importing

Bar: at least 5,000 messages a second.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from benchmarks.common import product, report

COUNT, BAR = 20_000, 5_000


def transcript(count: int) -> str:
    """A chat-completions message list with a call and its result in each step."""
    messages = [{"role": "user", "content": "A long job"}]
    for n in range(count // 2):
        call = {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": f"src/m_{n}.py"})},
        }
        messages.append({"role": "assistant", "content": f"Step {n}.", "tool_calls": [call]})
        text = f"line {n} of this file tells what the module does\n" * 8
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": text})
    return json.dumps(messages[:count])


def main() -> None:
    with product(), tempfile.TemporaryDirectory() as folder:
        from cyberagent.trace.formats import read_transcript
        from traces.bundle import store_imports

        path = Path(folder) / "chat.json"
        path.write_text(transcript(COUNT))
        store_imports(read_transcript(path), None)  # the first one loads the token tables
        begun = time.perf_counter()
        imported = read_transcript(path)
        parsed = time.perf_counter()
        store_imports(imported, None)
        ended = time.perf_counter()
        rate = COUNT / (ended - begun)
        report(
            f"{COUNT:,} messages, {path.stat().st_size / 1e6:.1f} MB",
            [
                ("parsing, s", f"{parsed - begun:.2f}"),
                ("counting and rows, s", f"{ended - parsed:.2f}"),
                ("messages a second", f"{rate:,.0f}"),
            ],
            within=rate >= BAR,
            messages=COUNT,
            seconds=round(ended - begun, 2),
            per_second=round(rate),
        )


if __name__ == "__main__":
    main()
