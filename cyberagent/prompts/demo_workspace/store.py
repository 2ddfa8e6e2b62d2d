"""Where the notes are kept: one JSON file beside the program."""

import json
from pathlib import Path

FILE = Path(__file__).with_name("notes.json")


def load():
    if not FILE.exists():
        return []
    return json.loads(FILE.read_text(encoding="utf-8"))


def save(notes):
    # TODO: write to a temporary file first, a crash here loses every note
    FILE.write_text(json.dumps(notes, indent=2), encoding="utf-8")
