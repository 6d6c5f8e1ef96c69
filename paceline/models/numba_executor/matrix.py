"""Operations on packed weights of any format: the product of a linear layer, and reading one row.

Weights are a flat array of panels in one number type (`gemm.py`) or `Blocks` (`blocks/product.py`); compilation of a
pass chooses between the two.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (an overload has another signature in compiled code than in Python)

from numba import types
from numba.extending import overload

from paceline.models.compiled.kernel import OPTIONS
from paceline.models.numba_executor import gemm
from paceline.models.numba_executor.blocks.product import multiply_blocks, read_block_row
from paceline.models.numba_executor.gemm import PANEL, stored_weight


def multiply(
    x, first_row, num_rows, depth, w, w_first, scales, bias, vector_first, out, out_first, out_stride, first_panel,
    last_panel, add, wide,
):  # fmt: skip
    """See `gemm.multiply`; `scales` are ignored if `w` is `Blocks`; compiled code only."""
    raise NotImplementedError


@overload(multiply, jit_options=OPTIONS)
def _multiply(
    x, first_row, num_rows, depth, w, w_first, scales, bias, vector_first, out, out_first, out_stride, first_panel,
    last_panel, add, wide,
):  # fmt: skip
    def of_blocks(
        x, first_row, num_rows, depth, w, w_first, scales, bias, vector_first, out, out_first, out_stride, first_panel,
        last_panel, add, wide,
    ):  # fmt: skip
        multiply_blocks(
            x, first_row, num_rows, depth, w, w_first, bias, vector_first, out, out_first, out_stride, first_panel,
            last_panel, add,
        )  # fmt: skip

    return of_blocks if isinstance(w, types.BaseTuple) else gemm.multiply.py_func


def read_weights(w, scales, row, depth, out, out_start):
    """out[out_start : out_start + depth] = row `row` of a matrix, as floats; compiled code only."""
    raise NotImplementedError


@overload(read_weights, jit_options=OPTIONS)
def _read_weights(w, scales, row, depth, out, out_start):
    def of_blocks(w, scales, row, depth, out, out_start):
        read_block_row(w, row, depth, out, out_start)

    def of_panels(w, scales, row, depth, out, out_start):
        start, scale = row // PANEL * depth * PANEL, scales[row]
        for i in range(depth):
            out[out_start + i] = stored_weight(w, start, i, row % PANEL) * scale

    return of_blocks if isinstance(w, types.BaseTuple) else of_panels
