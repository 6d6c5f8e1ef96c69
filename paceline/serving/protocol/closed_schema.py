"""JSON schemas whose objects hold only the properties that they list, as OpenAI's strict mode and xgrammar read them.

JSON Schema allows an object any further property unless ``additionalProperties`` says otherwise, and a grammar of such
a schema lets a model invent some. An object is closed here if it lists ``properties`` and says nothing of others. Parts
that describe one object together are left open, because closed ones would exclude each other's properties.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names, of any kind, to schemas."""
DATA = ("const", "enum", "default", "examples")
"""Keywords whose value is data, in which nothing is a schema."""
_LISTS = ("allOf", "anyOf", "oneOf")
"""Keywords whose value lists schemas of the same object."""
_OF_OBJECTS = frozenset(("properties", "required", "patternProperties", "additionalProperties", "minProperties"))


class _UnknownPartError(Exception):
    """A part of an object is described where it cannot be found."""


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with every object closed that can be, at any depth.

    Left open: objects described by several parts (members of ``allOf``, a ``$ref``, ``anyOf`` or ``oneOf`` beside
    properties) and the definitions that these parts refer to, except an object whose other parts name only properties
    that it lists; objects that require what they do not list; and all of a schema with such a part outside it.
    """
    try:
        kept = _Kept(schema)
        return _closed(schema, kept.open)
    except (_UnknownPartError, RecursionError):  # one nested too deeply is refused when it is compiled
        return dict(schema)


class _Kept:
    """Finds the schemas that must stay as they are.

    Attributes:
        open: their identities.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self.open = root, set[int]()
        for schema in _schemas(root):
            self._look(schema)

    def _look(self, schema: Mapping[str, Any]) -> None:
        """Note which parts of one object have to stay open."""
        parts, num_constraints = self._parts(schema)
        is_described = not _OF_OBJECTS.isdisjoint(schema)
        if not parts or (not is_described and num_constraints == 1):
            return
        names = _names(schema.get("properties"))
        if not all(self._names_only(part, names) for part in parts):
            self.open.add(id(schema))
        while parts:
            part = parts.pop()
            if id(part) not in self.open:
                self.open.add(id(part))
                parts += self._parts(part)[0]

    def _parts(self, schema: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
        """The schemas that describe the same object as `schema`, and the number of those that hold at once."""
        lists = {key: schema[key] for key in _LISTS if isinstance(schema.get(key), list)}
        parts = [part for each in lists.values() for part in each if isinstance(part, Mapping)]
        num_constraints = sum(len(each) if key == "allOf" else 1 for key, each in lists.items())
        if isinstance(schema.get("$ref"), str):
            parts.append(self._referred(schema["$ref"]))
            num_constraints += 1
        return parts, num_constraints

    def _referred(self, reference: str) -> Mapping[str, Any]:
        document, _, pointer = reference.partition("#")
        is_own = document in ("", self._root.get("$id")) and pointer[:1] in ("", "/")
        found = target(self._root, pointer) if is_own else None
        if not isinstance(found, Mapping):
            raise _UnknownPartError
        return found

    def _names_only(self, part: Mapping[str, Any], names: frozenset[str]) -> bool:
        """Whether a part is about properties of these names only, for certain."""
        own = _names(part.get("properties")) | _names(part.get("required"))
        return own <= names and "patternProperties" not in part and not any(key in part for key in (*_LISTS, "$ref"))


def _closed(schema: Any, kept: set[int]) -> Any:
    written = mapped(schema, lambda each: _closed(each, kept))
    if not isinstance(schema, Mapping) or id(schema) in kept or "additionalProperties" in schema:
        return written
    names = _names(schema.get("properties"))
    has_others = not _names(schema.get("required")) <= names
    if not isinstance(schema.get("properties"), Mapping) or has_others:
        return written
    return written | {"additionalProperties": False}


def _names(value: Any) -> frozenset[str]:
    return (
        frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list | Mapping) else frozenset()
    )


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all schemas inside it."""
    left = [schema]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield found

        def note(inner: Any) -> Any:
            left.append(inner)
            return inner

        mapped(found, note)


def mapped(schema: Any, change: Callable[[Any], Any]) -> Any:
    """A schema, or a list of them, with `change` applied to what is right inside it and may be a schema."""
    if isinstance(schema, list):
        return [change(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    written: dict[str, Any] = {}
    for key, value in schema.items():
        if key in NAMED and isinstance(value, Mapping):
            written[key] = {name: change(each) for name, each in value.items()}
        else:
            written[key] = value if key in DATA else change(value)
    return written


def target(schema: Any, pointer: str) -> Any:
    """What a JSON pointer, as it is written in a reference, leads to; None where nothing is there."""
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and len(name) < 9 and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        else:
            return None
    return schema
