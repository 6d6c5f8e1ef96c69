"""`FeedbackDraft`: a `FeedbackNet` at work, with a memory of constant size per text.

A memory has a slot for each sink and a ring for the window, with room for `SLACK` rows beyond it, so that a draft that
was refused can be taken back without anything it overwrote being needed. Not for who drafts what (`drafters/spire.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.models.torch_executor.feedback import PASSES, FeedbackNet
from paceline.models.torch_executor.heads.attention import Keys

SLACK = 64


@dataclass(eq=False, slots=True)
class Memory:
    """Of one text: keys and values [layers, slots, key heads, D], and the position [slots] of each, -1 for none."""

    keys: Tensor
    values: Tensor
    positions: Tensor

    @property
    def num_bytes(self) -> int:
        """Whatever the text's length."""
        return self.keys.nbytes + self.values.nbytes + self.positions.nbytes


class FeedbackDraft:
    """Scores rows of texts.

    Args:
        net: the network.
        vocab_size: tokens that have logits; the net may have rows that pad its table.
    """

    def __init__(self, net: FeedbackNet, vocab_size: int) -> None:
        self._net, self._ring = net, net.sparse.window + SLACK
        self._head = net.head[:vocab_size].float()

    @property
    def slack(self) -> int:
        """Rows that may be taken back."""
        return SLACK

    def new_memory(self) -> Memory:
        """That of an empty text."""
        config, slots = self._net.config, self._net.sparse.num_sinks + self._ring
        shape = (len(self._net.layers), slots, config.num_key_value_heads, config.head_dim)
        return Memory(torch.zeros(shape), torch.zeros(shape), torch.full((slots,), -1))

    @torch.inference_mode()
    def read(self, memory: Memory, tokens: Sequence[int]) -> None:
        """Take in a text from its beginning: its sinks and its last rows within the window, at once."""
        sinks, window = self._net.sparse.num_sinks, self._net.sparse.window
        first = max(len(tokens) - window, 0)
        positions = torch.tensor([*range(min(sinks, first)), *range(first, len(tokens))])
        memory.positions.fill_(-1)
        if len(positions):
            ids = torch.tensor(tokens)[positions]
            _, kept = self._net.read(ids, positions, [len(ids)], PASSES)
            self._store(memory, positions, kept)

    @torch.inference_mode()
    def step(self, memories: Sequence[Memory], tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """[n, vocab] logits after one more row of each of n texts, which their memories take in."""
        places = torch.tensor(positions)
        held = torch.stack([one.positions for one in memories])
        visible = torch.stack([self._net.sees(place[None], own)[0] for place, own in zip(places, held, strict=True)])
        visible &= held >= 0
        layers = range(len(self._net.layers))
        seen = [
            Keys(torch.stack([one.keys[i] for one in memories]), torch.stack([one.values[i] for one in memories]))
            for i in layers
        ]
        read, kept = self._net.step(torch.tensor(tokens), places, seen, visible)
        for row, memory in enumerate(memories):
            own = [Keys(one.keys[row : row + 1], one.values[row : row + 1]) for one in kept]
            self._store(memory, places[row : row + 1], own)
        return (read @ self._head.T).numpy()

    def _store(self, memory: Memory, positions: Tensor, kept: Sequence[Keys]) -> None:
        """Put rows at `positions` [n], the later ones of a slot last, into their slots."""
        sinks = self._net.sparse.num_sinks
        slots = torch.where(positions < sinks, positions, sinks + (positions - sinks) % self._ring)
        memory.positions[slots] = positions
        memory.keys[:, slots] = torch.stack([one.keys for one in kept])
        memory.values[:, slots] = torch.stack([one.values for one in kept])
