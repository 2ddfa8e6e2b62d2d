"""A model that follows a script: its answers are written beforehand, its tools really run.

    turns:
      - think: The plan first.
        say: I will read the notes.
        calls:
          - goal: {add: "Read the notes, Report"}
          - read_file: {path: notes.md}
      - say: They are empty.
        delay: 0.5

``branches`` maps a side branch's type to its own turns. Source: docs/providers.md, "scripted".
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml

from cyberagent.core.errors import InvalidScript, NotFound
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import (
    BranchType,
    Json,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    canonical_json,
)
from cyberagent.core.window import Window
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import project_openai
from cyberagent.providers.streaming import counted, paced

DEFAULT_SPEED = 240.0
"""Characters a second."""

LARGEST_SCRIPT = 1_000_000
"""Characters of a script's text."""

SCRIPT_OVER = "The script is over: it has no further turn."

BUILT_IN = ("demo",)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_BRANCHES = ("reflection", "knowledge_eval", "compression")
_TURN_KEYS = ("say", "think", "calls", "delay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer. ``calls``: tool name and arguments as JSON text. ``delay``: seconds before the
    first delta, as if the model were busy."""

    say: str = ""
    think: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """``speed``: characters a second; 0 means no waiting at all."""

    turns: tuple[Turn, ...]
    branches: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict[str, tuple[Turn, ...]])
    speed: float = DEFAULT_SPEED


# Reading -----------------------------------------------------------------------------------


def load_script(source: str | Path | Mapping[str, Json]) -> Script:
    """A script from its built-in name (``demo``), its YAML text, a file, or a parsed value.

    A str is never taken for a path: a word is a name, all else the text. Raises NotFound for an
    unknown name, InvalidScript (turn and field are named) for a malformed script.
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
    script = _mapping(value, "the script", ("turns", "branches", "speed"))
    branches = _mapping(script.get("branches") or {}, "branches", _BRANCHES)
    return Script(
        turns=_turns(script.get("turns"), "turn"),
        branches={name: _turns(own, f"{name} turn") for name, own in branches.items()},
        speed=_number(script.get("speed", DEFAULT_SPEED), "the script", "speed"),
    )


def _mapping(value: Json, what: str, known: tuple[str, ...]) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise InvalidScript(f"{what} must be a mapping of {', '.join(known)}")
    found = cast("Mapping[str, Json]", value)
    for key in found:
        if key not in known:
            raise InvalidScript(f"{what}: unknown key {key!r:.60}; known are {', '.join(known)}")
    return found


def _turns(value: Json, what: str) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidScript(f"the script needs a list of at least one {what}")
    return tuple(_turn(t, f"{what} {n}") for n, t in enumerate(cast("list[Json]", value), start=1))


def _turn(value: Json, what: str) -> Turn:
    turn = _mapping(value, what, _TURN_KEYS)
    calls: Any = turn.get("calls") or []
    if not isinstance(calls, list):
        raise InvalidScript(f"{what}, calls: must be a list")
    made = Turn(
        say=_text(turn.get("say"), what, "say"),
        think=_text(turn.get("think"), what, "think"),
        calls=tuple(_call(c, what, n) for n, c in enumerate(cast("list[Json]", calls), start=1)),
        delay=_number(turn.get("delay", 0), what, "delay"),
    )
    if not made.say.strip() and not made.calls:
        raise InvalidScript(f"{what} says nothing and calls nothing")
    return made


def _text(value: Json, what: str, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidScript(f"{what}, {name}: must be a text, not {value!r:.60}")
    return value


def _number(value: Json, what: str, name: str) -> float:
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


# Provider ----------------------------------------------------------------------------------


class ScriptedProvider:
    """A script as a :class:`cyberagent.core.ports.Provider`.

    The turn is chosen by ``request.answers_before``, so a rewound run goes on at the turn that
    follows its new head. Past the last turn the answer is SCRIPT_OVER and calls nothing.
    ``speed`` (characters a second, 0: no waiting, delays included) overrides the script's.
    """

    name = "scripted"
    projection = "openai/1"

    def __init__(self, script: Script, *, speed: float | None = None) -> None:
        self.params: Mapping[str, Json] = {"model": "scripted", "dialect": "openai"}
        self._script = script
        self._speed = (
            script.speed if speed is None else _number(speed, "the provider's options", "speed")
        )

    def project(self, window: Window) -> dict[str, Json]:
        return project_openai(window)

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        return problems_openai(payload, "openai")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer, None]:
        turn = self._turn(request.branch_type, request.answers_before)
        if self._speed:
            await asyncio.sleep(turn.delay)
        parts = _parts(turn, request)
        async for delta in paced(parts, self._speed):
            yield delta
        yield Answer(
            parts=parts,
            finish_reason="tool_calls" if turn.calls else "stop",
            usage=counted(request.payload, parts),
            model="scripted",
        )

    def _turn(self, branch: BranchType, answers_before: int) -> Turn:
        turns = self._script.branches.get(branch, ()) if branch else self._script.turns
        return turns[answers_before] if answers_before < len(turns) else Turn(say=SCRIPT_OVER)

    def cost(self, usage: Usage) -> float | None:
        """Nothing: no model is asked."""
        return 0.0

    async def aclose(self) -> None:
        pass


def _parts(turn: Turn, request: ModelRequest) -> tuple[Part, ...]:
    """The turn's parts. Ids are made of the call's number, so they are the same in every run and
    no two of a trace are alike, rewound paths included."""
    mark = f"{request.branch_type or 'turn'}_{request.call}_{request.answers_before + 1}"
    calls = (
        ToolCall(f"call_{mark}_{number}", name, arguments)
        for number, (name, arguments) in enumerate(turn.calls, start=1)
    )
    thought = (Reasoning(turn.think, model="scripted"),) if turn.think else ()
    said = (Text(turn.say),) if turn.say else ()
    return (*thought, *said, *calls)
