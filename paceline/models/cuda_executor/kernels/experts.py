"""Mixtures of experts without the host: routing, grouping and products of rows with the experts they chose.

A pair is a row and one of its experts, numbered row * top_k + choice. Pairs of one expert are grouped in tiles of
`NARROW`, found by each tile's first pair, so that no sorting and no count reaches the host, a pass over a mixture can
be a graph, and an expert's weights are read once for 16 pairs. The number of programs is that of pairs; those whose
pair is not the first of a tile end at once.

Row invariance: a pair's product is summed in one order, whatever else is in its tile, and a row's experts are added in
the order of its choice. The reference is `torch_executor.layers.MixtureOfExperts` (Shazeer et al. 2017).
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr`, nor options of a launch, nor loops over `tl.static_range`.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.architecture.experts import Experts
from paceline.models.cuda_executor.block_matrix import BlockMatrix
from paceline.models.cuda_executor.kernels import blocks
from paceline.models.cuda_executor.kernels.dependent import dependent, let_next_begin, wait_for_inputs
from paceline.models.cuda_executor.kernels.products import Weights, tile_of, weights_at
from paceline.models.cuda_executor.kernels.tiles import GATES, NARROW, gated_by, inputs_at, times

MOST_PAIRS = 4096
"""Most pairs of a launch: each program of `_group` looks at all of them."""


class Tiles(NamedTuple):
    """Pairs by expert.

    Attributes:
        experts: [pairs] the expert of each pair, -1 for none.
        members: [pairs, NARROW] the pairs of the tile that begins with each pair. counts: [pairs] their number, 0 for
            pairs that begin none.
    """

    experts: Tensor
    members: Tensor
    counts: Tensor


@triton.jit
def _best_groups(wanted, expert, num_experts, GROUPS: tl.constexpr, KEPT: tl.constexpr, BY_TWO: tl.constexpr):
    """`wanted` with minus infinity outside the best groups, lower numbers first on ties; see `Experts.n_group`."""
    nothing = float("-inf")
    group = expert // (num_experts // GROUPS)
    scores = tl.full(wanted.shape, nothing, tl.float32)
    for number in tl.static_range(GROUPS):
        own = tl.where(group == number, wanted, nothing)
        score = tl.max(own, axis=0)
        if BY_TWO:
            score += tl.max(tl.where(expert == tl.argmax(own, axis=0), nothing, own), axis=0)
        scores = tl.where(group == number, score, scores)
    kept = tl.full(wanted.shape, nothing, tl.float32)
    for _ in tl.static_range(KEPT):
        best = tl.argmax(scores, axis=0) // (num_experts // GROUPS)
        kept = tl.where(group == best, wanted, kept)
        scores = tl.where(group == best, nothing, scores)
    return kept


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _route(
    logits, slots, selection, experts, shares, num_experts, spare_slot, scale,
    HAS_SLOTS: tl.constexpr, TOP_K: tl.constexpr, RESCALES: tl.constexpr, SIGMOID: tl.constexpr,
    HAS_SELECTION: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr, CHOICES: tl.constexpr,
    WAITS: tl.constexpr,
):  # fmt: skip
    """A row's experts with the best scores, lower numbers first on ties, and their shares; none for a padding row.

    Numbers stay in bounds where logits are not: a NaN is compared to nothing.
    """
    row = tl.program_id(0)
    let_next_begin(WAITS)
    expert, choice = tl.arange(0, BLOCK), tl.arange(0, CHOICES)
    is_spare = tl.load(slots + row) == spare_slot if HAS_SLOTS else False
    wait_for_inputs(WAITS)
    x = tl.load(logits + row * num_experts + expert, mask=expert < num_experts, other=float("-inf"))
    if SIGMOID:
        mass, total = 1.0 / (1.0 + tl.exp(-x)), 1.0
    else:
        mass = tl.exp(x - tl.max(x, axis=0))
        total = tl.sum(mass, axis=0)
    wanted = mass
    if HAS_SELECTION:
        mass = mass / total
        total = 1.0
        wanted = mass + tl.load(selection + expert, mask=expert < num_experts, other=0.0)
    left = tl.where(expert < num_experts, wanted, float("-inf"))
    if GROUPS > 1:
        left = _best_groups(left, expert, num_experts, GROUPS, KEPT, HAS_SELECTION)
    found, share = tl.full([CHOICES], -1, tl.int32), tl.zeros([CHOICES], tl.float32)
    for number in tl.static_range(TOP_K):
        best = tl.minimum(tl.argmax(left, axis=0), num_experts - 1)
        found = tl.where(choice == number, best, found)
        share = tl.where(choice == number, tl.sum(tl.where(expert == best, mass, 0.0), axis=0), share)
        left = tl.where(expert == best, float("-inf"), left)
    if RESCALES:
        total = tl.sum(share, axis=0) + 1e-20
    kept = choice < TOP_K
    if HAS_SLOTS:
        found = tl.where(is_spare, -1, found)
    tl.store(experts + row * TOP_K + choice, found, mask=kept)
    tl.store(shares + row * TOP_K + choice, share / total * scale, mask=kept)


@triton.jit(do_not_specialize=["num_pairs"])
def _group(experts, members, counts, num_pairs, TILE: tl.constexpr, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    """The tile that begins with a pair, if one does."""
    pair, other = tl.program_id(0), tl.arange(0, BLOCK)
    let_next_begin(WAITS)
    wait_for_inputs(WAITS)
    own = tl.load(experts + pair)
    same = tl.load(experts + other, mask=other < num_pairs, other=-1) == tl.where(own < 0, -2, own)
    before = tl.sum((same & (other < pair)).to(tl.int32), axis=0)
    size = tl.minimum(tl.sum(same.to(tl.int32), axis=0) - before, TILE)
    size = tl.where(before % TILE == 0, size, 0)
    lane = tl.cumsum(same.to(tl.int32), axis=0) - 1 - before
    tl.store(members + pair * TILE + lane, other, mask=same & (lane >= 0) & (lane < size))
    tl.store(counts + pair, size)


@triton.jit
def _pairs_of(
    x, experts, members, first, count, num_inputs, TOP_K: tl.constexpr, GATE: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """The tile that begins with pair `first`: its expert, its pairs, which of these there are, and their lines of x."""
    lane = tl.arange(0, BLOCK_M)
    alive = lane < count
    pair = tl.load(members + first * BLOCK_M + lane, mask=alive, other=0)
    line = pair // TOP_K if GATE != 0 else pair
    return tl.load(experts + first).to(tl.int64), pair, alive, x + line.to(tl.int64)[:, None] * num_inputs


@triton.jit
def _write(
    summed, second, bias, shares, out, pair, alive, expert, output, in_outputs, num_rows, num_outputs,
    TOP_K: tl.constexpr, HAS_BIAS: tl.constexpr, GATE: tl.constexpr, SWAPS: tl.constexpr,
):  # fmt: skip
    """Store a tile of sums plus bias: with an activation, one line per pair; or times their shares, [choice, row] by
    line."""
    if SWAPS:
        summed, second = summed.T, second.T
    if HAS_BIAS:
        own = bias + expert * num_outputs * (2 if GATE > 0 else 1) + output
        summed += tl.load(own, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
        if GATE > 0:
            second += tl.load(own + num_outputs, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    line = pair
    if GATE > 0:
        summed = gated_by(summed, second, GATE)
    elif GATE < 0:
        summed = tl.maximum(summed, 0.0)
        summed *= summed
    else:
        summed *= tl.load(shares + pair, mask=alive, other=0.0)[:, None]
        line = pair % TOP_K * num_rows + pair // TOP_K
    to = line.to(tl.int64)[:, None] * num_outputs + output[None, :]
    tl.store(out + to, summed.to(out.dtype.element_ty), mask=alive[:, None] & in_outputs[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _expert_product(
    x, weight, bias, shares, experts, members, counts, out, num_rows, num_outputs, num_inputs,
    TOP_K: tl.constexpr, HAS_BIAS: tl.constexpr, GATE: tl.constexpr, EVEN: tl.constexpr, WAITS: tl.constexpr,
    SWAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of pairs times some outputs of their expert: with an activation, from rows of x, else from lines of x by
    pair."""
    first, output = tl.program_id(0), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    wait_for_inputs(WAITS)
    count = tl.load(counts + first)
    if count == 0:
        let_next_begin(WAITS)
        return
    in_outputs = output < num_outputs
    expert, pair, alive, from_line = _pairs_of(x, experts, members, first, count, num_inputs, TOP_K, GATE, BLOCK_M)
    own = weight + (expert * num_outputs * (2 if GATE > 0 else 1) + output)[:, None] * num_inputs
    summed = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        at = start + inner
        values = inputs_at(from_line, at, num_inputs, alive, EVEN)
        summed = times(weights_at(own, at, num_inputs, in_outputs, EVEN), values, summed, SWAPS)
        if GATE > 0:
            other = own + num_outputs.to(tl.int64) * num_inputs
            second = times(weights_at(other, at, num_inputs, in_outputs, EVEN), values, second, SWAPS)
    let_next_begin(WAITS)
    _write(
        summed, second, bias, shares, out, pair, alive, expert, output, in_outputs, num_rows, num_outputs, TOP_K,
        HAS_BIAS, GATE, SWAPS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _expert_block_product(
    x, codes, scales, shifts, values, bias, shares, experts, members, counts, out, num_rows, num_outputs, num_inputs,
    SPAN: tl.constexpr, ZERO: tl.constexpr, HALVES: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_SHIFT: tl.constexpr,
    TOP_K: tl.constexpr, HAS_BIAS: tl.constexpr, GATE: tl.constexpr, EVEN: tl.constexpr, WAITS: tl.constexpr,
    SWAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As `_expert_product`, with weights in blocks."""
    first, output = tl.program_id(0), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    wait_for_inputs(WAITS)
    count = tl.load(counts + first)
    if count == 0:
        let_next_begin(WAITS)
        return
    in_outputs = output < num_outputs
    expert, pair, alive, from_line = _pairs_of(x, experts, members, first, count, num_inputs, TOP_K, GATE, BLOCK_M)
    own = expert * num_outputs * (2 if GATE > 0 else 1) + output
    kind: tl.constexpr = x.dtype.element_ty
    summed = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        read = inputs_at(from_line, start + tl.arange(0, BLOCK_K), num_inputs, alive, EVEN)
        weights = blocks.weights_at(
            codes, scales, shifts, values, own, start, num_inputs, in_outputs, kind, SPAN, ZERO, HALVES, HAS_VALUES,
            HAS_SHIFT, EVEN, BLOCK_K,
        )  # fmt: skip
        summed = times(weights, read, summed, SWAPS)
        if GATE > 0:
            weights = blocks.weights_at(
                codes, scales, shifts, values, own + num_outputs, start, num_inputs, in_outputs, kind, SPAN, ZERO,
                HALVES, HAS_VALUES, HAS_SHIFT, EVEN, BLOCK_K,
            )  # fmt: skip
            second = times(weights, read, second, SWAPS)
    let_next_begin(WAITS)
    _write(
        summed, second, bias, shares, out, pair, alive, expert, output, in_outputs, num_rows, num_outputs, TOP_K,
        HAS_BIAS, GATE, SWAPS,
    )  # fmt: skip


def route(
    logits: Tensor, settings: Experts, selection: Tensor | None = None, slots: Tensor | None = None,
    spare_slot: int = -1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([M, top_k] int32 experts, [M, top_k] float32 shares) of rows with router logits [M, experts] float32.

    Args:
        selection: [experts] float32, see `Experts.e_score_correction_bias`.
        slots, spare_slot: [M] the rows' cache slots; a row whose slot is the spare one is padding and has no experts,
            which are -1.
    """
    rows, count = logits.shape
    top_k = settings.num_experts_per_tok
    experts = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    shares = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    if rows:
        _route[(rows,)](
            logits, experts if slots is None else slots, logits if selection is None else selection, experts, shares,
            count, spare_slot, settings.routed_scaling_factor,
            HAS_SLOTS=slots is not None, TOP_K=top_k, RESCALES=settings.norm_topk_prob,
            SIGMOID=settings.scoring_func == "sigmoid", HAS_SELECTION=selection is not None, GROUPS=settings.n_group,
            KEPT=settings.topk_group, BLOCK=triton.next_power_of_2(count), CHOICES=triton.next_power_of_2(top_k),
            **dependent(logits.device),
        )  # fmt: skip
    return experts, shares


def grouped(experts: Tensor) -> Tiles:
    """The tiles of pairs with `experts` [M, top_k] int32, at most `MOST_PAIRS`."""
    pairs = experts.numel()
    members = torch.empty(pairs, NARROW, dtype=torch.int32, device=experts.device)
    counts = torch.empty(pairs, dtype=torch.int32, device=experts.device)
    if pairs:
        _group[(pairs,)](
            experts, members, counts, pairs, TILE=NARROW, BLOCK=triton.next_power_of_2(pairs),
            **dependent(experts.device),
        )  # fmt: skip
    return Tiles(experts.view(-1), members, counts)


def raised(x: Tensor, weights: Weights, bias: Tensor | None, tiles: Tiles, count: int, gate: str) -> Tensor:
    """[pairs, inner] in the format of x: act(gate) * up, or act(up), of the rows x [M, hidden] by their experts.

    Args:
        weights: [count * 2 * inner, hidden], each expert's gate before its up. bias: [count * 2 * inner]. Half of that
            without gates.
        count: number of experts.
        gate: ``silu``, ``gelu``, ``clamped`` or, without gates, ``relu2``; see `ModelConfig.mlp`.
    """
    inner = weights.shape[0] // (count * (2 if is_gated(gate) else 1))
    out = torch.empty(len(tiles.experts), inner, device=x.device, dtype=x.dtype)
    _launch(x, weights, bias, None, tiles, len(tiles.experts) // max(len(x), 1), out, gate)
    return out


def is_gated(gate: str | None) -> bool:
    """Whether an activation multiplies a second product."""
    return GATES[gate] > 0


def lowered(
    inner: Tensor, weights: Weights, bias: Tensor | None, tiles: Tiles, count: int, shares: Tensor
) -> Tensor:  # fmt: skip
    """[top_k, M, hidden] float32: what each choice adds to its row, from lines `inner` [pairs, inner]; 0 for padding.

    Args:
        weights: [count * hidden, inner]. bias: [count * hidden].
        shares: [M, top_k].
    """
    rows, top_k = shares.shape
    out = torch.zeros(top_k, rows, weights.shape[0] // count, device=inner.device, dtype=torch.float32)
    _launch(inner, weights, bias, shares, tiles, top_k, out, None)
    return out


def _launch(
    x: Tensor, weights: Weights, bias: Tensor | None, shares: Tensor | None, tiles: Tiles, top_k: int, out: Tensor,
    gate: str | None,
) -> None:  # fmt: skip
    outputs, inputs, pairs = out.shape[-1], weights.shape[1], len(tiles.experts)
    if not pairs:
        return
    if isinstance(weights, BlockMatrix):
        tile = blocks.block_tile(outputs, inputs, is_gated=is_gated(gate))
        kernel, matrix, form = _expert_block_product, blocks.tensors_of(weights), blocks.form_of(weights)
    else:
        tile = tile_of(outputs, inputs, weights.itemsize, is_gated(gate))
        kernel, matrix, form = _expert_product, (weights,), {}
    options = {name: value for name, value in tile.options().items() if name not in ("PARTS", "LETS_EARLY")}
    kernel[(pairs, triton.cdiv(outputs, tile.outputs))](
        x.contiguous(), *matrix, x if bias is None else bias, x if shares is None else shares, *tiles, out,
        pairs // top_k, outputs, inputs, **form, TOP_K=top_k, HAS_BIAS=bias is not None, GATE=GATES[gate],
        EVEN=tile.covers(outputs, inputs), **options, **dependent(x.device),
    )  # fmt: skip
