"""Falcon (Gao et al. 2024, arXiv 2412.12639): coupled sequential glancing distillation of a half-autoregressive head.

One update reads every text twice. The first pass predicts a token at every position, without a gradient. Then N
consecutive positions are given their answers: row i reads its label (f_{i+k}, t_{i+k+1}) in place of (f_i, t_{i+1}),
token and hidden state together (coupled), with

    N = lambda * (positions the first pass got wrong),   lambda = 0.4 * (1 - share of the updates made)

The paper has epochs in place of updates. The second pass reads these inputs and takes the loss at the positions that
were not given their answers (as in glancing, Qian et al. 2021). A row in the block of the first given one and before it
takes no loss either: it attends to that row, whose hidden state comes after the token that this row must predict.

    L = SmoothL1(f, f_target) + 0.1 * (0.9 * KL(p || q) + 0.1 * -log q(y)),   y the most probable token of p

Uniform noise from U(-0.1, 0.1) is added to the hidden states of the input. Attention is by blocks of k rows (the
relaxed causal mask). A text's first block has a random length, because a draft can begin after any token. The published
code's schedule and temperature differ from the paper's and are not used.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.attention import Keys, Part, attend
from paceline.models.torch_executor.heads.falcon import Falcon
from paceline.training.heads.batches import CPU, Batch, make_batch
from paceline.training.heads.block_rollout import rollout_blocks
from paceline.training.heads.losses import Read, fused_loss, logits_of
from paceline.training.heads.recipes.base import Recipe
from paceline.training.heads.shards import Document, TapStore
from paceline.training.heads.target import Target
from paceline.training.run.trainee import Moment

BLOCK_TOKENS, NOISE, GLANCE = 2, 0.1, 0.4
"""k, the half-width of the noise, and the initial lambda."""
DISTILLED, SOFT, HARD = 0.1, 0.9, 0.1
"""Weights of the distillation beside SmoothL1, and of KL and cross entropy within it."""


class FalconRecipe(Recipe):
    """Two LSTM layers and one decoder layer of the target's shape."""

    family, decay = "falcon", 1.0

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        layer = replace(target.config, num_hidden_layers=1, experts=None)
        return HeadConfig(
            "falcon", target.about, (NORMED,), layer, 1, num_steps, draft_vocab_size, block_tokens=BLOCK_TOKENS
        )

    def build(self, target: Target) -> nn.Module:
        return Falcon(self.config, target.embedding, self.rows)

    def read(self, batch: Batch) -> list[Read]:
        with self.in_halves(False):  # bfloat16 is slower for few rows: every product rearranges the weights
            return [Read(one) for one in rollout_blocks(cast(Falcon, self.net), batch, self.num_steps)]

    def loss(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Tensor:
        """The mean loss over a share `moment.share` of the positions that were not given their answers."""
        batch, random = make_batch(store, documents, self.config.taps, 1.0, device=self.device), moment.random
        size = self.config.block_tokens
        places = answered(documents, size).to(self.device)
        states = batch.normed.float()
        noisy = states + (torch.rand(states.shape, generator=random).to(self.device) * 2 - 1) * NOISE
        offsets = torch.randint(0, size, (len(documents),), generator=random).tolist()
        blocks = blocks_of(batch.lengths, offsets, size, self.device)
        parts = block_parts(batch.lengths, blocks)
        with torch.no_grad():
            first = self._outputs(batch.next_tokens, noisy, batch.lengths, parts)[places]
            named = self.ids[logits_of(Read(first), self.rows).argmax(-1)]
        wrong = int((named != batch.next_tokens[places + size]).sum())
        shown = glanced(places, int(GLANCE * (1 - moment.done) * wrong), random)
        tokens, fed = batch.next_tokens.clone(), noisy.clone()
        tokens[shown], fed[shown] = batch.next_tokens[shown + size], states[shown + size]
        left = unshown(places, shown, blocks, size)
        if moment.share < 1:
            left = left[(torch.rand(len(left), generator=random) < moment.share).to(self.device)]
        outputs = self._outputs(tokens, fed, batch.lengths, parts)[left]
        return self._distance(outputs, batch.normed[left + size]) / max(len(left), 1)

    def _outputs(self, tokens: Tensor, states: Tensor, lengths: Sequence[int], parts: Sequence[Part]) -> Tensor:
        """[N, hidden] float32 outputs of rows that read `tokens` and `states`, with the attention masks of `parts`."""
        net, layer = cast(Falcon, self.net), cast(Falcon, self.net).layer
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        x = net.read_whole(net.enter(tokens, states), lengths)
        with self.in_halves(self.rows.dtype == torch.bfloat16):
            keys = Keys(*layer.self_attn.keys_values(x, positions))
            return layer.leave(x, attend(layer.self_attn.queries(x, positions), keys, None, parts)).float()

    def _distance(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """The sum over rows of SmoothL1, averaged over the state's values, plus the distillation loss."""
        states = functional.smooth_l1_loss(outputs, teacher.float(), reduction="none").mean(-1).sum()
        ones = torch.ones(len(outputs), device=self.device)
        parts = fused_loss(Read(outputs), teacher, self.rows, ones, distillation, self.target_head)
        return states + parts.loss


def answered(documents: Sequence[Document], size: int) -> Tensor:
    """Rows of a batch that predict a token of an answer, except its first; the token is `size` + 1 positions later."""
    places, start = [], 0
    for one in documents:
        first = max(one.conversation.num_prompt - size, 0)
        places.append(torch.arange(first, max(one.num_rows - size, first)) + start)
        start += one.num_rows
    return torch.cat(places)


def glanced(places: Tensor, count: int, random: torch.Generator) -> Tensor:
    """`count` consecutive entries of `places`, from a random start."""
    start = int(torch.randint(0, len(places) - count + 1, (1,), generator=random))
    return places[start : start + count]


def unshown(places: Tensor, shown: Tensor, blocks: Tensor, size: int) -> Tensor:
    """Entries of `places` that are not in `shown`, and that do not attend to their own answer in its first row.

    Args:
        blocks: [N] block number of every row.
    """
    left = places[~torch.isin(places, shown)]
    if not len(shown):
        return left
    first = shown[0]
    ahead = first - left
    return left[(ahead <= 0) | (ahead >= size) | (blocks[left] != blocks[first])]


def blocks_of(lengths: Sequence[int], offsets: Sequence[int], size: int, device: torch.device = CPU) -> Tensor:
    """[N] each row's block number within its text: row i is in block (i + offset) // size."""
    rows = [torch.arange(length, device=device) + offset for length, offset in zip(lengths, offsets, strict=True)]
    return torch.cat(rows) // size


def block_parts(lengths: Sequence[int], blocks: Tensor) -> list[Part]:
    """The relaxed causal mask: a row attends to its own block and the earlier blocks of its text."""
    parts, start = [], 0
    for block in blocks.split(list(lengths)):
        rows = slice(start, start + len(block))
        parts.append(Part(rows, rows, block[None, :] <= block[:, None]))
        start += len(block)
    return parts


def distillation(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A `Criterion`: DISTILLED * (SOFT * KL(target || q) + HARD * cross entropy of the target's best token)."""
    log_q = torch.log_softmax(logits, dim=-1)
    q = log_q.exp()
    soft = (torch.xlogy(target, target) - target * log_q).sum(-1)
    best = target.argmax(-1, keepdim=True)
    loss = DISTILLED * (SOFT * soft - HARD * log_q.gather(-1, best)[:, 0])
    wanted = (SOFT * target).scatter_add(-1, best, torch.full_like(best, HARD, dtype=target.dtype))
    gradient = DISTILLED * (q * wanted.sum(-1, keepdim=True) - wanted)
    return loss, torch.minimum(target, q).sum(-1), gradient
