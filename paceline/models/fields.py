"""`Fields`: typed access to the key-value pairs of a model file, which checks the type and range of every value.

For ``config.json``, GGUF metadata and tokenizer settings. Null counts as missing. Not for parsing JSON (`json_file.py`)
and not for heads, where unknown keys are errors (`heads/strict.py`).
"""

import math
from collections.abc import ItemsView, Mapping
from typing import Any, TypeGuard

from paceline.errors import UnsupportedModel

_MISSING: Any = object()
LARGEST = 2**31 - 1
"""Largest size or token id: they are stored in 32 bits."""
_REMEDY = "get the model's files from their source again"
_OTHERWISE = f"use a model without it, or {_REMEDY}"


class Fields:
    """Key-value pairs of a file.

    Args:
        values: the file's pairs.
        defaults: values of keys that the file lacks.
        where: what errors begin with, e.g. the file's path; the keys of the objects that these pairs lie in follow it.
        remedy: what errors advise; None for what helps with a model's files.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        *,
        where: object = "",
        remedy: str | None = None,
    ) -> None:
        self._values = {**(defaults or {}), **{name: value for name, value in values.items() if value is not None}}
        self._nulls = frozenset(name for name, value in values.items() if value is None)
        self._where, self._remedy = where, remedy

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def items(self) -> ItemsView[str, Any]:
        """The keys and their unchecked values."""
        return self._values.items()

    def is_null(self, name: str) -> bool:
        """Whether the file has null: for the few settings where null means "none" rather than the default."""
        return name in self._nulls

    def get(self, name: str, default: Any = _MISSING) -> Any:
        """The unchecked value. Raises UnsupportedModel where it is missing and has no default."""
        if name in self._values:
            return self._values[name]
        if default is _MISSING:
            raise self._error(name, "missing from the model's configuration", _REMEDY)
        return default

    def whole(self, name: str, default: Any = _MISSING, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from `least` to `most`. Like the methods below, raises UnsupportedModel naming the field."""
        value = self.get(name, default)
        if not is_whole(value) or not least <= value <= most:
            raise self.refuse(name, f"{shown(value)} is not a whole number from {least} to {most}")
        return value

    def optional_whole(self, name: str, least: int = 0) -> int | None:
        """A whole number from `least` on; None where it is missing."""
        return self.whole(name, least=least) if name in self else None

    def number(self, name: str, default: Any = _MISSING, above: float = 0.0) -> float:
        """A finite number greater than `above`."""
        value = self.get(name, default)
        if not is_number(value) or not value > above:
            raise self.refuse(name, f"{shown(value)} is not a finite number above {above:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, f"{shown(value)} is neither true nor false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.get(name, default)
        if not is_text(value):
            raise self.refuse(name, f"{shown(value)} is not text")
        return value

    def list(self, name: str, kind: type | tuple[type, ...], most: int = LARGEST) -> list[Any]:
        """A list of values of type `kind` (a bool is not an int); empty where it is missing."""
        values = self.get(name, [])
        if not isinstance(values, (list, tuple)) or len(values) > most:
            raise self.refuse(name, f"{shown(values)} is no list of at most {most} values")
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not set(map(type, values)) <= set(kinds):
            other = next(value for value in values if type(value) not in kinds)
            raise self.refuse(name, f"holds {shown(other)}, which is no {' or '.join(k.__name__ for k in kinds)}")
        return list(values)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite positive numbers."""
        values = self.list(name, (int, float))
        for value in values:
            if not is_number(value) or not value > 0:
                raise self.refuse(name, f"holds {shown(value)}, which is not a finite number above 0")
        return tuple(float(value) for value in values)

    def inner(self, name: str) -> "Fields":
        """The object under `name`; empty where it is missing."""
        values = self.get(name, {})
        if not isinstance(values, Mapping):
            raise self.refuse(name, f"{shown(values)} is no object")
        return Fields(values, where=self._path(name), remedy=self._remedy)

    def expect(self, name: str, *expected: object) -> None:
        """Refuse a setting with any other value than `expected`; a missing setting is accepted."""
        value = self.get(name, expected[0])
        if not any(type(value) is type(one) and value == one for one in expected):
            raise self.refuse(name, f"{shown(value)} is not implemented, only {' or '.join(map(repr, expected))}")

    def refuse(self, name: str, problem: str) -> UnsupportedModel:
        """The error for the key `name`."""
        return self._error(name, problem, _OTHERWISE)

    def _error(self, name: str, problem: str, remedy: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._path(name)}: {problem}; {self._remedy or remedy}")

    def _path(self, name: str) -> str:
        return f"{self._where}: {name}" if self._where else name


def refuse(field: str, problem: str) -> UnsupportedModel:
    """The error for a field of a model's configuration whose file is not known."""
    return Fields({}).refuse(field, problem)


def shown(value: object) -> str:
    """`value` for an error message, shortened to about 60 characters."""
    text = repr(value) if not isinstance(value, (list, tuple, dict)) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is an int or float of magnitude at most 1e300, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= 1e300 and math.isfinite(value)


def is_text(value: object) -> TypeGuard[str]:
    """Whether `value` is a string without NUL that UTF-8 can encode; JSON can hold lone surrogates, which it cannot."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
