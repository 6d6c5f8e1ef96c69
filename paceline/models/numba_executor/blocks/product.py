"""Products of rounded activations with a matrix of blocks, panel by panel through the kernel of each panel's format.

The counterpart of `gemm.multiply` for matrices of blocks, whose panels may differ in format. Not for threads
(`team.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.models.compiled.kernel import call_at, kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import GROUP, NAMES, PANEL
from paceline.models.numba_executor.blocks.kernels import ROW_SIGNATURE, TILE_ROWS, TILE_SIGNATURE, addresses

CACHE_BYTES = 1 << 19
"""Most bytes of activation codes in a block of rows, so that they stay in the L2 cache."""


class Blocks(NamedTuple):
    """Panels of 32 rows of one or more matrices of the same depth.

    Attributes:
        data: flat uint8, the panels' bytes.
        starts: [panels] int64, where each begins.
        tiles, rows: [panels] int64, addresses of the kernels of its format (`kernels.addresses`).
    """

    data: np.ndarray
    starts: np.ndarray
    tiles: np.ndarray
    rows: np.ndarray


def with_kernels(data: np.ndarray, starts: np.ndarray, numbers: np.ndarray) -> Blocks:
    """`Blocks` of panels in formats NAMES[numbers[i]]; compiles missing kernels."""
    tiles, rows = np.zeros(len(NAMES), np.int64), np.zeros(len(NAMES), np.int64)
    for number in np.unique(numbers):
        tiles[number], rows[number] = addresses(NAMES[number])
    return Blocks(data, starts, tiles[numbers], rows[numbers])


@intrinsic
def address_of(typingctx, array, index):
    """The address of an element of a flat array."""

    def emit(context, builder, sig, args):
        return builder.ptrtoint(v.element_pointer(context, builder, array, *args), ir.IntType(64))

    return types.int64(array, types.intp), emit


def _caller(signature):
    """An intrinsic (address, *arguments) that calls the compiled function of `signature` at an address."""

    def emit(context, builder, sig, args):
        call_at(context, builder, signature.args, args[0], args[1:])
        return context.get_dummy_value()

    result = types.void(types.int64, *signature.args)
    if len(signature.args) == len(ROW_SIGNATURE.args):
        return intrinsic(lambda typingctx, address, a, b, c, d: (result, emit))
    return intrinsic(lambda typingctx, address, a, b, c, d, e, f, g, h, i, j, k: (result, emit))


_call_tile, _call_row = _caller(TILE_SIGNATURE), _caller(ROW_SIGNATURE)


@kernel
def multiply_blocks(
    x, first_row, num_rows, depth, w, w_first, bias, vector_first, out, out_first, out_stride, first_panel, last_panel,
    add,
):  # fmt: skip
    """As `gemm.multiply`, without scales per output: blocks contain theirs. `w` is `Blocks`, `x` a fine operand."""
    groups, matrix = depth // GROUP, vector_first // PANEL
    block_rows = max(TILE_ROWS, CACHE_BYTES // depth // TILE_ROWS * TILE_ROWS)
    for block in range(0, num_rows, block_rows):
        block_end = min(block + block_rows, num_rows)
        for panel in range(first_panel, last_panel):
            number, column = matrix + panel, panel * PANEL
            shift = address_of(bias, vector_first + column) if len(bias) > 0 else 0
            for row in range(block, block_end, TILE_ROWS):
                at = (first_row + row) * groups
                _call_tile(
                    w.tiles[number], min(TILE_ROWS, block_end - row), groups, address_of(x.values, at * GROUP),
                    address_of(x.scales, 2 * at), address_of(x.halves, 2 * at), address_of(x.totals, at),
                    address_of(w.data, w.starts[number]), shift,
                    address_of(out, out_first + column + row * out_stride), out_stride, 1 if add else 0,
                )  # fmt: skip


@kernel
def read_block_row(w, row, depth, out, out_start):
    """out[out_start:] = row number `row` of the first matrix in `w`, as floats."""
    panel = row // PANEL
    _call_row(
        w.rows[panel], depth // GROUP, address_of(w.data, w.starts[panel]), row % PANEL, address_of(out, out_start)
    )
