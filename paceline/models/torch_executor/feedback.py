"""SPIRe's draft (2504.06419): some layers of a target, sparse attention, and a memory that feeds upper layers back.

Row t of layer l attends to its own key, and to the memory of rows s < t that it may see: the first `num_sinks` of the
text and those less than `window` before it, so that what is kept of a text does not grow with it. Key and value of row
s at layer l are made of

    m_s^l = |x_s^l| * sum over j of softmax(mix_l)_j x_s^j / |x_s^j|

with x^0 .. x^L the residual stream before, between and after the layers and |x| its root mean square (Feedback
Transformer, Fan et al. 2021): lower layers attend to upper-layer states of earlier tokens. Each layer has mixing
weights of its own, initialised almost entirely to its own input, so that the network starts as the target's layers
(pruned initialisation); the papers have one memory for all layers. The papers sum the states themselves; here they are
normalised first, because late layers of a trained model have much larger states, which would dominate the sum.

Each row depends on the memory of the rows before it. `forward` computes many rows at once by fixed-point passes: the
first uses each layer's own inputs as its memory, every further one the memory of the previous pass. The result is exact
after as many passes as rows, and close after a few. Training and prompts use `PASSES`. For training only; drafting runs
the layers on any executor (`models/feedback_draft.py`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from paceline.models.base import checked_layers
from paceline.models.feedback import PASSES, Sparse
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.heads.attention import Keys, mix
from paceline.models.torch_executor.heads.blocks import DecoderLayer, Norm

_OWN = 0.93
"""Initial share of a layer's own input in its memory, whatever the number of layers."""
_MOST_KEPT = 8
"""Most layers for which training keeps activations; with more, activations are recomputed in the backward pass, which
takes a third more work. Three passes over 3,500 rows of a layer of the default model keep 0.5 GB."""
_BLOCK = 128
"""Rows per block of attention; the keys of a block are its own rows and the window before them."""


class _Block(NamedTuple):
    """A block of rows of one text, whose attention leaves out keys before the window.

    Attributes:
        rows: [n] indices of the rows.
        seen: [m] indices of the rows whose memory any of them attends to.
        visible: [n, m + n] attention mask over the memory of `seen` and the rows' own keys.
    """

    rows: Tensor
    seen: Tensor
    visible: Tensor


