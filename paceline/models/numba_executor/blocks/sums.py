"""The inner loop over a panel of blocks, as LLVM code for one format and one number of rows.

Per 16 weights: integer sums of code times activation, exact in any order and with any instruction; made floats, times
the activations' scale. Per span: added with one fused multiply-add by the weights' scale. A shift of the weights adds
shift * (sum of the span's activations). Groups follow one another in one order, so a row's result
depends, bit for bit, neither on the rows beside it nor on the processor. Not for what calls it (`kernels.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false, reportAssignmentType=false
# (llvmlite is untyped)

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from paceline.models.numba_executor import dot8
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import GROUP, LINE, PANEL, STEPS, BlockFormat
from paceline.models.numba_executor.blocks.lookup import look_up

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_SHORTS = ir.VectorType(ir.IntType(16), LINE // 2)
_HALVES = range(PANEL // v.LANES)
_PARTS = 2
"""Scales of activations in a group."""
PREFETCH_BYTES = 8192
"""How far ahead weights are asked for from memory; the processor's own prefetching stops at every 4 KiB page."""
OFFSET_BITS = 7
"""`Operand.halves` are sums times -2^7."""

Pair = list[ir.Value]
"""A vector for rows 0 to 15 of the panel, and one for 16 to 31."""


class Activations(NamedTuple):
    """Pointers to the first element of every row: codes; scales, and sums times -128, of every 16 codes."""

    codes: list[ir.Value]
    scales: list[ir.Value]
    sums: list[ir.Value]


class _Group(NamedTuple):
    """Where a group of weights begins, its number in the row, and the float16 numbers above it, already widened."""

    start: ir.Value
    number: ir.Value
    scales: Pair | None
    shifts: Pair | None


