"""Strict reading of fields of case, plan and trace files; errors are InvalidParameter and name the field.

Unknown keys, numbers that are not finite and fractions where whole numbers are expected are errors, never ignored. Not
for flags of a request (`paceline/limits.py`), nor for checks across fields (`case_file.py` and the data classes).
"""

import json
import math
import reprlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter, nearest
from paceline.limits import unrepeated

MOST_CHARACTERS = 1000
"""Largest length of a name or a path."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def shown(value: Any) -> str:
    """The abbreviated repr of a value, for messages."""
    return _REPR.repr(value)


def label_of(name: str, where: str = "") -> str:
    """Name of a field in messages, with the place it is in."""
    return f"{where}.{name}" if where else name


def only_known(values: Mapping[Any, Any], known: Collection[str], where: str) -> None:
    """Raise InvalidParameter for an unknown key, suggesting the most similar known one."""
    for key in values:
        if key in known:
            continue
        remedy = nearest(key, known).strip() or f"use {', '.join(sorted(known))}"
        raise InvalidParameter(where, f"unknown key {shown(key)}", remedy)


def field_of(values: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    """The value of a required field of type `kind`."""
    if not isinstance(values.get(name), kind):
        found = shown(values[name]) if name in values else "missing"
        raise InvalidParameter(label_of(name, where), found, f"give a {kind.__name__}")
    return values[name]


def text_of(values: Mapping[str, Any], name: str, default: str | None = None, where: str = "") -> str:
    """A text of 1 to `MOST_CHARACTERS` characters; numbers are converted, since YAML reads a model named 7 as one."""
    value = values.get(name, default)
    is_text = isinstance(value, str) or (isinstance(value, int | float) and abs(value) < 2**63)
    if isinstance(value, bool) or not is_text or not 0 < len(str(value).strip()) <= MOST_CHARACTERS:
        found = shown(value) if name in values else "missing"
        raise InvalidParameter(label_of(name, where), found, "give a text of 1 to 1000 characters")
    return str(value)


def number_of(
    values: Mapping[str, Any], name: str, default: float | None = None, where: str = "", most: float = math.inf
) -> float:
    """A finite number of absolute value at most `most`; strings are converted, since YAML reads 2.0e9 as one."""
    value = values.get(name, default)
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        problem = shown(value) if name in values else "missing"
        raise InvalidParameter(label_of(name, where), problem, "give a number") from None
    if not math.isfinite(number):
        raise InvalidParameter(label_of(name, where), f"{value} is not finite", "give a finite number")
    if abs(number) > most:
        raise InvalidParameter(label_of(name, where), f"{number:g}", f"give at most {most:g}")
    return number


def whole_of(
    values: Mapping[str, Any], name: str, default: int | None = None, where: str = "", most: float = 2**53
) -> int:
    """A whole number of absolute value at most `most`."""
    number = number_of(values, name, default, where, most)
    if not number.is_integer():
        raise InvalidParameter(label_of(name, where), f"{number}", "give a whole number")
    return int(number)


def numbers_of(values: Mapping[str, Any], name: str, where: str, most: float = math.inf) -> tuple[float, ...]:
    """A list of finite numbers."""
    return tuple(
        number_of({name: value}, name, where=where, most=most) for value in field_of(values, name, list, where)
    )


def read_mapping(path: Path, field: str = "case") -> dict[str, Any]:
    """The mapping in a JSON or YAML file.

    Raises:
        InvalidParameter: it cannot be read or parsed, has a duplicate key, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidParameter(field, f"cannot read {path} ({error})", "give a JSON or YAML file") from None
    try:
        is_yaml = path.suffix in (".yaml", ".yml")
        values = _parse_yaml(text) if is_yaml else json.loads(text, object_pairs_hook=unrepeated)
    except (ValueError, RecursionError) as error:
        problem = f"{path} cannot be parsed ({' '.join(str(error).split())})"
        raise InvalidParameter(field, problem, "mend it, or check its suffix") from None
    if not isinstance(values, dict):
        raise InvalidParameter(field, f"{path} holds no mapping", f"write the fields of a {field} at its top level")
    return values


def _parse_yaml(text: str) -> Any:
    import yaml  # its import takes longer than reading a JSON case

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        for pairs in _mappings(node, set()):
            unrepeated(pairs)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
    finally:
        loader.dispose()


def _mappings(node: Any, seen: set[int]) -> Iterator[list[tuple[str, str]]]:
    """(key, tag) pairs of every mapping below a YAML node, to find duplicates, of which PyYAML keeps the last.

    Keys merged in by `<<` are not included; they may be overridden.
    """
    if node is None or id(node) in seen or isinstance(node.value, str):
        return
    seen.add(id(node))
    if node.id == "mapping":
        yield [(key.value, key.tag) for key, _ in node.value if isinstance(key.value, str) and key.value != "<<"]
    for child in node.value:
        for one in child if node.id == "mapping" else [child]:
            yield from _mappings(one, seen)
