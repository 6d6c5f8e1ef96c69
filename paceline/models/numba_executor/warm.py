"""Prefetches the next product's weights while a thread waits at a barrier.

A pass over a few rows takes as long as reading the weights, and a thread that waits at a barrier reads nothing. So it
prefetches the weights that it will multiply first, its own first chunk of the next matrix. Results do not depend on it.
Passes of the default model became 2 % faster, barely significant in ten pairs of runs.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from paceline.models.compiled.kernel import OPTIONS, kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.product import address_of
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.linear import chunk
from paceline.models.numba_executor.team import SPINS_BEFORE_YIELD, acquire, fetch_add, yield_processor

MOST_BYTES = 1 << 17
"""Most bytes that a thread prefetches, so that they are still in its L2 cache when they are needed."""


@intrinsic
def _ask(typingctx, address):
    """Ask for the cache line at an address, which need not be mapped."""

    def emit(context, builder, sig, args):
        v.prefetch_ir(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), emit


def panel_address(w, panel, element):
    """Where panel number `panel` of `w`, which begins at `element`, begins in memory; compiled code only."""
    raise NotImplementedError


@overload(panel_address, jit_options=OPTIONS)
def _panel_address(w, panel, element):
    def of_blocks(w, panel, element):
        return address_of(w.data, w.starts[panel])

    def of_panels(w, panel, element):
        return address_of(w, element)

    return of_blocks if isinstance(w, types.BaseTuple) else of_panels


@kernel
def barrier_before(counters, meetings, thread, num_threads, w, layer, columns, depth, each):
    """`barrier` before a `product` of matrix number `layer`, whose chunks are multiples of `each` panels."""
    return barrier_at(
        counters, meetings, thread, num_threads, w, layer * columns * depth, layer * columns, columns, depth, each
    )


@kernel
def barrier_at(counters, meetings, thread, num_threads, w, w_first, first_column, columns, depth, each):
    """As `barrier_before`, before a `product_at`."""
    meetings += 1
    fetch_add(counters, 0, 1)
    if acquire(counters, 0) >= meetings * num_threads:
        return meetings
    panels = columns // PANEL
    size = chunk(panels // each, num_threads) * each
    first = min(thread * size, panels - 1)
    last, panel, elements = min(first + size, panels - 1), first_column // PANEL, PANEL * depth
    at = panel_address(w, panel + first, w_first + first * elements)
    end = min(panel_address(w, panel + last, w_first + last * elements), at + MOST_BYTES)
    spins = 0
    while acquire(counters, 0) < meetings * num_threads:
        if at < end:
            _ask(at)
            at += v.CACHE_LINE
        else:
            spins += 1
            if spins > SPINS_BEFORE_YIELD:
                yield_processor()
    return meetings
