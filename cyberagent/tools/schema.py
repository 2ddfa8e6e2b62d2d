"""From a typed function with a docstring to a JSON Schema, and the check against it.

The subset that is written here is the subset that is checked: ``type``, ``enum``, ``anyOf``,
``items``, ``properties``, ``required``, ``additionalProperties``. Other keywords (a schema that
a remote tool brought along) are passed on and not checked. Source: docs/tools.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import (
    Any,
    Literal,
    NoReturn,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    is_typeddict,
)

from cyberagent.core.errors import InvalidInput
from cyberagent.core.types import Json

MAX_DEPTH = 64
"""Arguments nested deeper than this are refused, whatever the schema says."""

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


# Annotations to schemas ----------------------------------------------------------------------


def schema_of(annotation: Any) -> dict[str, Json]:
    """The JSON Schema of one annotation. Raises TypeError for one that has none."""
    if annotation is Any:
        return {}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _literal(args)
    if origin is Union or origin is types.UnionType:
        return {"anyOf": [schema_of(a) for a in args]}
    if origin is list:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is dict and args[0] is str:
        value = schema_of(args[1])
        return {"type": "object", "additionalProperties": value} if value else {"type": "object"}
    if is_typeddict(annotation):
        return _typed_dict(annotation)
    if dataclasses.is_dataclass(annotation):
        return _dataclass(cast(type, annotation))
    raise TypeError(f"a tool argument cannot be of type {annotation!r}")


def _literal(values: tuple[Any, ...]) -> dict[str, Json]:
    kinds = {_PLAIN.get(type(v)) for v in values}
    if len(kinds) != 1 or None in kinds:
        return {"enum": list(values)}
    return {"type": kinds.pop(), "enum": list(values)}


def _typed_dict(cls: Any) -> dict[str, Json]:
    # Where annotations are postponed, the class itself does not know of its NotRequired keys.
    marks = {k: get_origin(v) for k, v in typing.get_type_hints(cls, include_extras=True).items()}
    required = {
        k
        for k, mark in marks.items()
        if mark is Required or (k in cls.__required_keys__ and mark is not NotRequired)
    }
    hints = typing.get_type_hints(cls)
    return _object({k: schema_of(v) for k, v in hints.items()}, required)


def _dataclass(cls: type) -> dict[str, Json]:
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cast(Any, cls)) if f.init]
    missing = dataclasses.MISSING
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    return _object({f.name: schema_of(hints[f.name]) for f in fields}, required)


def _object(properties: dict[str, Json], required: typing.AbstractSet[str]) -> dict[str, Json]:
    out: dict[str, Json] = {"type": "object", "properties": properties}
    if names := [n for n in properties if n in required]:
        out["required"] = names
    out["additionalProperties"] = False
    return out


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """What a function says of itself. ``hints`` are the annotations by argument."""

    description: str
    parameters: dict[str, Json]
    hints: Mapping[str, Any]
    takes_context: bool


def signature_of(function: Callable[..., Any], context_type: type) -> Signature:
    """Read a tool function. A first parameter of ``context_type`` is left out of the schema.

    Raises TypeError where the function lacks a docstring or an annotation, takes ``*args``, or
    its docstring describes an argument that it does not have.
    """
    name = getattr(function, "__name__", "tool")
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and hints.get(parameters[0].name) is context_type
    if takes_context:
        parameters = parameters[1:]
    description, told = _docstring(inspect.getdoc(function) or "")
    if not description:
        raise TypeError(f"the tool {name} has no docstring")
    if unknown := sorted(set(told) - {p.name for p in parameters}):
        raise TypeError(f"the docstring of {name} describes {unknown[0]!r}, which it does not take")
    properties: dict[str, Json] = {}
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) or p.name not in hints:
            raise TypeError(f"argument {p.name!r} of {name} must be a plain, annotated one")
        properties[p.name] = schema_of(hints[p.name])
        if p.name in told:
            properties[p.name]["description"] = told[p.name]
        if p.default is not p.empty and p.default is not None:
            properties[p.name]["default"] = p.default
    required = {p.name for p in parameters if p.default is p.empty}
    own = {p.name: hints[p.name] for p in parameters}
    return Signature(description, _object(properties, required), own, takes_context)


_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Examples?|Yields):\s*$")
_ARGUMENT = re.compile(r"^ {2,8}(\*{0,2}\w+)(?: \([^)]*\))?:\s*(.*)$")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what ``Args:`` says of each argument. Other sections are for
    people who read the code and are left out."""
    description: list[str] = []
    arguments: dict[str, list[str]] = {}
    section, current, indent = "", "", 0
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section, current = found[1], ""
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments") and line.strip():
            depth = len(line) - len(line.lstrip())
            entry = _ARGUMENT.match(line)
            if entry and (not current or depth <= indent):
                current, indent = entry[1], depth
                arguments[current] = [entry[2]]
            elif current:
                arguments[current].append(line.strip())
    told = {name: " ".join(lines).strip() for name, lines in arguments.items()}
    return "\n".join(description).strip(), told


# Arguments -----------------------------------------------------------------------------------


