"""`Blocks`: a tree whose nodes are blocks of tokens (Falcon's decoding tree, Gao et al. 2024): deterministic proposals.

A pass gives the laws of the next k tokens, so the tree grows by whole blocks: each pass appends the `width` most
probable blocks of k tokens, found by beam search, to the last tokens of the blocks kept before. `passes` passes give at
most passes * width * k nodes. With blocks of one token it is a beam search.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.trees.growth import Nodes, Want
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree


class Blocks(Nodes):
    """A tree of blocks.

    Args:
        context: of the request; its budget limits the tree to the earliest and most probable whole blocks.
        size: tokens of a block.
        width: blocks kept per pass.
        passes: number of the drafter's passes.
    """

    def __init__(self, context: DraftContext, size: int, width: int, passes: int) -> None:
        super().__init__(context)
        self._size, self._width = min(size, context.longest), width
        self._depth = min(passes * self._size, context.longest // self._size * self._size)
        self._values: dict[int, Any] = {ROOT: 1}
        self._level = 0
        self._ends: list[list[int]] = []

    @property
    def max_rows(self) -> int:
        """The root, and the nodes of every level but the last."""
        return 1 + self._width * (self._depth - 1)

    def law_below(self, node: int, logits: np.ndarray) -> Law:
        return self.context.candidate_law(logits, self.tokens_to(node))

    def grow(self, laws: Sequence[Law]) -> None:
        """One level of the beam."""
        found: list[tuple[Any, int, int]] = []
        for want, law in zip(self.frontier, laws, strict=True):
            self.laws[want] = law
            for token, prob in zip(*law.top(self._width), strict=True):
                found.append((self._values[want.node] * prob, want.node, token))
        best = sorted(range(len(found)), key=lambda i: (-found[i][0], i))[: self._width]
        grown = []
        for value, parent, token in (found[i] for i in best):
            grown.append(self.add(token, parent))
            self._values[grown[-1]] = value
        self._level += 1
        is_end = self._level % self._size == 0
        if is_end:
            self._ends.append(grown)
        wants = [Want(0, node) for node in grown] if self._level < self._depth else []
        self.frontier = [want for want in wants if self.keeps_growing(want)] if is_end else wants

    def tree(self) -> TokenTree:
        """Whole blocks while they fit the budget; a block comes after the one above it."""
        kept: dict[int, None] = {}
        for end in (node for level in self._ends for node in level):
            path = self.nodes_to(end)
            further = [node for node in path if node not in kept]
            hangs = all(node in kept for node in path[: -self._size])
            if hangs and len(kept) + len(further) <= self.context.budget:
                kept |= dict.fromkeys(further)
        ordered = sorted(kept)
        numbers = {ROOT: ROOT} | {node: number for number, node in enumerate(ordered)}
        parents = tuple(numbers[self.parents[node]] for node in ordered)
        return TokenTree(tuple(self.tokens[node] for node in ordered), parents)
