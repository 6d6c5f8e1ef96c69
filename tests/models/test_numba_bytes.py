"""Products of bytes: every form gives numpy's integers, and the rounded rows are what the module says they are."""

import numpy as np
import pytest
from numba import njit, types
from numba.extending import intrinsic

from paceline.errors import InvalidParameter
from paceline.models.compiled.kernel import entry
from paceline.models.numba_executor import dot8, dot16, gemm, isa, operand, weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.tile import store_tile
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

from .tiny import operand_of

RNG = np.random.default_rng(3)


def compiled(form):
    """sums[0:16] += the dot products of 64 bytes each, by one form of the instruction."""

    @intrinsic
    def emit_form(typingctx, sums, weights, activations):
        def emit(context, builder, sig, args):
            pointers = [
                builder.bitcast(context.make_array(t)(context, builder, a).data, dot8.SUMS_IR.as_pointer())
                for t, a in zip(sig.args, args, strict=True)
            ]
            values = [dot8.load_ir(builder, pointer) for pointer in pointers]
            builder.store(form(builder, *values), pointers[0], align=1)
            return context.get_dummy_value()

        return types.void(sums, weights, activations), emit

    @njit
    def run(sums, weights, activations):
        emit_form(sums, weights, activations)

    return run


def forms():
    """Those that this processor can run."""

    @intrinsic
    def features(typingctx):
        def emit(context, builder, sig, args):
            found.update(f for f in ("avx512vnni", "avx512vl", "avxvnni") if isa.has_feature(context, f))
            return context.get_constant(types.intp, 0)

        return types.intp(), emit

    found: set[str] = set()
    njit(lambda: features())()
    able = [dot8.dot_anywhere]
    if "avx512vnni" in found:
        able.append(dot8.dot_512)
    if found >= {"avx512vnni", "avx512vl"} or "avxvnni" in found:
        able.append(dot8.dot_256)
    return able


@pytest.mark.parametrize("form", forms(), ids=lambda form: form.__name__)
def test_every_form_gives_the_same_integers(form):
    run = compiled(form)
    extremes = np.array([0, 255, 128, 127], np.uint8), np.array([-127, 127, -128, 1], np.int8)
    for w, x in [
        (RNG.integers(0, 256, 64, dtype=np.uint8), RNG.integers(-128, 128, 64, dtype=np.int8)),
        (np.full(64, 255, np.uint8), np.full(64, -128, np.int8)),
        (np.full(64, 255, np.uint8), np.full(64, 127, np.int8)),
        (np.tile(extremes[0], 16), np.tile(extremes[1], 16)),
    ]:
        sums = RNG.integers(-(10**6), 10**6, 16, dtype=np.int32)
        expected = sums + (w.astype(np.int32) * x).reshape(16, 4).sum(axis=1)
        run(sums, w, x)
        assert np.array_equal(sums, expected)


def test_a_group_is_rounded_by_its_own_largest_value():
    rows = RNG.standard_normal((3, 96)).astype(np.float32)
    rows[1, 40] = 1000.0
    rows[2, 32:64] = 0.0
    codes = operand_of(rows)
    values, scales = codes.values.reshape(9, 32).astype(np.float32), codes.scales.reshape(9, 2)[:, :1]
    groups = rows.reshape(9, 32)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    np.testing.assert_allclose(scales, largest / 127, rtol=1e-6)
    assert (np.abs(values * scales - groups) <= largest / 254 * 1.0001).all()
    assert np.array_equal(codes.offsets, -128 * codes.values.reshape(9, 32).astype(np.int32).sum(axis=1))
    assert np.array_equal(codes.scales[::2], codes.scales[1::2])
    assert np.array_equal(codes.halves, -128 * codes.values.reshape(18, 16).astype(np.int32).sum(axis=1))
    out = np.zeros(96, np.float32)
    entry(operand.read_row.py_func)(codes, 1, 96, out)
    assert np.array_equal(out, (values * scales).reshape(3, 96)[1])


@pytest.mark.parametrize("num_rows", [1, 5, 12, 13, 50])
def test_products_are_the_rounded_rows_times_the_stored_weights(num_rows):
    depth, columns = 160, 70
    matrix = RNG.standard_normal((columns, depth)).astype(np.float32)
    rows = RNG.standard_normal((num_rows + 2, depth)).astype(np.float32)
    stored, scales = weights.quantise(matrix, "w8a8")
    padded = gemm.padded_rows(columns)
    column_scales = np.zeros(padded, np.float32)
    column_scales[:columns] = scales
    codes, out = operand_of(rows), np.ones(num_rows * padded, np.float32)
    entry(gemm.multiply.py_func)(
        codes, 2, num_rows, depth, gemm.pack(stored), 0, column_scales, column_scales[:0], 0, out, 0, padded, 0,
        padded // 32, True, np.zeros(1, np.float32),
    )  # fmt: skip
    x = codes.values.astype(np.float64) * np.repeat(codes.scales, 16)
    expected = 1 + x.reshape(-1, depth)[2:] @ ((stored.astype(np.float64) - 128) * scales[:, None]).T
    np.testing.assert_allclose(out.reshape(num_rows, padded)[:, :columns], expected, atol=1e-4)


