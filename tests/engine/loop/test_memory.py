"""The size of the KV cache."""

import pytest

from paceline.config import EngineConfig
from paceline.engine.loop import memory
from paceline.engine.loop.memory import available_memory, cache_bytes, cache_capacity
from paceline.engine.setup.build import build_engine
from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all

PAGE_BYTES = 2 * 3 * 2 * 16 * PAGE_SIZE * 4


def test_a_fraction_is_of_what_is_free(tiny, monkeypatch):
    monkeypatch.setattr(memory, "_meminfo", lambda: 1000 * PAGE_BYTES)
    monkeypatch.setattr(memory, "_container_room", lambda: 200 * PAGE_BYTES)
    assert available_memory() == 200 * PAGE_BYTES
    pages, limit, _ = cache_capacity(tiny.model, EngineConfig(memory_fraction=0.125))
    assert (pages, limit) == (25, 25 * PAGE_SIZE)


def test_bytes_are_bytes_and_half_a_gigabyte_when_nothing_is_said(tiny):
    assert cache_capacity(tiny.model, EngineConfig(kv_cache_memory_bytes=3 * PAGE_BYTES + 5)) == (3, 3 * PAGE_SIZE, 0)
    assert cache_bytes(EngineConfig(), tiny.model) == 1 << 29


def test_this_machine_has_memory():
    assert available_memory() > 1 << 20


@pytest.mark.parametrize(
    "config",
    [{"memory_fraction": 0.0}, {"memory_fraction": 1.5}, {"memory_fraction": 0.5, "kv_cache_memory_bytes": 1 << 20}],
)
def test_what_makes_no_sense_is_refused(config):
    with pytest.raises(InvalidParameter, match="memory_fraction"):
        EngineConfig(**config)


def test_more_than_the_machine_or_the_container_has_is_refused_with_both_numbers(tiny, monkeypatch):
    monkeypatch.setattr(memory, "_installed", lambda: 1000 * PAGE_BYTES)
    monkeypatch.setattr(memory, "_container_limit", lambda: None)
    assert cache_capacity(tiny.model, EngineConfig(kv_cache_memory_bytes=1000 * PAGE_BYTES))[0] == 1000
    monkeypatch.setattr(memory, "_container_limit", lambda: 200 * PAGE_BYTES)
    both = f"kv_cache_memory_bytes: {1000 * PAGE_BYTES} bytes are more than the {200 * PAGE_BYTES}"
    with pytest.raises(InvalidParameter, match=both):
        cache_capacity(tiny.model, EngineConfig(kv_cache_memory_bytes=1000 * PAGE_BYTES))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
@pytest.mark.parametrize("field", ["kv_cache_memory_bytes", "memory_fraction"])
def test_a_failed_allocation_names_the_field_that_sizes_the_cache(tiny, monkeypatch, error, field):
    def fail(num_pages):
        if num_pages > 1:
            raise error
        return one

    one = tiny.model.new_cache(1)
    monkeypatch.setattr(tiny.model, "new_cache", fail)
    config = EngineConfig(**{field: {"kv_cache_memory_bytes": 10 * PAGE_BYTES, "memory_fraction": 0.01}[field]})
    with pytest.raises(InvalidParameter, match=f"{field}: .* cannot be allocated"):
        build_engine(tiny, config, None)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="on fire"), memory.allocating(EngineConfig(), None):
        raise RuntimeError("on fire")


def test_only_advice_that_helps_is_given(tiny):
    with pytest.raises(InvalidParameter, match=r"hold 0 tokens.*; raise it$"):
        cache_capacity(tiny.model, EngineConfig(kv_cache_memory_bytes=10))
    with pytest.raises(InvalidParameter, match="raise it or lower"):
        cache_capacity(tiny.model, EngineConfig(kv_cache_memory_bytes=PAGE_BYTES, max_model_len=100))


def test_a_fraction_that_holds_no_request_is_named(tiny, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: PAGE_BYTES)
    with pytest.raises(InvalidParameter, match="memory_fraction"):
        cache_capacity(tiny.model, EngineConfig(memory_fraction=0.5))


class OnRanks:
    """A model of 28 layers on several processes; the others have `free` bytes on GPUs of their own, or none have."""

    tensor_parallel_size = 0

    def chip(self):
        raise NotImplementedError

    can_share = chip

    def __init__(self, stages, tensor_size, free):
        self.largest_cache_share = max(stages) / (28 * tensor_size)
        self.least_free_bytes = free


@pytest.mark.parametrize(("stages", "tensor_size"), [((28,), 4), ((16, 12), 1), ((8, 8, 8, 4), 2)])
def test_a_fraction_is_of_the_gpu_with_the_largest_part_of_the_cache(monkeypatch, stages, tensor_size):
    monkeypatch.setattr(memory, "available_memory", lambda device: 1000)
    config = EngineConfig(memory_fraction=0.95, device="cuda", tensor_parallel_size=2)
    for free, least in ((1000, 1000), (2000, 1000), (700, 700)):
        whole = cache_bytes(config, OnRanks(stages, tensor_size, free))
        assert whole * max(stages) / 28 / tensor_size == pytest.approx(0.95 * least, abs=1)
    assert cache_bytes(EngineConfig(memory_fraction=0.5), OnRanks(stages, tensor_size, None)) == 500


@pytest.mark.parametrize("scheduler", ["stall_free", "orca", "sarathi", "request_level"])
def test_admission_never_promises_more_pages_than_there_are(engine_for, scheduler):
    engine = engine_for(
        {"method": "ngram"}, kv_cache_memory_bytes=10 * PAGE_BYTES, max_model_len=10 * PAGE_SIZE, scheduler=scheduler
    )
    most, step = 0, engine.scheduler.schedule

    def watched(now):
        nonlocal most
        plan = step(now)
        most = max(most, engine.scheduler.pool.num_held)
        return plan

    engine.scheduler.schedule = watched
    outputs = run_all(engine, PROMPTS * 2, SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    assert all(output.finish_reason == "length" for output in outputs)
    assert 5 < most <= 10
