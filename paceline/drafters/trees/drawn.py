"""`Drawn`: chains and trees of draws, by one source or merged from several (SpecInfer's expansion and merge).

An expansion <k1..km> gives every node of level i - 1 k_i children. Children are drawn, and the tree stores their laws
for the p/q rule. Greedy and coupled requests get the most likely tokens instead, because k draws from a one-hot law, or
with the same noise, would all be equal.

Equal draws below one node are separate trials, since each counts in the verification, but the children of all copies
are attached to the first one. Later copies are never accepted, because a rejected token has no mass left in the
residual, and so a path is computed once, however many copies it has. This is exact: all children of an accepted token
are draws from laws of that prefix, independent of which copy was accepted.
Not the place for deterministic trees (`ranked.py`, `dynamic.py`).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.trees.growth import Nodes, Want
from paceline.sampling.law import Law
from paceline.sampling.tree import TokenTree

Expansion = Sequence[int]
"""Children per node, level by level."""


class Drawn(Nodes):
    """A tree of draws.

    Args:
        context: of the request.
        expansions: one per source; None is a chain as long as the budget.
        replacement: False draws the children of a node without replacement (one source only).
    """

    def __init__(
        self, context: DraftContext, expansions: Sequence[Expansion] | None = None, replacement: bool = True
    ) -> None:
        self._expansions = expansions or [(1,) * context.longest]
        super().__init__(context, len(self._expansions))
        branches = len(self._expansions) > 1 or max(self._expansions[0]) > 1
        self._is_choice = branches and (context.coupled or context.params.is_greedy)
        self._replacement = replacement
        self._depth = 0
        self._copies = {want: 1 for want in self.frontier}
        self._places: dict[tuple[int, int], int] = {}
        self._drawn_laws: list[Law] = []
        self._rows: list[int] = []

    @property
    def max_rows(self) -> int:
        """All nodes but those of the last level may be needed."""
        return self.context.budget

    def law_below(self, node: int, logits: np.ndarray) -> Law:
        path = self.tokens_to(node)
        if self._is_choice:
            return self.context.candidate_law(logits, path)
        if belief := self.context.belief(logits, path):
            self.beliefs[node] = belief
        return self.context.warp(logits, path)

    def grow(self, laws: Sequence[Law]) -> None:
        """One level, a node's children together; stops where the budget is spent."""
        grown: dict[Want, int] = {}
        for want, law in zip(self.frontier, laws, strict=True):
            self.laws[want] = law
            self._drawn_laws.append(law)
            width = self._copies[want] * self._expansions[want.source][self._depth]
            for token in self._picks(law, width):
                place = Want(want.source, self._add(token, want.node))
                grown[place] = grown.get(place, 0) + 1
        self._depth += 1
        self._copies = {place: 1 for place in grown} if self._is_choice else grown
        self.frontier = [place for place in grown if self._goes_on(place)]

    def tree(self) -> TokenTree:
        if self._is_choice or not self.tokens:
            return TokenTree(tuple(self.tokens), tuple(self.parents))
        draw = "iid" if self._replacement else "without_replacement"
        laws, rows = tuple(self._drawn_laws), tuple(self._rows)
        return TokenTree(tuple(self.tokens), tuple(self.parents), draw, laws, rows)

    def _picks(self, law: Law, width: int) -> Iterator[int]:
        """Up to `width` tokens of `law`, drawn one by one while the budget lasts."""
        if self._is_choice:
            for token in law.top(width)[0]:
                if self._has_room:
                    yield token
            return
        rest = law
        for _ in range(width if self._replacement else min(width, len(law.tokens))):
            if not self._has_room:
                return
            token = self.context.draw_node(rest, len(self.context.token_ids) + self._depth, len(self.tokens))
            yield token
            if not self._replacement:
                rest = rest.without(token)

    def _add(self, token: int, parent: int) -> int:
        """Add a child; returns the node that its own children are attached to, the first sibling with its token."""
        place = self._places.get((parent, token))
        if place is not None and self._is_choice:
            return place
        node = self.add(token, parent)
        self._rows.append(len(self._drawn_laws) - 1)
        return self._places.setdefault((parent, token), node)

    @property
    def _has_room(self) -> bool:
        return len(self.tokens) < self.context.budget

    def _goes_on(self, place: Want) -> bool:
        deeper = self._depth < min(len(self._expansions[place.source]), self.context.max_depth)
        return deeper and self._has_room and self.keeps_growing(place)
