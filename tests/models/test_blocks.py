"""Blocks of GGUF files: read as the gguf package reads them, multiplied alike by every instruction in any company."""

# pyright: reportCallIssue=false
# (an intrinsic has another signature in compiled code than in Python)

from functools import cache

import gguf
import numpy as np
import pytest
from numba import njit

from paceline.errors import InvalidParameter
from paceline.models.compiled.kernel import entry
from paceline.models.files.checkpoint import StoredBlocks
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.gguf_header import BLOCKS
from paceline.models.numba_executor import isa, operand
from paceline.models.numba_executor.blocks import kernels, product, store
from paceline.models.numba_executor.blocks.formats import FORMATS, NAMES
from paceline.models.numba_executor.blocks.pack import pack, panel_bytes
from paceline.models.numba_executor.blocks.unpack import Codes, round_to_q8_0, unpack
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

from .tiny import gguf_metadata, gguf_name, operand_of, write_gguf

DEPTH = 512
ROWS = 3
"""Rows of activations: enough for a loop over them where registers are few."""


def random_blocks(name: str, rows: int, depth: int, seed: int = 0, largest: float = 0.01) -> np.ndarray:
    """Rows of random bytes [rows, bytes], with numbers up to `largest` where float16 ones stand."""
    rng = np.random.default_rng(seed)
    _, values, size = BLOCKS[name]
    raw = rng.integers(0, 256, (rows * depth // values, size), dtype=np.uint8)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(118, 122, len(raw))
        return raw.reshape(rows, -1)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(name, (0, 2) if FORMATS[name].shifts else (0,)):
        raw[:, at : at + 2] = (
            rng.uniform(largest / 10, largest, len(raw)).astype(np.float16).view(np.uint8).reshape(-1, 2)
        )
    return raw.reshape(rows, -1)


def by_gguf(name: str, raw: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])


def codes_of(name: str, raw: np.ndarray) -> Codes:
    return unpack(raw, FORMATS[name], BLOCKS[name][2])


GGUF_NAMES = [name for name in NAMES if name in BLOCKS]


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_blocks_hold_what_the_gguf_package_reads(name):
    raw = random_blocks(name, 5, DEPTH)
    assert np.array_equal(codes_of(name, raw).values(FORMATS[name]), by_gguf(name, raw))


def test_exponents_from_end_to_end():
    """From denormal floats to the largest that a float can hold; those above are refused (`gguf_file.py`)."""
    raw = random_blocks("MXFP4", 32, DEPTH)
    raw.reshape(-1, 17)[:253, 0] = np.arange(253)
    assert np.array_equal(codes_of("MXFP4", raw).values(FORMATS["MXFP4"]), by_gguf("MXFP4", raw))
    x = operand_of(np.random.default_rng(1).standard_normal((ROWS, DEPTH)).astype(np.float32), fine=True)
    assert np.array_equal(
        run_rows("MXFP4", pack(codes_of("MXFP4", raw), FORMATS["MXFP4"]), x, DEPTH)[1], by_gguf("MXFP4", raw)
    )


def some_rows(name: str):
    """The kernel for `ROWS` rows and the one that reads a row back, compiled here and now."""

    @njit
    def multiply(groups, codes, scales, halves, totals, panel, out):
        kernels._multiply(ROWS, name, groups, codes, scales, halves, totals, panel, 0, out, 32, 0)

    @njit
    def read(groups, panel, column, out):
        kernels._read(name, groups, panel, column, out)

    return multiply, read


def run_rows(name: str, packed: np.ndarray, x: operand.Operand, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """([ROWS, 32] products, [32, depth] weights read back)."""
    multiply, read = some_rows(name)
    out, rows = np.zeros((ROWS, 32), np.float32), np.zeros((32, depth), np.float32)
    rounded_rows = (array.ctypes.data for array in (x.values, x.scales, x.halves, x.totals))
    multiply(depth // 32, *rounded_rows, packed.ctypes.data, out.ctypes.data)
    for column in range(32):
        read(depth // 32, packed.ctypes.data, column, rows[column].ctypes.data)
    return out, rows


@pytest.fixture(scope="module")
def some_products():
    """Format to (panel, rows of activations, weights as gguf reads them, then products and weights as kernels do)."""

    def make(name):
        raw = random_blocks(name, 32, DEPTH)
        packed, expected = pack(codes_of(name, raw), FORMATS[name]), by_gguf(name, raw)
        x = operand_of(np.random.default_rng(1).standard_normal((ROWS, DEPTH)).astype(np.float32), fine=True)
        return packed, x, expected, *run_rows(name, packed, x, DEPTH)

    return cache(make)


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_products_are_the_rounded_rows_times_the_blocks(name, some_products):
    _, x, expected, products, rows = some_products(name)
    assert np.array_equal(rows, expected)
    floats = x.values.reshape(ROWS, DEPTH) * np.repeat(x.scales.astype(np.float64), 16).reshape(ROWS, DEPTH)
    np.testing.assert_allclose(products, floats @ expected.T.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "IQ4_XS", "MXFP4"])
def test_every_instruction_gives_the_same_bits(name, some_products, monkeypatch):
    packed, x, expected, products, _ = some_products(name)
    for pretended in (without_vnni, without_anything):
        monkeypatch.setattr(isa, "has_feature", pretended)
        others, rows = run_rows(name, packed, x, DEPTH)
        assert np.array_equal(others, products)
        assert np.array_equal(rows, expected)


_has_feature = isa.has_feature


def without_vnni(context, feature):
    """A processor with AVX2 at most, where this one has it."""
    return feature in ("avx2", "f16c") and _has_feature(context, feature)


def without_anything(context, feature):
    """A processor that LLVM knows nothing about."""
    return False


def as_blocks(parts: list[tuple[str, np.ndarray]], depth: int) -> product.Blocks:
    """Matrices under one another, each in its format."""
    packed = [pack(codes_of(name, raw), FORMATS[name]) for name, raw in parts]
    numbers = np.concatenate([[NAMES.index(name)] * -(-len(raw) // 32) for name, raw in parts])
    sizes = np.array([panel_bytes(FORMATS[NAMES[number]], depth) for number in numbers])
    return product.with_kernels(np.concatenate(packed), np.cumsum(sizes) - sizes, numbers)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 19])
def test_a_row_of_a_mixed_matrix_does_not_depend_on_its_company(num_rows):
    depth, parts = 96, [("Q4_1", random_blocks("Q4_1", 64, 96)), ("Q8_0", random_blocks("Q8_0", 40, 96))]
    w = as_blocks(parts, depth)
    rng = np.random.default_rng(2)
    x = operand_of(rng.standard_normal((num_rows + 2, depth)).astype(np.float32), fine=True)
    bias, old = rng.standard_normal(128).astype(np.float32), rng.standard_normal((num_rows, 128)).astype(np.float32)
    multiply = entry(product.multiply_blocks.py_func)

    def times(first, count, add):
        out = old[first - 2 : first - 2 + count].copy()
        multiply(x, first, count, depth, w, 0, bias, 0, out.reshape(-1), 0, 128, 0, 4, add)
        return out

    floats = (x.values * np.repeat(x.scales.astype(np.float64), 16)).reshape(-1, depth)[2:]
    expected = np.zeros((num_rows, 128))
    expected[:, :104] = floats @ np.concatenate([by_gguf(*part) for part in parts]).T
    whole = times(2, num_rows, True)
    np.testing.assert_allclose(whole, expected + bias + old, atol=1e-3)
    np.testing.assert_allclose(times(2, num_rows, False), expected + bias, atol=1e-3)
    alone = np.concatenate([times(2 + row, 1, True) for row in range(num_rows)])
    assert np.array_equal(alone, whole)


def test_floats_are_rounded_as_q8_0_would_be():
    values = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    values[1, :32] = 0
    codes = round_to_q8_0(values)
    theirs = by_gguf("Q8_0", gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0))
    np.testing.assert_allclose(codes.values(FORMATS["Q8_0"]), theirs, atol=np.abs(values).max() / 127)
    assert np.abs(codes.values(FORMATS["Q8_0"]) - values).max() < np.abs(values).max() / 200


def write_mixed(path):
    """A model whose stacked matrices have two formats each, and its embedding in 16 bits."""
    config = small_config(hidden_size=256, intermediate_size=512, head_dim=64, num_attention_heads=4)
    checkpoint, tensors, storage = RandomCheckpoint(config), {}, {}
    for number, name in enumerate(checkpoint.names()):
        values, theirs = checkpoint.tensor(name), gguf_name(config, name)
        if values.ndim == 2 and "embed" not in name:
            storage[theirs] = "Q6_K" if "v_proj" in name or "up_proj" in name else "Q4_K"
            values = random_blocks(storage[theirs], *values.shape, seed=number, largest=2e-4)
        elif values.ndim == 2:
            storage[theirs] = "F16"
        tensors[theirs] = values
    return write_gguf(path, gguf_metadata(config), tensors, storage)


@pytest.mark.usefixtures("own_weight_cache")
def test_a_mixed_file_says_what_its_weights_say_in_float32(tmp_path):
    path = write_mixed(tmp_path / "mixed.gguf")
    tokens = np.random.default_rng(1).integers(0, 131, 40).tolist()

    def logits(dtype):
        model = NumbaModel(GGUFCheckpoint(path), dtype, num_threads=1)
        return model.forward(build_rows([Part(range(4), 0, tokens)]), model.new_cache(4)).logits.copy()

    exact, coarse = logits("float32"), logits("gguf")
    assert 0 < (coarse - exact).std() < 0.1 * exact.std()


@pytest.mark.usefixtures("own_weight_cache")
def test_what_no_kernel_multiplies_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidParameter, match=r"gguf multiplies blocks.*F32.*w8a8"):
        NumbaModel(RandomCheckpoint(small_config(head_dim=32)), "gguf", num_threads=1)

    class Exotic(RandomCheckpoint):
        storage = "Q8_0"
        storages = frozenset({"Q8_0", "IQ2_XXS"})

        def blocks(self, name):
            return StoredBlocks("IQ2_XXS", np.zeros((32, 66), np.uint8), 66)

    with pytest.raises(InvalidParameter, match=r"no kernel for IQ2_XXS.*bfloat16"):
        NumbaModel(Exotic(small_config(head_dim=32)), "gguf", num_threads=1)
    assert store.stored_blocks(RandomCheckpoint(small_config()), "model.norm.weight") is None
