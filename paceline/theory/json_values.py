"""Figures as JSON has them. Not for tables or texts."""

from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """`value` with lists in place of tuples, and null for infinity and what is no number, which JSON has not."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
