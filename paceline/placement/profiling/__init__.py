"""Profiles of language models for the planner: from a config and a data sheet, from measurements, and how far off.

`paceline profile` is its command. Not for measuring (`evaluation/tune.py`).
"""

from paceline.placement.profiling.benchmarks import Benchmark, read_all_benchmarks, read_benchmarks
from paceline.placement.profiling.compare import Comparison, compared
from paceline.placement.profiling.device import DEVICES, DeviceSheet, read_device
from paceline.placement.profiling.model_work import ModelWork
from paceline.placement.profiling.sheet import profile_from_sheet

__all__ = [
    "DEVICES",
    "Benchmark",
    "Comparison",
    "DeviceSheet",
    "ModelWork",
    "compared",
    "profile_from_sheet",
    "read_all_benchmarks",
    "read_benchmarks",
    "read_device",
]