def parse_arguments(text: str) -> dict[str, Json]:
    """The JSON object that a model wrote; "" is an empty one.

    Raises InvalidInput in words that the model can act upon: not JSON, NaN or Infinity, not an
    object, nested deeper than MAX_DEPTH, a lone surrogate.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise InvalidInput(
            f"the arguments are not valid JSON: {error.msg} at character {error.pos}, "
            f"near {near!r}; send one JSON object"
        ) from None
    except RecursionError:
        raise InvalidInput(f"the arguments are nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidInput(f"the arguments hold a number that cannot be used: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"the arguments must be one JSON object, not {_shown(value)}")
    for where, leaf, depth in _walk(value):
        if depth > MAX_DEPTH:
            raise InvalidInput(f"the arguments are nested deeper than {MAX_DEPTH} levels")
        if isinstance(leaf, str) and _is_broken(leaf):
            raise InvalidInput(
                f"argument `{where}` holds half of a surrogate pair (\\ud800-\\udfff); "
                "write the whole character"
            )
    return cast("dict[str, Json]", value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _is_broken(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def _walk(value: Json) -> Iterator[tuple[str, Json, int]]:
    """Every node with its place and depth, keys included, without recursion."""
    todo: list[tuple[str, Json, int]] = [("", value, 0)]
    while todo:
        where, node, depth = todo.pop()
        yield where, node, depth
        if depth > MAX_DEPTH:
            continue
        if isinstance(node, dict):
            for key, item in cast("dict[str, Json]", node).items():
                place = _join(where, key)
                todo += [(ascii(key)[1:-1], key, depth), (place, item, depth + 1)]
        elif isinstance(node, list):
            items = cast("list[Json]", node)
            todo += [(f"{where}[{i}]", item, depth + 1) for i, item in enumerate(items)]


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


# Checking ------------------------------------------------------------------------------------


def problems(schema: Mapping[str, Json], value: Json, where: str = "") -> list[str]:
    """What is wrong with ``value``, one sentence each, with the argument's place; nothing is
    converted. An empty list means that it fits."""
    if "anyOf" in schema:
        return _any_of(schema["anyOf"], value, where)
    kind: str | list[str] = schema.get("type", [])
    kinds = [kind] if isinstance(kind, str) else kind
    if kinds and not any(_is(k, value) for k in kinds):
        return [_mismatch(schema, value, where)]
    if "enum" in schema and not any(type(v) is type(value) and v == value for v in schema["enum"]):
        return [_mismatch(schema, value, where)]
    if isinstance(value, dict):
        return _object_problems(schema, cast("dict[str, Json]", value), where)
    if isinstance(value, list) and "items" in schema:
        return [
            problem
            for i, item in enumerate(cast("list[Json]", value))
            for problem in problems(schema["items"], item, f"{where}[{i}]")
        ]
    return []


def _any_of(branches: list[Mapping[str, Json]], value: Json, where: str) -> list[str]:
    found = [problems(b, value, where) for b in branches]
    if not all(found):
        return []
    own_mismatch = [_mismatch(b, value, where) for b in branches]
    deeper = [f for f, m in zip(found, own_mismatch, strict=True) if f != [m]]
    return deeper[0] if len(deeper) == 1 else [_mismatch({"anyOf": branches}, value, where)]


def _object_problems(
    schema: Mapping[str, Json], value: Mapping[str, Json], where: str
) -> list[str]:
    properties: Mapping[str, Json] = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    found = [
        f"argument `{_join(where, n)}` is missing: expected {expected(properties.get(n, {}))}"
        for n in schema.get("required", ())
        if n not in value
    ]
    for name, item in value.items():
        place = _join(where, name)
        if name in properties:
            found += problems(properties[name], item, place)
        elif rest is False:
            known = ", ".join(f"`{n}`" for n in properties) or "none"
            found.append(f"unknown argument `{place}`; known here: {known}")
        elif isinstance(rest, Mapping):
            found += problems(cast("Mapping[str, Json]", rest), item, place)
    return found


def _mismatch(schema: Mapping[str, Json], value: Json, where: str) -> str:
    return f"argument `{where}`: expected {expected(schema)}, got {_shown(value)}"


def _is(kind: str, value: Json) -> bool:
    if kind in ("integer", "number"):
        allowed = int if kind == "integer" else (int, float)
        return isinstance(value, allowed) and not isinstance(value, bool)
    cls = next((c for c, k in _PLAIN.items() if k == kind), object)
    return isinstance(value, cls)


_WORDS = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


def expected(schema: Mapping[str, Json]) -> str:
    """What a schema asks for, in words: "a list of strings or null"."""
    if "anyOf" in schema:
        return " or ".join(expected(b) for b in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    kind = schema.get("type")
    if kind == "array" and schema.get("items", {}).get("type") in _WORDS:
        word = _WORDS[schema["items"]["type"]].split(" ", 1)[-1]
        return (
            f"a list of {word}s" if schema["items"]["type"] != "boolean" else "a list of true/false"
        )
    if isinstance(kind, list):
        return " or ".join(_WORDS.get(k, str(k)) for k in cast("list[str]", kind))
    return _WORDS.get(kind, "a value") if isinstance(kind, str) else "a value"


def _shown(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


# Checked values to what the function takes ---------------------------------------------------


def convert(annotation: Any, value: Json) -> Any:
    """A checked JSON value as its annotation says: whole numbers become floats where a float is
    asked for, objects become dataclasses; all else stays as it is."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is float and isinstance(value, int):
        return float(value)
    if origin is Union or origin is types.UnionType:
        fitting = (a for a in args if not problems(schema_of(a), value))
        return convert(next(fitting, Any), value)
    if origin is list:
        return [convert(args[0], item) for item in value]
    if origin is dict:
        return {key: convert(args[1], item) for key, item in value.items()}
    if is_typeddict(annotation):
        hints = typing.get_type_hints(annotation)
        return {key: convert(hints[key], item) for key, item in value.items()}
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return cast(type, annotation)(
            **{key: convert(hints[key], item) for key, item in value.items()}
        )
    return value
