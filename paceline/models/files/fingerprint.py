"""A fingerprint of weight files, for caches made from them: path, size, time and sampled contents of each file.

Hashing a large file takes seconds. Time and size alone do not suffice: archives and copies set the time (often all to
one value), and another model of the same shape has the same size. Not for damage inside a file (`intact.py`).
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_PIECES, _BYTES = 16, 4096


def fingerprint_of(paths: Iterable[Path]) -> str:
    """The fingerprint of `paths`, 32 hexadecimal digits; it changes when a file is replaced."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            stat = path.stat()
            digest.update(f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
            for piece in range(_PIECES):
                file.seek(piece * max(stat.st_size - _BYTES, 0) // (_PIECES - 1))
                digest.update(file.read(_BYTES))
    return digest.hexdigest()[:32]
