"""The terminal's command line: read, checked against an allowlist, turned into argument lists.

No shell ever sees it. A line is commands joined by ``|``; each command has a table of the
options it may take, and what is not in its table is refused. Paths are resolved and must lie in
the workspace; globs are expanded here, where a path stands. Source: docs/tools.md, "Terminal".
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cyberagent.core.errors import PathRefused
from cyberagent.tools.globs import Walk
from cyberagent.tools.workspace import kind_of, resolve

MAX_STAGES = 8
MAX_GLOB_PATHS = 1_000


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line. ``pattern`` is its glob form where it has an unquoted ``*?[``."""

    text: str
    pattern: str = ""


@dataclass(slots=True)
class Place:
    """Where a line runs: the workspace's real folder and the current one. ``notes`` collects
    what the model must know of how its line was understood."""

    root: Path
    cwd: Path
    notes: list[str] = field(default_factory=list[str])


# Reading a line ------------------------------------------------------------------------------

_OPERATORS = {
    ";": "several commands in one call are not supported; make one call for each",
    "&": "`&` and `&&` are not supported; make one call for each command",
    "\n": "several lines in one call are not supported; make one call for each command",
    ">": "redirections are not supported: the terminal only reads, and errors are shown anyway",
    "<": "redirections are not supported; give the file as an argument",
    "(": "subshells are not supported; quote or escape a `(` that is text",
    ")": "subshells are not supported; quote or escape a `)` that is text",
    "`": "command substitution is not supported; make a call for the inner command first",
}
_VARIABLE = re.compile(r"\$[A-Za-z_0-9{(@*#?!$'\"-]")
_END = "\0"


def split(line: str) -> list[list[Word]]:
    """The commands of a pipeline, each a list of words. Raises PathRefused, saying what of a
    shell is not supported here."""
    if _END in line:
        raise PathRefused("a command cannot hold a NUL character")
    stages: list[list[Word]] = [[]]
    at = 0
    line = line.strip()
    while at < len(line):
        char = line[at]
        if char in " \t\r":
            at += 1
        elif char == "|":
            if line[at + 1 : at + 2] in ("|", "&"):
                raise PathRefused(f"`|{line[at + 1]}` is not supported; make one call for each")
            stages.append([])
            at += 1
        else:
            word, at = _word(line, at)
            stages[-1].append(word)
    if not all(stages):
        raise PathRefused("the command is empty, or a `|` stands with nothing beside it")
    if len(stages) > MAX_STAGES:
        raise PathRefused(f"a pipeline can have at most {MAX_STAGES} commands")
    return stages


def _word(line: str, at: int) -> tuple[Word, int]:
    text, pattern, is_glob = "", "", False
    while at < len(line) and line[at] not in " \t\r|":
        char = line[at]
        if char == "'":
            end = _closing(line, at)
            piece, at, quoted = line[at + 1 : end], end + 1, True
        elif char == '"':
            piece, at = _double(line, at)
            quoted = True
        elif char == "\\":
            piece, at, quoted = line[at + 1 : at + 2], at + 2, True
        else:
            _refuse(line, at)
            piece, at, quoted = char, at + 1, False
        text += piece
        pattern += re.sub(r"[*?\[]", r"[\g<0>]", piece) if quoted else piece
        is_glob |= not quoted and piece in "*?["
    return Word(text, pattern if is_glob else ""), at


def _closing(line: str, at: int) -> int:
    end = line.find(line[at], at + 1)
    if end < 0:
        raise PathRefused(f"a {line[at]} is not closed")
    return end


def _double(line: str, at: int) -> tuple[str, int]:
    text = ""
    at += 1
    while at < len(line):
        char = line[at]
        if char == '"':
            return text, at + 1
        if char == "\\" and line[at + 1 : at + 2] in tuple('"\\$`'):
            text += line[at + 1]
            at += 2
            continue
        if char in "`$" and not line.startswith('$"', at):
            _refuse(line, at)
        text += char
        at += 1
    raise PathRefused('a " is not closed')


