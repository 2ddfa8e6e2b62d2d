"""Tools: typed functions with a docstring, and the registry that calls them.

    @tool(read_only=True, in_thread=True)
    def read_file(context: ToolContext, path: str, offset: int = 1) -> str:
        \"\"\"Read a text file of the workspace.

        Args:
            path: The file, relative to the workspace.
            offset: First line to read; 1 is the first.
        \"\"\"

The name, description and JSON Schema come from the function. A first parameter of type
:class:`~cyberagent.core.ports.ToolContext` is filled by the framework. Source: docs/tools.md.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, overload

from cyberagent.core.errors import Conflict, CyberAgentError, InvalidConfig, NotFound
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.core.streams import Paused, Stopped
from cyberagent.core.types import Json, clean_text
from cyberagent.tools.schema import convert, parse_arguments, problems, signature_of

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool as offered to models.

    ``function`` takes the arguments by name (after the context, if ``takes_context``) and gives
    a str or a ToolOutcome, at once or as a coroutine. ``framework``: it keeps limits of its own,
    its output is never shortened. ``parallel_safe``: may run beside other calls of its turn.
    ``idempotent``: may be run again when nobody knows whether it ran. ``read_only``: changes
    nothing at all. ``writes``: changes files or the world outside, so it can need approval.
    ``in_thread``: blocks, so it runs off the event loop. ``delegates``: waits for sub-agents.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    function: Callable[..., Any]
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])
    takes_context: bool = False
    framework: bool = False
    parallel_safe: bool = False
    idempotent: bool = False
    read_only: bool = False
    writes: bool = False
    in_thread: bool = False
    delegates: bool = False

    @property
    def line(self) -> str:
        """The first sentence of the description, for an index."""
        first = " ".join(self.description.split("\n\n", 1)[0].split())
        return re.split(r"(?<=[.!?])\s|(?<=。)", first, maxsplit=1)[0].strip()

    def schema(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str = "",
    framework: bool = False,
    parallel_safe: bool = False,
    idempotent: bool = False,
    read_only: bool = False,
    writes: bool = False,
    in_thread: bool = False,
    delegates: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str = "", **flags: bool
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a :class:`Tool` of a typed function with a docstring; see the module's example.

    Raises TypeError, when the module is imported, for a function that cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> Tool:
        own = name or function.__name__
        if not _NAME.fullmatch(own):
            raise TypeError(f"{own!r} cannot be a tool's name")
        if flags.get("read_only") and flags.get("writes"):
            raise TypeError(f"the tool {own} cannot both write and be read-only")
        told = signature_of(function, ToolContext)
        return Tool(
            name=own,
            description=told.description,
            parameters=told.parameters,
            function=function,
            hints=told.hints,
            takes_context=told.takes_context,
            **flags,
        )

    return make if function is None else make(function)


class Registry:
    """The tools of a run, in a fixed order; implements :class:`cyberagent.core.ports.Tools`.

    Raises InvalidConfig where two tools share a name.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            if item.name in self._tools:
                raise InvalidConfig(f"two tools are named {item.name!r}")
            self._tools[item.name] = item

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool:
        """Raises NotFound."""
        if name not in self._tools:
            raise NotFound("tool", name)
        return self._tools[name]

    def only(self, names: Iterable[str]) -> Registry:
        """A registry of these tools, in the order of ``names``. Raises InvalidConfig for a name
        that is not here or is given twice."""
        wanted = list(names)
        for name in wanted:
            if name not in self._tools:
                raise InvalidConfig(self._unknown(name))
        return Registry(self._tools[name] for name in wanted)

    def with_(self, tools: Iterable[Tool]) -> Registry:
        """A registry of these tools and then ``tools``."""
        return Registry([*self._tools.values(), *tools])

    def schemas(self) -> tuple[Json, ...]:
        return tuple(t.schema() for t in self._tools.values())

    def index(self) -> list[tuple[str, str]]:
        return [(t.name, t.line) for t in self._tools.values()]

    def is_parallel_safe(self, name: str) -> bool:
        return name in self._tools and self._tools[name].parallel_safe

    def is_idempotent(self, name: str) -> bool:
        return name in self._tools and self._tools[name].idempotent

    def delegates(self, name: str) -> bool:
        return name in self._tools and self._tools[name].delegates

    async def call(self, name: str, arguments: str, context: ToolContext) -> ToolOutcome:
        """Check the arguments and run the tool; the model's mistakes become error outcomes.

        Raises Conflict, Paused and Stopped (what must end the run, not be told to the model), what
        sub-agents met unexpectedly, and CancelledError. The time a tool may take is the caller's
        to bound.
        """
        found = self._tools.get(name)
        if found is None:
            return _error(self._unknown(name), shorten=True)
        try:
            value = parse_arguments(arguments)
            if wrong := problems(found.parameters, value):
                return _error(_told(found, wrong), shorten=not found.framework)
            return _outcome(found, await _run(found, value, context))
        except (Conflict, Paused, Stopped):
            raise
        except CyberAgentError as error:
            return _error(str(error), shorten=not found.framework)
        except Exception as error:  # The edge between a run and any tool's code: a defect in one
            # tool must cost the model one call, not the operator the run.
            if found.delegates:
                raise  # the sub-agent's own trouble is the run's: it can be gone on with
            log.exception("the tool %s failed unexpectedly in trace %s", name, context.trace_id)
            text = f"the tool `{name}` failed unexpectedly ({type(error).__name__})"
            return _error(text, shorten=not found.framework)

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._tools, n=3, cutoff=0.5)
        if close:
            hint = "did you mean " + " or ".join(f"`{c}`" for c in close) + "?"
        else:
            hint = "there are: " + (", ".join(self._tools) or "none")
        return f"there is no tool `{name[:64]}`; {hint}"


async def _run(found: Tool, value: Mapping[str, Json], context: ToolContext) -> Any:
    arguments = {k: convert(found.hints.get(k, Any), v) for k, v in value.items()}
    leading = (context,) if found.takes_context else ()
    if found.in_thread:
        return await asyncio.to_thread(found.function, *leading, **arguments)
    result = found.function(*leading, **arguments)
    return await result if inspect.isawaitable(result) else result


def _outcome(found: Tool, result: Any) -> ToolOutcome:
    if isinstance(result, str):
        result = ToolOutcome(text=result)
    if not isinstance(result, ToolOutcome):
        raise TypeError(f"the tool {found.name} gave {type(result).__name__}, not text")
    shorten = result.shorten and not found.framework
    return replace(result, text=clean_text(result.text), shorten=shorten)


def _told(found: Tool, wrong: list[str]) -> str:
    shown = wrong[:_MOST_PROBLEMS]
    if more := len(wrong) - len(shown):
        shown.append(f"and {more} more")
    return f"`{found.name}` was not run: " + "; ".join(shown)


def _error(text: str, *, shorten: bool) -> ToolOutcome:
    return ToolOutcome(text=clean_text(text), status="error", shorten=shorten)
