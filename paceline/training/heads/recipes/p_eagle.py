"""P-EAGLE (arXiv 2602.01469): all tokens of a chain from one pass over mask rows.

The chain of anchor p is the text's row p, which reads its true token and taps, and K - 1 mask rows at positions p + 1,
p + 2, ..., which read the mask token and the mask state. In every layer a mask row attends to the text's rows up to p
and to the mask rows of its own chain up to itself, as in serving. The text's rows attend causally to each other and to
no mask row.

Three parts of the paper are left out. It samples depths (conditional drop of tokens, COD) to save memory where chains
have eight tokens and texts thousands; here every anchor has its whole chain. It trains the embeddings, which would be
most of the head's file. It has four layers; here there are two, because on a CPU every layer costs time in each draft
and each update.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.attention import Keys, Part, attend, parts_of
from paceline.models.torch_executor.heads.p_eagle import PEagle
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import Read
from paceline.training.heads.recipes.base import Recipe, with_norm_of
from paceline.training.heads.taps import eagle_taps
from paceline.training.heads.target import Target

_LAYERS = 2


class PEagleRecipe(Recipe):
    """EAGLE-3.1's first layer and a plain one; no state is fed back, so none is normalised for that."""

    family, learns_any_logits = "p_eagle", True

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        layer = replace(target.config, num_hidden_layers=_LAYERS, experts=None)
        return HeadConfig(
            "p_eagle", target.about, eagle_taps(target.about.num_hidden_layers), layer, _LAYERS, num_steps,
            draft_vocab_size, fc_norm=True, mask_token_id=target.mask_token_id,
        )  # fmt: skip

    def build(self, target: Target) -> nn.Module:
        return with_norm_of(target, PEagle(self.config, target.embedding, self.rows))

    def read(self, batch: Batch) -> list[Read]:
        states = chain_states(cast(PEagle, self.net), batch, self.num_steps)
        return [Read(states[:, step]) for step in range(self.num_steps)]


def chain_states(net: PEagle, batch: Batch, num_steps: int) -> Tensor:
    """[S, num_steps, hidden] states that the output head reads at each row of the anchors' chains."""
    anchors, lengths = batch.anchors, batch.lengths
    positions = torch.cat([torch.arange(length, device=anchors.device) for length in lengths])
    parts, whole = parts_of(anchors, lengths), _whole(lengths)
    places = positions[anchors, None] + torch.arange(1, num_steps, device=anchors.device)
    x, residual = net.enter(batch.next_tokens, net.project(batch.taps))
    mask_x, masks = net.enter_masks(places.numel())
    for number, layer in enumerate(net.layers):
        if number:
            (x, residual), (mask_x, masks) = layer.enter(residual), layer.enter(masks)  # type: ignore[operator]
        rows = Keys(*layer.self_attn.keys_values(x, positions))  # type: ignore[union-attr, operator]
        masks = _masks_through(layer, mask_x, masks, places, rows, parts)
        last = number + 1 == len(net.layers)
        asked, seen = (anchors, parts) if last else (slice(None), whole)
        query = layer.self_attn.queries(x[asked], positions[asked])  # type: ignore[union-attr, operator]
        residual = layer.leave(residual[asked], attend(query, rows, None, seen))  # type: ignore[operator]
    chains = torch.cat([residual[:, None], masks.view(*places.shape, residual.shape[1])], dim=1)
    return net.finish(chains)[0]


def _masks_through(layer: Any, x: Tensor, residual: Tensor, places: Tensor, rows: Keys, parts: list[Part]) -> Tensor:
    """[S * masks, hidden] output of a layer for mask rows at positions `places` [S, masks].

    Besides the text's rows, each attends to itself and the earlier mask rows of its chain.
    """
    if not places.shape[1]:
        return residual
    attention, flat = layer.self_attn, places.flatten()
    query, key, value = (
        one.view(*places.shape, *one.shape[1:]) for one in (attention.queries(x, flat), *attention.keys_values(x, flat))
    )
    steps = [
        attend(query[:, step], rows, Keys(key[:, : step + 1], value[:, : step + 1]), parts)
        for step in range(places.shape[1])
    ]
    return layer.leave(residual, torch.stack(steps, dim=1).flatten(0, 1))


def _whole(lengths: list[int]) -> list[Part]:
    """A part per document, with causal attention."""
    parts, start = [], 0
    for length in lengths:
        parts.append(Part(slice(start, start + length), slice(start, start + length)))
        start += length
    return parts
