"""`Ranked`: a static tree of ranks, the same at every step (Medusa's choices): deterministic proposals.

Path (0, 2) is the third most likely token below the most likely one. Which paths pay is measured, not guessed:
`paceline.theory.tree_shape` finds the best ones for a budget.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.trees.growth import Nodes, Want
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree
from paceline.theory.tree_shape import RankPath


def closed(paths: Iterable[Sequence[int]]) -> list[RankPath]:
    """`paths` and all their prefixes, each once, prefixes first; otherwise in the given order."""
    found: dict[RankPath, None] = {}
    for path in paths:
        for length in range(1, len(path) + 1):
            found.setdefault(tuple(path[:length]))
    return list(found)


def paths_of(expansion: Sequence[int]) -> list[RankPath]:
    """Every path of an expansion <k1..km>, level by level; (2, 2, 1) has 2 + 4 + 4 of them."""
    levels = range(1, len(expansion) + 1)
    return [path for depth in levels for path in product(*map(range, expansion[:depth]))]


class Ranked(Nodes):
    """A tree of the ranks in `paths`, which must be `closed`; where the budget is smaller, the first ones."""

    def __init__(self, context: DraftContext, paths: Sequence[RankPath]) -> None:
        super().__init__(context)
        self._below: dict[RankPath, list[int]] = {}
        for path in [path for path in paths if len(path) <= context.max_depth][: context.budget]:
            self._below.setdefault(path[:-1], []).append(path[-1])
        self._path_of: dict[int, RankPath] = {ROOT: ()}

    @property
    def max_rows(self) -> int:
        """One for each node with children."""
        return len(self._below)

    def law_below(self, node: int, logits: np.ndarray) -> Law:
        return self.context.candidate_law(logits, self.tokens_to(node))

    def grow(self, laws: Sequence[Law]) -> None:
        """Add one level; ranks beyond a law's support get no node."""
        grown = []
        for want, law in zip(self.frontier, laws, strict=True):
            self.laws[want] = law
            path = self._path_of[want.node]
            tokens, _ = law.top(max(self._below[path]) + 1)
            for rank in self._below[path]:
                if rank < len(tokens):
                    grown.append(self.add(tokens[rank], want.node))
                    self._path_of[grown[-1]] = (*path, rank)
        wants = [Want(0, node) for node in grown if self._path_of[node] in self._below]
        self.frontier = [want for want in wants if self.keeps_growing(want)]

    def tree(self) -> TokenTree:
        return TokenTree(tuple(self.tokens), tuple(self.parents))
