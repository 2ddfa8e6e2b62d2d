"""Checks by hand: python -m tests.check_notes"""

import notes
import store


def check_add_numbers_notes(tmp_path):
    store.FILE = tmp_path / "notes.json"
    assert notes.add("one")["id"] == 1
    assert notes.add("two")["id"] == 2


# TODO: check that an id is not given twice after a note was deleted
