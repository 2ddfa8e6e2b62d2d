"""The terminal: real pipelines, what is refused, and that nothing outlives or leaves it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cyberagent.core.ports import ToolContext
from cyberagent.tools import commands, pipeline
from cyberagent.tools.builtin.terminal import terminal
from cyberagent.tools.registry import Registry
from tests.tools.helpers import call, error, make_context, ok

SECRET = "outside-secret-93b"


@pytest.fixture
def room(tmp_path: Path) -> ToolContext:
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET + "\n")
    (work / "src").mkdir(parents=True)
    (work / "src" / "a.py").write_text("def main():\n    pass\n# TODO one\n")
    (work / "src" / "b.py").write_text("# TODO two\n")
    (work / "data.csv").write_text("id,name\n2,b\n1,a\n2,b\n")
    (work / "with space.txt").write_text("spaced\n")
    (work / "-n").write_text("dash\n")
    (work / "link_out").symlink_to(outside / "secret.txt")
    (work / "src" / "link_folder").symlink_to(outside)
    (work / "src" / "link_secret").symlink_to(outside / "secret.txt")
    (work / "link_in").symlink_to("src")
    os.mkfifo(work / "pipe")
    return make_context(work)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("ls src", "a.py\nb.py\nlink_folder\nlink_secret"),
        ("cat src/a.py", "def main():\n    pass\n# TODO one"),
        ("cat 'with space.txt' with\\ space.txt", "spaced\nspaced"),
        ("grep -rn TODO src", "src/a.py:3:# TODO one\nsrc/b.py:1:# TODO two"),
        ("grep -c TODO src/*.py", "src/a.py:1\nsrc/b.py:1"),
        ("grep -e 'one$' -e two src/a.py src/b.py", "src/a.py:# TODO one\nsrc/b.py:# TODO two"),
        ('grep "one$" src/a.py', "# TODO one"),
        ("find . -name *.py -type f | sort", "./src/a.py\n./src/b.py"),
        ("find src \\( -name a.py -o -name b.py \\) | wc -l", "2"),
        ("tail -n +2 data.csv | sort | uniq -c | sort -rn | head -1", "      2 2,b"),
        ("tail -2 data.csv | cut -d, -f2", "a\nb"),
        ("head -n 1 data.csv", "id,name"),
        ("wc -l < data.csv".replace("< ", ""), "4 data.csv"),
        ("cat -- -n", "dash"),
        ("cat ./-n", "dash"),
        ("cat data.csv | grep -n a -", "1:id,name\n3:1,a"),
        ("basename src/a.py .py", "a"),
        ("dirname src/a.py", "src"),
        ("echo src/*.py '*' a\"b c\"", "src/a.py src/b.py * ab c"),
        ("echo -n x | wc -c", "1"),
        ("nl -b a src/b.py", "     1\t# TODO two"),
        ("diff link_in src", "[no output]"),
        ("sort -t , -k2 data.csv | head -1", "1,a"),
        ("cut -d '' -f1 src/b.py", "# TODO two"),
        ("date -u -d @0 +%Y", "1970"),
        ("pwd", "."),
        ("ls link_in/a.py", "link_in/a.py"),
        ("stat -c %s src/b.py", "11"),
    ],
)
async def test_commands_give_what_a_shell_would(
    room: ToolContext, command: str, output: str
) -> None:
    assert await ok(terminal, room, command=command) == output


@pytest.mark.parametrize(
    ("command", "why"),
    [
        # not a shell
        ("ls; ls", "several commands"),
        ("ls\nls", "several lines"),
        ("ls && ls", "`&&`"),
        ("ls &", "`&`"),
        ("ls || ls", "`||`"),
        ("ls |& cat", "`|&`"),
        ("ls > x", "redirections"),
        ("ls 2>/dev/null", "redirections"),
        ("cat < data.csv", "redirections"),
        ("cat << EOF", "redirections"),
        ("echo $HOME", "variables"),
        ("echo ${HOME}", "variables"),
        ('echo "$HOME"', "variables"),
        ("echo $(id)", "variables"),
        ('echo "`id`"', "command substitution"),
        ("echo `id`", "command substitution"),
        ("(ls)", "subshells"),
        ("cat <(ls)", "redirections"),
        ("A=1 ls", "`A=1` is not allowed"),
        ("echo 'x", "not closed"),
        ('echo "x', "not closed"),
        ('echo "x\\"', "not closed"),
        ("", "empty"),
        ("ls |", "nothing beside it"),
        ("| ls", "nothing beside it"),
        ("ls \0", "NUL"),
        (" | ".join(["cat"] * 9), "at most 8"),
        # not in the list
        ("rm data.csv", "`rm` is not allowed"),
        ("/bin/cat data.csv", "`/bin/cat` is not allowed"),
        ("./run", "`./run` is not allowed"),
        ("bash -c ls", "`bash` is not allowed"),
        ("env ls", "`env` is not allowed"),
        ("xargs rm", "`xargs` is not allowed"),
        ("sed -i s/a/b/ data.csv", "`sed` is not allowed"),
        ("awk 1 data.csv", "`awk` is not allowed"),
        ("tee x", "`tee` is not allowed"),
        # writes
        ("sort -o x data.csv", "`sort -o`"),
        ("sort -uox data.csv", "`sort -o`"),
        ("sort --output=x data.csv", "`sort --output`"),
        ("sort --out x data.csv", "`sort --out`"),
        ("sort -T /tmp data.csv", "`sort -T`"),
        ("uniq data.csv x", "at most 1"),
        ("tree -o x", "`tree -o`"),
        ("find . -delete", "-delete"),
        ("find . -fprint x", "-fprint"),
        ("find . -fprintf x %p", "-fprintf"),
        ("find . -fls x", "-fls"),
        ("date -s 2020-01-01", "`date -s`"),
        ("date --set=2020-01-01", "`date --set`"),
        ("date 01010000", "only shows the time"),
        ("file -C -m x", "`file -C`"),
        # runs programs
        ("find . -exec cat {} +", "-exec"),
        ("find . -execdir cat {} +", "-execdir"),
        ("find . -ok cat {} +", "-ok"),
        ("sort --compress-program=sh data.csv", "`sort --compress-program`"),
        ("diff -l data.csv data.csv", "`diff -l`"),
        ("file -z data.csv", "`file -z`"),
        # reads lists of names
        ("wc --files0-from=data.csv", "`wc --files0-from`"),
        ("sort --files0-from=data.csv", "`sort --files0-from`"),
        ("du --files0-from data.csv", "`du --files0-from`"),
        ("find . -files0-from data.csv", "-files0-from"),
        ("file -f data.csv", "`file -f`"),
        ("grep --exclude-from=data.csv x", "`grep --exclude-from`"),
        ("date -f data.csv", "`date -f`"),
        ("diff --from-file=data.csv src", "`diff --from-file`"),
        # waits
        ("tail -f data.csv", "`tail -f`"),
        ("tail -F data.csv", "`tail -F`"),
        ("tail --follow data.csv", "`tail --follow`"),
        ("tail --pid=1 data.csv", "`tail --pid`"),
        ("tail --retry data.csv", "`tail --retry`"),
        ("cat pipe", "not a regular file"),
        # follows links
        ("grep -R x .", "`grep -R`"),
        ("grep --dereference-recursive x .", "`grep --dereference-recursive`"),
        ("grep -d recurse x .", "`grep -d`"),
        ("find -L .", "-L"),
        ("find . -follow", "-follow"),
        ("ls -LR .", "`ls -L`"),
        ("du -L .", "`du -L`"),
        ("tree -l", "`tree -l`"),
        # leaves the workspace
        ("cat /etc/hostname", "leaves the workspace"),
        ("cat ../outside/secret.txt", "leaves the workspace"),
        ("cat link_out", "leaves the workspace"),
        ("cat src/link_folder/secret.txt", "leaves the workspace"),
        ("cat ../outside/*", "leaves the workspace"),
        ("cat /etc/*", "leaves the workspace"),
        ("ls src/link_folder", "leaves the workspace"),
        ("grep -f ../outside/secret.txt data.csv", "leaves the workspace"),
        ("grep -f../outside/secret.txt data.csv", "leaves the workspace"),
        ("find /etc", "leaves the workspace"),
        ("find . -newer /etc/hostname", "leaves the workspace"),
        ("find . -samefile ../outside/secret.txt", "leaves the workspace"),
        ("date -r /etc/hostname", "leaves the workspace"),
        ("date --reference=/etc/hostname", "leaves the workspace"),
        ("stat -L link_out", "leaves the workspace"),
        ("diff link_out data.csv", "leaves the workspace"),
        ("tree ..", "leaves the workspace"),
        ("cd ..", "leaves the workspace"),
        ("cd src/link_folder", "leaves the workspace"),
        ("echo ../*", "leaves the workspace"),
        # used wrongly
        ("cd data.csv", "not a folder"),
        ("cd src | ls", "stands alone"),
        ("ls | tree", "only stand first"),
        ("grep", "needs a pattern"),
        ("head -n", "needs a value"),
        ("find . -name", "needs a value"),
        ("wc --lines=3", "takes no value"),
        ("cat *_out", "nothing is left"),
    ],
)
async def test_what_is_not_read_only_confined_and_plain_is_refused(
    room: ToolContext, command: str, why: str
) -> None:
    assert room.workspace is not None
    before = sorted(p.name for p in room.workspace.rglob("*"))
    told = await error(terminal, room, command=command)
    assert why in told
    assert SECRET not in told
    assert sorted(p.name for p in room.workspace.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        "grep -r outside .", "grep -rs secret . src link_in", "cat *", "cat src/*", "head */*",
        "wc src/*", "diff -r . src", "diff src/a.py src", "ls -laR", "du -a", "tree -a",
        "find . -type f", "find . -ls", "file src/*", "stat src/*", "sort src/*", "nl */*",
        "find -H src/link_in .", "diff -rN src .", "ls -lH .", "stat *",
    ],
)  # fmt: skip
async def test_no_content_comes_through_links_that_are_met_on_the_way(
    room: ToolContext, command: str
) -> None:
    outcome = await call(terminal, room, command=command)
    assert SECRET not in outcome.text
    assert "secret.txt" not in outcome.text.replace("-> ", "→").replace(
        f"→{room.workspace.parent}/outside/secret.txt",  # type: ignore[union-attr]
        "",  # what a link says of itself is in the workspace
    ).replace(f"link to {room.workspace.parent}/outside/secret.txt", "")  # type: ignore[union-attr]


async def test_what_a_glob_leaves_out_is_told(room: ToolContext) -> None:
    text = await ok(terminal, room, command="wc -c link_*t data.csv")
    assert text.startswith("20 data.csv")
    assert "[left out: `link_out` leaves the workspace" in text


words = st.sampled_from(
    [
        "cat", "grep", "find", "ls", "sort", "head", "tail", "wc", "uniq", "cut", "diff", "file",
        "stat", "du", "nl", "tree", "cd", "echo", "date", "-r", "-n", "-L", "-H", "-f", "-o", "-e",
        "-exec", "-delete", "--", "-", "|", "*", "*/*", "..", "../outside/secret.txt", "link_out",
        "src", "src/link_folder", "link_in/../../outside/secret.txt", "-fprint", "x", "'", '"',
        "\\", "$(id)", ">", "-lR", "-newer", "{}", "+", ";", "-T", "--output=x", "/etc/passwd",
        "src/link_folder/*", "[a-z]*", "?ink_out", "--files0-from=x", "~", "-C", "1", ".", "-print",
    ]
)  # fmt: skip


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(words | st.text(max_size=3), min_size=1, max_size=7).map(" ".join))
def test_no_line_reads_outside_or_changes_anything(room: ToolContext, command: str) -> None:
    assert room.workspace is not None
    before = sorted(str(p) for p in room.workspace.parent.rglob("*"))
    outcome = asyncio.run(
        Registry([terminal]).call("terminal", json.dumps({"command": command}), room)
    )
    assert SECRET not in outcome.text
    assert "unexpectedly" not in outcome.text
    assert sorted(str(p) for p in room.workspace.parent.rglob("*")) == before


# cd, tree, errors ----------------------------------------------------------------------------


async def test_cd_is_kept_for_later_calls(room: ToolContext) -> None:
    assert await ok(terminal, room, command="cd src") == "now in ./src"
    assert await ok(terminal, room, command="ls *.py") == "a.py\nb.py"
    assert await ok(terminal, room, command="cat ../data.csv | head -1") == "id,name"
    assert await ok(terminal, room, command="pwd") == "./src"
    assert await ok(terminal, room, command="cd") == "now in ."
    assert await ok(terminal, room, command="cd link_in") == "now in ./src"


async def test_a_current_folder_that_is_gone_is_told(room: ToolContext) -> None:
    assert room.workspace is not None
    (room.workspace / "brief").mkdir()
    await ok(terminal, room, command="cd brief")
    (room.workspace / "brief").rmdir()
    text = await ok(terminal, room, command="cat data.csv | head -1")
    assert text == "id,name\n[the folder `brief` is gone; this ran in the workspace itself]"


async def test_tree_draws_folders_without_following_links(room: ToolContext) -> None:
    assert await ok(terminal, room, command="tree src") == (
        "src\n├── a.py\n├── b.py\n├── link_folder@\n└── link_secret@"
    )
    assert await ok(terminal, room, command="tree -d -L 1 . | head -2") == ".\n└── src/"
    assert "a.py" not in await ok(terminal, room, command="tree -I '*.py'")


async def test_exit_status_and_errors_are_told(room: ToolContext) -> None:
    assert await ok(terminal, room, command="grep nothing data.csv") == "[grep: exit status 1]"
    text = await ok(terminal, room, command="cat nowhere | wc -l")
    assert text == ("0\n[errors]\ncat: nowhere: No such file or directory\n[cat: exit status 1]")


async def test_programs_see_little_of_our_environment(
    room: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREP_COLORS", "mt=01")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert await ok(terminal, room, command="date -d @0 +%H") == "00"


async def test_a_program_in_the_workspace_is_never_the_one_that_runs(
    room: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room.workspace is not None
    fake = room.workspace / "cat"
    fake.write_text("#!/bin/sh\necho fake\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{room.workspace}:.:{os.environ['PATH']}")
    assert await ok(terminal, room, command="cat src/b.py") == "# TODO two"


async def test_a_program_that_is_not_installed_is_told(
    room: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "`cat` is not installed" in await error(terminal, room, command="cat data.csv")


# Limits --------------------------------------------------------------------------------------


def children() -> set[str]:
    """Processes started by this one that still live, by the system's own table."""
    me = str(os.getpid())
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == me and fields[0] != "Z":
                found.add(entry.name)
    return found


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs that never end by themselves, allowed for this test alone."""
    more = {"yes": commands.Command(operands="text"), "sleep": commands.Command(operands="text")}
    monkeypatch.setattr(commands, "COMMANDS", {**commands.COMMANDS, **more})


async def test_output_without_end_is_cut_and_its_programs_are_killed(
    room: ToolContext, endless: None
) -> None:
    before = children()
    text = await ok(terminal, room, command="yes abc | cat | nl")
    assert text.endswith("[cut after 100,000 bytes]")
    assert len(text) <= 100_100
    assert children() <= before


async def test_a_command_without_end_is_killed_when_its_time_is_over(
    room: ToolContext, endless: None
) -> None:
    before = children()
    room = make_context(room.workspace, seconds=0.5)
    text = await error(terminal, room, command="sleep 600 | cat")
    assert text == "[stopped after 0.475 s]"
    assert children() <= before


async def test_a_cancelled_command_leaves_no_process_behind(
    room: ToolContext, endless: None
) -> None:
    before = children()
    task = asyncio.create_task(call(terminal, room, command="sleep 600 | cat"))
    while len(children() - before) < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() <= before


async def test_a_reader_that_leaves_early_is_no_failure(room: ToolContext, endless: None) -> None:
    assert await ok(terminal, room, command="yes abc | head -2") == "abc\nabc"


async def test_even_an_allowed_program_cannot_write_a_file(
    room: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room.workspace is not None
    monkeypatch.setattr(
        commands,
        "COMMANDS",
        {"sort": commands.Command(values="o"), "tail": commands.COMMANDS["tail"]},
    )
    big = room.workspace / "big"
    big.write_text("line\n" * 2_000_000)
    text = await ok(terminal, room, command="sort -o written big")
    assert not text.startswith("[no output]")
    assert (
        not (room.workspace / "written").exists() or not (room.workspace / "written").stat().st_size
    )


async def test_errors_are_bounded(tmp_path: Path) -> None:
    noisy = [pipeline.program("find", tmp_path), "/nowhere" + "x" * 200]
    finished = await pipeline.run(
        [[noisy[0], *([noisy[1]] * 500)]], cwd=tmp_path, first_input=b"", seconds=20
    )
    assert len(finished.errors) == pipeline.MAX_ERROR_BYTES
    assert finished.statuses == (1,)
