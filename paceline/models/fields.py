"""`Fields`: a bounded, typed view of the key-value pairs of a model file; nothing is used before its type is known.

For ``config.json``, GGUF metadata and the settings of tokenizers alike. Null counts as missing. Not for JSON itself
(`json_file.py`) and not for heads, whose every key must be accounted for (`heads/strict.py`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from paceline.errors import UnsupportedModel

_MISSING: Any = object()
LARGEST = 2**31 - 1
"""Of any size or token id: they are kept in 32 bits."""
_REMEDY = "get the model's files from their source again"


class Fields:
    """Key-value pairs of a file.

    Args:
        values: what the file says.
        defaults: what holds where it says nothing.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._values = {**(defaults or {}), **{name: value for name, value in values.items() if value is not None}}
        self._nulls = frozenset(name for name, value in values.items() if value is None)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def is_null(self, name: str) -> bool:
        """Whether the file says null: for the few settings where that means none and not the default."""
        return name in self._nulls

    def get(self, name: str, default: Any = _MISSING) -> Any:
        """The value as it is. Raises UnsupportedModel where it is missing and has no default."""
        if name in self._values:
            return self._values[name]
        if default is _MISSING:
            raise UnsupportedModel(f"{name}: missing from the model's configuration; {_REMEDY}")
        return default

    def whole(self, name: str, default: Any = _MISSING, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from `least` to `most`. Raises UnsupportedModel as the methods below do: naming the field."""
        value = self.get(name, default)
        if not _is_whole(value) or not least <= value <= most:
            raise refuse(name, f"{shown(value)} is not a whole number from {least} to {most}")
        return value

    def optional_whole(self, name: str, least: int = 0) -> int | None:
        """A whole number, None where it is missing."""
        return self.whole(name, least=least) if name in self else None

    def number(self, name: str, default: Any = _MISSING, above: float = 0.0) -> float:
        """A finite number greater than `above`."""
        value = self.get(name, default)
        if not is_number(value) or not value > above:
            raise refuse(name, f"{shown(value)} is not a finite number above {above:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise refuse(name, f"{shown(value)} is neither true nor false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.get(name, default)
        if not is_text(value):
            raise refuse(name, f"{shown(value)} is not text")
        return value

    def list(self, name: str, kind: type | tuple[type, ...], most: int = LARGEST) -> list[Any]:
        """A list of values of `kind` (a bool is no number), empty where it is missing."""
        values = self.get(name, [])
        if not isinstance(values, (list, tuple)) or len(values) > most:
            raise refuse(name, f"{shown(values)} is no list of at most {most} values")
        check_items(name, values, kind)
        return list(values)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite positive numbers."""
        values = self.list(name, (int, float))
        for value in values:
            if not is_number(value) or not value > 0:
                raise refuse(name, f"holds {shown(value)}, which is not a finite number above 0")
        return tuple(float(value) for value in values)

    def inner(self, name: str) -> "Fields":
        """The object under `name`, empty where it is missing."""
        values = self.get(name, {})
        if not isinstance(values, Mapping):
            raise refuse(name, f"{shown(values)} is no object")
        return Fields(values)

    def expect(self, name: str, *expected: object) -> None:
        """Refuse a setting that would change the numbers; an absent one has an expected value."""
        value = self.get(name, expected[0])
        if not any(type(value) is type(one) and value == one for one in expected):
            raise refuse(name, f"{shown(value)} is not implemented, only {' or '.join(map(repr, expected))}")


def refuse(field: str, problem: str) -> UnsupportedModel:
    """The error about one field of a model's configuration."""
    return UnsupportedModel(f"{field}: {problem}; use a model without it, or {_REMEDY}")


def shown(value: object) -> str:
    """A value in an error, cut short: files hold values of any length."""
    text = repr(value) if not isinstance(value, (list, tuple, dict)) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_number(value: object) -> bool:
    """Whether `value` is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= 1e300 and math.isfinite(value)


def is_text(value: object) -> TypeGuard[str]:
    """Whether `value` is a string that UTF-8 can say; JSON can spell halves of letters, which it cannot."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def check_items(name: str, values: Sequence[Any], kind: type | tuple[type, ...]) -> None:
    """Refuse a list that holds anything but values of `kind`.

    Raises:
        UnsupportedModel: naming the list and the first other value.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if set(map(type, values)) <= set(kinds):
        return
    other = next(value for value in values if type(value) not in kinds)
    raise refuse(name, f"holds {shown(other)}, which is no {' or '.join(k.__name__ for k in kinds)}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
