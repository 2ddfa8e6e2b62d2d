"""Token counts: exact where they can be, without a network, whatever the text."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberagent.core import tokens
from cyberagent.core.tokens import (
    IMAGE_TOKENS,
    MESSAGE_OVERHEAD,
    TablesMissing,
    count_message,
    count_parts,
    count_tools,
    counter_for,
    unpack_table,
)
from cyberagent.core.types import File, Image, Message, Reasoning, Text, ToolCall

GPT_4O = counter_for("openai", "gpt-4o")
GPT_4 = counter_for("openai", "gpt-4")


def plain(counter: tokens.TiktokenCounter, text: str) -> int:
    """tiktoken's own count, made by tiktoken from the table that was unpacked for it."""
    counter.count("")
    return len(tiktoken.get_encoding(counter.encoding).encode(text, disallowed_special=()))


@pytest.mark.parametrize(
    ("provider", "model", "encoding", "exact"),
    [
        ("openai", "gpt-4o-mini", "o200k_base", True),
        ("openai", "gpt-4.1-nano", "o200k_base", True),
        ("openai", "gpt-5", "o200k_base", True),
        ("openai", "o3-mini", "o200k_base", True),
        ("openai", "gpt-4-turbo", "cl100k_base", True),
        ("openai", "gpt-3.5-turbo", "cl100k_base", True),
        ("openai", "openai/gpt-4o", "o200k_base", True),
        ("openai", "gpt-oss-20b", "o200k_base", True),
        ("openai", "davinci", "o200k_base", False),
        ("openai", "deepseek-chat", "o200k_base", False),
        ("anthropic", "claude-sonnet-4-5", "o200k_base", False),
        ("scripted", "", "o200k_base", False),
    ],
)
def test_the_encoding_of_a_model(provider: str, model: str, encoding: str, exact: bool):
    counter = counter_for(provider, model)
    assert (counter.encoding, counter.exact) == (encoding, exact)


def test_known_counts():
    # "tiktoken is great!" is the example of tiktoken's own cookbook: 6 tokens in both encodings.
    assert GPT_4.count("tiktoken is great!") == 6
    assert GPT_4O.count("tiktoken is great!") == 6
    assert GPT_4O.count("") == 0


@given(st.text())
def test_ordinary_text_counts_as_tiktoken_counts_it(text: str):
    for counter in (GPT_4O, GPT_4):
        assert counter.count(text) == plain(counter, text)


def test_a_special_token_in_a_text_is_text():
    assert GPT_4O.count("<|endoftext|>") == plain(GPT_4O, "<|endoftext|>") > 1


def test_half_a_surrogate_pair_counts_as_the_replacement_character():
    assert GPT_4O.count("a\ud800b") == GPT_4O.count("a\ufffdb")


WORDS = st.lists(
    st.sampled_from(["word", "Word", "12345", " ", "\n", "  ", "\n\n", ". ", "don't", "中文", "!\n",
                     "\t", "é", "\r\n", "/", " \n "]),
    min_size=40, max_size=120,
).map("".join)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(WORDS, st.integers(min_value=20, max_value=60))
def test_a_text_cut_where_the_encodings_cut_counts_the_same(text: str, size: int):
    pieces = list(tokens._pieces(text, size))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= size
    joints = [(a[-1], b[0]) for a, b in itertools.pairwise(pieces)]
    if all((a.isalnum() and b in " \n") or (a == "\n" and b.isalnum()) for a, b in joints):
        for counter in (GPT_4O, GPT_4):
            encode = tiktoken.get_encoding(counter.encoding).encode_ordinary
            assert sum(len(encode(p)) for p in pieces) == len(encode(text))


def test_a_long_ordinary_text_counts_the_same():
    text = "The quick brown fox jumps over the lazy dog.\nIt costs 1,234; don't ask!\n" * 5_000
    assert len(text) > 3 * tokens.PIECE_CHARS
    for counter in (GPT_4O, GPT_4):
        assert counter.count(text) == plain(counter, text)


def test_millions_of_blanks_are_counted():
    # tiktoken itself overflows its stack on these.
    blanks = " " * 2_000_000 + "x"
    assert 10_000 < GPT_4O.count(blanks) < 50_000


# Messages and tools --------------------------------------------------------------------------


def test_a_message_counts_its_parts_and_a_fixed_overhead():
    message = Message(
        role="assistant",
        source="model",
        parts=(Reasoning("think"), Text("hello world"), ToolCall("id", "read_file", '{"a": 1}')),
    )
    parts = sum(map(GPT_4O.count, ("think", "hello world", "read_file", '{"a": 1}')))
    assert count_parts(GPT_4O, message.parts) == parts
    assert count_message(GPT_4O, message) == parts + MESSAGE_OVERHEAD


def test_images_and_binary_files_have_a_flat_estimate():
    image = Image(media_type="image/png", data="A" * 100_000)
    assert count_parts(GPT_4O, [image, Image(url="x")]) == 2 * IMAGE_TOKENS
    pdf = File("a.pdf", "application/pdf", data="A" * 100_000)
    assert count_parts(GPT_4O, [pdf]) == IMAGE_TOKENS + GPT_4O.count("a.pdf")
    assert count_parts(GPT_4O, [File("a", text="hello")]) == GPT_4O.count("a") + 1


class Counting:
    encoding, exact = "words", True

    def __init__(self) -> None:
        self.texts: list[str] = []

    def count(self, text: str) -> int:
        self.texts.append(text)
        return len(text.split())


def test_schemas_are_counted_once():
    counter, tools = Counting(), ({"name": "ls", "description": "a b c", "parameters": {}},)
    first = count_tools(counter, tools)
    assert count_tools(counter, ({**tools[0]},)) == first > 0
    assert len(counter.texts) == 1
    assert count_tools(counter, ()) == 0


# Tables --------------------------------------------------------------------------------------


def _unpack(folder: str) -> str:
    os.environ["CYBERAGENT_CACHE_DIR"] = folder
    return str(unpack_table("cl100k_base"))


def test_several_processes_unpack_at_once(tmp_path: Path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert set(pool.map(_unpack, [str(tmp_path)] * 3)) == {str(tmp_path)}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_table_is_unpacked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CYBERAGENT_CACHE_DIR", str(tmp_path))
    unpack_table("cl100k_base")
    (table,) = tmp_path.iterdir()
    whole = table.read_bytes()
    table.write_bytes(whole[:1000])
    unpack_table("cl100k_base")
    assert table.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CYBERAGENT_CACHE_DIR", str(tmp_path / "file" / "under"))
    with pytest.raises(TablesMissing, match="CYBERAGENT_CACHE_DIR"):
        unpack_table("cl100k_base")


OFFLINE = """
import socket
def refuse(*a, **k): raise AssertionError("the network was asked")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from cyberagent.core.tokens import counter_for
print(counter_for("openai", "gpt-4o").count("hello world"))
"""


def test_a_home_that_cannot_be_written_is_no_hindrance_and_no_network_is_asked(tmp_path: Path):
    (tmp_path / "file").write_text("")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "SYSTEMROOT")}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        env=keep | {"HOME": str(tmp_path / "file"), "TMPDIR": str(temporary)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("2", "")
    assert [p.name.split("-")[0] for p in temporary.iterdir()] == ["cyberagent"]
