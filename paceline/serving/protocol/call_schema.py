"""The JSON schema of tool calls that a grammar forces: each tool's own schema, moved to where its arguments stand.

JSON pointers in a schema (``#/$defs/Place``, ``#`` alone) count from the root of the document. A tool's parameters are
the root where the client wrote them, and a part of a larger schema here, so every pointer gets the path of that part in
front. Definitions stay where they are: those of different tools cannot clash.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter
from paceline.serving.protocol.closed_schema import closed, mapped, target

_NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The parameters of a function that takes nothing."""


def calls_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of a call of one of `functions`, ``{"name": ..., "arguments": {...}}``.

    Arguments that a tool does not list are not allowed, unless its own schema or ``strict: false`` allows them.

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
    given = function.get("parameters") or _NOTHING
    parameters = dict(given) if function.get("strict") is False else closed(given)
    name = parameters.pop("$id", None)
    own = ("#", f"{name}#") if isinstance(name, str) else ("#",)

    def moved(reference: str) -> str:
        """A reference as it is written in the larger schema; one to an anchor or another document stays."""
        root = next((each for each in own if reference.startswith(each)), None)
        if root is None or reference[len(root) :][:1] not in ("", "/"):
            return reference
        inside = reference.removeprefix(root)
        if target(parameters, inside) is None:
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
    written = mapped(schema, lambda each: _rewritten(each, moved))
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        written["$ref"] = moved(schema["$ref"])
    return written
