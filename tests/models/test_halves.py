"""float16 with and without an instruction for it: every number both ways as numpy has it."""

# pyright: reportCallIssue=false
# (an intrinsic has another signature in compiled code than in Python)

import numpy as np
import pytest
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from paceline.models.numba_executor import halves, isa
from paceline.models.numba_executor import vector as v

ALL = np.arange(1 << 16).astype(np.uint16).view(np.int16)


@intrinsic
def _narrowed(typingctx, value):
    """One float32 as float16 and back."""

    def emit(context, builder, sig, args):
        return halves.widen_ir(context, builder, halves.narrow_ir(context, builder, args[0]))

    return types.float32(types.float32), emit


def both_ways():
    """(copy, one): arrays to arrays of another type by sixteen, and single numbers there and back, compiled here."""

    @njit
    def copy(source, out):
        for i in range(0, len(source), v.LANES):
            v.store(out, i, v.load(source, i))

    @njit
    def one(source, out):
        for i in range(len(source)):
            out[i] = _narrowed(source[i])

    return copy, one


@pytest.fixture(params=["as this processor does", "by moving bits"])
def ways(request, monkeypatch):
    if request.param == "by moving bits":
        monkeypatch.setattr(isa, "has_feature", lambda context, feature: False)
    return both_ways()


def test_every_half_is_widened_to_its_number(ways):
    out = np.zeros(len(ALL), np.float32)
    ways[0](ALL, out)
    np.testing.assert_array_equal(out, ALL.view(np.float16).astype(np.float32))
    assert np.array_equal(np.signbit(out), ALL < 0)


def hard_floats() -> np.ndarray:
    """Every half, the points half-way to the next and what lies beside them, the denormal, the largest, any bits."""
    exact = ALL.view(np.float16).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    between = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(between, np.float32(sign * np.inf)) for sign in (-1, 1)]
    ends = np.array([65519.99, 65520.0, 65536.0, 1e30, np.inf, -np.inf, -65520.0, 0.0, -0.0, 1e-45, -1e-8], np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 50_000, dtype=np.uint32).view(np.float32)
    found = np.concatenate([exact, between, *beside, ends, bits[~np.isnan(bits)]])
    return np.concatenate([found, np.zeros(-len(found) % v.LANES, np.float32)])


def test_floats_are_rounded_to_the_nearest_even_half(ways):
    floats = hard_floats()
    with np.errstate(over="ignore"):
        want = floats.astype(np.float16)
    out, single = np.zeros(len(floats), np.int16), np.zeros(len(floats), np.float32)
    ways[0](floats, out)
    ways[1](floats, single)
    np.testing.assert_array_equal(out, want.view(np.int16))
    np.testing.assert_array_equal(single, want.astype(np.float32))


def test_what_is_no_number_stays_so(ways):
    out = np.zeros(v.LANES, np.int16)
    ways[0](np.full(v.LANES, np.nan, np.float32), out)
    back = np.zeros(v.LANES, np.float32)
    ways[0](out, back)
    assert np.isnan(back).all()


def test_bits_are_moved_where_there_is_no_instruction(monkeypatch):
    """Else LLVM calls a function that compiled code does not find, and the process ends."""
    monkeypatch.setattr(isa, "has_feature", lambda context, feature: False)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.HalfType(), [ir.HalfType()]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(halves.narrow_ir(None, builder, halves.widen_ir(None, builder, function.args[0])))
    assert "fpext" not in str(module) and "fptrunc" not in str(module) and "bitcast" in str(module)
