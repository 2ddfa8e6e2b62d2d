"""Scripts of the scripted model: what stands in one, and reading it from YAML.

    turns:
      - think: The plan first.
        say: I will read the notes.
        calls:
          - goal: {add: "Read the notes, Report"}
          - read_file: {path: notes.md}
      - say: They are empty.
        delay: 0.5

``branches`` maps a side branch's type to its own turns, ``agents`` holds what sub-agents and
validators say. Source: docs/providers.md, "scripted".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml

from cyberagent.core.errors import InvalidScript, NotFound
from cyberagent.core.types import Json, canonical_json
from cyberagent.providers.finding import PLACE, Find, names_in

DEFAULT_SPEED = 240.0
"""Characters a second."""

LARGEST_SCRIPT = 1_000_000
"""Characters of a script's text."""

BUILT_IN = ("demo", "recursive")

KINDS = ("agent", "validator", "explore", "research")
"""What a trace below a root may have been made as."""

MAX_AGENTS = 100
MAX_MATCHES = 8
MAX_MATCH_CHARS = 500
MAX_FINDS = 8
"""Words that one turn may take from the window."""

MAX_FIND_CHARS = 200
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_BRANCHES = ("reflection", "knowledge_eval", "compression")
_SCRIPT_KEYS = ("turns", "branches", "agents", "speed")
_AGENT_KEYS = ("match", "kind", "turns", "branches")
_TURN_KEYS = ("say", "think", "calls", "delay", "find")
_FIND_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer. ``calls``: tool name and arguments as JSON text. ``delay``: seconds before the
    first delta, as if the model were busy. ``find``: words to be taken from the window first,
    for the places ``{name}`` in the other texts."""

    say: str = ""
    think: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    find: tuple[Find, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one agent of a script says. ``match``: texts that its task holds, all of them;
    ``kind``: what its trace was made as, "" for any."""

    turns: tuple[Turn, ...]
    branches: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict[str, tuple[Turn, ...]])
    match: tuple[str, ...] = ()
    kind: str = ""

    def fits(self, kind: str, task: str) -> bool:
        return self.kind in ("", kind) and all(text in task for text in self.match)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """``turns`` and ``branches`` are the root's. ``speed``: characters a second; 0 means no
    waiting at all."""

    turns: tuple[Turn, ...]
    branches: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict[str, tuple[Turn, ...]])
    agents: tuple[Role, ...] = ()
    speed: float = DEFAULT_SPEED


# Reading -----------------------------------------------------------------------------------


