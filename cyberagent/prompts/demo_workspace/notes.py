"""Pocket notes: add, list and search short notes."""

import sys

from store import load, save


def add(text):
    notes = load()
    # TODO: refuse empty notes
    notes.append({"id": len(notes) + 1, "text": text})
    save(notes)
    return notes[-1]


def search(word):
    # TODO: ignore case
    return [note for note in load() if word in note["text"]]


def main(arguments):
    command, *rest = arguments or ["list"]
    if command == "add":
        print(add(" ".join(rest)))
    elif command == "search":
        print(search(" ".join(rest)))
    else:
        for note in load():
            print(note["id"], note["text"])


if __name__ == "__main__":
    main(sys.argv[1:])
