"""The number of threads to use: one for each physical core that this process may use, within its CPU quota.

Two threads on one core share its arithmetic units and caches, so the second one does not speed up matrix products and
waits at every barrier. Where the system does not report cores, every logical processor counts. Not for what threads do
(`numba_executor/team.py`).
"""

import ctypes
import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from paceline.errors import InvalidParameter

_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CORE = 0
"""The kind of a Windows record that describes a core (RelationProcessorCore)."""
_MOST_PER_PROCESSOR, _LEAST_LIMIT = 4, 16
"""Most threads for each processor; and the number that may be asked for on any machine."""
_RECORD_BYTES, _KIND_AT = 32, 8


def usable_cores() -> int:
    """Physical cores that this process may use, at least one."""
    allowed = _allowed_processors()
    if allowed is not None:
        cores = len({_siblings(processor) for processor in allowed})
    elif sys.platform == "darwin":
        cores = _sysctl(b"hw.perflevel0.physicalcpu") or _sysctl(b"hw.physicalcpu") or os.cpu_count() or 1
    elif sys.platform == "win32":
        cores = _windows_cores() or os.cpu_count() or 1
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota() or cores))


def check_threads(num_threads: int | None) -> None:
    """Raise InvalidParameter for more threads of a pass than could help; None stands for the default.

    A few times the processors is allowed: it only costs time.
    """
    processors = os.cpu_count() or 1
    most = max(_LEAST_LIMIT, _MOST_PER_PROCESSOR * processors)
    if num_threads is not None and num_threads > most:
        problem = f"{num_threads} threads for {processors} processors are more than the {most} that can be asked for"
        raise InvalidParameter("num_threads", problem, "lower it (--threads), or leave it out")


def _allowed_processors() -> Iterable[int] | None:
    """Numbers of the processors that this process may run on; None where the system has no such setting."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _siblings(processor: int) -> str:
    """The processors of the same core, as Linux lists them (``0,8``); the processor alone where no list exists."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        path = _TOPOLOGY / f"cpu{processor}" / "topology" / name
        try:
            return path.read_text().strip()
        except OSError:
            continue
    return str(processor)


def _quota() -> int | None:
    """CPU quota of the control group (version 2) in processors, rounded up; None without a quota."""
    try:
        quota, period = _QUOTA.read_text().split()
        return None if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _sysctl(name: bytes) -> int | None:
    """The positive integer of a macOS sysctl, else None. With two kinds of cores, ``perflevel0`` is the fast kind."""
    value, size = ctypes.c_int32(), ctypes.c_size_t(4)
    try:
        failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
    except (OSError, AttributeError):
        return None
    return None if failed or value.value < 1 else value.value


def _windows_cores() -> int:
    """Number of cores by GetLogicalProcessorInformation; 0 where the call fails."""
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    size = ctypes.c_uint32(0)
    kernel.GetLogicalProcessorInformation(None, ctypes.byref(size))
    records = ctypes.create_string_buffer(size.value)
    told = kernel.GetLogicalProcessorInformation(records, ctypes.byref(size))
    return count_cores(records.raw[: size.value]) if told else 0


def count_cores(records: bytes) -> int:
    """Number of core records among `records`, an array of SYSTEM_LOGICAL_PROCESSOR_INFORMATION of 64-bit Windows."""
    kinds = range(_KIND_AT, len(records) - len(records) % _RECORD_BYTES, _RECORD_BYTES)
    return sum(int.from_bytes(records[at : at + 4], "little") == _CORE for at in kinds)
