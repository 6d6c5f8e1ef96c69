"""`python -m paceline.engine.ahead DTYPE KV_CACHE_DTYPE`: compiles what drafts need, for another process.

The compiler takes one thread of a process however many there are, so a first start compiles the target's pass itself
and lets a second process compile the rest meanwhile. Code meets on the disk, where whoever comes first to a function
makes the other wait for it (`models/kernel_disk.py`). Not for the pass: `models/numba_executor/ahead.py`.
"""

import os
import subprocess
import sys
from functools import cache

from paceline.drafters.lookup.blended import Blended
from paceline.drafters.ngram import NGram
from paceline.models.numba_executor.ahead import compile_heads


@cache
def compile_beside(dtype: str, kv_cache_dtype: str) -> subprocess.Popen | None:
    """Start it, where there is a second processor; None elsewhere. It ends by itself, and nobody need wait for it."""
    if (os.cpu_count() or 1) < 2:
        return None
    command = [sys.executable, "-m", __name__, dtype, kv_cache_dtype]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    for drafter in (Blended, NGram):
        drafter()
    compile_heads(*sys.argv[1:])
