"""`Lookahead`: lookahead decoding: n-grams from the target's own Jacobi iterations are drafted when their first token
occurs.

Fu et al. 2024, with a whole step in one pass. A window of W columns moves ahead of the text. Column c holds N - 1
tokens: level 0 is for position c + 1 after the root, each further level one position later:

    root -> (0, 0) -> (0, 1) -> (0, 2)      level 0 is one chain
              |         |         |
            (1, 0)    (1, 1)    (1, 2)      each column hangs below its own level-0 token
              |         |         |
            (2, 0)    (2, 1)    (2, 2)

This is a token tree: a token attends to its path, and its position is its depth. The target's prediction after the last
level of a column is appended to the column and its first token dropped (a Jacobi iteration, one position further); the
N tokens together are an n-gram for the pool. Up to G pooled n-grams that begin with the root's token are further
branches.

Every node, including the window's, is an ordinary deterministic proposal and verified as such, so all exact rules hold
and a fully matched n-gram gives its bonus token. Costs (W + G)(N - 1) rows a step and no other model. It pays where
rows are nearly free (accelerators, small batches) and on text with recurring phrases.
"""

import random
from collections.abc import Sequence

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.self_drafts.ngram_pool import NGramPool
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter
from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits


class Lookahead:
    """Drafts from a Jacobi window and its n-gram pool; every request has its own.

    Args:
        window_size: W, columns of the window.
        ngram_size: N, tokens of an n-gram; up to N tokens are emitted per step.
        guess_set_size: G, n-grams verified per step, and kept per first token.
        pool_from_prompt: start with the prompt's n-grams in the pool instead of an empty one.

    Raises:
        InvalidParameter: a size below its minimum.
    """

    name = "lookahead"

    def __init__(
        self,
        services: DraftServices,
        window_size: int = 5,
        ngram_size: int = 4,
        guess_set_size: int = 5,
        pool_from_prompt: bool = True,
    ) -> None:
        for field, value, least in (
            ("window_size", window_size, 1),
            ("ngram_size", ngram_size, 2),
            ("guess_set_size", guess_set_size, 1),
        ):
            if value < least:
                raise InvalidParameter(field, f"{value} is less than {least}", f"give at least {least}")
        self._ends = frozenset(services.target.source.eos_token_ids)
        self._columns, self._size, self._guesses = window_size, ngram_size, guess_set_size
        self._seeds_pool = pool_from_prompt
        nodes = (window_size + guess_set_size) * (ngram_size - 1)  # everything the method wants to run
        self.traits = DrafterTraits(branches=True, whole=True, natural_budget=nodes, watches=True)
        self._windows: dict[str, _Window] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context, of pooled n-grams and the window; a smaller budget reduces both proportionally."""
        return [self._tree(context) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Advance the window by the target's predictions, and add its n-grams to the pool."""
        window = self._windows.get(outcome.request_id)
        if window is not None and outcome.picks is not None:
            window.advance(outcome.picks)
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request; if it returns, its window restarts."""
        self._windows.pop(request_id, None)

    def _tree(self, context: DraftContext) -> TokenTree:
        window = self._windows.get(context.request_id)
        if window is None:
            window = self._windows[context.request_id] = self._window(context.token_ids[: context.num_prompt_tokens])
        num_branches = max(1, context.budget // (self._size - 1))
        share = -(-num_branches * self._guesses // (self._columns + self._guesses))
        guesses = window.pool.latest(context.token_ids[-1], min(share, self._guesses))
        tree = _Grower()
        for guess in guesses:
            tree.add(ROOT, guess)
        window.place(tree, num_branches - len(guesses))
        return tree.grown().prune(context.budget, context.max_depth)

    def _window(self, prompt: Sequence[int]) -> "_Window":
        pool = NGramPool(self._guesses)
        if self._seeds_pool:
            pool.add_all(prompt, self._size)
        return _Window(prompt, self._columns, self._size, pool, self._ends)


class _Window:
    """The columns of one request. A column starts as a random token of the prompt and grows to N - 1 tokens."""

    def __init__(
        self, prompt: Sequence[int], num_columns: int, size: int, pool: NGramPool, ends: frozenset[int]
    ) -> None:
        self.pool = pool
        self._size, self._ends = size, ends
        self._prompt, self._random = prompt, random.Random(len(prompt))
        self.columns = [self._fresh() for _ in range(num_columns)]
        self._last_nodes: list[int] = []

    def place(self, tree: "_Grower", num_columns: int) -> None:
        """Add the first `num_columns` columns to `tree`; the others wait for a step with a larger budget."""
        self._last_nodes, head = [], ROOT
        for first, *rest in self.columns[:num_columns]:
            head = tree.add(head, [first])
            self._last_nodes.append(tree.add(head, rest))

    def advance(self, picks: np.ndarray) -> None:
        """Append to each column the target's prediction after it, from `picks` [1 + nodes] of the tree."""
        for at, node in enumerate(self._last_nodes):
            if node + 1 >= len(picks):  # the tree was cut before it
                continue
            gram = [*self.columns[at], int(picks[node + 1])]
            if len(gram) == self._size:
                self.pool.add(gram)
                del gram[0]
            self.columns[at] = self._fresh() if gram[-1] in self._ends else gram
        self._last_nodes = []

    def _fresh(self) -> list[int]:
        """A new column. Columns that reached an end token restart, since nothing useful is predicted after it."""
        return [self._random.choice(self._prompt)]


class _Grower:
    """A deterministic tree under construction; equal children of a node are merged."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._known: dict[tuple[int, int], int] = {}

    def add(self, node: int, tokens: Sequence[int]) -> int:
        """Add a path of `tokens` below `node`; returns its last node."""
        for token in tokens:
            if (node, token) not in self._known:
                self._known[node, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(node)
            node = self._known[node, token]
        return node

    def grown(self) -> TokenTree:
        return TokenTree(tuple(self._tokens), tuple(self._parents))
