"""What dtype `auto` takes: never one that rounds further than the file did, unless memory demands it."""

from types import SimpleNamespace

import pytest

from paceline.models import dtypes
from paceline.models.dtypes import choose_dtype
from tests.fakes import RandomCheckpoint, small_config


def stored(storage):
    return SimpleNamespace(storage=storage, config=small_config())


@pytest.mark.parametrize(
    ("storage", "dtype"), [("BF16", "bfloat16"), ("F32", "float32"), ("F16", "float16"), ("IQ2_S", "bfloat16")]
)
def test_the_kernels_hold_what_the_file_says(storage, dtype):
    choice = choose_dtype("auto", stored(storage), "numba", "cpu")
    assert choice.name == dtype
    assert choice.reason


@pytest.mark.parametrize(
    ("storage", "others", "head_dim", "dtype"),
    [
        ("Q4_K", {"Q6_K", "F32"}, 64, "gguf"),
        ("Q4_K", {"IQ2_S"}, 64, "bfloat16"),
        ("Q4_K", set(), 16, "bfloat16"),
        ("BF16", {"Q8_0"}, 64, "bfloat16"),
    ],
)
def test_blocks_are_multiplied_as_they_are_where_every_kind_has_a_kernel(storage, others, head_dim, dtype):
    checkpoint = stored(storage)
    checkpoint.config = small_config(head_dim=head_dim)
    checkpoint.storages, checkpoint.blocks = frozenset({storage, *others}), lambda name: None
    assert choose_dtype("auto", checkpoint, "numba", "cpu").name == dtype
    assert choose_dtype("auto", checkpoint, "torch", "cpu").name in ("bfloat16", "float32")


def test_float32_must_fit_into_half_of_the_free_memory(monkeypatch):
    monkeypatch.setattr(dtypes, "_available_memory", lambda: 1000)
    choice = choose_dtype("auto", stored("F32"), "numba", "cpu")
    assert choice.name == "bfloat16"
    assert "memory" in choice.reason


@pytest.mark.parametrize(("flags", "dtype"), [("avx2 avx512_bf16", "bfloat16"), ("avx2 fma", "float32")])
def test_torch_takes_bfloat16_where_the_processor_multiplies_it(flags, dtype, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"model name : x\nflags : {flags}\n")
    monkeypatch.setattr(dtypes, "_CPUINFO", tmp_path / "cpuinfo")
    assert choose_dtype("auto", stored("BF16"), "torch", "cpu").name == dtype


def test_what_is_asked_for_is_taken():
    assert choose_dtype("w8a8", RandomCheckpoint(small_config()), "numba", "cpu") == dtypes.DtypeChoice("w8a8")
