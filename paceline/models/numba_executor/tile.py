"""Operations on a tile of sums: scaling, adding a bias or the stored output, and storing.

A tile is a tuple of vectors, two per row of activations: the 32 outputs of one panel of weights. Not for computing the
sums (`gemm.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.models.numba_executor import vector as v

_I64 = ir.IntType(64)


def _on_tile(emit_each):
    """An intrinsic (tile, low, high) -> tile: `emit_each` of each row's first half and low, second half and high."""

    def emit(context, builder, sig, args):
        count = sig.args[0].count
        values = [builder.extract_value(args[0], i) for i in range(count)]
        return context.make_tuple(
            builder, sig.return_type, [emit_each(builder, x, args[1 + i % 2]) for i, x in enumerate(values)]
        )

    return intrinsic(lambda typingctx, tile, low, high: (tile(tile, v.vector, v.vector), emit))


scale_tile = _on_tile(lambda builder, x, y: builder.fmul(x, y))
shift_tile = _on_tile(lambda builder, x, y: builder.fadd(x, y))


def _tile_pointers(context, builder, array_type, array, start, stride, count):
    for i in range(count):
        row, half = divmod(i, 2)
        at = builder.add(builder.add(start, builder.mul(stride, _I64(row))), _I64(half * v.LANES))
        yield builder.bitcast(v.element_pointer(context, builder, array_type, array, at), v.VECTOR_IR.as_pointer())


@intrinsic
def store_tile(typingctx, tile, out, start, stride):
    """Write a tile's rows at out[start + row * stride]."""

    def emit(context, builder, sig, args):
        pointers = _tile_pointers(context, builder, out, *args[1:], tile.count)
        for i, pointer in enumerate(pointers):
            builder.store(builder.extract_value(args[0], i), pointer, align=4)
        return context.get_dummy_value()

    return types.void(tile, out, types.intp, types.intp), emit


@intrinsic
def add_stored(typingctx, tile, out, start, stride):
    """A tile plus the values at out[start + row * stride]."""

    def emit(context, builder, sig, args):
        pointers = _tile_pointers(context, builder, out, *args[1:], tile.count)
        sums = [
            builder.fadd(builder.extract_value(args[0], i), builder.load(p, align=4)) for i, p in enumerate(pointers)
        ]
        return context.make_tuple(builder, tile, sums)

    return tile(tile, out, types.intp, types.intp), emit
