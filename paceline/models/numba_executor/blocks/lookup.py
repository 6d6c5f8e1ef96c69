"""Looks bytes up in sixteen-entry tables: by a shuffle instruction where there is one, else by selects."""

# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false
# (llvmlite is untyped)

from typing import Any

from llvmlite import ir

from paceline.models.numba_executor import dot8, isa
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import LINE

_BYTE = ir.IntType(8)
_LINE_IR = ir.VectorType(_BYTE, LINE)


def look_up(context: Any, builder: ir.IRBuilder, indices: ir.Value, table: tuple[int, ...]) -> ir.Value:
    """table[i] for every byte i (0 to 15) of sixteen 32-bit lanes."""
    codes = builder.bitcast(indices, _LINE_IR)
    if isa.has_feature(context, "avx512bw"):
        entries = ir.Constant(_LINE_IR, list(table) * (LINE // len(table)))
        found = v.call(builder, "llvm.x86.avx512.pshuf.b.512", _LINE_IR, [entries, codes])
    elif isa.has_feature(context, "avx2"):
        found = _by_halves(builder, codes, table)
    elif isa.has_feature(context, "neon"):
        found = _by_quarters(builder, codes, table)
    else:
        found = _selected(builder, codes, table)
    return builder.bitcast(found, dot8.SUMS_IR)


def _by_halves(builder: ir.IRBuilder, codes: ir.Value, table: tuple[int, ...]) -> ir.Value:
    """The shuffle on two registers of 32 bytes."""
    half = LINE // 2
    kind, index = ir.VectorType(_BYTE, half), ir.VectorType(ir.IntType(32), half)
    entries, parts = ir.Constant(kind, list(table) * (half // len(table))), []
    for first in (0, half):
        lanes = builder.shuffle_vector(codes, codes, ir.Constant(index, list(range(first, first + half))))
        parts.append(v.call(builder, "llvm.x86.avx2.pshuf.b", kind, [entries, lanes]))
    both = ir.Constant(ir.VectorType(ir.IntType(32), LINE), list(range(LINE)))
    return builder.shuffle_vector(*parts, both)


def _by_quarters(builder: ir.IRBuilder, codes: ir.Value, table: tuple[int, ...]) -> ir.Value:
    """Arm's look-up (``tbl``) on four registers of 16 bytes."""
    size = LINE // 4
    kind, index = ir.VectorType(_BYTE, size), ir.VectorType(ir.IntType(32), size)
    entries, parts = ir.Constant(kind, list(table)), []
    for first in range(0, LINE, size):
        lanes = builder.shuffle_vector(codes, codes, ir.Constant(index, list(range(first, first + size))))
        parts.append(v.call(builder, "llvm.aarch64.neon.tbl1.v16i8", kind, [entries, lanes]))
    while len(parts) > 1:
        size *= 2
        both = ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(size)))
        parts = [builder.shuffle_vector(low, high, both) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _selected(builder: ir.IRBuilder, codes: ir.Value, table: tuple[int, ...]) -> ir.Value:
    """Selects by the code's bits, lowest first; each bit halves the candidates."""
    candidates = [ir.Constant(_LINE_IR, [entry] * LINE) for entry in table]
    bit = 1
    while len(candidates) > 1:
        mask = builder.and_(codes, ir.Constant(_LINE_IR, [bit] * LINE))
        is_set = builder.icmp_unsigned("!=", mask, ir.Constant(_LINE_IR, [0] * LINE))
        pairs = zip(candidates[::2], candidates[1::2], strict=True)
        candidates = [builder.select(is_set, odd, even) for even, odd in pairs]
        bit *= 2
    return candidates[0]
