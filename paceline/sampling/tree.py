"""`TokenTree`: what a drafter proposes. A chain is a tree, and plain decoding is the empty tree.

Trees are immutable and know nothing of models, caches or texts. Not the place for verification (`verify.py`) or for the
choice of a tree's shape (the drafters).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from paceline.errors import InvalidParameter
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT

Draw = Literal["one_hot", "iid", "without_replacement"]
"""How siblings were drawn, which decides how they are verified.

``one_hot``: deterministic proposals (n-gram, top-k). ``iid``: independent draws, a repeated token is two trials.
``without_replacement``: each sibling drawn from its law with the earlier siblings removed and renormalised.
"""


@dataclass(frozen=True, eq=False, slots=True)
class TokenTree:
    """Drafted tokens below the last committed token (the root, itself not a node).

    Attributes:
        tokens: n token ids; node i is tokens[i].
        parents: n node numbers with parents[i] < i; ROOT for children of the root.
        draw: how siblings were drawn.
        draft_laws: the laws nodes were drawn from, None when `draw` is ``one_hot``.
        draft_rows: n indices into `draft_laws` (siblings of several drafters may differ); None when `draw` is
            ``one_hot``.
        chances: n acceptance probabilities in [0, 1] as estimated by the drafter, with nodes in descending order of
            them; None without estimates. Only for deterministic proposals. Verification never reads them.
        is_chain: no node has a sibling; the empty tree is a chain.

    Raises:
        InvalidParameter: the fields do not describe a tree; siblings that were not drawn independently repeat a token;
            or drawn nodes have `chances`, since leaving out drawn nodes by their token would change the output's law.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    draw: Draw = "one_hot"
    draft_laws: tuple[Law, ...] | None = None
    draft_rows: tuple[int, ...] | None = None
    chances: tuple[float, ...] | None = None
    is_chain: bool = field(init=False, repr=False)
    _children: tuple[tuple[int, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parents, children = _chain(len(self.tokens))
        object.__setattr__(self, "is_chain", tuple(self.parents) == parents)
        if not self.is_chain:
            _check_shape(self)
            children = _children_of(self.parents)
        object.__setattr__(self, "_children", children)
        _check_laws(self)
        _check_chances(self)
        if not (self.is_chain or self.draw == "iid"):
            _check_distinct(self)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls, tokens: Sequence[int], draft_laws: Sequence[Law] | None = None, chances: tuple[float, ...] | None = None
    ) -> "TokenTree":
        """A chain: each token is the only child of the one before.

        Args:
            draft_laws: one per token, None for a deterministic chain.
            chances: acceptance probabilities of a deterministic chain; ignored with `draft_laws`.
        """
        n = len(tokens)
        parents, _ = _chain(n)
        if draft_laws is None:
            return cls(tuple(tokens), parents, chances=chances)
        return cls(tuple(tokens), parents, "iid", tuple(draft_laws), tuple(range(n)))

    @classmethod
    def trie(cls, paths: Iterable[Sequence[int]]) -> "TokenTree":
        """Deterministic candidate continuations as one tree: equal prefixes are stored once, in order of appearance."""
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}
        for path in paths:
            node = ROOT
            for token in path:
                if (node, token) not in known:
                    known[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = known[node, token]
        return cls(tuple(tokens), tuple(parents))

    @property
    def depths(self) -> tuple[int, ...]:
        """n depths; a child of the root has depth 1, so its position is the root's plus 1."""
        if self.is_chain:
            return tuple(range(1, len(self) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """The largest of `depths`; 0 for the empty tree."""
        return len(self) if self.is_chain else max(self.depths)

    def children(self, node: int) -> tuple[int, ...]:
        """Children of `node` (ROOT for the root) in order of their numbers."""
        return self._children[node + 1]

    def path_to(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`, both included; empty for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def tokens_to(self, node: int) -> tuple[int, ...]:
        """Tokens on the path down to `node`, which are appended to the text if `node` is accepted."""
        return tuple(self.tokens[i] for i in self.path_to(node)) if node != ROOT else ()

    def draft_law(self, node: int) -> Law:
        """The law `node` was drawn from (before earlier siblings were removed); one-hot for deterministic proposals."""
        if self.draft_laws is None or self.draft_rows is None:
            return Law.one_hot(self.tokens[node])
        return self.draft_laws[self.draft_rows[node]]

    def prune(self, num_nodes: int, max_depth: int | None = None) -> "TokenTree":
        """The tree of the first `num_nodes` nodes that are at most `max_depth` deep.

        Exact as long as neither number depends on the drawn tokens.
        """
        size = len(self.tokens)
        if size <= num_nodes and (max_depth is None or size <= max_depth):
            return self
        kept: Sequence[int] = range(size)
        if max_depth is not None and size > max_depth:
            kept = [node for node, level in enumerate(self.depths) if level <= max_depth]
        nodes = kept[:num_nodes]
        if len(nodes) == size:
            return self
        number = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        tokens = tuple([self.tokens[node] for node in nodes])
        parents = tuple([number[self.parents[node]] for node in nodes])
        rows = None if self.draft_rows is None else tuple([self.draft_rows[node] for node in nodes])
        chances = None if self.chances is None else tuple([self.chances[node] for node in nodes])
        return TokenTree(tokens, parents, self.draw, self.draft_laws, rows, chances)


def union(trees: Sequence[TokenTree]) -> TokenTree:
    """Merge several proposals below one root into one tree; nodes of earlier trees are tested first.

    Of equal siblings only the first can be accepted, since a rejected token has no mass left in the residual. So the
    children of all of them move below the first. A later sibling that is deterministic (of a one_hot tree, or drawn
    from a law with one token) is left out. A drawn one is kept as a separate trial, because its law must be subtracted
    from the residual: with p = (.3, .3, .2, .2) and two draws from q = (.7, .05, .15, .1), merging equal draws and
    testing once emits (3/10, 1467/5800, 47/200, 123/580), keeping both emits p (SpecInfer's set union needs this
    multiplicity).

    The draws must be independent: no two trees may draw nodes under the same node number.

    Raises:
        InvalidParameter: a tree was drawn without replacement (a second tree's siblings were not drawn with the first
            tree's removed).
    """
    grown = [tree for tree in trees if len(tree)]
    kinds = {tree.draw for tree in grown}
    if kinds <= {"one_hot"}:
        return TokenTree.trie(tree.tokens_to(node) for tree in grown for node in range(len(tree)))
    if "without_replacement" in kinds:
        problem = f"trees drawn as {sorted(kinds)} cannot be united"
        raise InvalidParameter("draw", problem, "unite one_hot and iid trees")
    growing = _Union()
    for tree in grown:
        growing.add(tree)
    return TokenTree(
        tuple(growing.tokens), tuple(growing.parents), "iid", tuple(growing.laws), tuple(range(len(growing.laws)))
    )


class _Union:
    """A tree under construction from deterministic and drawn nodes; every node has its own law."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.laws: list[Law] = []
        self._first: dict[tuple[int, int], int] = {}

    def add(self, tree: TokenTree) -> None:
        places: list[int] = []  # by node of `tree`, the node of the union that gets its children
        for node, parent in enumerate(tree.parents):
            above = parent if parent == ROOT else places[parent]
            places.append(self._place(above, tree.tokens[node], tree.draft_law(node)))

    def _place(self, parent: int, token: int, law: Law) -> int:
        """Add a node unless it is redundant; returns the node that gets its children."""
        first = self._first.setdefault((parent, token), len(self.tokens))
        if first == len(self.tokens) or not law.is_one_hot:
            self.tokens.append(token)
            self.parents.append(parent)
            self.laws.append(law)
        return first


@lru_cache
def _chain(num_nodes: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """(parents, children of the root and of each node) of a chain."""
    return tuple(range(ROOT, num_nodes - 1)), (*((node,) for node in range(num_nodes)), ())


def _children_of(parents: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Children of the root and of each node."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
    return tuple(map(tuple, children))


def _check_shape(tree: TokenTree) -> None:
    if len(tree.tokens) != len(tree.parents):
        problem = f"{len(tree.parents)} parents for {len(tree.tokens)} tokens"
        raise InvalidParameter("parents", problem, "give every node one parent")
    for node, parent in enumerate(tree.parents):
        if not ROOT <= parent < node:
            raise InvalidParameter("parents", f"node {node} has parent {parent}", "number parents before children")


def _check_chances(tree: TokenTree) -> None:
    if tree.chances is None:
        return
    if tree.draw != "one_hot":
        raise InvalidParameter("chances", f"given for draw={tree.draw!r}", "leave them out, or choose the nodes")
    if len(tree.chances) != len(tree.tokens) or not all([0 <= chance <= 1 for chance in tree.chances]):
        problem = f"{tree.chances} for {len(tree.tokens)} tokens"
        raise InvalidParameter("chances", problem, "give every node a probability")


def _check_laws(tree: TokenTree) -> None:
    if tree.draw == "one_hot":
        if tree.draft_laws is not None or tree.draft_rows is not None:
            raise InvalidParameter(
                "draft_laws", "given for a one_hot tree", "leave out laws and rows, or say draw='iid'"
            )
        return
    if tree.draft_laws is None or tree.draft_rows is None:
        raise InvalidParameter(
            "draft_laws", f"missing for draw={tree.draw!r}", "give the laws the nodes were drawn from"
        )
    if len(tree.draft_rows) != len(tree.tokens):
        problem = f"{len(tree.draft_rows)} rows for {len(tree.tokens)} tokens"
        raise InvalidParameter("draft_rows", problem, "give every node the row of its law")
    for node, row in enumerate(tree.draft_rows):
        if not 0 <= row < len(tree.draft_laws):
            problem = f"node {node} has row {row} of {len(tree.draft_laws)} laws"
            raise InvalidParameter("draft_rows", problem, "count rows from 0")


def _check_distinct(tree: TokenTree) -> None:
    nodes = tuple(zip(tree.parents, tree.tokens, strict=True))
    if len(set(nodes)) == len(nodes):
        return
    parent = min(parent for (parent, _), times in Counter(nodes).items() if times > 1)
    siblings = [tree.tokens[node] for node in tree.children(parent)]
    problem = f"children {siblings} of node {parent} repeat a token under draw={tree.draw!r}"
    raise InvalidParameter("tokens", problem, "merge deterministic duplicates with TokenTree.trie")
