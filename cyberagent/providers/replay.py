"""A model that says again what a recorded or imported trace's model said. Source:
docs/providers.md, "replay"."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace

from cyberagent.core.errors import InvalidInput
from cyberagent.core.ports import Answer, Delta, ModelRequest
from cyberagent.core.types import BranchType, Json, Message, Part, Text, ToolCall, Usage
from cyberagent.core.window import Window
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import project_openai
from cyberagent.providers.streaming import counted, paced

RECORDING_OVER = "The recording is over: it has no further turn."


def model_turns(messages: Iterable[Message]) -> list[Message]:
    """The model's own turns of a path, in order, without the calls that a framework added; what
    only a framework made is no turn."""
    turns: list[Message] = []
    for message in messages:
        if message.role != "assistant" or message.source not in ("model", "import"):
            continue
        parts = [p for p in message.parts if not (isinstance(p, ToolCall) and _is_ours(p))]
        if any(isinstance(p, Text | ToolCall) for p in parts):
            turns.append(message.with_parts(parts))
    return turns


def _is_ours(call: ToolCall) -> bool:
    return call.made_by == "framework"


class ReplayProvider:
    """Recorded turns as a :class:`cyberagent.core.ports.Provider`.

    ``turns``: assistant messages, see :func:`model_turns`; ``branches``: those of side branches,
    by type. The turn is chosen by ``request.answers_before``; past the last one the answer is
    RECORDING_OVER. ``speed``: characters a second, 0: at once. Parts come as they were recorded
    (a call without an id is given one); usage is the recorded one, else counted here. Raises
    InvalidInput for a turn that is not an assistant's.
    """

    name = "replay"
    projection = "openai/1"

    def __init__(
        self,
        turns: Sequence[Message],
        *,
        speed: float = 0.0,
        branches: Mapping[str, Sequence[Message]] | None = None,
    ) -> None:
        if not 0 <= speed < float("inf"):
            raise InvalidInput(f"speed must be a number from 0 up, not {speed!r}")
        self._turns = tuple(turns)
        self._branches = {name: tuple(own) for name, own in (branches or {}).items()}
        for turn in (*self._turns, *(t for own in self._branches.values() for t in own)):
            if turn.role != "assistant":
                raise InvalidInput(f"message {turn.sequence} is no turn of a model")
        self._speed = speed
        self.params: Mapping[str, Json] = {"model": "replay", "dialect": "openai"}

    def project(self, window: Window) -> dict[str, Json]:
        return project_openai(window)

    def problems(self, payload: Mapping[str, Json]) -> list[str]:
        return problems_openai(payload, "openai")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer, None]:
        turn = self._turn(request.branch_type, request.answers_before)
        parts = _with_ids(turn.parts if turn else (Text(RECORDING_OVER),), request)
        async for delta in paced(parts, self._speed):
            yield delta
        has_calls = any(isinstance(p, ToolCall) for p in parts)
        recorded = turn.usage if turn else None
        yield Answer(
            parts=parts,
            finish_reason="tool_calls" if has_calls else "stop",
            usage=recorded or counted(request.payload, parts),
            model="replay",
        )

    def _turn(self, branch: BranchType, answers_before: int) -> Message | None:
        turns = self._branches.get(branch, ()) if branch else self._turns
        return turns[answers_before] if answers_before < len(turns) else None

    def cost(self, usage: Usage) -> float | None:
        """Nothing: no model is asked."""
        return 0.0

    async def aclose(self) -> None:
        pass


def _with_ids(parts: tuple[Part, ...], request: ModelRequest) -> tuple[Part, ...]:
    return tuple(
        replace(p, id=f"replayed_{request.call}_{request.answers_before + 1}_{number}")
        if isinstance(p, ToolCall) and not p.id
        else p
        for number, p in enumerate(parts, start=1)
    )
