"""Manifests: small, and enough to rebuild the very window that was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import NotFound
from cyberagent.core.types import Message, Text, stored_json, text_message
from cyberagent.core.window import (
    FULL_EVERY,
    BrokenManifest,
    Item,
    Recorder,
    Window,
    chain,
    expand,
    rebuild,
)
from tests.examples import examples

TOOLS = ({"name": "read_file", "description": "Read.", "parameters": {"type": "object"}},)


def stored(count: int, start: int = 1) -> list[Message]:
    return [
        text_message("user", f"text {n}", source="user", sequence=n, depth=n)
        for n in range(start, start + count)
    ]


def window(items: list[Item], system: str = "You work.", **params: object) -> Window:
    return Window(system=system, items=tuple(items), tools=TOOLS, params={"model": "m", **params})


class Calls:
    """Records windows one after the other and rebuilds any of them."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.manifests: dict[int, dict] = {}
        self.blobs: dict[str, bytes] = {}

    def record(self, made: Window) -> int:
        number = len(self.manifests) + 1
        recorded = self.recorder.record(number, made)
        self.manifests[number] = dict(recorded.manifest)
        self.blobs.update(recorded.blobs)
        return number

    def manifest(self, number: int) -> dict:
        if number not in self.manifests:
            raise NotFound("call", number)
        return self.manifests[number]

    def rebuild(self, number: int, messages: list[Message]) -> Window:
        expanded = expand(chain(number, self.manifest))
        return rebuild(expanded, {m.sequence: m for m in messages}, self.blobs)


def test_a_window_is_rebuilt_from_names_and_contents():
    messages = stored(4)
    shorter = replace(messages[1], parts=(Text("[Previous: used read_file]"),))
    inserted = text_message("user", "You are still the same agent.", source="framework")
    made = window(
        [
            Item(messages[0]),
            Item(shorter, "replaced", "micro", "keep_recent=8"),
            Item(messages[2]),
            Item(inserted, "inserted", "identity", "4 messages left"),
            Item(messages[3]),
        ],
        temperature=0.5,
    )
    calls = Calls()
    assert calls.rebuild(calls.record(made), messages) == made


def test_neighbouring_messages_are_one_range():
    calls = Calls()
    calls.record(window([Item(m) for m in stored(1000)]))
    assert calls.manifests[1]["i"] == [["w", 1, 1000]]


def test_a_call_that_changes_nothing_costs_at_most_200_bytes():
    calls = Calls()
    made = window([Item(m) for m in stored(10_000)])
    calls.record(made)
    calls.record(made)
    assert len(stored_json(calls.manifests[2])) <= 200
    assert "i" not in calls.manifests[2]


def test_growing_calls_stay_far_below_the_text_itself():
    messages = stored(2_000)
    calls = Calls()
    for n in range(1, 201):
        calls.record(window([Item(m) for m in messages[: n * 10]]))
    text = sum(len(m.text.encode()) for m in messages)
    total = sum(len(stored_json(m)) for m in calls.manifests.values())
    blobs = sum(len(b) for b in calls.blobs.values())
    assert total + blobs <= 3 * text
    assert calls.rebuild(200, messages).messages == tuple(messages)
    assert calls.rebuild(137, messages).messages == tuple(messages[:1370])


def test_no_more_deltas_than_the_bound_stand_between_full_manifests():
    calls = Calls()
    for _ in range(3 * FULL_EVERY):
        calls.record(window([Item(m) for m in stored(3)]))
    assert max(len(chain(n, calls.manifest)) for n in calls.manifests) == FULL_EVERY + 1


def test_the_same_content_is_stored_once():
    calls = Calls()
    made = window([Item(m) for m in stored(2)])
    assert len(calls.recorder.record(1, made).blobs) == 3
    assert calls.recorder.record(2, made).blobs == {}


def test_what_is_missing_is_named():
    calls = Calls()
    messages = stored(3)
    calls.record(window([Item(m) for m in messages]))
    with pytest.raises(BrokenManifest, match="message 3"):
        calls.rebuild(1, messages[:2])
    calls.blobs.clear()
    with pytest.raises(BrokenManifest, match="not stored"):
        calls.rebuild(1, messages)


def test_a_manifest_that_rests_on_itself_is_refused():
    with pytest.raises(BrokenManifest):
        chain(2, lambda n: {"b": n, "k": 0})


texts = st.text(st.characters(), max_size=20)  # lone surrogates and NUL included


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], list[Window]]:
    """Windows of one trace: each keeps a part of the one before and goes on."""
    messages = [
        text_message("user", draw(texts), source="user", sequence=n, depth=n) for n in range(1, 13)
    ]
    windows: list[Window] = []
    items: list[Item] = []
    for _ in range(draw(st.integers(1, 8))):
        items = items[: draw(st.integers(0, len(items)))]
        for n in draw(st.lists(st.integers(1, 12), max_size=6)):
            message = messages[n - 1]
            kind = draw(st.sampled_from(["whole", "replaced", "inserted"]))
            if kind == "whole":
                items.append(Item(message))
            elif kind == "replaced":
                new = replace(message, parts=(Text(draw(texts)),))
                items.append(Item(new, "replaced", draw(texts), draw(texts)))
            else:
                new = text_message("user", draw(texts), source="framework")
                items.append(Item(new, "inserted", draw(texts), draw(texts)))
        windows.append(window(list(items), system=draw(texts)))
    return messages, windows


@examples(300)
@given(histories())
def test_every_past_window_rebuilds_to_itself(case: tuple[list[Message], list[Window]]):
    messages, windows = case
    calls = Calls()
    for made in windows:
        calls.record(made)
    for number, made in enumerate(windows, 1):
        assert calls.rebuild(number, messages) == made
