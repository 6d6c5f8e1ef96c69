"""Size of the KV cache: from bytes, or a fraction of the free memory, to pages."""

import ctypes
import os
import sys
from pathlib import Path

from paceline.config import EngineConfig
from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE, CausalLM
from paceline.theory.capacity import num_pages

DEFAULT_BYTES = 1 << 29
_CGROUP = Path("/sys/fs/cgroup")


def cache_capacity(model: CausalLM, config: EngineConfig) -> tuple[int, int]:
    """(number of cache pages, most tokens of a request).

    Raises:
        InvalidParameter: `max_model_len` exceeds the model's limit, or the cache cannot hold one request.
    """
    room_bytes = cache_bytes(config)
    pages = num_pages(room_bytes, 0, model.new_cache(1).num_bytes)
    limit = model.config.max_position_embeddings
    wanted = config.max_model_len or min(limit, pages * PAGE_SIZE)
    if wanted > limit:
        problem = f"{wanted} tokens are more than the model's {limit}"
        raise InvalidParameter("max_model_len", problem, "lower it or leave it out")
    if pages * PAGE_SIZE < max(wanted, PAGE_SIZE):
        field = "kv_cache_memory_bytes" if config.memory_fraction is None else "memory_fraction"
        problem = f"{room_bytes} bytes hold {pages * PAGE_SIZE} tokens, not the {max(wanted, PAGE_SIZE)} of a request"
        raise InvalidParameter(field, problem, "raise it or lower max_model_len")
    return pages, wanted


def cache_bytes(config: EngineConfig) -> int:
    """Bytes of the KV cache: `memory_fraction` of the free memory, else `kv_cache_memory_bytes` or the default."""
    if config.memory_fraction is not None:
        return int(config.memory_fraction * available_memory(config.device))
    return config.kv_cache_memory_bytes or DEFAULT_BYTES


def available_memory(device: str = "cpu") -> int:
    """Bytes of memory that are free now: on a CUDA device, or on the machine within the container's limit."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    free = [_meminfo(), _container_room()]
    return min(value for value in free if value is not None)


def _meminfo() -> int:
    """Available bytes on Linux; elsewhere half of all memory, as a conservative estimate."""
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        kilobytes = ctypes.c_ulonglong(0)
        ctypes.WinDLL("kernel32").GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value * 1024 // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container_room() -> int | None:
    """Bytes left under the limit of the control group (version 2); None without a limit."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
