"""A Numba type of sixteen float32 lanes, and the few operations the kernels need on it.

LLVM maps a `Vector` to one 512-bit register, two 256-bit ones or four 128-bit ones, depending on the processor. Results
are bitwise the same: every operation is lane by lane, and every multiply-add is fused. Kernels stay readable Python,
while their inner loops compile to the intended instructions. Not for the kernels themselves (`gemm.py`,
`attention.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model

from paceline.models.numba_executor import halves, isa

LANES = 16
CACHE_LINE = 64
"""Bytes."""

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
VECTOR_IR = ir.VectorType(_F32, LANES)
_HALVES_IR = ir.VectorType(ir.HalfType(), LANES)
ZERO = ir.Constant(VECTOR_IR, [0.0] * LANES)


class Vector(types.Type):
    """Numba type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type) -> None:
        super().__init__(dmm, fe_type, VECTOR_IR)


def splat_ir(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """All lanes of a vector set to `scalar`."""
    one = builder.insert_element(ir.Constant(VECTOR_IR, ir.Undefined), scalar, ir.Constant(_I32, 0))
    lanes = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(VECTOR_IR, ir.Undefined), lanes)


def element_pointer(
    context: Any, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, index: ir.Value
) -> ir.Value:
    """Pointer to element `index` of a one-dimensional contiguous array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def load_widened(context: Any, builder: ir.IRBuilder, dtype: types.Type, pointer: ir.Value) -> ir.Value:
    """Load sixteen elements as float32; arrays of int16 hold float16, those of uint16 bfloat16, of int8 integers."""
    if dtype == types.float32:
        return builder.load(builder.bitcast(pointer, VECTOR_IR.as_pointer()), align=4)
    if dtype == types.int16:
        return halves.widen_ir(
            context, builder, builder.load(builder.bitcast(pointer, _HALVES_IR.as_pointer()), align=2)
        )
    stored = ir.VectorType(ir.IntType(dtype.bitwidth), LANES)
    raw = builder.load(builder.bitcast(pointer, stored.as_pointer()), align=dtype.bitwidth // 8)
    wide = ir.VectorType(_I32, LANES)
    if dtype == types.uint16:
        shifted = builder.shl(builder.zext(raw, wide), ir.Constant(wide, [16] * LANES))
        return builder.bitcast(shifted, VECTOR_IR)
    return builder.sitofp(builder.sext(raw, wide), VECTOR_IR)


def narrow_ir(context: Any, builder: ir.IRBuilder, dtype: types.Type, value: ir.Value) -> ir.Value:
    """A vector as stored in an array of float32, or rounded to nearest even: as float16 in one of int16, as bfloat16 in
    one of uint16 (where `dot16.multiplies_pairs`)."""
    if dtype == types.int16:
        return halves.narrow_ir(context, builder, value)
    return halves.round_ir(builder, value) if dtype == types.uint16 else value


def store_ir(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value) -> None:
    """Store sixteen float32 elements at a 4-byte aligned pointer."""
    builder.store(value, builder.bitcast(pointer, VECTOR_IR.as_pointer()), align=4)


def fma_ir(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c, one rounding."""
    return call(builder, "llvm.fma.v16f32", VECTOR_IR, [a, b, c])


def prefetch_ir(builder: ir.IRBuilder, pointer: ir.Value, once: bool = False) -> None:
    """Prefetch the cache line at `pointer`, which need not be mapped, for reading.

    Args:
        once: it is read once, soon: only the first-level cache gets it, where that is faster. Otherwise the
            second-level cache does.
    """
    once = once and isa.reads_past_second_cache(cpu_target.target_context)
    byte = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [byte.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [byte, _I32(0), _I32(0 if once else 2), _I32(1)])


