"""Sixteen dot products of two bfloat16 numbers each: one vector instruction on processors with AVX-512 BF16.

It multiplies twice as many numbers as a fused multiply-add of float32 in the same time. Products are exact and sums are
float32, added in the order of the numbers. Without the instruction this file is not used: float32 activations are
multiplied with the weights then. Not for matrices (`gemm.py`).
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped)

from llvmlite import ir
from numba.core.registry import cpu_target

from paceline.models.numba_executor import isa

PAIR = 2
"""Products in one sum: numbers in a 32-bit lane."""
_LANES = 16
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)


class _BFloat(ir.Type):
    """LLVM's type, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_PAIRS = ir.VectorType(_BFloat(), PAIR * _LANES)
_ROUNDED = ir.VectorType(_BFloat(), _LANES)


def multiplies_pairs() -> bool:
    """Whether code is generated for a processor with the instruction."""
    return isa.has_feature(cpu_target.target_context, "avx512bf16")


def dot_pairs(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """sums [16] float32 + the sums of two products each, of lanes that hold two bfloat16 numbers."""
    pairs = [builder.bitcast(x, _PAIRS) for x in (weights, activations)]
    return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, [sums, *pairs])


def round_ir(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Sixteen float32 as bfloat16, to nearest even (below 2^-126 as zero)."""
    return _call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", _ROUNDED, [value])


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, args: list[ir.Value]) -> ir.Value:
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)
