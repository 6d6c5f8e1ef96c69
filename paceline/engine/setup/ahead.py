"""`python -m paceline.engine.setup.ahead DTYPE KV_CACHE_DTYPE`: compile the kernels of drafters and heads.

Numba compiles on one thread of a process only. On a first start the main process compiles the target's forward pass
while this one compiles the rest. Both share the kernel cache on disk, where a lock lets only one of them compile a
given function (`models/compiled/disk.py`). The forward pass itself: `models/numba_executor/ahead.py`.
"""

import os
import subprocess
import sys
from functools import cache

from paceline.drafters.lookup.blended import Blended
from paceline.drafters.lookup.ngram import NGram
from paceline.models.numba_executor.ahead import compile_heads


@cache
def compile_beside(dtype: str, kv_cache_dtype: str) -> subprocess.Popen | None:
    """Start the compiling process and return it, or None on a machine with one processor. Callers need not wait."""
    if (os.cpu_count() or 1) < 2:
        return None
    command = [sys.executable, "-m", __name__, dtype, kv_cache_dtype]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    for drafter in (Blended, NGram):
        drafter()
    compile_heads(*sys.argv[1:])
