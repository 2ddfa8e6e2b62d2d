"""The terminal: read-only commands in the workspace, joined by pipes, without a shell.

Source: docs/tools.md, "Terminal".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from cyberagent.core.errors import PathRefused
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.tools import pipeline
from cyberagent.tools.commands import OWN, Place, Word, check, expand_words, split
from cyberagent.tools.registry import tool
from cyberagent.tools.workspace import kind_of, resolve, root_of, shown

MAX_TREE_ENTRIES = 1_000


@tool(read_only=True, idempotent=True)
async def terminal(context: ToolContext, command: str) -> ToolOutcome:
    """Run a read-only command in the workspace: look around, read, search, count.

    There are: ls, tree, cat, head, tail, grep, find, wc, sort, uniq, cut, nl, file, stat, du,
    diff, basename, dirname, echo, pwd, date, and cd, which is kept for later calls. Commands can
    be joined with `|`. There is no shell: no `;`, `&&`, redirections, variables or `$(…)`.

    Args:
        command: One command or pipeline, for example `grep -rn "def main" src | head -20`.
    """
    stages = split(command)
    place = _place(context)
    names = [words[0].text for words in stages]
    if "cd" in names:
        return ToolOutcome(text=_cd(context, stages, place))
    own_text, rest = "", stages
    if names[0] in OWN:
        own_text, rest = _OWN[names[0]](stages[0][1:], place), stages[1:]
    for name in names[1:]:
        if name in OWN:
            raise PathRefused(f"`{name}` reads nothing, so it can only stand first in a pipeline")
    commands = [check(words, place) for words in rest]
    if not commands:
        return ToolOutcome(text=_text(own_text, place))
    programs = [[pipeline.program(c[0], place.root), *c[1:]] for c in commands]
    finished = await pipeline.run(
        programs,
        cwd=place.cwd,
        first_input=own_text.encode("utf-8", "surrogateescape"),
        # A little less than the run allows, so that what was said so far is not lost.
        seconds=context.config.limits.tool_timeout_seconds * 0.95 or None,
    )
    return _outcome(finished, [c[0] for c in commands], place)


def _place(context: ToolContext) -> Place:
    root = root_of(context.workspace)
    place = Place(root, root)
    kept: str = getattr(context.state, "terminal_cwd", "") or "."
    cwd = resolve(root, kept)
    if kind_of(cwd) == "folder":
        place.cwd = cwd
    else:
        place.notes.append(f"the folder `{kept}` is gone; this ran in the workspace itself")
    return place


def _outcome(finished: pipeline.Finished, names: Sequence[str], place: Place) -> ToolOutcome:
    parts = [finished.output.decode("utf-8", "replace").rstrip("\n")]
    if errors := finished.errors.decode("utf-8", "replace").strip():
        parts.append(f"[errors]\n{errors}")
    if finished.ended:
        parts.append(f"[{finished.ended}]")
    else:
        parts += [f"[{line}]" for line in pipeline.failures(finished, names)]
    timed_out = finished.ended.startswith("stopped")
    text = _text("\n".join(p for p in parts if p), place)
    return ToolOutcome(text=text, status="error" if timed_out else "ok")


def _text(output: str, place: Place) -> str:
    notes = "\n".join(f"[{note}]" for note in place.notes)
    return "\n".join(t for t in (output.rstrip("\n"), notes) if t) or "[no output]"


# The terminal's own commands -----------------------------------------------------------------


def _cd(context: ToolContext, stages: Sequence[Sequence[Word]], place: Place) -> str:
    words = stages[0]
    if len(stages) > 1 or len(words) > 2:
        raise PathRefused("`cd` stands alone, with one folder; its effect is kept for later calls")
    text = words[1].text if len(words) == 2 else "."
    real = resolve(place.root, text, base=place.cwd if len(words) == 2 else place.root)
    if kind_of(real) != "folder":
        raise PathRefused(f"`{text}` is not a folder of the workspace")
    context.state.terminal_cwd = shown(place.root, real)
    return f"now in {_relative(place.root, real)}"


def _relative(root: Path, real: Path) -> str:
    inner = shown(root, real)
    return "." if inner == "." else f"./{inner}"


def _pwd(words: Sequence[Word], place: Place) -> str:
    if words:
        raise PathRefused("`pwd` takes nothing")
    return _relative(place.root, place.cwd) + "\n"


def _echo(words: Sequence[Word], place: Place) -> str:
    no_end = bool(words) and words[0].text == "-n"
    return " ".join(expand_words(words[no_end:], place)) + ("" if no_end else "\n")


def _tree(words: Sequence[Word], place: Place) -> str:
    """tree, without the program: the same on every machine, and it never follows a link."""
    deepest, ignored, with_hidden, only_folders, paths = 0, list[str](), False, False, list[str]()
    left = [w.text for w in words]
    while left:
        text = left.pop(0)
        if text == "-a":
            with_hidden = True
        elif text == "-d":
            only_folders = True
        elif text == "-L" and left and left[0].isdecimal() and int(left[0]) > 0:
            deepest = int(left.pop(0))
        elif text == "-I" and left:
            ignored += left.pop(0).split("|")
        elif text.startswith("-"):
            raise PathRefused(f"`tree {text}` is not supported; there are -a, -d, -L N, -I PATTERN")
        else:
            paths.append(text)
    tree = _Tree(place.root, deepest or 20, ignored, with_hidden, only_folders)
    for path in paths or ["."]:
        real = resolve(place.root, path, base=place.cwd)
        if kind_of(real) != "folder":
            raise PathRefused(f"`{path}` is not a folder of the workspace")
        tree.lines.append(path)
        tree.add(real, "", 1)
    return "\n".join(tree.lines + ([] if tree.left else ["[more left out; use -L]"])) + "\n"


class _Tree:
    def __init__(
        self, root: Path, deepest: int, ignored: list[str], with_hidden: bool, only_folders: bool
    ) -> None:
        self._root, self._deepest, self._ignored = root, deepest, ignored
        self._with_hidden, self._only_folders = with_hidden, only_folders
        self.lines: list[str] = []
        self.left = MAX_TREE_ENTRIES

    def add(self, folder: Path, indent: str, depth: int) -> None:
        entries = self._entries(folder)
        for number, entry in enumerate(entries, 1):
            if self.left == 0:
                return
            self.left -= 1
            is_last = number == len(entries)
            is_folder = entry.is_dir(follow_symlinks=False)
            mark = "/" if is_folder else "@" if entry.is_symlink() else ""
            self.lines.append(f"{indent}{'└── ' if is_last else '├── '}{entry.name}{mark}")
            if is_folder and depth < self._deepest:
                self.add(Path(entry.path), indent + ("    " if is_last else "│   "), depth + 1)

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda e: e.name)
        except OSError:
            return []
        return [e for e in entries if self._is_wanted(e)]

    def _is_wanted(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") and not self._with_hidden:
            return False
        if self._only_folders and not entry.is_dir(follow_symlinks=False):
            return False
        return not any(fnmatchcase(entry.name, p) for p in self._ignored)


_OWN = {"pwd": _pwd, "echo": _echo, "tree": _tree}