class FeedbackNet(nn.Module):
    """The network.

    Args:
        checkpoint: whose layers, tables and norm it begins with.
        layers: which of its layers, by number; None takes all.
        sparse: see `Sparse`.
    """

    embedding: Tensor
    head: Tensor

    def __init__(
        self, checkpoint: Checkpoint, layers: Sequence[int] | None = None, sparse: Sparse | None = None
    ) -> None:
        super().__init__()
        config = checkpoint.config
        chosen = checked_layers(range(config.num_hidden_layers) if layers is None else layers, config.num_hidden_layers)
        self.config, self.sparse, size = config, sparse or Sparse(), len(chosen)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in chosen)
        self.norm = Norm(config.hidden_size, config.norm_eps)
        take_layers(self, checkpoint, chosen)
        self.mix = nn.Parameter((math.log(size * _OWN / (1 - _OWN)) * torch.eye(size, size + 1)).flatten())

    def forward(self, tokens: Tensor, lengths: Sequence[int], passes: int = PASSES) -> Tensor:
        """Normed output [N, hidden] after each of the N tokens of whole texts of these lengths, input of the head."""
        positions = torch.cat([torch.arange(n) for n in lengths])
        return self.norm(self.read(tokens, positions, lengths, passes)[0])

    def read(self, tokens: Tensor, positions: Tensor, lengths: Sequence[int], passes: int) -> tuple[Tensor, list[Keys]]:
        """Output of the last layer [N, hidden], and the memory of the rows per layer.

        Args:
            positions: [N] of each row in its text, ascending within it.
        """
        blocks = [one for start, length in _spans(lengths) for one in self._blocks(positions, start, length)]
        states, memory = [self.embedding[tokens].float()], list[Keys]()
        twice = torch.is_grad_enabled() and len(self.layers) > _MOST_KEPT
        for _ in range(passes):
            del states[1:]
            for number in range(len(self.layers)):
                told = (number, states[-1], memory[number] if memory else None, positions, blocks)
                states.append(checkpoint(self._layer, *told, use_reentrant=False) if twice else self._layer(*told))
            memory = self._memory(states, positions)
        return states[-1], memory

    def _layer(self, number: int, x: Tensor, memory: Keys | None, positions: Tensor, blocks: list[_Block]) -> Tensor:
        """[rows, hidden] float32 after a layer, whose rows attend to `memory`, or to each other's own keys."""
        layer = self.layers[number]
        normed, residual = layer.enter(x)  # type: ignore[operator]
        own = self._keys(number, normed, positions)
        query = layer.self_attn.queries(normed, positions)  # type: ignore[union-attr, operator]
        mixed = torch.cat([_mixed(query, memory or own, own, block) for block in blocks])
        return layer.leave(residual, mixed).float()  # type: ignore[operator]

    def sees(self, positions: Tensor, others: Tensor) -> Tensor:
        """Mask [n, m]: whether the rows at `positions` [n] attend to the memory of the rows at `others` [m]."""
        ahead = positions[:, None] - others[None, :]
        return (ahead > 0) & ((ahead < self.sparse.window) | (others < self.sparse.num_sinks)[None, :])

    def tensors(self, weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """The layers as a model of its own, by transformers' names, float32; `mix` is for the card."""
        found = {f"model.{name}": one for name, one in weights.items() if name != "mix"}
        found["model.embed_tokens.weight"] = self.embedding
        if not self.config.tie_word_embeddings:
            found["lm_head.weight"] = self.head
        return {name: one.detach().float().numpy() for name, one in found.items()}

    def card(self) -> dict[str, Any]:
        """The parameters of its attention and memory for its card."""
        return {"window": self.sparse.window, "num_sinks": self.sparse.num_sinks, "mix": self.mix.detach().tolist()}

    def _memory(self, states: Sequence[Tensor], positions: Tensor) -> list[Keys]:
        """Keys and values per layer from the residual streams [rows, hidden] before, between and after layers."""
        weights = self.mix.view(len(self.layers), -1).softmax(-1)
        stacked = torch.stack(list(states))
        mixed = torch.einsum("lj,jnh->lnh", weights, functional.rms_norm(stacked, stacked.shape[-1:]))
        mixed = mixed * stacked[:-1].square().mean(-1, keepdim=True).sqrt()
        entered = [layer.enter(one)[0] for layer, one in zip(self.layers, mixed, strict=True)]  # type: ignore[operator]
        return [self._keys(number, one, positions) for number, one in enumerate(entered)]

    def _keys(self, number: int, normed: Tensor, positions: Tensor) -> Keys:
        return Keys(*self.layers[number].self_attn.keys_values(normed, positions))  # type: ignore[union-attr, operator]

    def _blocks(self, positions: Tensor, start: int, length: int) -> Iterator[_Block]:
        """The rows of the text that begins at row `start`."""
        places = positions[start : start + length]
        num_sinks = int((places < self.sparse.num_sinks).sum())
        for low in range(0, length, _BLOCK):
            high = min(low + _BLOCK, length)
            first = int(torch.searchsorted(places, places[low] - self.sparse.window, right=True))
            seen = torch.cat([torch.arange(min(num_sinks, first)), torch.arange(first, high)])
            rows = torch.arange(low, high)
            visible = torch.cat([self.sees(places[rows], places[seen]), torch.eye(len(rows), dtype=torch.bool)], dim=1)
            yield _Block(start + rows, start + seen, visible)


def take_layers(net: nn.Module, checkpoint: Checkpoint, chosen: Sequence[int]) -> None:
    """Load `layers` and `norm` of `net`, its only parameters so far, from these layers, and add the target's tables.

    Tables are buffers `embedding` and `head` [vocabulary, hidden] bfloat16, frozen and not saved.
    """
    own = {f"layers.{i}.": f"model.layers.{layer}." for i, layer in enumerate(chosen)}
    net.load_state_dict({name: _tensor(checkpoint, _theirs(name, own)) for name in net.state_dict()})
    embedding = _tensor(checkpoint, "model.embed_tokens.weight").bfloat16()
    tied = checkpoint.config.tie_word_embeddings
    head = embedding if tied else _tensor(checkpoint, "lm_head.weight").bfloat16()
    net.register_buffer("embedding", embedding, persistent=False)
    net.register_buffer("head", head, persistent=False)


def _mixed(query: Tensor, memory: Keys, own: Keys, block: _Block) -> Tensor:
    """[rows, heads * D] of a block, each row attending to the memory that it sees and to its own key."""
    keys, values = (torch.cat([theirs[block.seen], mine[block.rows]]) for theirs, mine in zip(memory, own, strict=True))
    return mix(query[block.rows], Keys(keys, values), block.visible)


def _spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Start and length of each text."""
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].tolist()
    return list(zip(starts, lengths, strict=True))


def _theirs(name: str, own: Mapping[str, str]) -> str:
    """The checkpoint's name of a tensor of the net."""
    for mine, theirs in own.items():
        if name.startswith(mine):
            return theirs + name.removeprefix(mine)
    return f"model.{name}"


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    return torch.from_numpy(checkpoint.tensor(name).copy()).float()