def load_script(source: str | Path | Mapping[str, Json]) -> Script:
    """A script from its built-in name (``demo``, ``recursive``), its YAML text, a file, or a
    parsed value.

    A str is never taken for a path: a word is a name, all else the text. Raises NotFound for an
    unknown name, InvalidScript (agent, turn and field are named) for a malformed script.
    """
    if isinstance(source, Mapping):
        return _script(source)
    if isinstance(source, Path):
        return _script(_parsed(_read(source)))
    if not isinstance(source, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidScript(f"a script is a name or YAML text, not {source!r:.60}")
    if not _NAME.fullmatch(source):
        return _script(_parsed(source))
    if source not in BUILT_IN:
        raise NotFound("script", source)
    packed = resources.files("cyberagent.prompts").joinpath(f"{source}.yaml")
    return _script(_parsed(packed.read_text(encoding="utf-8")))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * LARGEST_SCRIPT:
            raise InvalidScript(f"the script {path.name} is too large")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidScript(f"the script {path.name} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidScript(f"the script {path.name} cannot be read: {error.strerror}") from None


class _Loader(yaml.SafeLoader):
    """Refuses aliases, with which a small text can stand for a huge value, and keys that are
    there twice, of which YAML would drop one in silence."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InvalidScript(f"the script uses an alias in {_at(cast(Any, self).peek_event())}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidScript(f"the script has a key that is no text in {_at(key)}")
            if key.value in seen:
                raise InvalidScript(f"the script has the key {key.value!r:.60} twice in {_at(key)}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _at(node: Any) -> str:
    return f"line {node.start_mark.line + 1}"


def _parsed(text: str) -> Json:
    if len(text) > LARGEST_SCRIPT:
        raise InvalidScript(f"the script has {len(text):,} characters; {LARGEST_SCRIPT:,} fit")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidScript(f"the script is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InvalidScript("the script is nested too deeply") from None
    except ValueError as error:  # e.g. a date that does not exist
        raise InvalidScript(f"the script has a value that cannot be read: {error}") from None


def _script(value: Json) -> Script:
    script = _mapping(value, "the script", _SCRIPT_KEYS)
    listed: Json = script.get("agents") or []
    if not isinstance(listed, list):
        raise InvalidScript("agents: must be a list")
    agents = cast("list[Json]", listed)
    if len(agents) > MAX_AGENTS:
        raise InvalidScript(f"agents: has {len(agents):,} entries; {MAX_AGENTS} fit")
    return Script(
        turns=_turns(script.get("turns")),
        branches=_branches(script.get("branches")),
        agents=tuple(_agent(a, n) for n, a in enumerate(agents, start=1)),
        speed=number_from(script.get("speed", DEFAULT_SPEED), "the script", "speed"),
    )


def _agent(value: Json, number: int) -> Role:
    what = f"agent {number}"
    agent = _mapping(value, what, _AGENT_KEYS)
    kind = agent.get("kind")
    if kind is not None and kind not in KINDS:
        raise InvalidScript(f"{what}, kind: must be one of {', '.join(KINDS)}, not {kind!r:.60}")
    return Role(
        turns=_turns(agent.get("turns"), f"{what}, "),
        branches=_branches(agent.get("branches"), f"{what}, "),
        match=_match(agent.get("match"), f"{what}, match"),
        kind=cast("str", kind or ""),
    )


def _match(value: Json, where: str) -> tuple[str, ...]:
    texts = cast("list[Json]", value if isinstance(value, list) else [value])
    if not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise InvalidScript(f"{where}: must be a text or a list of texts, none of them blank")
    if len(texts) > MAX_MATCHES or any(len(t) > MAX_MATCH_CHARS for t in texts):
        raise InvalidScript(f"{where}: {MAX_MATCHES} texts of {MAX_MATCH_CHARS} characters fit")
    return tuple(cast("list[str]", texts))


def _branches(value: Json, whose: str = "") -> dict[str, tuple[Turn, ...]]:
    branches = _mapping(value or {}, f"{whose}branches", _BRANCHES)
    return {name: _turns(own, f"{whose}{name} ") for name, own in branches.items()}


def _mapping(value: Json, what: str, known: tuple[str, ...]) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise InvalidScript(f"{what} must be a mapping of {', '.join(known)}")
    found = cast("Mapping[str, Json]", value)
    for key in found:
        if key not in known:
            raise InvalidScript(f"{what}: unknown key {key!r:.60}; known are {', '.join(known)}")
    return found


def _turns(value: Json, whose: str = "") -> tuple[Turn, ...]:
    """``whose``: what stands before "turn" in an error."""
    if not isinstance(value, list) or not value:
        raise InvalidScript(f"{whose}turns: must be a list of at least one turn")
    turns = cast("list[Json]", value)
    return tuple(_turn(t, f"{whose}turn {n}") for n, t in enumerate(turns, start=1))


def _turn(value: Json, what: str) -> Turn:
    turn = _mapping(value, what, _TURN_KEYS)
    calls: Any = turn.get("calls") or []
    if not isinstance(calls, list):
        raise InvalidScript(f"{what}, calls: must be a list")
    made = Turn(
        say=_text(turn.get("say"), what, "say"),
        think=_text(turn.get("think"), what, "think"),
        calls=tuple(_call(c, what, n) for n, c in enumerate(cast("list[Json]", calls), start=1)),
        delay=number_from(turn.get("delay", 0), what, "delay"),
        find=_finds(turn.get("find"), what),
    )
    if not made.say.strip() and not made.calls:
        raise InvalidScript(f"{what} says nothing and calls nothing")
    used = names_in("".join((made.say, made.think, *(a for _, a in made.calls))))
    for find in reversed(made.find):
        if find.name not in used:
            raise InvalidScript(f"{what}, find.{find.name}: is not used as {{{find.name}}}")
        used |= names_in(find.text)
    return made


def _finds(value: Json, what: str) -> tuple[Find, ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise InvalidScript(f"{what}, find: must be a mapping of names")
    finds = cast("Mapping[Any, Json]", value)
    if len(finds) > MAX_FINDS:
        raise InvalidScript(f"{what}, find: has {len(finds)} names; {MAX_FINDS} fit")
    found: list[Find] = []
    for name, sought in finds.items():
        if not isinstance(name, str) or not _FIND_NAME.fullmatch(name):
            raise InvalidScript(
                f"{what}, find: {name!r:.60} is not a name: small letters, digits and _, at most 32"
            )
        found.append(_find(name, sought, f"{what}, find.{name}", {f.name for f in found}))
    return tuple(found)


def _find(name: str, value: Json, where: str, earlier: set[str]) -> Find:
    if not isinstance(value, Mapping):
        value = {"text": value}
    sought = _mapping(value, where, ("text", "nth"))
    text, nth = sought.get("text"), sought.get("nth", 1)
    if not isinstance(text, str) or text.count(PLACE) != 1:
        raise InvalidScript(f"{where}: must be a text with {PLACE} once, where the word stands")
    if len(text) > MAX_FIND_CHARS:
        raise InvalidScript(f"{where}: has {len(text):,} characters; {MAX_FIND_CHARS} fit")
    if text.startswith(PLACE):
        raise InvalidScript(f"{where}: needs some text before {PLACE}")
    if unknown := sorted(names_in(text) - earlier):
        raise InvalidScript(f"{where}: uses {{{unknown[0]}}}, which no find before it takes")
    if not isinstance(nth, int) or isinstance(nth, bool) or not 1 <= nth <= 100:
        raise InvalidScript(f"{where}, nth: must be a whole number from 1 to 100, not {nth!r:.60}")
    return Find(name, text, nth)


def _text(value: Json, what: str, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidScript(f"{what}, {name}: must be a text, not {value!r:.60}")
    return value


def number_from(value: Json, what: str, name: str) -> float:
    """Raises InvalidScript, which names ``what`` and ``name``, for all but a number from 0 up."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise InvalidScript(f"{what}, {name}: must be a number from 0 up, not {value!r:.60}")
    return float(value)


def _call(value: Json, what: str, number: int) -> tuple[str, str]:
    where = f"{what}, call {number}"
    if not isinstance(value, dict) or len(cast("dict[Any, Any]", value)) != 1:
        raise InvalidScript(f"{where}: must be one tool's name with its arguments")
    ((name, arguments),) = cast("dict[Any, Any]", value).items()
    if not isinstance(name, str) or not name:
        raise InvalidScript(f"{where}: {name!r:.60} is not a tool's name")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise InvalidScript(f"{where}, {name}: arguments must be a mapping")
    _check_json(arguments, f"{where}, {name}")
    try:
        return name, canonical_json(arguments).decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidScript(f"{where}, {name}: arguments are not JSON: {error}") from None


def _check_json(value: Any, where: str) -> None:
    """What YAML knows and JSON does not: dates, sets, keys that are no texts, NaN."""
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise InvalidScript(f"{where}: the key {key!r:.60} must be a text (quote it)")
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Any]", value)):
            _check_json(item, f"{where}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidScript(f"{where}: {value} is not a number that JSON knows")
    elif not isinstance(value, str | int | float | bool | None):
        raise InvalidScript(f"{where}: {value!r:.60} must be quoted to be a text")
