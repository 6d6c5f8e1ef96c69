"""The JSON schema of tool calls that a grammar forces: each tool's own schema, moved to where its arguments stand.

JSON pointers in a schema (``#/$defs/Place``, ``#`` alone) count from the root of the document. A tool's parameters are
the root where the client wrote them, and a part of a larger schema here, so every pointer gets the path of that part in
front. Definitions stay where they are: those of different tools cannot clash.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

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
        InvalidParameter: a schema refers to what is not there, or is nested too deeply.
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

    def moved(reference: str) -> str:
        """A reference as it is written in the larger schema; one to an anchor or another document stays."""
        root = next((each for each in own if reference.startswith(each)), None)
        if root is None or reference[len(root) :][:1] not in ("", "/"):
            return reference
        inside = reference.removeprefix(root)
        if not _exists(parameters, inside):
            problem = f"the parameters of {function['name']!r} refer to {reference[:100]!r}, which does not exist"
            raise InvalidParameter("tools", problem, "send its definition too")
        return f"{place}/properties/arguments{inside}"

    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _rewritten(parameters, moved),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _rewritten(schema: Any, moved: Callable[[str], str]) -> Any:
    """`schema` with every reference as `moved` writes it."""
    if isinstance(schema, list):
        return [_rewritten(each, moved) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    written: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            written[key] = moved(value)
        elif key in _NAMED and isinstance(value, Mapping):
            written[key] = {name: _rewritten(each, moved) for name, each in value.items()}
        else:
            written[key] = value if key in _DATA else _rewritten(value, moved)
    return written


def _exists(schema: Any, pointer: str) -> bool:
    """Whether a JSON pointer, as it is written in a reference, leads to something."""
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and len(name) < 9 and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        else:
            return False
    return True
