"""DSpark (2607.05147): a block drafted in one pass, a bias by the token before, a confidence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.attention import Keys, attend, parts_of
from paceline.models.torch_executor.heads.dspark import DSpark
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import Read
from paceline.training.heads.recipes.base import REACHED_DECAY, Recipe, with_norm_of
from paceline.training.heads.taps import eagle_taps
from paceline.training.heads.target import Target

_LAYERS, _RANK = 2, 128


class DSparkRecipe(Recipe):
    """Two layers with norms on queries and keys; the block's first row is the anchor, which drafts too.

    Every query head has a key head of its own: what a block knows of the context comes through its values alone, which
    shared heads would make narrower than the hidden state.
    """

    family, decay, as_reached, learns_any_logits = "dspark", REACHED_DECAY, True, True

    def __init__(self, target: Target, draft_ids: np.ndarray, num_steps: int) -> None:
        super().__init__(target, draft_ids, num_steps)
        _only_named(cast(DSpark, self.net).markov_head.markov_w1.weight, self.ids)

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        layer = replace(
            target.config, model_type="qwen3", num_hidden_layers=_LAYERS, qk_norm=True, experts=None,
            num_key_value_heads=target.config.num_attention_heads,
        )  # fmt: skip
        return HeadConfig(
            "dspark", target.about, eagle_taps(target.about.num_hidden_layers), layer, _LAYERS, num_steps,
            draft_vocab_size, mask_token_id=target.mask_token_id, sample_from_anchor=True,
            markov_rank=min(_RANK, target.config.hidden_size), confidence=True, variant="vanilla",
            embedding_scale=target.embedding_scale,
        )  # fmt: skip

    def build(self, target: Target) -> nn.Module:
        return with_norm_of(target, DSpark(self.config, target.embedding, self.rows))

    def read(self, batch: Batch) -> list[Read]:
        net = cast(DSpark, self.net)
        states = block_states(net, batch, self.num_steps)
        return [Read(states[:, step], self._added(net, batch.tokens(step))) for step in range(self.num_steps)]

    def further_loss(self, batch: Batch, reads: Sequence[Read], acceptance: Sequence[Tensor]) -> Tensor | None:
        """Cross entropy of the confidence with the acceptance; states are not trained by it."""
        net, losses = cast(DSpark, self.net), []
        for step, (read, accepted) in enumerate(zip(reads, acceptance, strict=True)):
            kept = batch.labelled(step)
            if not len(accepted):
                break  # all texts are shorter than the draft
            logits = net.confidence(read.hidden.detach()[kept], batch.tokens(step)[kept])
            losses.append(functional.binary_cross_entropy_with_logits(logits.float(), accepted))
        return torch.stack(losses).mean() if losses else None

    @staticmethod
    def _added(net: DSpark, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        if not net.config.markov_rank:
            return None
        return net.markov_head.markov_w1(tokens), net.markov_head.markov_w2.weight


def _only_named(table: Tensor, ids: Tensor) -> None:
    """Keep the rows of tokens other than `ids` at 0: they are too rare to learn from, and files leave them out."""
    kept = torch.zeros(len(table), 1, device=table.device)
    kept[ids] = 1
    with torch.no_grad():
        table.mul_(kept)
    table.register_hook(lambda gradient: gradient * kept)


def block_states(net: DSpark, batch: Batch, size: int) -> Tensor:
    """[S, size, hidden] what the head reads at each place of the blocks that begin after the anchors."""
    positions = torch.cat([torch.arange(n, device=batch.anchors.device) for n in batch.lengths])
    context, parts = net.context(batch.taps), parts_of(batch.anchors, batch.lengths)
    place = (positions[batch.anchors, None] + 1 + torch.arange(size, device=positions.device)).flatten()
    tokens = torch.full((len(batch.anchors), size), net.config.mask_token_id or 0, device=positions.device)
    tokens[:, 0] = batch.tokens(0)
    x = net.embed(tokens.flatten())
    for layer in net.layers:
        normed = layer.input_layernorm(x)  # type: ignore[operator]
        attention = layer.self_attn
        rows = Keys(*attention.keys_values(context, positions))  # type: ignore[union-attr, operator]
        own = (one.view(-1, size, *one.shape[1:]).repeat_interleave(size, dim=0)
               for one in attention.keys_values(normed, place))  # type: ignore[union-attr, operator]  # fmt: skip
        mixed = attend(attention.queries(normed, place), rows, Keys(*own), parts, size)  # type: ignore[union-attr, operator]
        x = layer.leave(x, mixed)  # type: ignore[operator]
    return net.norm(x).unflatten(0, (len(batch.anchors), size))