def emit_sums(context: Any, builder: ir.IRBuilder, form: BlockFormat, panel: ir.Value, groups: ir.Value,
              rows: Activations) -> list[ir.Value]:  # fmt: skip
    """Two vectors per row: the products of the rows with all 32 rows of the `panel` (a byte pointer)."""
    emit = _Emitter(context, builder, form)
    per_unit = form.unit // GROUP

    def unit(number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        start = builder.gep(panel, [builder.mul(number, _I64(form.unit_bytes))])
        scales, shifts = emit.heads(start)

        def group(index: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            offset = builder.add(_I64(form.head_bytes), builder.mul(index, _I64(form.group_bytes)))
            absolute = builder.add(builder.mul(number, _I64(per_unit)), index)
            return emit.group(_Group(builder.gep(start, [offset]), absolute, scales, shifts), rows, sums)

        return v.accumulate_ir(builder, _I64(per_unit), sums, group)

    zeros = [v.ZERO] * (2 * len(rows.codes))
    return v.accumulate_ir(builder, builder.sdiv(groups, _I64(per_unit)), zeros, unit)


class _Emitter:
    """Writes the code for a group of one format."""

    def __init__(self, context: Any, builder: ir.IRBuilder, form: BlockFormat) -> None:
        self.context, self.builder, self.form = context, builder, form
        self.dot = dot8.choose_dot(context, form.largest_code)

    def heads(self, unit: ir.Value) -> tuple[Pair | None, Pair | None]:
        """The float16 numbers at the start of a unit as floats: scales, shifts."""
        if not self.form.stepped:
            return None, None
        return self._halves_at(unit, 0), self._back(self._halves_at(unit, 2 * PANEL)) if self.form.shifts else None

    def group(self, group: _Group, rows: Activations, sums: list[ir.Value]) -> list[ir.Value]:
        """The sums after one more group, half by half: 16 activations share a scale."""
        builder = self.builder
        for line in range(0, self.form.group_bytes, LINE):
            v.prefetch_ir(builder, builder.gep(group.start, [_I64(line + PREFETCH_BYTES)]))
        registers, parts, shift = self.registers(group.start), None, None
        for half in range(_PARTS):
            at = builder.add(builder.mul(group.number, _I64(_PARTS)), _I64(half))
            factors = [v.splat_ir(builder, builder.load(builder.gep(row, [at]))) for row in rows.scales]
            offsets = [dot8.splat_ir(builder, builder.gep(row, [at])) for row in rows.sums]
            totals = [self._start(offset) for offset in offsets for _ in _HALVES]
            for step in range(half * STEPS // _PARTS, (half + 1) * STEPS // _PARTS):
                totals = self._dots(registers(step), step, group, rows, totals)
            parts = self._times(totals, [factor for factor in factors for _ in _HALVES], parts)
            if self.form.shifts:
                shift = self._times(offsets, factors, shift)
            if half == _PARTS - 1 or self.form.span < GROUP:
                sums = self._scaled(parts, shift, group, half, sums)
                parts = shift = None
        return sums

    def _start(self, offset: ir.Value) -> ir.Value:
        """-zero times the sum of a span's activations, from that sum times -128; exact."""
        if not self.form.zero:
            return ir.Constant(dot8.SUMS_IR, [0] * v.LANES)
        less = OFFSET_BITS + 1 - self.form.zero.bit_length()
        return self.builder.ashr(offset, ir.Constant(dot8.SUMS_IR, [less] * v.LANES)) if less else offset

    def _dots(self, pair: Pair, step: int, group: _Group, rows: Activations, totals: list[ir.Value]) -> list[ir.Value]:
        builder = self.builder
        at = builder.add(builder.mul(group.number, _I64(GROUP)), _I64(step * dot8.BYTES))
        codes = [dot8.splat_ir(builder, builder.gep(row, [at])) for row in rows.codes]
        return [self.dot(builder, total, pair[i % 2], codes[i // 2]) for i, total in enumerate(totals)]

    def _times(self, totals: list[ir.Value], factors: list[ir.Value], old: list[ir.Value] | None) -> list[ir.Value]:
        """Integers as floats times the activations' scales, added to `old`."""
        floats = [self.builder.sitofp(total, v.VECTOR_IR) for total in totals]
        if old is None:
            return [self.builder.fmul(x, factor) for x, factor in zip(floats, factors, strict=True)]
        return [v.fma_ir(self.builder, x, factor, y) for x, factor, y in zip(floats, factors, old, strict=True)]

    def _scaled(self, parts: list[ir.Value], shift: list[ir.Value] | None, group: _Group, half: int,
                sums: list[ir.Value]) -> list[ir.Value]:  # fmt: skip
        """The sums plus a span's products times the weights' scale, plus its activations times their shift."""
        span = half if self.form.span < GROUP else 0
        scales = self._scales(group, span)
        sums = [v.fma_ir(self.builder, part, scales[i % 2], sums[i]) for i, part in enumerate(parts)]
        if shift is None:
            return sums
        shifts = self._shifts(group, span)
        return [v.fma_ir(self.builder, shifts[i % 2], shift[i // 2], old) for i, old in enumerate(sums)]

    def registers(self, start: ir.Value) -> Callable[[int], Pair]:
        """step -> the codes that it multiplies, looked up where the format has a table."""
        lines: dict[int, ir.Value] = {}

        def register(number: int) -> ir.Value:
            value, done, at = None, 0, 0
            for bits in self.form.planes:
                fields = 8 // bits
                line, shift = at + number // fields * LINE, number % fields * bits
                if line not in lines:
                    lines[line] = dot8.load_ir(self.builder, self.builder.gep(start, [_I64(line)]))
                part = self._field(lines[line], shift, bits, done)
                value = part if value is None else self.builder.or_(value, part)
                done += bits
                at += bits * PANEL * GROUP // 8
            return look_up(self.context, self.builder, value, self.form.table) if self.form.table else value

        return lambda step: [register(2 * step + half) for half in _HALVES]

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

    def _scales(self, group: _Group, span: int) -> Pair:
        return self._numbers(group, self.form.code_bytes, span, group.scales, self.form.signed)

    def _shifts(self, group: _Group, span: int) -> Pair:
        """Shifts divided by -128, exactly: they are multiplied with sums that are -128 times too large."""
        at = self.form.code_bytes + self.form.scale_bytes
        numbers = self._numbers(group, at, span, group.shifts, False)
        if self.form.zero_points:
            scales = self._scales(group, span)
            numbers = [self.builder.fneg(self.builder.fmul(z, s)) for z, s in zip(numbers, scales, strict=True)]
        return numbers if self.form.stepped else self._back(numbers)

    def _back(self, pair: Pair) -> Pair:
        factor = ir.Constant(v.VECTOR_IR, [-(2.0**-OFFSET_BITS)] * v.LANES)
        return [self.builder.fmul(x, factor) for x in pair]

    def _numbers(self, group: _Group, at: int, span: int, heads: Pair | None, signed: bool) -> Pair:
        """Float16 numbers, or whole ones times those at the head of the unit."""
        if heads is None:
            return self._halves_at(group.start, at)
        steps = [self._bytes_at(group.start, at + span * PANEL + half * v.LANES, signed) for half in _HALVES]
        return [self.builder.fmul(head, step) for head, step in zip(heads, steps, strict=True)]

    def _halves_at(self, start: ir.Value, at: int) -> Pair:
        kind = ir.VectorType(ir.HalfType(), v.LANES)
        stored = [self._load(kind, start, at + 2 * half * v.LANES) for half in _HALVES]
        return [v.widen_half_ir(self.builder, x, dot8.has_feature(self.context, "f16c")) for x in stored]

    def _bytes_at(self, start: ir.Value, at: int, signed: bool) -> ir.Value:
        raw = self._load(ir.VectorType(ir.IntType(8), v.LANES), start, at)
        wide = (self.builder.sext if signed else self.builder.zext)(raw, dot8.SUMS_IR)
        return self.builder.sitofp(wide, v.VECTOR_IR)

    def _load(self, kind: ir.Type, start: ir.Value, at: int) -> ir.Value:
        pointer = self.builder.gep(start, [_I64(at)])
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=1)

    def column(self, group: _Group, column: ir.Value) -> list[ir.Value]:
        """The 32 weights of one row of the panel as floats, in order."""
        registers = self.registers(group.start)
        out = []
        for step in range(STEPS):
            span = step * dot8.BYTES // self.form.span
            scale = self._of_column(self._scales(group, span), column)
            lane = self._of_column(registers(step), column)
            for byte in range(dot8.BYTES):
                code = self.builder.and_(self.builder.lshr(lane, _I32(8 * byte)), _I32(255))
                value = self.builder.sitofp(self.builder.sub(code, _I32(self.form.zero)), ir.FloatType())
                out.append(self._plus_shift(self.builder.fmul(value, scale), group, span, column))
        return out

    def _plus_shift(self, value: ir.Value, group: _Group, span: int, column: ir.Value) -> ir.Value:
        if not self.form.shifts:
            return value
        back = ir.Constant(ir.FloatType(), -(2.0**OFFSET_BITS))
        return self.builder.fadd(value, self.builder.fmul(self._of_column(self._shifts(group, span), column), back))

    def _of_column(self, pair: Pair, column: ir.Value) -> ir.Value:
        """The lane of `column`, 0 to 31."""
        column = self.builder.trunc(column, _I32)
        upper = self.builder.icmp_signed(">=", column, _I32(v.LANES))
        chosen = self.builder.select(upper, pair[1], pair[0])
        return self.builder.extract_element(chosen, self.builder.and_(column, _I32(v.LANES - 1)))


def emit_column(context: Any, builder: ir.IRBuilder, form: BlockFormat, panel: ir.Value, groups: ir.Value,
                column: ir.Value, out: ir.Value) -> None:  # fmt: skip
    """out[0:32 * groups] = one row of the panel as floats."""
    emit = _Emitter(context, builder, form)
    per_unit = _I64(form.unit // GROUP)

    def group(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        unit, index = builder.sdiv(number, per_unit), builder.srem(number, per_unit)
        start = builder.gep(panel, [builder.mul(unit, _I64(form.unit_bytes))])
        offset = builder.add(_I64(form.head_bytes), builder.mul(index, _I64(form.group_bytes)))
        values = emit.column(_Group(builder.gep(start, [offset]), number, *emit.heads(start)), column)
        for i, value in enumerate(values):
            at = builder.add(builder.mul(number, _I64(GROUP)), _I64(i))
            builder.store(value, builder.gep(out, [at]))
        return []

    v.accumulate_ir(builder, groups, [], group)
