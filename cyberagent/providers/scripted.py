"""A model that follows a script: its answers are written beforehand, its tools really run.

The script's form is read by :mod:`cyberagent.providers.script`. Source: docs/providers.md,
"scripted".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace

from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import (
    Json,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    canonical_json,
    clean_text,
)
from cyberagent.core.window import Window
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.finding import filled
from cyberagent.providers.openai import project_openai
from cyberagent.providers.script import Role, Script, Turn, load_script, number_from
from cyberagent.providers.shapes import as_dict, as_list, as_str
from cyberagent.providers.streaming import counted, paced

__all__ = ["SCRIPT_OVER", "ScriptedProvider", "load_script"]

SCRIPT_OVER = "The script is over: it has no further turn."


class ScriptedProvider:
    """A script as a :class:`cyberagent.core.ports.Provider`.

    The turn is chosen by ``request.answers_before``, so a rewound run goes on at the turn that
    follows its new head. Past the last turn the answer is SCRIPT_OVER and calls nothing.
    ``speed`` (characters a second, 0: no waiting, delays included) overrides the script's.
    ``kind``: what the trace was made as, "" for a root; any other plays one of the script's
    ``agents``, the first that fits what the trace was sent to do.
    """

    name = "scripted"
    projection = "openai/1"

    def __init__(self, script: Script, *, speed: float | None = None, kind: str = "") -> None:
        self.params: Mapping[str, Json] = {"model": "scripted", "dialect": "openai"}
        self._script = script
        self._kind = kind
        self._speed = (
            script.speed if speed is None else number_from(speed, "the provider's options", "speed")
        )

    def project(self, window: Window) -> dict[str, Json]:
        return project_openai(window)

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        return problems_openai(payload, "openai")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer, None]:
        turn = self._turn(request)
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

    def _turn(self, request: ModelRequest) -> Turn:
        role: Role | Script = self._script
        if self._kind:
            task = _task(self._kind, request.payload)
            found = next((r for r in self._script.agents if r.fits(self._kind, task)), None)
            if found is None:
                return Turn(say=_nothing_fits(self._kind, task))
            role = found
        branch, number = request.branch_type, request.answers_before
        turns = role.branches.get(branch, ()) if branch else role.turns
        if number >= len(turns):
            return Turn(say=SCRIPT_OVER)
        return _found(turns[number], request.payload) if turns[number].find else turns[number]

    def cost(self, usage: Usage) -> float | None:
        """Nothing: no model is asked."""
        return 0.0

    async def aclose(self) -> None:
        pass


def _nothing_fits(kind: str, task: str) -> str:
    begin = clean_text(" ".join(task[:400].split())[:200])
    return f'The script has nothing for this {kind}: no entry of its agents fits "{begin}…".'


# What the window says ------------------------------------------------------------------------


def _task(kind: str, payload: bytes) -> str:
    """What a trace was sent to do: its first user message. Whoever explores may begin with the
    conversation of the run above, so there it can be any."""
    said = (text for role, text in _messages(payload) if role == "user")
    return "\n\n".join(said) if kind in ("explore", "research") else next(said, "")


def _messages(payload: bytes) -> Iterator[tuple[str, str]]:
    """Role and text of each message of a chat-completions payload, in order."""
    try:
        body: Json = json.loads(payload)
    except (ValueError, RecursionError):
        return
    for message in map(as_dict, as_list(as_dict(body).get("messages"))):
        content = message.get("content")
        blocks = [as_str(as_dict(block).get("text")) for block in as_list(content)]
        yield as_str(message.get("role")), as_str(content) or "\n\n".join(blocks)


def _found(turn: Turn, payload: bytes) -> Turn:
    """The turn with the words that it takes from the window: from results and what users and
    framework said, never from the model's own words. Where one is missing the turn says so."""
    texts = [text for role, text in _messages(payload) if role in ("tool", "user")]
    words: dict[str, str] = {}
    for find in turn.find:
        word = find.word(texts, words)
        if word is None:
            sought = filled(find.text, words)
            return Turn(say=f"The script cannot go on: nothing in the window reads {sought!r}.")
        words[find.name] = clean_text(word)
    in_json = {name: canonical_json(word).decode()[1:-1] for name, word in words.items()}
    return replace(
        turn,
        say=filled(turn.say, words),
        think=filled(turn.think, words),
        calls=tuple((name, filled(arguments, in_json)) for name, arguments in turn.calls),
    )


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
