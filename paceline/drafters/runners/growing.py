"""Growing the draft trees of a step: chains in one call where a runner can, all others level by level, together.

Not for what computes the logits (`draft_runner.py`, `heads/`) or for the shapes of trees (`trees/`).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from paceline.drafters.runners.chains_at_once import ChainRunner, chains_at_once
from paceline.drafters.trees.growth import Growth
from paceline.models.state_book import StateLost
from paceline.sampling.law import Law
from paceline.sampling.tree import TokenTree
from paceline.sampling.warp import NothingAllowed


class Runner(Protocol):
    """Computes logits for growing trees, as `DraftRunner` does."""

    def can_hold(self, growth: Growth) -> bool:
        """Whether one growth, text and tree, fits into an empty cache."""
        ...

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """The leading ones of `growths` that fit into the cache together, at least one."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request."""
        ...

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """For each admitted growth the logits [len(nodes), vocab] after its `nodes`."""
        ...


def drafted(runner: Runner, growths: Sequence[Growth], chains: ChainRunner | None = None) -> list[TokenTree]:
    """The trees of `growths`, in order.

    Args:
        runner: computes the logits.
        chains: the runner again, where it may draft a chain in one call.
    """
    at_once = chains_at_once(chains, growths)
    grow_all([runner], [growth for growth in growths if growth.context.request_id not in at_once])
    return [at_once.get(growth.context.request_id) or growth.tree() for growth in growths]


def grow_all(runners: Sequence[Runner], growths: Sequence[Growth]) -> None:
    """Grow all trees to completion, with runner i as source i and one pass per level and runner.

    Trees that do not fit into every runner together are processed in turns. A tree that some runner cannot hold even
    alone stays empty.
    """
    waiting = [growth for growth in growths if all(runner.can_hold(growth) for runner in runners)]
    while waiting:
        seated: Sequence[Growth] = waiting
        for runner in runners:
            seated = runner.admit(seated)
        assert seated, "an empty cache holds each of them"
        _grow_together(runners, seated)
        waiting = waiting[len(seated) :]


def _grow_together(runners: Sequence[Runner], growths: Sequence[Growth]) -> None:
    """Grow trees that every runner has admitted."""
    active = list(growths)
    while active:
        laws: list[list[Law | None]] = [[] for _ in active]
        try:
            for source, runner in enumerate(runners):
                _score_frontiers(runner, source, active, laws)
        except StateLost:  # the trees end here, and the texts are read again in the next step
            for growth in active:
                for runner in runners:
                    runner.release(growth.context.request_id)
            return
        for growth, found in zip(active, laws, strict=True):
            growth.frontier = [want for want, law in zip(growth.frontier, found, strict=True) if law is not None]
            if growth.frontier:
                growth.grow([law for law in found if law is not None])
        active = [growth for growth in active if growth.frontier]


def _score_frontiers(runner: Runner, source: int, growths: Sequence[Growth], laws: list[list[Law | None]]) -> None:
    """Append to `laws` the laws of `runner` after the nodes that each growth wants from `source`.

    None where no token of the runner's vocabulary is allowed, which ends that branch.
    """
    nodes = [[want.node for want in growth.frontier if want.source == source] for growth in growths]
    asked = [i for i, wanted in enumerate(nodes) if wanted]
    if not asked:
        return
    scored = runner.score([(growths[i], nodes[i]) for i in asked])
    for i, logits in zip(asked, scored, strict=True):
        laws[i] += [_law_below(growths[i], node, row) for node, row in zip(nodes[i], logits, strict=True)]


def _law_below(growth: Growth, node: int, logits: np.ndarray) -> Law | None:
    try:
        return growth.law_below(node, logits)
    except NothingAllowed:
        return None