def accumulate_ir(
    builder: ir.IRBuilder,
    steps: ir.Value,
    starts: list[ir.Value],
    step: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """The vectors after a loop of vectors = step(i, vectors), i = 0 .. steps - 1 (at least one), from `starts`."""
    index = steps.type
    before, loop, done = builder.block, builder.append_basic_block("step"), builder.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    i = builder.phi(index)
    sums = [builder.phi(start.type) for start in starts]
    new = step(i, sums)
    following = builder.add(i, index(1))
    for phi, start, value in [(i, index(0), following), *zip(sums, starts, new, strict=True)]:
        phi.add_incoming(start, before)
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, done)
    builder.position_at_end(done)
    return new


def unknown_ir(builder: ir.IRBuilder, count: int) -> ir.Value:
    """`count` as a number that LLVM does not know, so that it does not unroll a loop."""
    index = ir.IntType(64)
    return builder.asm(ir.FunctionType(index, [index]), "", "=r,0", [index(count)], False)


def each_ir(builder: ir.IRBuilder, count: int, one: Callable[[ir.Value], None]) -> None:
    """one(i) for i in 0 .. count - 1, as a loop that LLVM does not unroll: it cannot know `count`.

    LLVM interleaves unrolled iterations, which takes registers for the values and pointers of all. One or two
    iterations are not worth a loop.
    """
    index = ir.IntType(64)
    if count <= 2:
        for i in range(count):
            one(index(i))
        return

    def step(i: ir.Value, nothing: list[ir.Value]) -> list[ir.Value]:
        one(i)
        return nothing

    accumulate_ir(builder, unknown_ir(builder, count), [], step)


class Vectors:
    """`count` vectors in memory, which LLVM keeps in registers where it can; compiled code only."""

    def __init__(self, builder: ir.IRBuilder, kind: ir.Type, count: int) -> None:
        self._builder, self._first = builder, cgutils.alloca_once(builder, kind, size=ir.IntType(64)(count))

    def get(self, index: ir.Value) -> ir.Value:
        """The vector at `index`."""
        return self._builder.load(self._builder.gep(self._first, [index]))

    def put(self, index: ir.Value, value: ir.Value) -> None:
        """Replace the vector at `index`."""
        self._builder.store(value, self._builder.gep(self._first, [index]))


