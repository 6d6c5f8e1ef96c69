"""`Growth`: one request's draft tree under construction, level by level.

In each round a runner (of a draft model, several of them, or a draft head) computes the logits after the nodes of the
frontier; the growth then chooses their children and the next frontier. Not the place for passes and caches
(`drafters/runners/draft_runner.py`) or for the kinds of trees (the other files of this folder).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from paceline.drafters.base import Belief, DraftContext
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree


class Want(NamedTuple):
    """A request for the law after tree node `node` (ROOT for the last committed token) from source number `source`."""

    source: int
    node: int


class Growth(Protocol):
    """A tree under construction.

    Attributes:
        context: of the request.
        tokens, parents: nodes so far, as in `TokenTree`.
        frontier: laws needed next, those of source 0 first, then of source 1 and so on; empty when complete.
        max_rows: largest number of nodes that one source has to compute in all.
    """

    context: DraftContext
    tokens: list[int]
    parents: list[int]
    frontier: list[Want]

    @property
    def max_rows(self) -> int:
        """The most nodes that one source computes for the whole tree."""
        ...

    def law_below(self, node: int, logits: np.ndarray) -> Law:
        """The law for choosing the children of `node`, from a source's logits [vocab]."""
        ...

    def grow(self, laws: Sequence[Law]) -> None:
        """Add children to the nodes of the frontier, given one law per entry, and advance the frontier."""
        ...

    def tree(self) -> TokenTree:
        """The tree so far, of at most `context.budget` nodes; empty before the first round."""
        ...


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The shape of a drafter's trees, from the user's options.

    Attributes:
        begin: starts a tree for one request and one step.
        natural_budget: number of nodes when the user names none.
        branches: whether its trees may branch.
    """

    begin: Callable[[DraftContext], Growth]
    natural_budget: int
    branches: bool = True


class Nodes:
    """Base class of growths: tokens, parents, paths, and the laws so far."""

    def __init__(self, context: DraftContext, num_sources: int = 1) -> None:
        self.context = context
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.frontier = [Want(source, ROOT) for source in range(num_sources)]
        self.laws: dict[Want, Law] = {}
        self.beliefs: dict[int, Belief] = {}

    def add(self, token: int, parent: int) -> int:
        """The number of a new node."""
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def nodes_to(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`, both included; empty for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.insert(0, node)
            node = self.parents[node]
        return path

    def tokens_to(self, node: int) -> list[int]:
        """Tokens on the path down to `node`."""
        return [self.tokens[each] for each in self.nodes_to(node)]

    def keeps_growing(self, want: Want) -> bool:
        """Whether the length policy wants children of a node, given only the laws above it.

        False also where the law gives an end token more than half of the probability.
        """
        above = [ROOT, *self.nodes_to(want.node)[:-1]]
        if any(self.laws[Want(want.source, above[-1])].prob(token) > 0.5 for token in self.context.end_token_ids):
            return False
        laws = [self.beliefs.get(node) or self.laws[Want(want.source, node)] for node in above]
        return self.context.keep_drafting(laws)
