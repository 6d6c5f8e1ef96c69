"""Numbers of bytes as options have them, in vLLM's spelling: ``4G`` is 4 GiB, ``4g`` is 4 GB, ``4000`` is itself.

For durations see `durations.py`.
"""

import re
from fractions import Fraction

from paceline.errors import InvalidParameter

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([kmgtKMGT]?)")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_of(field: str, text: str | None) -> int | None:
    """Parse the value of option `field` into bytes; None stays None.

    A suffix in capitals counts in powers of 1024, another in powers of 1000.

    Raises:
        InvalidParameter: it is no number, or no whole number of bytes of at least 1.
    """
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        problem = f"{text!r} is no number of bytes"
        raise InvalidParameter(field, problem, "write e.g. 4G (4 GiB), 512M, 4g (4 GB) or 4000000000")
    unit = 1024 if found[2].isupper() else 1000
    size = Fraction(found[1]) * unit ** _POWER[found[2].lower()]
    if size.denominator != 1 or size < 1:
        raise InvalidParameter(field, f"{text!r} is no whole number of bytes", "give at least 1, e.g. 4G or 512M")
    return int(size)