def _refuse(line: str, at: int) -> None:
    """Raise for a character that a shell would act upon at this place."""
    char = line[at]
    if char in _OPERATORS:
        raise PathRefused(_OPERATORS[char])
    if char == "$" and _VARIABLE.match(line, at):
        raise PathRefused(
            "variables and `$(…)` are not supported; put a `$` that is text in single quotes"
        )


# Commands and their options ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What one program may be given.

    ``flags``: letters without a value; ``values``: letters with a text; ``files``: letters with
    a path. ``long``, ``long_values``, ``long_files``: the same for long names. ``texts``: so many
    leading operands are text (grep's pattern), unless a letter of ``replaces_text`` was given.
    ``operands``: what the others are. ``most``: how many at most. ``digits``: takes ``-20``.
    ``always``: options that it is always run with.
    """

    flags: str = ""
    values: str = ""
    files: str = ""
    long: str = ""
    long_values: str = ""
    long_files: str = ""
    texts: int = 0
    replaces_text: str = ""
    operands: Literal["text", "path"] = "path"
    most: int = 1_000
    digits: bool = False
    always: tuple[str, ...] = ()


# Options left out on purpose: whatever writes (sort -o, tree -o, uniq's second operand), runs a
# program (sort --compress-program, find -exec, diff -l, file -z), reads names of further files
# (--files0-from, grep --exclude-from, file -f, date -f), waits (tail -f), or follows links that
# are met on the way (ls -L, grep -R, find -L, du -L): those may lead out of the workspace.
COMMANDS: dict[str, Command] = {
    "ls": Command(
        flags="aAbBcCdfFgGhHiklmnNopqQrRsStuUvxXZ1",
        values="Iw",
        long="all almost-all human-readable recursive reverse size directory full-time "
        "group-directories-first color",
        long_values="color sort time time-style ignore hide",
    ),
    "cat": Command(flags="AbeEnstTuv", long="number show-all squeeze-blank"),
    "head": Command(
        flags="qvz", values="nc", digits=True, long="quiet verbose", long_values="lines bytes"
    ),
    "tail": Command(
        flags="qvz", values="nc", digits=True, long="quiet verbose", long_values="lines bytes"
    ),
    "grep": Command(
        flags="EFGPivwxclLnoqsHhraIzbUT",
        values="ABCme",
        files="f",
        long="extended-regexp fixed-strings perl-regexp ignore-case invert-match word-regexp "
        "line-regexp count files-with-matches files-without-match line-number only-matching "
        "quiet no-messages with-filename no-filename recursive text color",
        long_values="include exclude exclude-dir color regexp max-count context after-context "
        "before-context",
        texts=1,
        replaces_text="ef",
        digits=True,
    ),
    "wc": Command(flags="lwcmL", long="lines words bytes chars max-line-length"),
    "sort": Command(
        flags="bdfgiMhnrRVucCsmz",
        values="kt",
        long="numeric-sort reverse unique human-numeric-sort version-sort ignore-case stable",
        long_values="key field-separator",
    ),
    "uniq": Command(flags="cdDuiz", values="fsw", most=1, long="count repeated unique ignore-case"),
    "cut": Command(
        flags="snz",
        values="bcdf",
        long="complement only-delimited",
        long_values="delimiter fields characters bytes output-delimiter",
    ),
    "nl": Command(flags="p", values="bdfhilnsvw"),
    "file": Command(flags="bhikNr", long="brief mime mime-type mime-encoding"),
    "stat": Command(flags="Lt", values="c", long="terse dereference", long_values="format printf"),
    "du": Command(
        flags="abchkmsSx0",
        values="dBt",
        long="all apparent-size human-readable summarize total",
        long_values="max-depth exclude threshold",
    ),
    # Comparing folders, diff follows links that it meets; so it always compares links as links.
    "diff": Command(
        flags="uqrywbBiNasEtTc",
        values="UCWIx",
        most=2,
        always=("--no-dereference",),
        long="brief recursive unified side-by-side ignore-case ignore-all-space "
        "ignore-space-change ignore-blank-lines new-file suppress-common-lines "
        "strip-trailing-cr report-identical-files color",
        long_values="width exclude color label",
    ),
    "basename": Command(flags="az", values="s", operands="text"),
    "dirname": Command(flags="z", operands="text"),
    "date": Command(
        flags="uRI",
        values="d",
        files="r",
        operands="text",
        long="utc universal",
        long_values="date",
        long_files="reference",
    ),
}

_FIND_PLAIN = (
    "! , -not -a -and -o -or ( ) -print -print0 -ls -prune -quit -empty -depth -mount -xdev "
    "-true -false -readable -executable -writable -daystart -nouser -nogroup"
)
_FIND_TEXT = (
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype "
    "-size -mtime -mmin -atime -amin -ctime -cmin -newermt -maxdepth -mindepth -perm -user "
    "-group -links -inum -printf -lname -ilname"
)
_FIND_PATH = "-newer -anewer -cnewer -samefile"

OWN = ("cd", "echo", "pwd", "tree")
"""Commands that the terminal carries out itself."""

ALLOWED = tuple(sorted([*COMMANDS, *OWN, "find"]))


def check(words: Sequence[Word], place: Place) -> list[str]:
    """The argument list of one command. Raises PathRefused, naming what is not allowed."""
    name = words[0].text
    if name == "find":
        return _find(words[1:], place)
    if name not in COMMANDS:
        raise PathRefused(f"`{name[:40]}` is not allowed here; there are: {', '.join(ALLOWED)}")
    command = COMMANDS[name]
    options, operands, given = _options(name, command, words[1:], place)
    texts = 0 if given & set(command.replaces_text) else command.texts
    leading = [w.text for w in operands[:texts]]
    if len(leading) < texts:
        raise PathRefused(f"`{name}` needs a pattern")
    rest = operands[texts:]
    if command.operands == "text":
        paths = [w.text for w in rest]
    else:
        paths = [p for w in rest for p in _paths(w, place)]
        if rest and not paths:
            raise PathRefused(f"nothing is left to give to `{name}`: {'; '.join(place.notes)}")
    if name == "diff":
        paths = [_without_link(p, place) for p in paths]
    if len(paths) > command.most:
        raise PathRefused(f"`{name}` takes at most {command.most} files here")
    if name == "date" and any(not p.startswith("+") for p in paths):
        raise PathRefused("`date` only shows the time here; a format begins with `+`")
    return [name, *command.always, *options, "--", *leading, *paths]


def _options(
    name: str, command: Command, words: Sequence[Word], place: Place
) -> tuple[list[str], list[Word], set[str]]:
    """Checked options, operands, and the letters (or first letters of long names) given."""
    options: list[str] = []
    operands: list[Word] = []
    given: set[str] = set()
    left = list(words)
    while left:
        word = left.pop(0)
        text = word.text
        if text == "--":
            operands += left
            break
        if not text.startswith("-") or text == "-":
            operands.append(word)
        elif command.digits and re.fullmatch(r"-\d{1,9}", text):
            options.append(text)
        elif text.startswith("--"):
            options.append(_long(name, command, text, left, place))
            given.add("e" if text.startswith("--regexp") else "")
        else:
            options += _cluster(name, command, text[1:], left, place, given)
    return options, operands, given


def _long(name: str, command: Command, text: str, left: list[Word], place: Place) -> str:
    key, equals, value = text[2:].partition("=")
    takes_file = key in command.long_files.split()
    takes_value = takes_file or key in command.long_values.split()
    takes_none = key in command.long.split()
    if not takes_value and not takes_none:
        raise _not_allowed(name, f"--{key}", command)
    if not equals and takes_none:
        return text
    if not takes_value:
        raise PathRefused(f"`{name} --{key}` takes no value")
    if not equals:
        value = _next(name, f"--{key}", left)
    return f"--{key}={_path(value, place) if takes_file else value}"


def _cluster(
    name: str, command: Command, letters: str, left: list[Word], place: Place, given: set[str]
) -> list[str]:
    options: list[str] = []
    for at, letter in enumerate(letters):
        given.add(letter)
        if letter in command.values + command.files:
            value = letters[at + 1 :] or _next(name, f"-{letter}", left)
            if letter in command.files:
                value = _path(value, place)
            # Two arguments, since an empty value would swallow what comes after it.
            return [*options, f"-{letter}", value]
        if letter not in command.flags:
            raise _not_allowed(name, f"-{letter}", command)
        options.append(f"-{letter}")
    return options


def _next(name: str, option: str, left: list[Word]) -> str:
    if not left:
        raise PathRefused(f"`{name} {option}` needs a value")
    return left.pop(0).text


def _not_allowed(name: str, option: str, command: Command) -> PathRefused:
    known = [f"-{c}" for c in sorted(command.flags + command.values + command.files)]
    names = f"{command.long} {command.long_values} {command.long_files}".split()
    known += [f"--{n}" for n in sorted(set(names))]
    return PathRefused(
        f"`{name} {option}` is not allowed here: the terminal only reads, inside the workspace. "
        f"Options of {name}: {' '.join(known)}"
    )


def _find(words: Sequence[Word], place: Place) -> list[str]:
    """find has a grammar of its own: starting points, then an expression."""
    left = list(words)
    paths: list[str] = []
    while left and not left[0].text.startswith(("-", "(", "!", ",")):
        paths += _paths(left.pop(0), place)
    expression: list[str] = []
    while left:
        token = left.pop(0).text
        expression.append(token)
        if token in _FIND_TEXT.split():
            expression.append(_next("find", token, left))
        elif token in _FIND_PATH.split():
            expression.append(_path(_next("find", token, left), place))
        elif token not in _FIND_PLAIN.split():
            known = f"{_FIND_PLAIN} {_FIND_TEXT} {_FIND_PATH}"
            raise PathRefused(f"`find … {token[:40]}` is not allowed here; there are: {known}")
    return ["find", "-P", *(paths or ["."]), *expression]


# Paths ---------------------------------------------------------------------------------------


def _paths(word: Word, place: Place) -> list[str]:
    """The paths that a word stands for: its glob's matches, or itself."""
    if not word.pattern:
        return [_path(word.text, place)]
    noted = len(place.notes)
    found = _expand(word, place)
    # As in a shell, a glob that fits nothing stands for itself; one whose every match was left
    # out stands for nothing.
    return found if found or len(place.notes) > noted else [_path(word.text, place)]


def _expand(word: Word, place: Place) -> list[str]:
    """Matches of a glob. Links out of the workspace are left out, with a note."""
    start, prefix, pattern = place.cwd, "", word.pattern
    while pattern.startswith(("/", "../", "./")):
        head = "/" if pattern.startswith("/") else pattern[: pattern.index("/") + 1]
        prefix, pattern = prefix + head, pattern[len(head) :]
    if prefix:
        start = resolve(place.root, prefix, base=place.cwd)
    if not pattern:
        return []
    found: list[str] = []
    hidden = any(part.startswith(".") for part in pattern.split("/"))
    for entry in Walk(start, pattern):
        if not hidden and any(part.startswith(".") for part in entry.path.split("/")):
            continue
        try:
            found.append(_path(prefix + entry.path, place))
        except PathRefused as error:
            place.notes.append(f"left out: {error}")
        if len(found) > MAX_GLOB_PATHS:
            raise PathRefused(f"`{word.text}` stands for more than {MAX_GLOB_PATHS:,} files")
    return found


def _path(text: str, place: Place) -> str:
    """``text`` as it can be handed to a program: checked, never mistaken for an option."""
    if text == "-":
        return text
    real = resolve(place.root, text, base=place.cwd)
    if kind_of(real) == "other":
        raise PathRefused(f"`{text}` is not a regular file")
    return f"./{text}" if text.startswith("-") else text


def _without_link(text: str, place: Place) -> str:
    """What a link leads to in its stead: diff is told to compare links as links."""
    if text == "-" or not (place.cwd / text).is_symlink():
        return text
    return os.path.relpath(resolve(place.root, text, base=place.cwd), place.cwd)


def expand_words(words: Sequence[Word], place: Place) -> list[str]:
    """Words as echo shows them: globs expanded, nothing checked but what they expand to."""
    out: list[str] = []
    for word in words:
        out += (_expand(word, place) if word.pattern else []) or [word.text]
    return out
