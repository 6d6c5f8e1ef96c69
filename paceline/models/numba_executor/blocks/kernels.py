"""One compiled function per kind of block, called by its address.

A pass that referred to the kernels of all formats would compile all of them for every model. So `forward` is compiled
once for all formats and calls kernels by addresses in a table; a format's kernel is compiled when the first file with
it is loaded, and kept on disk. Not for the arithmetic (`sums.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.models.compiled.disk import keep_on_disk
from paceline.models.compiled.kernel import entry
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import FORMATS, GROUP, HALF, PANEL
from paceline.models.numba_executor.blocks.sums import Row, emit_column, emit_sums
from paceline.models.numba_executor.sources import kernel_sources

TILE_ROWS = 8
"""Most rows of activations that one call multiplies."""

TILE_SIGNATURE = types.void(*[types.int64] * 11)
"""Rows (1 to 8) and groups; addresses of the first row's codes, scales, halves and totals (`Operand`), of the panel, of
the bias of its 32 outputs (0 for none), of the output; the output's row stride in elements; 1 to add to the output."""
ROW_SIGNATURE = types.void(*[types.int64] * 4)
"""Groups; address of the panel; row of the panel (0 to 31); address of the floats to write."""

_I64 = ir.IntType(64)


def _pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, offset: ir.Value | None = None) -> ir.Value:
    """`address` as a pointer to `kind`, `offset` elements further on."""
    pointer = builder.inttoptr(address, kind.as_pointer())
    return pointer if offset is None else builder.gep(pointer, [offset])


@intrinsic(prefer_literal=True)
def _multiply(typingctx, rows, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add):
    """The products of `rows` (a literal) rows with a panel in the format named `form` (a literal)."""
    if not isinstance(rows, types.IntegerLiteral) or not isinstance(form, types.StringLiteral):
        return None
    count, fmt = rows.literal_value, FORMATS[form.literal_value]

    def emit(context, builder, sig, args):
        groups, codes, scales, halves, totals, panel, bias, out, stride, add = args[2:]

        def row_at(number):
            def first(address, kind, per_group):
                size = builder.mul(builder.mul(groups, _I64(per_group)), number)
                return _pointer(builder, address, kind, size)

            return Row(
                first(codes, ir.IntType(8), GROUP),
                first(scales, ir.FloatType(), 2),
                first(halves, ir.IntType(32), 2),
                first(totals, ir.FloatType(), 1),
            )

        half_bytes = builder.mul(builder.sdiv(groups, _I64(fmt.unit // GROUP)), _I64(fmt.unit_bytes))

        def half(number, _):
            start = _pointer(builder, panel, ir.IntType(8), builder.mul(number, half_bytes))
            column = builder.mul(number, _I64(HALF))
            sums = emit_sums(context, builder, fmt, start, groups, count, row_at, once=count < TILE_ROWS)
            sums = _where(builder, bias, sums, lambda _: _pointer(builder, bias, ir.FloatType(), column))

            def place(row):
                return _pointer(builder, out, ir.FloatType(), builder.add(builder.mul(stride, _I64(row)), column))

            for row, total in enumerate(_where(builder, add, sums, place)):
                v.store_ir(builder, total, place(row))
            return []

        v.accumulate_ir(builder, _I64(PANEL // HALF), [], half)
        return context.get_dummy_value()

    return types.void(rows, form, *[types.int64] * 10), emit


def _where(builder: ir.IRBuilder, flag: ir.Value, sums: list[ir.Value], place: Callable) -> list[ir.Value]:
    """sums; if `flag` is not 0, plus the vectors at place(i)."""
    before = builder.block
    with builder.if_then(builder.icmp_signed("!=", flag, _I64(0))):
        stored = [builder.load(builder.bitcast(place(i), v.VECTOR_IR.as_pointer()), align=4) for i in range(len(sums))]
        added = [builder.fadd(old, new) for old, new in zip(sums, stored, strict=True)]
        inside = builder.block
    out = []
    for old, new in zip(sums, added, strict=True):
        phi = builder.phi(v.VECTOR_IR)
        phi.add_incoming(old, before)
        phi.add_incoming(new, inside)
        out.append(phi)
    return out


@intrinsic(prefer_literal=True)
def _read(typingctx, form, groups, panel, column, out):
    """One row of a panel in the format named `form` (a literal) as floats."""
    if not isinstance(form, types.StringLiteral):
        return None
    fmt = FORMATS[form.literal_value]

    def emit(context, builder, sig, args):
        _, groups, panel, column, out = args
        half_bytes = builder.mul(builder.sdiv(groups, _I64(fmt.unit // GROUP)), _I64(fmt.unit_bytes))
        half, column = builder.sdiv(column, _I64(HALF)), builder.srem(column, _I64(HALF))
        start = _pointer(builder, panel, ir.IntType(8), builder.mul(half, half_bytes))
        emit_column(context, builder, fmt, start, groups, column, _pointer(builder, out, ir.FloatType()))
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 4), emit


def make_tile(form: str) -> Callable[..., None]:
    """The kernel for up to 8 rows and a panel in the format named `form`, see `TILE_SIGNATURE`."""

    def tile(rows, groups, codes, scales, halves, totals, panel, bias, out, stride, add):
        if rows == 1:
            _multiply(1, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        elif rows == 2:
            _multiply(2, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        elif rows == 3:
            _multiply(3, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        elif rows == 4:
            _multiply(4, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        elif rows == 5:
            _multiply(5, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        elif rows == 6:
            _multiply(6, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        elif rows == 7:
            _multiply(7, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)
        else:
            _multiply(8, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)

    return _compiled(tile, TILE_SIGNATURE)


def make_row(form: str) -> Callable[..., None]:
    """The kernel that reads one row out of a panel, see `ROW_SIGNATURE`."""

    def row(groups, panel, column, out):
        _read(form, groups, panel, column, out)

    return _compiled(row, ROW_SIGNATURE)


def _compiled(function: Callable, signature: Any) -> Callable[..., None]:
    kept = keep_on_disk(entry(function), kernel_sources())
    kept.compile(signature)
    return kept


@cache
def addresses(form: str) -> tuple[int, int]:
    """Addresses of a format's tile and row kernels, compiled or loaded."""
    return _address(_kept(make_tile, form)), _address(_kept(make_row, form))


@cache
def _kept(make: Callable[[str], Any], form: str) -> Any:
    """Keeps the function, because its machine code is freed with it."""
    return make(form)


def _address(function: Any) -> int:
    (result,) = function.overloads.values()
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
