"""Converts float16 to float32 and back, by an instruction where the processor has one, else by bit operations.

Without an instruction (x86 without F16C) LLVM calls a library function that is missing in compiled code, which would
crash the process. Both methods give the same bits. Values are scalars or vectors of any length. Also rounds to
bfloat16, only where there is an instruction for it (`dot16.multiplies_pairs`). Not for loading and storing
(`vector.py`, `kv_cache.py`).
"""

# pyright: reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped)

from typing import Any

from llvmlite import ir

from paceline.models.numba_executor import isa

_I32 = ir.IntType(32)
_SIGN, _MAGNITUDE = 0x8000, 0x7FFF
"""Bits of a half."""
_INFINITE = 0x7C00
_MOVED = 13
"""Extra bits of a float's mantissa."""
_TO_FLOAT = 2.0**112
"""Factor by which a half's bits, shifted to a float's place, are too small: its exponent bias is 127, not 15."""
_FLOAT_MAGNITUDE, _FLOAT_INFINITE = 0x7FFFFFFF, 0x7F800000
_BEYOND, _SMALLEST_NORMAL = 0x47800000, 0x38800000
"""As bits of a float: 65,536, and 2^-14, below which halves are denormal."""
_HALF = 0x3F000000
"""Bits of 0.5: added to a number below 2^-14, it leaves a denormal half in the mantissa (steps of 2^-24, rounded to
even)."""
_REBIASED = -(112 << 23) + (1 << _MOVED - 1) - 1
"""Added to a float's bits before the shift: changes the bias and rounds (with the last bit, ties to even)."""


def widen_ir(context: Any, builder: ir.IRBuilder, halves: ir.Value) -> ir.Value:
    """float16 numbers as float32."""
    floats = _like(halves, ir.FloatType())
    if _has_instruction(context):
        return builder.fpext(halves, floats)
    wide = _like(halves, _I32)
    bits = builder.zext(builder.bitcast(halves, _like(halves, ir.IntType(16))), wide)
    magnitude = builder.and_(bits, _same(wide, _MAGNITUDE))
    moved = builder.bitcast(builder.shl(magnitude, _same(wide, _MOVED)), floats)
    value = builder.bitcast(builder.fmul(moved, _same(floats, _TO_FLOAT)), wide)
    endless = builder.icmp_unsigned(">=", magnitude, _same(wide, _INFINITE))
    value = builder.select(endless, builder.or_(value, _same(wide, _FLOAT_INFINITE)), value)
    sign = builder.shl(builder.and_(bits, _same(wide, _SIGN)), _same(wide, 16))
    return builder.bitcast(builder.or_(value, sign), floats)


def narrow_ir(context: Any, builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
    """float32 numbers as float16, rounded to nearest even; those from 65,520 on are infinite."""
    halves = _like(floats, ir.HalfType())
    if _has_instruction(context):
        return builder.fptrunc(floats, halves)
    wide = _like(floats, _I32)
    bits = builder.bitcast(floats, wide)
    magnitude = builder.and_(bits, _same(wide, _FLOAT_MAGNITUDE))
    last = builder.and_(builder.lshr(magnitude, _same(wide, _MOVED)), _same(wide, 1))
    rounded = builder.add(builder.add(magnitude, _same(wide, _REBIASED)), last)
    value = builder.lshr(rounded, _same(wide, _MOVED))
    steps = builder.fadd(builder.bitcast(magnitude, floats.type), builder.bitcast(_same(wide, _HALF), floats.type))
    denormal = builder.sub(builder.bitcast(steps, wide), _same(wide, _HALF))
    value = builder.select(builder.icmp_unsigned("<", magnitude, _same(wide, _SMALLEST_NORMAL)), denormal, value)
    is_nan = builder.icmp_unsigned(">", magnitude, _same(wide, _FLOAT_INFINITE))
    endless = builder.select(is_nan, _same(wide, _INFINITE | 1 << 9), _same(wide, _INFINITE))
    value = builder.select(builder.icmp_unsigned(">=", magnitude, _same(wide, _BEYOND)), endless, value)
    sign = builder.and_(builder.lshr(bits, _same(wide, 16)), _same(wide, _SIGN))
    return builder.bitcast(builder.trunc(builder.or_(value, sign), _like(floats, ir.IntType(16))), halves)


class BFloat(ir.Type):
    """LLVM's type of bfloat16, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def round_ir(builder: ir.IRBuilder, floats: ir.Value) -> ir.Value:
    """float32 numbers as bfloat16, rounded to nearest even (below 2^-126 to zero)."""
    return builder.fptrunc(floats, _like(floats, BFloat()))


def _has_instruction(context: Any) -> bool:
    """Whether the target processor has conversion instructions."""
    return any(isa.has_feature(context, feature) for feature in ("f16c", "neon"))


def _like(value: ir.Value, element: ir.Type) -> ir.Type:
    """The type with as many of `element` as `value` has numbers."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _same(kind: ir.Type, number: float) -> ir.Constant:
    """A constant with `number` in every lane."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)
