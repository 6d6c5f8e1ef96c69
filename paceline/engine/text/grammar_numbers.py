"""Numbers in JSON schemas that llguidance cannot keep, refused before it sees them.

It holds whole numbers as 64-bit floats, so that an output would not follow the schema, and recurses without end over a
range that begins at -2^63. Not for anything else that it lacks: that it refuses by itself.
"""

import json
from collections.abc import Iterator
from typing import Any

_EXACT = 2**53
"""Floats hold every whole number up to this."""
_LEAST = -(2**63) + 1024
"""Floats hold no whole number between -2^63 and this."""
_CONSTANTS = ("const", "enum")
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_EMBEDDED = "%json"
"""Precedes a schema in a Lark grammar."""


def check_numbers(kind: str, source: str) -> None:
    """Refuse a grammar of one of the kinds of `limits.GRAMMARS` for the numbers in its schemas.

    Raises:
        ValueError: naming the first number that cannot be kept.
    """
    left = [(source, "")] if kind == "grammar" else []
    if kind in ("json", "structural_tag") or source.lstrip().startswith("{"):
        left += [(each, "") for each in _parsed(source, 0)]
    while left:
        value, key = left.pop()
        if isinstance(value, dict):
            left += [(each, key if key in _CONSTANTS else name) for name, each in value.items()]
        elif isinstance(value, list):
            left += [(each, key) for each in value]
        elif isinstance(value, str):
            left += [(each, "") for each in _embedded(value)]
        elif not isinstance(value, bool) and value is not None and not _is_kept(value, key):
            raise ValueError(f"{key} has {str(value)[:40]}, which a grammar cannot keep exactly: give it as a string")


def _is_kept(number: float, key: str) -> bool:
    if key in _CONSTANTS:
        return isinstance(number, float) or abs(number) <= _EXACT
    return key not in _BOUNDS or number >= _LEAST


def _embedded(source: str) -> Iterator[Any]:
    """The schemas in a Lark grammar."""
    at = source.find(_EMBEDDED)
    while at >= 0:
        yield from _parsed(source, at + len(_EMBEDDED))
        at = source.find(_EMBEDDED, at + 1)


def _parsed(source: str, start: int) -> Iterator[Any]:
    """The JSON value that begins at `start`; none where there is no JSON, which llguidance then refuses."""
    try:
        yield json.JSONDecoder().raw_decode(source[start:].lstrip())[0]
    except (ValueError, RecursionError):
        return
