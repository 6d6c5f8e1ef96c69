"""The inner loop over half a panel of blocks, as LLVM code for one format and one number of rows.

For 16 weights, codes times activations are summed as integers, exact in any order and with any instruction, and then
multiplied by the activations' scale as floats. For a span, one fused multiply-add applies the weights' scale and adds
the result. A shift adds shift * (sum of the span's activations). Groups are added in one order, so a row's result is
bitwise independent of the rows beside it and of the processor. Not for its callers (`kernels.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false, reportAssignmentType=false
# (llvmlite is untyped)

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from paceline.models.numba_executor import dot8, halves
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import GROUP, HALF, LINE, STEPS, BlockFormat
from paceline.models.numba_executor.blocks.lookup import look_up

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_SHORTS = ir.VectorType(ir.IntType(16), LINE // 2)
_PARTS = 2
"""Scales of activations in a group."""
PREFETCH_BYTES = 8192
"""Prefetch distance of weights. Without prefetching, one thread with one row is faster on an idle machine (29 GB/s, not
21), but not beside other programs, and never with two rows or more."""
OFFSET_BITS = 7
"""`Operand.halves` are sums times -2^7."""


class Row(NamedTuple):
    """Pointers to the first element of a row of activations, see `Operand`."""

    codes: ir.Value
    scales: ir.Value
    halves: ir.Value
    totals: ir.Value


class _Group(NamedTuple):
    """A group of weights: pointer to its codes, its number in the row, its unit, its number in the unit."""

    codes: ir.Value
    number: ir.Value
    unit: "_Unit"
    place: ir.Value


class _Unit(NamedTuple):
    """Pointer to a unit, and its scales and shifts as vectors over the 16 rows of half a panel."""

    start: ir.Value
    scales: ir.Value
    shifts: ir.Value | None


def emit_sums(context: Any, builder: ir.IRBuilder, form: BlockFormat, start: ir.Value, groups: ir.Value,
              num_rows: int, row: Callable[[ir.Value], Row], once: bool) -> list[ir.Value]:  # fmt: skip
    """A vector per row of activations: its products with the 16 rows of half a panel at byte pointer `start`.

    Args:
        row: returns the pointers of a row by its number.
        once: no other rows need these weights in this pass, see `vector.prefetch_ir`.
    """
    emit = _Emitter(context, builder, form, once)
    per_unit = form.unit // GROUP
    if dot8.adds_shorts(context):
        in_turn = _InTurn(emit, num_rows, row)
        state, each_group = [], in_turn.group
    else:
        in_turn, rows = None, [row(_I64(i)) for i in range(num_rows)]
        state, each_group = [v.ZERO] * num_rows, lambda group, sums: emit.group(group, rows, sums)

    def unit(number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        unit = emit.unit(builder.gep(start, [builder.mul(number, _I64(form.unit_bytes))]))
        first = builder.mul(number, _I64(per_unit))
        return v.accumulate_ir(
            builder, _I64(per_unit), sums, lambda i, old: each_group(emit.group_of(unit, first, i), old)
        )

    sums = v.accumulate_ir(builder, builder.sdiv(groups, _I64(per_unit)), state, unit)
    return in_turn.sums() if in_turn else sums


class _Emitter:
    """Writes the code for a group of one format."""

    def __init__(self, context: Any, builder: ir.IRBuilder, form: BlockFormat, once: bool = False) -> None:
        self.context, self.builder, self.form, self.once = context, builder, form, once
        self.dot = dot8.choose_dot(context, form.largest_code)
        bits = form.zero.bit_length()
        self.lift = OFFSET_BITS + 1 - bits if bits and self.dot is dot8.dot_512 else 0
        """Bits by which codes are shifted up, and scales down, so that a weight of 0 has code 128, for which `Operand`
        has sums. 0 without `dot_512`: 16-bit sums leave no room."""

    def unit(self, start: ir.Value) -> _Unit:
        """The unit at `start`; the head of a unit further on is prefetched."""
        self.prefetch(start, self.form.head_bytes)
        down = ir.Constant(v.VECTOR_IR, [2.0**-self.lift] * v.LANES)
        scales = self._powers_at(start) if self.form.exponents else self._floats_at(start, 0)
        scales = self.builder.fmul(scales, down) if self.lift else scales
        return _Unit(start, scales, self._floats_at(start, 2 * HALF) if self.form.shifts else None)

    def group_of(self, unit: _Unit, first: ir.Value, index: ir.Value) -> _Group:
        """Group `index` of a unit whose first group is number `first` of the row."""
        at = self.builder.add(_I64(self.form.head_bytes), self.builder.mul(index, _I64(self.form.code_bytes)))
        return _Group(self.builder.gep(unit.start, [at]), self.builder.add(first, index), unit, index)

    def group(self, group: _Group, rows: list[Row], sums: list[ir.Value]) -> list[ir.Value]:
        """The sums after one more group, half by half: 16 activations share a scale."""
        self.prefetch(group.codes, self.form.code_bytes)
        registers, parts = self.registers(group.codes), None
        for half in range(_PARTS):
            at = self.builder.add(self.builder.mul(group.number, _I64(_PARTS)), _I64(half))
            totals = [self.start(row, at) for row in rows]
            for step in range(half * STEPS // _PARTS, (half + 1) * STEPS // _PARTS):
                totals = self._dots(registers(step), step, group, rows, totals)
            factors = [self.splat(row.scales, at) for row in rows]
            parts = self._times(totals, factors, parts)
            if half == _PARTS - 1 or self.form.span < GROUP:
                scale = self.scale(group, half if self.form.span < GROUP else 0)
                sums = [v.fma_ir(self.builder, part, scale, old) for part, old in zip(parts, sums, strict=True)]
                parts = None
        return [self.shifted(group, row, old) for row, old in zip(rows, sums, strict=True)]

    def start(self, row: Row, half: ir.Value) -> ir.Value:
        """-(zero << lift) times the sum of sixteen activations, from -128 times it; exact."""
        if not self.form.zero:
            return ir.Constant(dot8.SUMS_IR, [0] * v.LANES)
        less = OFFSET_BITS + 1 - self.form.zero.bit_length() - self.lift
        offsets = dot8.splat_ir(self.builder, self.builder.gep(row.halves, [half]))
        return self.builder.ashr(offsets, ir.Constant(dot8.SUMS_IR, [less] * v.LANES)) if less else offsets

    def codes(self, row: Row, group: _Group, step: int) -> ir.Value:
        """The four activations of a step in every lane."""
        at = self.builder.add(self.builder.mul(group.number, _I64(GROUP)), _I64(step * dot8.BYTES))
        return dot8.splat_ir(self.builder, self.builder.gep(row.codes, [at]))

    def _dots(self, register: ir.Value, step: int, group: _Group, rows: list[Row],
              totals: list[ir.Value]) -> list[ir.Value]:  # fmt: skip
        codes = [self.codes(row, group, step) for row in rows]
        return [self.dot(self.builder, total, register, code) for total, code in zip(totals, codes, strict=True)]

    def _times(self, totals: list[ir.Value], factors: list[ir.Value], old: list[ir.Value] | None) -> list[ir.Value]:
        """Integers as floats times the activations' scales, added to `old`."""
        floats = [self.builder.sitofp(total, v.VECTOR_IR) for total in totals]
        if old is None:
            return [self.builder.fmul(x, factor) for x, factor in zip(floats, factors, strict=True)]
        return [v.fma_ir(self.builder, x, factor, y) for x, factor, y in zip(floats, factors, old, strict=True)]

    def shifted(self, group: _Group, row: Row, total: ir.Value) -> ir.Value:
        """A row's sums plus every span's shift times the sum of its activations."""
        spans = GROUP // self.form.span if self.form.shifts else 0
        for span in range(spans):
            activations = self.splat(row.totals, group.number) if spans == 1 else self._half_total(group, span, row)
            total = v.fma_ir(self.builder, self.shift(group, span), activations, total)
        return total

    def _half_total(self, group: _Group, half: int, row: Row) -> ir.Value:
        """The sum of sixteen activations as a float, in every lane."""
        at = self.builder.add(self.builder.mul(group.number, _I64(_PARTS)), _I64(half))
        total = self.builder.sitofp(self.builder.load(self.builder.gep(row.halves, [at])), ir.FloatType())
        scaled = self.builder.fmul(total, self.builder.load(self.builder.gep(row.scales, [at])))
        return v.splat_ir(self.builder, self.builder.fmul(scaled, ir.Constant(ir.FloatType(), -(2.0**-OFFSET_BITS))))

    def splat(self, row: ir.Value, at: ir.Value) -> ir.Value:
        return v.splat_ir(self.builder, self.builder.load(self.builder.gep(row, [at])))

    def prefetch(self, start: ir.Value, size: int) -> None:
        for line in range(0, size, LINE):
            v.prefetch_ir(self.builder, self.builder.gep(start, [_I64(line + PREFETCH_BYTES)]), self.once)

    def registers(self, start: ir.Value) -> Callable[[int], ir.Value]:
        """A function step -> its codes, replaced by the format's table if any."""
        lines: dict[int, ir.Value] = {}
        table, lift = tuple(entry << self.lift for entry in self.form.table), 0 if self.form.table else self.lift

        def register(step: int) -> ir.Value:
            value = None
            for field in self.form.fields(step):
                if field.line not in lines:
                    lines[field.line] = dot8.load_ir(self.builder, self.builder.gep(start, [_I64(field.line * LINE)]))
                part = self._field(lines[field.line], field.start, field.bits, field.place + lift)
                value = part if value is None else self.builder.or_(value, part)
            return look_up(self.context, self.builder, value, table) if table else value

        return register

    def _field(self, line: ir.Value, shift: int, bits: int, place: int) -> ir.Value:
        """Bits shift .. shift + bits - 1 of every byte, moved to `place`."""
        if bits == 8:
            return line
        builder, shorts = self.builder, self.builder.bitcast(line, _SHORTS)
        move = ir.Constant(_SHORTS, [abs(shift - place)] * (LINE // 2))
        if shift != place:
            shorts = builder.lshr(shorts, move) if shift > place else builder.shl(shorts, move)
        mask = ((2**bits - 1) << place) * 0x0101
        return builder.bitcast(builder.and_(shorts, ir.Constant(_SHORTS, [mask] * (LINE // 2))), dot8.SUMS_IR)

    def scale(self, group: _Group, span: int) -> ir.Value:
        """The scales of the panel's rows for one span of a group."""
        if not self.form.stepped:
            return group.unit.scales
        return self.builder.fmul(group.unit.scales, self._steps(group, span, self.form.float_bytes, self.form.signed))

    def shift(self, group: _Group, span: int) -> ir.Value:
        """The shifts of the panel's rows for one span of a group."""
        numbers = group.unit.shifts
        if self.form.zero_points:
            return self.builder.fneg(self.builder.fmul(numbers, group.unit.scales))
        if not self.form.stepped:
            return numbers
        return self.builder.fmul(
            numbers, self._steps(group, span, self.form.float_bytes + self.form.step_bytes, signed=False)
        )

    def _steps(self, group: _Group, span: int, at: int, signed: bool) -> ir.Value:
        """Integers of a span, as floats; the unit's first ones are `at` bytes after its start."""
        spans = self.builder.mul(group.place, _I64(GROUP // self.form.span * HALF))
        pointer = self.builder.gep(group.unit.start, [self.builder.add(spans, _I64(at + span * HALF))])
        raw = self._load(ir.VectorType(ir.IntType(8), v.LANES), pointer)
        wide = (self.builder.sext if signed else self.builder.zext)(raw, dot8.SUMS_IR)
        return self.builder.sitofp(wide, v.VECTOR_IR)

    def _floats_at(self, start: ir.Value, at: int) -> ir.Value:
        stored = self._load(ir.VectorType(ir.HalfType(), v.LANES), self.builder.gep(start, [_I64(at)]))
        return halves.widen_ir(self.context, self.builder, stored)

    def _powers_at(self, start: ir.Value) -> ir.Value:
        """2^(e - 128) for the sixteen bytes e at `start`: half of the float with exponent e (2^-128 for e = 0)."""
        raw = self._load(ir.VectorType(ir.IntType(8), v.LANES), start)
        bits = self.builder.shl(self.builder.zext(raw, dot8.SUMS_IR), ir.Constant(dot8.SUMS_IR, [23] * v.LANES))
        half, least = (ir.Constant(v.VECTOR_IR, [x] * v.LANES) for x in (0.5, 2.0**-128))
        is_least = self.builder.icmp_unsigned("==", bits, ir.Constant(dot8.SUMS_IR, [0] * v.LANES))
        return self.builder.select(is_least, least, self.builder.fmul(self.builder.bitcast(bits, v.VECTOR_IR), half))

    def _load(self, kind: ir.Type, pointer: ir.Value) -> ir.Value:
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=1)

    def column(self, group: _Group, column: ir.Value) -> list[ir.Value]:
        """The 32 weights of one row of the half panel as floats, in order."""
        register = self.registers(group.codes)
        out = []
        for step in range(STEPS):
            span = step * dot8.BYTES // self.form.span
            scale = self._of_column(self.scale(group, span), column)
            lane = self._of_column(register(step), column)
            for byte in range(dot8.BYTES):
                code = self.builder.and_(self.builder.lshr(lane, _I32(8 * byte)), _I32(255))
                zero = _I32(self.form.zero << self.lift)
                value = self.builder.sitofp(self.builder.sub(code, zero), ir.FloatType())
                out.append(self._plus_shift(self.builder.fmul(value, scale), group, span, column))
        return out

    def _plus_shift(self, value: ir.Value, group: _Group, span: int, column: ir.Value) -> ir.Value:
        if not self.form.shifts:
            return value
        return self.builder.fadd(value, self._of_column(self.shift(group, span), column))

    def _of_column(self, lanes: ir.Value, column: ir.Value) -> ir.Value:
        """The lane of `column`, 0 to 15."""
        return self.builder.extract_element(lanes, self.builder.trunc(column, _I32))


class _InTurn:
    """Processes a group for one row of activations after the other, where registers are few.

    Half a group of weights stays in registers; a row's sums are kept in memory between the halves.
    """

    def __init__(self, emit: _Emitter, num_rows: int, row: Callable[[ir.Value], Row]) -> None:
        self.emit, self.builder, self.num_rows, self.row = emit, emit.builder, num_rows, row
        self._parts, self._sums = (v.Vectors(self.builder, v.VECTOR_IR, num_rows) for _ in range(2))
        for i in range(num_rows):
            self._sums.put(_I64(i), v.ZERO)

    def sums(self) -> list[ir.Value]:
        """A vector per row, after the last group."""
        return [self._sums.get(_I64(i)) for i in range(self.num_rows)]

    def group(self, group: _Group, state: list[ir.Value]) -> list[ir.Value]:
        """Add one more group."""
        self.emit.prefetch(group.codes, self.emit.form.code_bytes)
        registers = self.emit.registers(group.codes)
        for half in range(_PARTS):
            steps = range(half * STEPS // _PARTS, (half + 1) * STEPS // _PARTS)
            self._half(group, half, steps, [registers(step) for step in steps])
        return state

    def _half(self, group: _Group, half: int, steps: range, weights: list[ir.Value]) -> None:
        emit, builder, form = self.emit, self.builder, self.emit.form
        at = builder.add(builder.mul(group.number, _I64(_PARTS)), _I64(half))
        ends, signed = half == _PARTS - 1, form.largest_code > dot8.LARGEST_IN_SHORTS
        scale = emit.scale(group, half if form.span < GROUP else 0) if ends or form.span < GROUP else None
        if signed:
            weights = [dot8.less_128(builder, one) for one in weights]

        def one(number: ir.Value) -> None:
            row = self.row(number)
            codes = [emit.codes(row, group, step) for step in steps]
            start = None if signed else emit.start(row, at)
            part = builder.sitofp(dot8.row_sums(builder, start, weights, codes, form.largest_code), v.VECTOR_IR)
            factor = emit.splat(row.scales, at)
            if half and form.span == GROUP:
                part = v.fma_ir(builder, part, factor, self._parts.get(number))
            else:
                part = builder.fmul(part, factor)
            if scale is None:
                self._parts.put(number, part)
                return
            total = v.fma_ir(builder, part, scale, self._sums.get(number))
            self._sums.put(number, emit.shifted(group, row, total) if ends else total)

        v.each_ir(builder, self.num_rows, one)


def emit_column(context: Any, builder: ir.IRBuilder, form: BlockFormat, start: ir.Value, groups: ir.Value,
                column: ir.Value, out: ir.Value) -> None:  # fmt: skip
    """out[0:32 * groups] = one row of half a panel as floats."""
    emit = _Emitter(context, builder, form)
    per_unit = _I64(form.unit // GROUP)

    def group(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        index = builder.srem(number, per_unit)
        unit = emit.unit(builder.gep(start, [builder.mul(builder.sdiv(number, per_unit), _I64(form.unit_bytes))]))
        values = emit.column(emit.group_of(unit, builder.sub(number, index), index), column)
        for i, value in enumerate(values):
            at = builder.add(builder.mul(number, _I64(GROUP)), _I64(i))
            builder.store(value, builder.gep(out, [at]))
        return []

    v.accumulate_ir(builder, groups, [], group)
