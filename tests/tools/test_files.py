"""File tools: what they show and change, and that nothing outside the workspace is touched."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cyberagent.core.errors import PathRefused
from cyberagent.core.ports import ToolContext
from cyberagent.tools.builtin import files
from cyberagent.tools.builtin.files import (
    FILE_TOOLS,
    edit_file,
    glob_files,
    read_file,
    search_files,
    write_file,
)
from cyberagent.tools.globs import matches
from cyberagent.tools.registry import Registry
from cyberagent.tools.workspace import resolve
from tests.tools.helpers import error, make_context, ok

SECRET = "outside-secret-7d1"
MARKER = "outside-marker-51c"


@pytest.fixture
def room(tmp_path: Path) -> ToolContext:
    """A workspace with links of every kind; beside it, files that nobody may reach."""
    outside, work = tmp_path / "outside", tmp_path / "work"
    (outside / "deep").mkdir(parents=True)
    (outside / MARKER).touch()
    (outside / "secret.txt").write_text(SECRET)
    (outside / "deep" / "secret.txt").write_text(SECRET)
    (tmp_path / "work-twin").mkdir()
    (tmp_path / "work-twin" / "secret.txt").write_text(SECRET)
    (work / "src" / "inner").mkdir(parents=True)
    (work / "src" / "a.py").write_text("def main():\n    pass\n# TODO one\n")
    (work / "src" / "inner" / "b.py").write_text("x = 1  # TODO two\n")
    (work / "notes.md").write_text("hello\nTODO three\n")
    (work / "link_file").symlink_to(outside / "secret.txt")
    (work / "link_folder").symlink_to(outside)
    (work / "link_up").symlink_to("..")
    (work / "link_in").symlink_to("src")
    (work / "link_note").symlink_to("notes.md")
    (work / "loop").symlink_to("loop")
    (work / "dangling").symlink_to(outside / "new.txt")
    (work / "src" / "chain").symlink_to("../link_folder")
    return make_context(work)


def outside_of(context: ToolContext) -> dict[str, bytes]:
    assert context.workspace is not None
    base = context.workspace.parent
    files = [p for f in ("outside", "work-twin") for p in (base / f).rglob("*") if p.is_file()]
    return {str(p.relative_to(base)): p.read_bytes() for p in files}


# Confinement ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "src/../../outside/secret.txt",
        "link_file",
        "link_folder/secret.txt",
        "link_folder/deep/../secret.txt",
        "link_up/outside/secret.txt",
        "src/chain/secret.txt",
        "link_in/../../outside/secret.txt",
        "../work-twin/secret.txt",
        "/etc/hostname",
        "//etc/hostname",
        "dangling",
        "",
        "   ",
        "a\0b",
        "a" * 5_000,
    ],
)
async def test_a_path_that_leaves_the_workspace_is_neither_read_nor_written(
    room: ToolContext, path: str
) -> None:
    before = outside_of(room)
    assert SECRET not in await error(read_file, room, path=path)
    await error(write_file, room, path=path, content="changed")
    await error(edit_file, room, path=path, old=SECRET, new="changed")
    assert outside_of(room) == before


pieces = st.sampled_from(
    [
        "..", ".", "", "src", "a.py", "inner", "link_file", "link_folder", "link_up", "link_in",
        "loop", "dangling", "chain", "outside", "work-twin", "work", "secret.txt", "deep", "new",
        "new.txt", "\udcff", "~", "*",
    ]
)  # fmt: skip


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(parts=st.lists(pieces | st.text(max_size=4), min_size=1, max_size=7), absolute=st.booleans())
def test_no_path_reaches_outside(room: ToolContext, parts: list[str], absolute: bool) -> None:
    assert room.workspace is not None
    before = outside_of(room)
    path = "/".join(parts)
    if absolute:
        path = f"{room.workspace}/{path}"
    try:
        real = resolve(room.workspace, path)
    except PathRefused:
        pass
    else:
        assert room.workspace.resolve() in (real, *real.parents)
        assert real == Path(os.path.realpath(real))
    registry = Registry(FILE_TOOLS)
    calls = {
        "read_file": {"path": path},
        "search_files": {"pattern": SECRET, "path": path},
        "glob_files": {"pattern": "**/*", "path": path},
        "write_file": {"path": path + "/created", "content": "x"},
    }
    for name, arguments in calls.items():
        outcome = asyncio.run(registry.call(name, json.dumps(arguments), room))
        assert SECRET not in outcome.text.replace(repr(SECRET), "")
        assert "unexpectedly" not in outcome.text
        assert MARKER not in outcome.text
    assert outside_of(room) == before


async def test_a_link_put_in_place_of_a_folder_after_the_check_leads_nowhere(
    room: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cyberagent.tools import workspace

    assert room.workspace is not None
    real = workspace.resolve

    def resolve_then_swap(root: Path | None, path: str) -> Path:
        found = real(root, path)
        folder = room.workspace / "src"  # type: ignore[operator]
        if not folder.is_symlink():
            folder.rename(folder.with_name("moved"))
            folder.symlink_to("../outside")
        return found

    monkeypatch.setattr(workspace, "resolve", resolve_then_swap)
    (room.workspace / "src" / "secret.txt").write_text("inside")
    assert SECRET not in await error(read_file, room, path="src/secret.txt")
    await error(write_file, room, path="src/secret.txt", content="changed")
    assert outside_of(room)["outside/secret.txt"] == SECRET.encode()


async def test_links_within_the_workspace_are_followed(room: ToolContext) -> None:
    assert room.workspace is not None
    assert "hello" in await ok(read_file, room, path="link_note")
    assert "TODO one" in await ok(read_file, room, path="link_in/a.py")
    await ok(write_file, room, path="link_note", content="new\n")
    assert (room.workspace / "notes.md").read_text() == "new\n"
    assert (room.workspace / "link_note").is_symlink()


async def test_an_absolute_path_inside_is_the_same_file(room: ToolContext) -> None:
    assert "hello" in await ok(read_file, room, path=f"{room.workspace}/notes.md")


async def test_without_a_workspace_there_are_no_files(tmp_path: Path) -> None:
    assert "no workspace" in await error(read_file, make_context(None), path="a")
    gone = make_context(tmp_path / "gone")
    assert "does not exist" in await error(read_file, gone, path="a")


# Reading -------------------------------------------------------------------------------------


async def test_lines_are_numbered_and_the_rest_is_announced(room: ToolContext) -> None:
    assert room.workspace is not None
    (room.workspace / "many").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    assert await ok(read_file, room, path="many", offset=9) == "     9\tline 9\n    10\tline 10"
    part = await ok(read_file, room, path="many", offset=2, limit=2)
    assert part == "     2\tline 2\n     3\tline 3\n[lines 2-3 of 10; go on with offset=4]"
    assert "has 10 lines" in await error(read_file, room, path="many", offset=11)
    assert "1 or more" in await error(read_file, room, path="many", offset=0)


async def test_reading_stops_at_its_own_size_limit_and_says_where(room: ToolContext) -> None:
    assert room.workspace is not None
    (room.workspace / "wide").write_text(("x" * 5_000 + "\n") * 60)
    text = await ok(read_file, room, path="wide")
    first, *_, last = text.split("\n")
    assert first == "     1\t" + "x" * 2_000 + "… (+3000 characters)"
    # 100,000 characters hold 49 rows of 7 + 2,000 + 20 and a line end.
    assert last == "[lines 1-49 of 60; go on with offset=50]"


async def test_crlf_and_a_byte_order_mark_are_not_shown(room: ToolContext) -> None:
    assert room.workspace is not None
    (room.workspace / "dos").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert await ok(read_file, room, path="dos") == "     1\tone\n     2\ttwo"
    (room.workspace / "empty").write_bytes(b"")
    assert await ok(read_file, room, path="empty") == "[the file is empty]"


async def test_what_is_not_a_text_file_is_refused_with_the_reason(room: ToolContext) -> None:
    assert room.workspace is not None
    os.mkfifo(room.workspace / "pipe")
    (room.workspace / "binary").write_bytes(b"ab\0cd")
    (room.workspace / "latin").write_bytes("caf\u00e9".encode("latin-1"))
    (room.workspace / "wide").write_bytes("hi".encode("utf-16"))
    with (room.workspace / "huge").open("wb") as file:
        file.truncate(10_000_001)
    told = {
        "pipe": "not a regular file",
        "binary": "a binary file (5 bytes)",
        "latin": "not UTF-8 text: byte 0xe9 at offset 3",
        "wide": "UTF-16",
        "huge": "10,000,001 bytes",
        "src": "is a folder",
        ".": "is a folder",
        "nowhere": "there is no `nowhere`",
        "notes.md/x": "notes.md/x",
        "loop": "loop",
    }
    for path, reason in told.items():
        assert reason in await error(read_file, room, path=path)
    assert "not a regular file" in await error(write_file, room, path="pipe", content="")
    assert "is a folder" in await error(write_file, room, path="src", content="")


# Globs ---------------------------------------------------------------------------------------


async def test_globs_list_sorted_paths_and_enter_no_links(room: ToolContext) -> None:
    assert await ok(glob_files, room, pattern="**/*.py") == "src/a.py\nsrc/inner/b.py"
    assert await ok(glob_files, room, pattern="*.{md,py}") == "notes.md"
    assert await ok(glob_files, room, pattern="*", path="src") == "src/a.py\nsrc/chain\nsrc/inner/"
    assert await ok(glob_files, room, pattern="src/**") == (
        "src/\nsrc/a.py\nsrc/chain\nsrc/inner/\nsrc/inner/b.py"
    )
    assert "nothing fits" in await ok(glob_files, room, pattern="*.rs")


async def test_globs_cannot_climb(room: ToolContext) -> None:
    for pattern in ("../*", "/etc/*", "src/../../*", "", "a\0"):
        await error(glob_files, room, pattern=pattern)
    assert "not a folder" in await error(glob_files, room, pattern="*", path="notes.md")
    assert "not there" in await error(glob_files, room, pattern="*", path="nowhere")


async def test_a_long_listing_says_how_much_is_missing(room: ToolContext) -> None:
    assert room.workspace is not None
    (room.workspace / "many").mkdir()
    for n in range(1_005):
        (room.workspace / "many" / f"{n:04}").touch()
    lines = (await ok(glob_files, room, pattern="many/*")).split("\n")
    assert lines[999] == "many/0999"
    assert lines[1000:] == ["[5 more left out; use a narrower pattern]"]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**/c.py", "a/c.py", True),
        ("a/**/c.py", "a/x/y/c.py", True),
        ("**/*.{a,b{c,d}}", "x.bd", True),
        ("[!a]?", "ba", True),
        ("[!a]?", "ab", False),
        ("*a*a*a*a*a*a*a*a*a*a*a*a*b", "a" * 200, False),
        ("**/" * 60 + "x", "/".join("a" * 90), False),
    ],
)
def test_globs_match_folder_by_folder_and_in_no_time(pattern: str, path: str, fits: bool) -> None:
    assert matches(pattern, path) is fits


# Searching -----------------------------------------------------------------------------------


async def test_matches_come_with_path_and_line(room: ToolContext) -> None:
    assert await ok(search_files, room, pattern=r"TODO \w+") == (
        "notes.md:2: TODO three\nsrc/a.py:3: # TODO one\nsrc/inner/b.py:1: x = 1  # TODO two"
    )
    assert await ok(search_files, room, pattern="todo one", glob="*.py", ignore_case=True) == (
        "src/a.py:3: # TODO one"
    )
    assert await ok(search_files, room, pattern="pass", path="src/a.py", context_lines=1) == (
        "src/a.py-1- def main():\nsrc/a.py:2:     pass\nsrc/a.py-3- # TODO one"
    )
    assert await ok(search_files, room, pattern="x", glob="inner/*", path="src") == (
        "src/inner/b.py:1: x = 1  # TODO two"
    )
    assert await ok(search_files, room, pattern="nowhere") == "[no match]"


async def test_a_search_shows_200_matches_and_says_that_there_are_more(room: ToolContext) -> None:
    assert room.workspace is not None
    (room.workspace / "log").write_text("hit\n" * 201)
    lines = (await ok(search_files, room, pattern="^hit$")).split("\n")
    assert lines[199] == "log:200: hit"
    assert lines[200:] == ["[more matches left out; narrow the pattern, `path` or `glob`]"]
    (room.workspace / "log").write_text("hit\n" * 200)
    assert (await ok(search_files, room, pattern="^hit$")).endswith("log:200: hit")


async def test_a_pattern_without_end_is_stopped(
    room: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room.workspace is not None
    monkeypatch.setattr(files, "SEARCH_SECONDS", 0.5)
    (room.workspace / "bad").write_text("a" * 40 + "b\n")
    assert "stopped after 0.5 s" in await error(search_files, room, pattern="(a+)+$")


async def test_bad_patterns_and_odd_files_are_told(room: ToolContext) -> None:
    assert room.workspace is not None
    assert "not a regular expression" in await error(search_files, room, pattern="(")
    assert "from 0 to 20" in await error(search_files, room, pattern="a", context_lines=21)
    assert "not there" in await error(search_files, room, pattern="a", path="nowhere")
    (room.workspace / "binary").write_bytes(b"TODO\0")
    (room.workspace / "latin").write_bytes(b"TODO \xe9\n")
    with (room.workspace / "huge").open("wb") as file:
        file.truncate(10_000_001)
    text = await ok(search_files, room, pattern="^TODO", glob="*i*")
    assert text.startswith("latin:1: TODO \ufffd")
    assert "binary" not in text
    text = await ok(search_files, room, pattern="^TODO", glob="huge")
    assert text.startswith("[no match]\n[not searched: 1; the first: `huge` has 10,000,001 bytes")


# Writing -------------------------------------------------------------------------------------


async def test_writing_makes_folders_and_says_what_it_did(room: ToolContext) -> None:
    assert room.workspace is not None
    text = await ok(write_file, room, path="new/deep/a.txt", content="\u4f60\u597d\nx")
    assert text == "created new/deep/a.txt (lines: 2, bytes: 8)"
    assert (room.workspace / "new/deep/a.txt").read_bytes() == "\u4f60\u597d\nx".encode()
    text = await ok(write_file, room, path="new/deep/a.txt", content="")
    assert text == "replaced new/deep/a.txt (lines: 0, bytes: 0)"


async def test_a_replaced_file_keeps_its_mode_and_leaves_nothing_behind(room: ToolContext) -> None:
    assert room.workspace is not None
    script = room.workspace / "run.sh"
    script.write_text("old\n")
    script.chmod(0o750)
    before = sorted(p.name for p in room.workspace.iterdir())
    await ok(write_file, room, path="run.sh", content="new\n")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert sorted(p.name for p in room.workspace.iterdir()) == before
    script.chmod(0o440)
    assert "read-only" in await error(write_file, room, path="run.sh", content="x")
    assert script.read_text() == "new\n"


async def test_a_hard_link_to_a_file_outside_is_not_written_through(room: ToolContext) -> None:
    assert room.workspace is not None
    outside = room.workspace.parent / "outside" / "secret.txt"
    os.link(outside, room.workspace / "hard")
    await ok(write_file, room, path="hard", content="changed")
    assert outside.read_text() == SECRET


async def test_content_that_is_too_large_changes_nothing(room: ToolContext) -> None:
    assert room.workspace is not None
    assert "10,000,001 bytes" in await error(
        write_file, room, path="notes.md", content="x" * 10_000_001
    )
    assert (room.workspace / "notes.md").read_text() == "hello\nTODO three\n"


async def test_an_edit_replaces_the_one_place(room: ToolContext) -> None:
    assert room.workspace is not None
    text = await ok(edit_file, room, path="src/a.py", old="    pass", new="    return 1")
    assert text == "edited src/a.py: 1 place, at line 2"
    assert (room.workspace / "src/a.py").read_text() == "def main():\n    return 1\n# TODO one\n"


async def test_an_edit_that_is_not_clear_changes_nothing(room: ToolContext) -> None:
    assert room.workspace is not None
    path = room.workspace / "twice"
    path.write_text("a\nb\na\n")
    told = await error(edit_file, room, path="twice", old="a", new="c")
    assert "stands 2 times" in told and "lines 1, 3" in told
    assert "does not stand" in await error(edit_file, room, path="twice", old="z", new="c")
    assert "empty" in await error(edit_file, room, path="twice", old="", new="c")
    assert "the same" in await error(edit_file, room, path="twice", old="a", new="a")
    assert path.read_text() == "a\nb\na\n"
    text = await ok(edit_file, room, path="twice", old="a", new="c", replace_all=True)
    assert text == "edited twice: 2 places, the first at line 1"
    assert path.read_text() == "c\nb\nc\n"


async def test_an_edit_keeps_crlf_and_byte_order_mark(room: ToolContext) -> None:
    assert room.workspace is not None
    path = room.workspace / "dos"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    await ok(edit_file, room, path="dos", old="one\ntwo", new="1\n2")
    assert path.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"
