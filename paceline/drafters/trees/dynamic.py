"""`Dynamic`: the tree of highest draft confidence (EAGLE-2, Li et al. 2024): deterministic proposals.

A node's value is the product of the draft's probabilities on its path, an estimate of its acceptance probability. At
each level the `topk` most valuable nodes get `topk` children each; at the end the most valuable nodes of all levels are
kept. Values never increase along a path, and ties prefer the shallower node, so the kept nodes form a tree.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.trees.growth import Nodes, Want
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree


class Dynamic(Nodes):
    """A tree by confidence.

    Args:
        context: of the request; its budget is the number of nodes kept.
        topk: nodes expanded per level, and children of each.
        depth: levels.
    """

    def __init__(self, context: DraftContext, topk: int, depth: int) -> None:
        super().__init__(context)
        self._topk, self._depth = min(topk, context.budget), min(depth, context.longest)
        self._values: list[Any] = []
        self._levels: list[int] = []

    @property
    def max_rows(self) -> int:
        """The last level is not expanded."""
        return self._topk * (self._depth - 1)

    def law_below(self, node: int, logits: np.ndarray) -> Law:
        return self.context.candidate_law(logits, self.tokens_to(node))

    def grow(self, laws: Sequence[Law]) -> None:
        """Add one level. Nodes that rank beyond the budget can no longer be kept and are not expanded."""
        first, level = len(self.tokens), 1 + (0 if self.frontier[0].node == ROOT else self._levels[-1])
        for want, law in zip(self.frontier, laws, strict=True):
            self.laws[want] = law
            value = 1 if want.node == ROOT else self._values[want.node]
            for token, prob in zip(*law.top(self._topk), strict=True):
                self.add(token, want.node)
                self._values.append(value * prob)
                self._levels.append(level)
        kept = set(self._best(range(len(self.tokens)), self.context.budget))
        best = [node for node in self._best(range(first, len(self.tokens)), self._topk) if node in kept]
        wants = [Want(0, node) for node in sorted(best)] if level < self._depth else []
        self.frontier = [want for want in wants if self.keeps_growing(want)]

    def tree(self) -> TokenTree:
        """The `context.budget` best nodes, numbered as they were found."""
        kept = sorted(self._best(range(len(self.tokens)), self.context.budget))
        numbers = {ROOT: ROOT} | {node: number for number, node in enumerate(kept)}
        tokens = tuple(self.tokens[node] for node in kept)
        return TokenTree(tokens, tuple(numbers[self.parents[node]] for node in kept))

    def _best(self, nodes: Iterable[int], count: int) -> list[int]:
        return sorted(nodes, key=lambda node: (-self._values[node], self._levels[node], node))[:count]
