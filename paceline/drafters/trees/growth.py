"""`Growth`: one request's draft tree in the making, level by level.

Whoever has probabilities (a draft model, several of them, a draft head) grows a tree in rounds: it scores the nodes of
the frontier, and the growth chooses their children and names the next frontier. Not the place for passes and caches
(`drafters/draft_runner.py`) or for the kinds of trees (the other files of this folder).
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
    """The law below tree node `node` (ROOT for the last committed token) is wanted from source number `source`."""

    source: int
    node: int


class Growth(Protocol):
    """A tree that grows.

    Attributes:
        context: of the request.
        tokens, parents: nodes so far, as in `TokenTree`.
        frontier: laws that are wanted next, all of source 0 first, then of source 1 and so on; empty when grown.
        max_rows: most nodes that are ever wanted from one source.
    """

    context: DraftContext
    tokens: list[int]
    parents: list[int]
    frontier: list[Want]

    @property
    def max_rows(self) -> int:
        """The most rows that one level can ask of a source at once."""
        ...

    def law_below(self, node: int, logits: np.ndarray) -> Law:
        """The law that this growth chooses the children of `node` by, from a source's logits [vocab]."""
        ...

    def grow(self, laws: Sequence[Law]) -> None:
        """Give the nodes of the frontier children, by one law for each entry, and move the frontier on."""
        ...

    def tree(self) -> TokenTree:
        """What has grown, at most `context.budget` nodes; the empty tree before the first round."""
        ...


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What a drafter keeps of a user's options.

    Attributes:
        begin: starts a tree for one request and one step.
        natural_budget: nodes that the shape asks for when the user names no number.
        branches: whether its trees may be more than chains.
    """

    begin: Callable[[DraftContext], Growth]
    natural_budget: int
    branches: bool = True


class Nodes:
    """Tokens and parents, the paths through them, and the laws known so far: what every growth keeps."""

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
        """What the length policy says to children below a node, from the laws above it only.

        None where the answer has most likely ended.
        """
        above = [ROOT, *self.nodes_to(want.node)[:-1]]
        if any(self.laws[Want(want.source, above[-1])].prob(token) > 0.5 for token in self.context.end_token_ids):
            return False
        laws = [self.beliefs.get(node) or self.laws[Want(want.source, node)] for node in above]
        return self.context.keep_drafting(laws)
