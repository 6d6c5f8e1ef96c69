"""The kernels compile for a GPU where there is none; they cannot be launched there."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
SHARED = {"75": 64 * 1024, "80": 99 * 1024, "90": 99 * 1024}
"""Bytes that a block of threads may share: before compute capability 8.0, and on the smallest GPUs since."""


def test_every_kernel_becomes_machine_code_that_fits(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "tests.models.cuda.compile_kernels", "80", "75", "90"]
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        command, cwd=ROOT, env=own | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert Counter(capability for capability, *_ in lines) == {"80": 51, "75": 5, "90": 25}
    assert all(int(shared) <= SHARED[capability] and int(size) > 0 for capability, _, shared, size in lines)
