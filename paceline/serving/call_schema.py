"""The JSON schema of tool calls that a grammar forces: each tool's own schema, moved to where its arguments stand.

JSON pointers in a schema (``#/$defs/Place``, ``#`` alone) count from the root of the document. A tool's parameters are
the root where the client wrote them, and a part of a larger schema here, so every pointer gets the path of that part in
front. Definitions stay where they are: those of different tools cannot clash.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names, of any kind, to schemas."""
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose value is data, in which nothing is a reference."""


def calls_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of a call of one of `functions`, ``{"name": ..., "arguments": {...}}``.

    Args:
        functions: OpenAI's, each with its ``name`` and, unless it takes nothing, ``parameters``.

    Raises:
        InvalidParameter: a schema is nested too deeply.
    """
    try:
        if len(functions) == 1:
            return _call_schema(functions[0], "#")
        return {"anyOf": [_call_schema(each, f"#/anyOf/{number}") for number, each in enumerate(functions)]}
    except RecursionError:
        raise InvalidParameter("tools", "a schema is nested too deeply", "send flatter parameters") from None


def _call_schema(function: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The schema of a call of `function`; `place` points to that schema."""
    parameters = dict(function.get("parameters") or {"type": "object"})
    name = parameters.pop("$id", None)
    own = ("#", f"{name}#") if isinstance(name, str) else ("#",)
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(parameters, own, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, own: tuple[str, ...], place: str) -> Any:
    """`schema` with the pointers that begin with one of `own`, the root of its document, counted from `place`."""
    if isinstance(schema, list):
        return [_moved(each, own, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            moved[key] = _pointer(value, own, place)
        elif key in _NAMED and isinstance(value, Mapping):
            moved[key] = {name: _moved(each, own, place) for name, each in value.items()}
        else:
            moved[key] = value if key in _DATA else _moved(value, own, place)
    return moved


def _pointer(reference: str, own: tuple[str, ...], place: str) -> str:
    """A reference as it is written in the larger schema; one to an anchor or another document stays."""
    for root in own:
        inside = reference.removeprefix(root)
        if reference.startswith(root) and inside[:1] in ("", "/"):
            return place + inside
    return reference