def call(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    """A call of an LLVM intrinsic."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _lanewise(emit, arity: int):
    """An intrinsic on `arity` vectors from a function (builder, *values) -> value."""

    def typed(*args):
        if any(a != vector for a in args):
            return None
        return vector(*args), lambda context, builder, sig, values: emit(builder, *values)

    if arity == 1:
        return intrinsic(lambda typingctx, a: typed(a))
    if arity == 2:
        return intrinsic(lambda typingctx, a, b: typed(a, b))
    return intrinsic(lambda typingctx, a, b, c: typed(a, b, c))


def _constant(value: float) -> ir.Constant:
    return ir.Constant(VECTOR_IR, [value] * LANES)


add = _lanewise(lambda b, x, y: b.fadd(x, y), 2)
sub = _lanewise(lambda b, x, y: b.fsub(x, y), 2)
mul = _lanewise(lambda b, x, y: b.fmul(x, y), 2)
div = _lanewise(lambda b, x, y: b.fdiv(x, y), 2)
maximum = _lanewise(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y), 2)
minimum = _lanewise(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y), 2)
fma = _lanewise(fma_ir, 3)

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_COEFFICIENTS = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
_EXP_LOWEST, _EXP_HIGHEST = -87.0, 88.0


def _exp_ir(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x by x = n ln 2 + r, a Taylor polynomial in r, and n put into the exponent; 0 below -87 (error < 2e-7)."""
    alive = builder.fcmp_ordered(">=", x, _constant(_EXP_LOWEST))
    x = builder.select(alive, x, _constant(_EXP_LOWEST))
    x = builder.select(builder.fcmp_ordered("<", x, _constant(_EXP_HIGHEST)), x, _constant(_EXP_HIGHEST))
    n = call(builder, "llvm.rint.v16f32", VECTOR_IR, [builder.fmul(x, _constant(_LOG2_E))])
    r = fma_ir(builder, n, _constant(-_LN2_HIGH), x)
    r = fma_ir(builder, n, _constant(-_LN2_LOW), r)
    y = _constant(_EXP_COEFFICIENTS[0])
    for c in _EXP_COEFFICIENTS[1:]:
        y = fma_ir(builder, y, r, _constant(c))
    wide = ir.VectorType(_I32, LANES)
    exponent = builder.add(builder.fptosi(n, wide), ir.Constant(wide, [127] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(wide, [23] * LANES)), VECTOR_IR)
    return builder.select(alive, builder.fmul(y, power), _constant(0.0))


exp = _lanewise(_exp_ir, 1)


def _soft_cap_ir(builder: ir.IRBuilder, x: ir.Value, cap: ir.Value) -> ir.Value:
    """c tanh(x / c), where tanh(y) = 1 - 2 / (e^2y + 1); error below 2e-7 c."""
    caps = splat_ir(builder, cap)
    grown = _exp_ir(builder, builder.fmul(builder.fdiv(x, caps), _constant(2.0)))
    tanh = builder.fsub(_constant(1.0), builder.fdiv(_constant(2.0), builder.fadd(grown, _constant(1.0))))
    return builder.fmul(caps, tanh)


@intrinsic
def soft_cap(typingctx, value, cap):
    """soft_cap(vector, float32) -> cap tanh(value / cap)."""
    if value != vector or cap != types.float32:
        return None
    return vector(vector, types.float32), lambda context, builder, sig, args: _soft_cap_ir(builder, *args)


@intrinsic
def splat(typingctx, scalar):
    """splat(float32) -> all lanes equal."""
    if scalar != types.float32:
        return None
    return vector(types.float32), lambda context, builder, sig, args: splat_ir(builder, args[0])


@intrinsic
def load(typingctx, array, index):
    """load(array, index) -> sixteen consecutive elements, widened to float32 (see `load_widened`)."""

    def emit(context, builder, sig, args):
        return load_widened(context, builder, array.dtype, element_pointer(context, builder, array, *args))

    return vector(array, types.intp), emit


@intrinsic
def store(typingctx, array, index, value):
    """store(array, index, vector): sixteen consecutive elements, see `narrow_ir`."""

    def emit(context, builder, sig, args):
        stored = narrow_ir(context, builder, array.dtype, args[2])
        pointer = element_pointer(context, builder, array, args[0], args[1])
        builder.store(stored, builder.bitcast(pointer, stored.type.as_pointer()), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), emit


@intrinsic
def scatter(typingctx, array, index, stride, value):
    """scatter(array, index, stride, vector): lane i to element index + i * stride, see `narrow_ir`."""

    def emit(context, builder, sig, args):
        stored = narrow_ir(context, builder, array.dtype, args[3])
        pointer = element_pointer(context, builder, array, args[0], args[1])
        pointer = builder.bitcast(pointer, stored.type.element.as_pointer())
        for i in range(LANES):
            at = builder.gep(pointer, [builder.mul(args[2], args[2].type(i))])
            builder.store(builder.extract_element(stored, ir.Constant(_I32, i)), at)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), emit


@intrinsic
def lane(typingctx, value, index):
    """lane(vector, index) -> one float32."""

    def emit(context, builder, sig, args):
        return builder.extract_element(args[0], builder.trunc(args[1], _I32))

    return types.float32(vector, types.intp), emit


def _halves(combine):
    """An intrinsic that folds sixteen lanes to one, halving the width each time (a fixed order)."""

    def emit(context, builder, sig, args):
        value, width = args[0], LANES
        while width > 1:
            width //= 2
            undefined = ir.Constant(value.type, ir.Undefined)
            low, high = (
                builder.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(_I32, width), indices))
                for indices in (list(range(width)), list(range(width, 2 * width)))
            )
            value = combine(builder, low, high)
        return builder.extract_element(value, ir.Constant(_I32, 0))

    return intrinsic(lambda typingctx, a: (types.float32(vector), emit) if a == vector else None)


sum_lanes = _halves(lambda b, x, y: b.fadd(x, y))
max_lanes = _halves(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
