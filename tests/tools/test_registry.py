"""Tools from functions: their schemas, the check of arguments, and what a call can end in."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import (
    InvalidConfig,
    InvalidInput,
    LeaseLost,
    NotFound,
    PathRefused,
    ToolFailed,
)
from cyberagent.core.ports import ToolContext, ToolOutcome, Tools
from cyberagent.tools.registry import Registry, Tool, tool
from tests.tools.helpers import call, error, make_context, ok


class Edit(TypedDict):
    old: str
    new: NotRequired[str]


@dataclass
class Point:
    x: float
    y: float = 0.0


@tool(read_only=True, parallel_safe=True)
def everything(
    context: ToolContext,
    path: str | list[str],
    count: int = 3,
    ratio: float = 0.5,
    deep: bool = False,
    mode: Literal["fast", "slow"] = "fast",
    note: str | None = None,
    edits: list[Edit] | None = None,
    counts: dict[str, int] | None = None,
    point: Point | None = None,
) -> str:
    """Do everything at once. And say what came.

    A second paragraph.

    Args:
        path: Where to look,
            or several places: a list.
        count: How often.
        mode: How.

    Returns:
        Not for models.
    """
    return repr((path, count, ratio, deep, mode, note, edits, counts, point))


EVERYTHING = {
    "name": "everything",
    "description": "Do everything at once. And say what came.\n\nA second paragraph.",
    "parameters": {
        "type": "object",
        "properties": {
            "path": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                "description": "Where to look, or several places: a list.",
            },
            "count": {"type": "integer", "description": "How often.", "default": 3},
            "ratio": {"type": "number", "default": 0.5},
            "deep": {"type": "boolean", "default": False},
            "mode": {
                "type": "string",
                "enum": ["fast", "slow"],
                "description": "How.",
                "default": "fast",
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "edits": {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                            "required": ["old"],
                            "additionalProperties": False,
                        },
                    },
                    {"type": "null"},
                ]
            },
            "counts": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "integer"}},
                    {"type": "null"},
                ]
            },
            "point": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                        "required": ["x"],
                        "additionalProperties": False,
                    },
                    {"type": "null"},
                ]
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}


def test_a_schema_comes_from_annotations_and_docstring() -> None:
    assert everything.schema() == EVERYTHING


def test_the_index_has_the_first_sentence() -> None:
    assert Registry([everything]).index() == [("everything", "Do everything at once.")]


async def test_arguments_arrive_as_the_function_asks_for_them() -> None:
    text = await ok(
        everything,
        make_context(),
        path=["a"],
        ratio=2,
        edits=[{"old": "x"}],
        counts={"a": 1},
        point={"x": 1},
    )
    assert text == (
        "(['a'], 3, 2.0, False, 'fast', None, [{'old': 'x'}], {'a': 1}, Point(x=1.0, y=0.0))"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", "argument `path` is missing: expected a string or a list of strings"),
        ('{"path": 3}', "argument `path`: expected a string or a list of strings, got 3"),
        ('{"path": ["a", 3]}', "argument `path[1]`: expected a string, got 3"),
        ('{"path": "a", "count": "3"}', 'argument `count`: expected a whole number, got "3"'),
        ('{"path": "a", "count": true}', "argument `count`: expected a whole number, got true"),
        ('{"path": "a", "count": 3.0}', "argument `count`: expected a whole number, got 3.0"),
        ('{"path": "a", "ratio": null}', "argument `ratio`: expected a number, got null"),
        ('{"path": "a", "deep": 1}', "argument `deep`: expected true or false, got 1"),
        ('{"path": "a", "mode": "x"}', 'argument `mode`: expected one of "fast", "slow", got "x"'),
        ('{"path": "a", "edits": [{}]}', "argument `edits[0].old` is missing: expected a string"),
        ('{"path": "a", "edits": [{"old": "", "w": 1}]}', "unknown argument `edits[0].w`"),
        ('{"path": "a", "counts": {"k": "v"}}', "argument `counts.k`: expected a whole number"),
        ('{"path": "a", "point": {"y": 1}}', "argument `point.x` is missing: expected a number"),
        ('{"path": "a", "where": 1}', "unknown argument `where`; known here: `path`, `count`"),
        ('{"path": ', "not valid JSON: Expecting value at character 9"),
        ("['a']", "not valid JSON"),
        ("[1]", "must be one JSON object, not [1]"),
        ('"a"', 'must be one JSON object, not "a"'),
        ('{"path": "a", "ratio": NaN}', "NaN is not JSON"),
        ('{"path": "a", "ratio": -Infinity}', "-Infinity is not JSON"),
        ('{"path": "a", "ratio": 1e999}', "1e999 is too large"),
        ('{"path": "a", "count": ' + "9" * 5000 + "}", "number that cannot be used"),
        ('{"path": "\\ud83d"}', "argument `path` holds half of a surrogate pair"),
        ('{"path": ' + "[" * 65 + "]" * 65 + "}", "nested deeper than 64 levels"),
        ("[" * 100_000, "nested deeper than 64 levels"),
    ],
)
async def test_bad_arguments_are_told_with_which_and_why(arguments: str, told: str) -> None:
    outcome = await Registry([everything]).call("everything", arguments, make_context())
    assert outcome.status == "error"
    assert told in outcome.text


async def test_all_that_is_wrong_is_told_at_once() -> None:
    text = await error(everything, make_context(), path=1, count="x", nope=2)
    assert [f"`{n}`" in text for n in ("path", "count", "nope")] == [True, True, True]


async def test_no_arguments_may_be_an_empty_text() -> None:
    @tool
    def nothing() -> str:
        """Take nothing."""
        return "done"

    for arguments in ("", "  \n", "{}"):
        outcome = await Registry([nothing]).call("nothing", arguments, make_context())
        assert (outcome.status, outcome.text) == ("ok", "done")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from([*EVERYTHING["parameters"]["properties"], "x"]), json_values)
)
def test_no_json_value_makes_a_call_raise(arguments: dict[str, Any]) -> None:
    outcome = asyncio.run(
        Registry([everything]).call("everything", json.dumps(arguments), make_context())
    )
    assert "unexpectedly" not in outcome.text


@given(st.text())
def test_no_text_as_arguments_makes_a_call_raise(arguments: str) -> None:
    outcome = asyncio.run(Registry([everything]).call("everything", arguments, make_context()))
    assert outcome.status == "error"
    assert "unexpectedly" not in outcome.text


async def test_an_unknown_tool_is_answered_with_the_closest() -> None:
    registry = Registry([everything])
    close = await registry.call("everythin", "{}", make_context())
    assert close.text == "there is no tool `everythin`; did you mean `everything`?"
    far = await registry.call("zzz", "{}", make_context())
    assert far.text == "there is no tool `zzz`; there are: everything"
    assert (close.status, far.status) == ("error", "error")


@tool
def failing(kind: str) -> str:
    """Fail in the way asked for."""
    raise {
        "failed": ToolFailed("the disk is full"),
        "input": InvalidInput("that is no date"),
        "path": PathRefused("not in there"),
        "missing": NotFound("goal", "7"),
        "lease": LeaseLost("somebody else drives this trace"),
        "defect": KeyError("secret"),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("failed", "the disk is full"),
        ("input", "that is no date"),
        ("path", "not in there"),
        ("missing", "there is no goal '7'"),
    ],
)
async def test_errors_made_for_the_model_are_told_as_they_stand(kind: str, told: str) -> None:
    assert await error(failing, make_context(), kind=kind) == told


async def test_a_defect_in_a_tool_is_logged_and_told_by_its_class_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = await error(failing, make_context(), kind="defect")
    assert text == "the tool `failing` failed unexpectedly (KeyError)"
    assert "secret" in caplog.text


async def test_a_lost_lease_is_not_told_to_the_model() -> None:
    with pytest.raises(LeaseLost):
        await call(failing, make_context(), kind="lease")


async def test_an_output_that_is_not_text_is_a_defect() -> None:
    @tool
    def numbers() -> Any:
        """Give a number."""
        return 3

    assert "unexpectedly (TypeError)" in await error(numbers, make_context())


async def test_a_lone_surrogate_in_an_output_is_replaced() -> None:
    @tool
    def broken() -> str:
        """Give broken text."""
        return "a\ud800b"

    assert await ok(broken, make_context()) == "a\ufffdb"


async def test_async_functions_and_threads() -> None:
    @tool
    async def later() -> ToolOutcome:
        """Answer later."""
        await asyncio.sleep(0)
        return ToolOutcome(text="later", metadata={"k": 1})

    @tool(in_thread=True)
    def elsewhere() -> str:
        """Tell the thread."""
        return threading.current_thread().name

    outcome = await call(later, make_context())
    assert (outcome.text, outcome.metadata, outcome.shorten) == ("later", {"k": 1}, True)
    assert await ok(elsewhere, make_context()) != threading.current_thread().name


async def test_a_framework_tools_output_is_never_shortened() -> None:
    @tool(framework=True)
    def own() -> str:
        """Keep own limits."""
        return "x"

    assert (await call(own, make_context())).shorten is False
    assert (await Registry([own]).call("own", "[]", make_context())).shorten is False


def test_a_registry_of_some_tools_keeps_their_order_and_refuses_unknown_names() -> None:
    registry = Registry([everything, failing])
    assert registry.only(["failing", "everything"]).names == ("failing", "everything")
    assert [s["name"] for s in registry.only(["failing"]).schemas()] == ["failing"]
    with pytest.raises(InvalidConfig, match="did you mean `failing`"):
        registry.only(["failling"])
    with pytest.raises(InvalidConfig, match="two tools are named 'failing'"):
        Registry([failing, failing])


def test_a_registry_answers_what_the_runner_asks() -> None:
    registry: Tools = Registry([everything, failing])
    assert registry.is_parallel_safe("everything") and not registry.is_parallel_safe("failing")
    assert not registry.is_parallel_safe("unknown") and not registry.is_idempotent("unknown")
    with pytest.raises(NotFound):
        Registry().get("everything")


def _no_docstring(a: int) -> str:
    return ""


def _no_annotation(a) -> str:  # type: ignore[no-untyped-def]
    """Lack one."""
    return ""


def _stray(a: int) -> str:
    """Describe another.

    Args:
        b: Not there.
    """
    return ""


def _strange(a: set[int]) -> str:
    """Take a set."""
    return ""


def _many(*a: int) -> str:
    """Take many."""
    return ""


@pytest.mark.parametrize("function", [_no_docstring, _no_annotation, _stray, _strange, _many])
def test_a_function_that_cannot_be_a_tool_is_refused_when_it_is_defined(function: Any) -> None:
    with pytest.raises(TypeError):
        tool(function)


async def test_a_schema_from_elsewhere_is_checked_as_far_as_it_is_understood() -> None:
    remote = Tool(
        name="remote",
        description="From elsewhere.",
        parameters={
            "type": "object",
            "properties": {"n": {"type": ["integer", "null"], "minimum": 3}, "any": {}},
        },
        function=lambda **arguments: json.dumps(arguments),
    )
    assert await ok(remote, make_context(), n=1, any=[], more=2) == '{"n": 1, "any": [], "more": 2}'
    assert "expected a whole number or null" in await error(remote, make_context(), n="x")