def sums_of(count, x, depth, packed):
    """[count, 32] products with a panel, by a kernel that is compiled here and now."""

    @njit
    def run(x, depth, packed, out):
        store_tile(gemm._accumulate(count, x, 0, depth, packed, 0), out, 0, 32)

    out = np.zeros((count, 32), np.float32)
    run(x, depth, packed, out.reshape(-1))
    return out


@pytest.mark.parametrize("count", [1, 4, 7, 12])
@pytest.mark.parametrize("dtype", ["w8a8", "float32", "bfloat16"])
def test_few_registers_and_many_give_the_same_bits(dtype, count, monkeypatch):
    monkeypatch.setattr(dot16, "multiplies_pairs", lambda: False)  # with bfloat16 registers are never few
    rows, matrix = (RNG.standard_normal((n, 96)).astype(np.float32) for n in (count, 32))
    stored, _ = weights.quantise(matrix, dtype)
    x = operand_of(rows) if dtype == "w8a8" else operand.Operand(rows.reshape(-1), *[rows.reshape(-1)[:0]] * 4, 0)
    found = []
    for most in (24, 6):
        for short in (True, False) if dtype == "w8a8" else (False,):
            monkeypatch.setattr(isa, "sums_in_registers", lambda context, most=most: most)
            monkeypatch.setattr(
                dot8, "adds_shorts", lambda context, short=short: short and isa.has_feature(context, "avx2")
            )
            found.append(sums_of(count, x, 96, gemm.pack(stored)))
    assert all(np.array_equal(one, found[0]) for one in found)


def logits(*options, **named):
    model = NumbaModel(RandomCheckpoint(small_config(head_dim=32)), *options, num_threads=1, **named)
    tokens = np.random.default_rng(1).integers(0, 131, 60).tolist()
    return model.forward(build_rows([Part(range(4), 0, tokens)]), model.new_cache(4)).logits.copy()


@pytest.mark.usefixtures("own_weight_cache")
def test_rounding_moves_logits_a_little():
    exact, coarse = logits("float32"), logits("w8a8")
    assert 0 < (coarse - exact).std() < 0.2 * exact.std()
    halves = logits("float32", kv_cache_dtype="float16")
    assert 0 < (halves - exact).std() < 0.01 * exact.std()


@pytest.mark.usefixtures("own_weight_cache")
def test_what_cannot_be_rounded_or_stored_is_refused_by_name():
    with pytest.raises(InvalidParameter, match="dtype: w8a8"):
        NumbaModel(RandomCheckpoint(small_config()), "w8a8", num_threads=1)
    with pytest.raises(InvalidParameter, match="kv_cache_dtype"):
        NumbaModel(RandomCheckpoint(small_config()), "float32", num_threads=1, kv_cache_dtype="fp4")


class Halves(RandomCheckpoint):
    """Weights that float16 holds."""

    storage = "F16"

    def tensor(self, name):
        return super().tensor(name).astype(np.float16).astype(np.float32)


@pytest.mark.usefixtures("own_weight_cache")
def test_float16_is_float32_bit_for_bit_where_the_file_has_float16():
    checkpoint, tokens = Halves(small_config(hidden_size=64, intermediate_size=96)), list(range(40))
    outputs = {}
    for dtype in ("float16", "float32", "auto"):
        model = NumbaModel(checkpoint, dtype, num_threads=2)
        outputs[dtype] = model.forward(build_rows([Part(range(4), 0, tokens)]), model.new_cache(4)).logits.copy()
    assert model.dtype_choice.name == "float16"
    assert np.array_equal(outputs["float16"], outputs["float32"])
    assert np.array_equal(outputs["float16"], outputs["auto"])


def test_weights_beyond_float16_are_refused():
    with pytest.raises(InvalidParameter, match=r"dtype: float16 ends at 65504.*bfloat16"):
        weights.quantise(np.array([[1.0, 7e4]], np.float32), "float16")
    stored, scales = weights.quantise(np.array([[1.0, -65504.0]], np.float32), "float16")
    assert stored.view(np.float16).tolist() == [[1.0, -65504.0]] and scales.tolist() == [1.0]
