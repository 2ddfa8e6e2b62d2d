"""The root anchor as fields of a form: what goes in comes out, whatever is in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.context_policy import normalize_root_task_anchor
from cyberagent.core.normal import strip
from tests.traces.anchored import ANCHOR, changed
from traces.anchor_form import AnchorErrors, anchor_of, fields_of, items, lines

PIECES = st.sampled_from(['"', "\\", "\\n", "\n", "\r", "\r\n", " ", "a", "é", "\u2028", "[", "1"])
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=30)
NORMAL = TEXTS.map(lambda t: strip(t.replace("\0", ""))).filter(bool)


def sent(text: str) -> str:
    """As a browser sends the value of a text area."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


@given(st.lists(NORMAL, max_size=6))
def test_a_list_comes_through_a_text_area_as_it_was(texts: list[str]) -> None:
    assert items(sent(lines(texts))) == texts


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("one\r\ntwo", ["one", "two"]),
        (" one \r\n\r\n\ttwo\r\n", ["one", "two"]),
        ('"Only English"', ['"Only English"']),
        ('"one\\ntwo"', ["one\ntwo"]),
        ('"one\\ntwo" and more', ['"one\\ntwo" and more']),
        ('"', ['"']),
        ('"broken\\"', ['"broken\\"']),
        ("", []),
    ],
)
def test_a_line_is_an_item(typed: str, meant: list[str]) -> None:
    assert items(typed) == meant


def test_an_anchor_goes_into_a_form_and_comes_out_the_same() -> None:
    odd = changed(constraints=["one\ntwo", '"a\\nb"', "<script>"], objective="a\nb")
    for value in (ANCHOR, odd):
        anchor = normalize_root_task_anchor(value)
        assert anchor_of({k: sent(v) for k, v in fields_of(anchor).items()}) == anchor


def test_all_fields_that_are_missing_are_named() -> None:
    with pytest.raises(AnchorErrors) as raised:
        anchor_of({"constraints": "x", "completion_criteria": "\u3000"})
    assert raised.value.fields.keys() == {"objective", "completion_criteria"}
