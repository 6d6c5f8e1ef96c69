"""Times as options have them: ``90s``, ``60m``, ``1.5h``, or a plain number of seconds."""

from paceline.errors import InvalidParameter

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(field: str, text: str) -> float:
    """Parse the value of option `field` into seconds. Raises InvalidParameter unless it is a time above 0."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise InvalidParameter(field, f"{text!r} is no time", "write 90s, 60m or 1.5h")
    return found
