"""Benchmark programs are scripts that import each other by name: their folder is put on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
