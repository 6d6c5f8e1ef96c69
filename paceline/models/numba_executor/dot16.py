"""Sixteen dot products of two bfloat16 numbers each: one vector instruction on processors with AVX-512 BF16.

It multiplies twice as many numbers as a fused multiply-add of float32 in the same time. Products are exact and sums are
float32, added in the order of the numbers. Without the instruction this file is not used: float32 activations are
multiplied with the weights then. Not for matrices (`gemm.py`).
"""

# pyright: reportArgumentType=false
# (llvmlite is untyped)

from llvmlite import ir
from numba.core.registry import cpu_target

from paceline.models.numba_executor import halves, isa
from paceline.models.numba_executor import vector as v

PAIR = 2
"""Products in one sum: numbers in a 32-bit lane."""
_PAIRS = ir.VectorType(halves.BFloat(), PAIR * v.LANES)


def multiplies_pairs() -> bool:
    """Whether code is generated for a processor with the instruction."""
    return isa.has_feature(cpu_target.target_context, "avx512bf16")


def dot_pairs(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """sums [16] float32 + the sums of two products each, of lanes that hold two bfloat16 numbers."""
    pairs = [builder.bitcast(x, _PAIRS) for x in (weights, activations)]
    return v.call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", v.VECTOR_IR, [sums, *pairs])
