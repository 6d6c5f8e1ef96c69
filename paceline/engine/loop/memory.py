"""Size of the KV cache: from bytes, or a fraction of the free memory, to pages."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from paceline.config import EngineConfig
from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, RunsOnRanks
from paceline.models.state_book import HoldsStates
from paceline.theory.capacity import num_pages

DEFAULT_BYTES = 1 << 29
LEAST_STATES = 6
"""States of recurrent layers for one request, its longest draft, and a prefix or two."""
_DEFAULT_STATES, _SPARE_STATES = 32, 16
"""States of an engine without a size of its cache, and more than two of each request, for prefixes."""
_CGROUP = Path("/sys/fs/cgroup")


class Capacity(NamedTuple):
    """What a cache holds.

    Attributes:
        num_pages: pages of keys and values. max_model_len: most tokens of a request.
        num_states: states of recurrent layers, see `_num_states`.
    """

    num_pages: int
    max_model_len: int
    num_states: int


def cache_capacity(model: CausalLM, config: EngineConfig) -> Capacity:
    """What the cache of an engine holds.

    Raises:
        InvalidParameter: `max_model_len` exceeds the model's limit, the cache cannot hold one request, or the
            machine cannot hold the cache.
    """
    room_bytes = cache_bytes(config, model)
    _check_room(config)
    one_page = model.new_cache(1)
    states_bytes = num_states = 0
    if isinstance(one_page, HoldsStates):
        num_states = _num_states(one_page, config, room_bytes)
        states_bytes = num_states * one_page.state_bytes if _is_sized(config) else 0
    pages = num_pages(room_bytes, states_bytes, one_page.num_bytes)
    limit = model.config.max_position_embeddings
    wanted = config.max_model_len or min(limit, pages * PAGE_SIZE)
    if wanted > limit:
        problem = f"{wanted} tokens are more than the model's {limit}"
        raise InvalidParameter("max_model_len", problem, "lower it or leave it out")
    if pages * PAGE_SIZE < max(wanted, PAGE_SIZE):
        beside = f" besides {states_bytes} bytes of states" if states_bytes else ""
        held, needed = pages * PAGE_SIZE, max(wanted, PAGE_SIZE)
        problem = f"{room_bytes} bytes hold {held} tokens{beside}, not the {needed} of a request"
        raise InvalidParameter(_field(config), problem, "raise it or lower max_model_len" if pages else "raise it")
    return Capacity(pages, wanted, num_states)


def _num_states(one_page: HoldsStates, config: EngineConfig, room_bytes: int) -> int:
    """States of recurrent layers that a cache of `room_bytes` keeps: at most those of half of them, where the cache's
    size is given, and else `_DEFAULT_STATES` besides them."""
    wanted = 2 * config.max_num_seqs + _SPARE_STATES
    room = room_bytes // 2 // one_page.state_bytes if _is_sized(config) else _DEFAULT_STATES
    return max(LEAST_STATES, min(wanted, room))


def small_cache(model: CausalLM, num_pages: int) -> KVCache:
    """A cache for a short measurement or trial beside that of an engine."""
    cache = model.new_cache(num_pages)
    if isinstance(cache, HoldsStates):
        cache.hold(LEAST_STATES)
    return cache


def bytes_for(model: CausalLM, pages: int, requests: int) -> int:
    """`kv_cache_memory_bytes` of an engine that holds so many pages, and the states of so many requests."""
    one_page = model.new_cache(1)
    keys = pages * one_page.num_bytes
    if not isinstance(one_page, HoldsStates):
        return keys
    return 2 * max(keys, max(LEAST_STATES, 2 * requests + 2) * one_page.state_bytes)


@contextmanager
def allocating(config: EngineConfig, model: CausalLM) -> Iterator[None]:
    """Turn a failed allocation for `model` within the context into InvalidParameter with the field that sizes the KV
    cache."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):  # torch has no error of its own on CPUs
            raise
        wanted, free = cache_bytes(config, model), available_memory(config.device)
        problem = f"{wanted} bytes for the KV cache cannot be allocated (free: {free} bytes)"
        raise InvalidParameter(_field(config), problem, "lower it, or raise the process's limit (ulimit -v)") from error


def _is_sized(config: EngineConfig) -> bool:
    """Whether the configuration says how large the cache is."""
    return config.kv_cache_memory_bytes is not None or config.memory_fraction is not None


def _field(config: EngineConfig) -> str:
    """The field that sizes the cache."""
    return "kv_cache_memory_bytes" if config.memory_fraction is None else "memory_fraction"


def _check_room(config: EngineConfig) -> None:
    """Raise InvalidParameter for more bytes than the device, the machine or the container has.

    Pages are only touched when used, so it may be more than is free now.
    """
    wanted = config.kv_cache_memory_bytes
    if wanted is None or (config.is_parallel and config.device != "cpu"):  # one device per process
        return
    if wanted > (most := total_memory(config.device)):
        what = "machine or container" if config.device == "cpu" else config.device
        problem = f"{wanted} bytes are more than the {most} that this {what} has"
        raise InvalidParameter("kv_cache_memory_bytes", problem, "lower it")


def cache_bytes(config: EngineConfig, model: CausalLM) -> int:
    """Bytes of the KV cache: `memory_fraction` of the free memory, else `kv_cache_memory_bytes` or the default.

    Where each process has a GPU of its own, the fraction is of the GPU with the least memory free, which then holds the
    largest part of the cache.
    """
    if config.memory_fraction is None:
        return config.kv_cache_memory_bytes or DEFAULT_BYTES
    free, share = available_memory(config.device), 1.0
    if isinstance(model, RunsOnRanks) and model.least_free_bytes is not None:
        free, share = min(free, model.least_free_bytes), model.largest_cache_share
    return int(config.memory_fraction * free / share)


def available_memory(device: str = "cpu") -> int:
    """Bytes of memory that are free now: on a CUDA device, or on the machine within the container's limit."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    free = [_meminfo(), _container_room()]
    return min(value for value in free if value is not None)


def total_memory(device: str = "cpu") -> int:
    """Bytes of memory of a CUDA device, or of the machine, or the container's limit where that is less."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[1]
    return min(_installed(), _container_limit() or sys.maxsize)


def _meminfo() -> int:
    """Available bytes on Linux; elsewhere half of all memory, as a conservative estimate."""
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _installed() // 2


def _installed() -> int:
    """Bytes of memory of the machine."""
    if sys.platform == "win32":
        kilobytes = ctypes.c_ulonglong(0)
        ctypes.WinDLL("kernel32").GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_room() -> int | None:
    """Bytes left under the limit of the control group (version 2); None without a limit."""
    limit, used = _container_limit(), _container_bytes("memory.current")
    return None if limit is None or used is None else max(0, limit - used)


def _container_limit() -> int | None:
    """Most bytes of the control group (version 2); None without a limit."""
    return _container_bytes("memory.max")


def _container_bytes(name: str) -> int | None:
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
