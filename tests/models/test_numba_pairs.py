"""Products of bfloat16 pairs: activations are rounded to nearest even, products are exact, and others keep float32."""

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from paceline.models.compiled.kernel import entry
from paceline.models.numba_executor import dot16, gemm, operand, weights
from paceline.models.numba_executor.operand import activations_of

from .tiny import operand_of

RNG = np.random.default_rng(5)
PAIRS = pytest.mark.skipif(not dot16.multiplies_pairs(), reason="no AVX-512 BF16 here")
DEPTH, COLUMNS = 160, 70
MULTIPLY = entry(gemm.multiply.py_func)


def nearest(values: np.ndarray) -> np.ndarray:
    """float32 values of the nearest bfloat16, ties to even."""
    stored, _ = weights.quantise(values, "bfloat16")
    return (stored.astype(np.uint32) << 16).view(np.float32)


def product(x: operand.Operand, stored: np.ndarray, num_rows: int) -> np.ndarray:
    """[num_rows, COLUMNS] products of the operand's rows from number 2 on."""
    padded = gemm.padded_rows(COLUMNS)
    ones, out = np.ones(padded, np.float32), np.zeros(num_rows * padded, np.float32)
    MULTIPLY(
        x, 2, num_rows, DEPTH, gemm.pack(stored), 0, ones, ones[:0], 0, out, 0, padded, 0, padded // 32, False,
        np.zeros(32 * DEPTH, np.float32),
    )  # fmt: skip
    return out.reshape(num_rows, padded)[:, :COLUMNS]


@PAIRS
def test_activations_are_rounded_to_nearest_even():
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 3.3895314e38, 0.0, -0.0, 1e-30, np.inf] * 2, np.float32)
    rows = np.concatenate([ties, RNG.standard_normal(16).astype(np.float32)])[None]
    x = operand_of(rows, np.uint16)
    assert np.array_equal((x.values.astype(np.uint32) << 16).view(np.float32), nearest(rows)[0])
    out = np.zeros(32, np.float32)
    entry(operand.read_row.py_func)(x, 0, 32, out)
    assert np.array_equal(out, nearest(rows)[0])


@PAIRS
@pytest.mark.parametrize("num_rows", [1, 2, 5, 11, 12, 13, 50])
def test_products_are_those_of_the_rounded_numbers(num_rows):
    matrix = RNG.standard_normal((COLUMNS, DEPTH)).astype(np.float32)
    rows = RNG.standard_normal((num_rows + 2, DEPTH)).astype(np.float32)
    stored, _ = weights.quantise(matrix, "bfloat16")
    found = product(operand_of(rows, np.uint16), stored, num_rows)
    exact = nearest(rows).astype(np.float64)[2:] @ nearest(matrix).astype(np.float64).T
    np.testing.assert_allclose(found, exact, atol=1e-4)
    assert np.abs(found - rows[2:] @ nearest(matrix).T).max() > 1e-2  # unrounded rows give others
    alone = [product(operand_of(rows[row : row + 3], np.uint16), stored, 1)[0] for row in range(num_rows)]
    assert np.array_equal(found, alone)


def test_without_the_instruction_activations_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(dot16, "multiplies_pairs", lambda: False)
    monkeypatch.setattr(operand, "multiplies_pairs", lambda: False)
    assert activations_of("bfloat16") is np.float32
    matrix, rows = (RNG.standard_normal((n, DEPTH)).astype(np.float32) for n in (COLUMNS, 9))
    stored, _ = weights.quantise(matrix, "bfloat16")
    exact = rows.astype(np.float64)[2:] @ nearest(matrix).astype(np.float64).T
    np.testing.assert_allclose(product(operand_of(rows, np.float32), stored, 7), exact, atol=1e-4)


@PAIRS
def test_floats_are_not_multiplied_with_panels_of_pairs():
    """They would be read as if no two weights lay side by side."""
    stored, _ = weights.quantise(np.zeros((COLUMNS, DEPTH), np.float32), "bfloat16")
    x = operand_of(np.zeros((3, DEPTH), np.float32), np.float32)

    def fresh(*args):
        return gemm._accumulate(1, *args)

    with pytest.raises(TypingError):
        njit(fresh)(x, 0, DEPTH, gemm.pack(stored), 0)


def test_other_dtypes_have_the_activations_they_had():
    assert [activations_of(d) for d in ("w8a8", "gguf", "int8", "float16", "float32")] == [np.int8] * 2 + [
        np.float32
    ] * 3
