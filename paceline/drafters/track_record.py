"""`TrackRecord`: what one drafter's proposals were worth to one request so far, and what its next one promises.

Reads committed tokens only, so a decision that rests on it leaves the law of the text alone. Not the place for deciding
(`hybrid.py`).
"""

from collections.abc import Sequence

from paceline.sampling.tree import ROOT_PARENT, TokenTree
from paceline.scheduling.stats import ENGINE_MEMORY, MEMORY, DraftRates, DraftStats
from paceline.theory.acceptance import expected_tokens

_PRIOR = 2.0
"""A drafter's own estimates are trusted as if they had promised, and kept, this many tokens."""


class TrackRecord:
    """Acceptance of one drafter by one request.

    Attributes:
        stats: counters of its verified proposals.

    Args:
        memory: weight of the past in its acceptance rate, per proposal.
        rates: where that rate begins.
        of_all: rates of all requests together, which learn as well.
    """

    def __init__(
        self, memory: float = MEMORY, rates: DraftRates | None = None, of_all: DraftRates | None = None
    ) -> None:
        self.stats = DraftStats(rates or DraftRates(), memory=memory)
        self._of_all = of_all
        self._kept = self._promised = _PRIOR

    def expected(self, tree: TokenTree, score: float | None) -> float:
        """Tokens of `tree` that are likely to stand.

        Args:
            score: the drafter's own estimate, corrected by how its estimates turned out; None for drafters that have
                none, whose acceptance rate is taken for every level.
        """
        if not len(tree):
            return 0.0
        depth = max(tree.depths)
        if score is None:
            return float(expected_tokens(self.stats.rates.acceptance, depth)) - 1
        return min(score * self._kept / self._promised, float(depth))

    def learn(self, tree: TokenTree, score: float | None, emitted: Sequence[int], budget: int) -> None:
        """Compare a proposal with the tokens that were committed behind its root, wherever they came from."""
        if not emitted:
            return
        num_kept, goes_on = followed(tree, emitted)
        refused = goes_on and num_kept < len(emitted)
        self.stats.learn(budget, len(tree), num_kept, refused)
        if self._of_all is not None and len(tree):
            self._of_all.learn(len(tree), num_kept, refused, memory=ENGINE_MEMORY)
        if score:
            seen = num_kept / max(tree.depths) if goes_on and not refused else 1.0  # how much of it could be judged
            self._kept = MEMORY * self._kept + num_kept
            self._promised = MEMORY * self._promised + score * seen


def followed(tree: TokenTree, tokens: Sequence[int]) -> tuple[int, bool]:
    """How many of `tokens` lie on one path of `tree` from its root, and whether the tree goes on below that path."""
    here = [ROOT_PARENT]
    for depth, token in enumerate(tokens):
        below = [child for node in here for child in tree.children(node) if tree.tokens[child] == token]
        if not below:
            return depth, any(tree.children(node) for node in here)
        here = below
    return len(tokens), any(tree.children(node) for node in here)
