"""Search for the best static tree, from the ranks of the target's tokens among a draft model's guesses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.accuracy import rank_counts
from paceline.models.base import CausalLM
from paceline.theory.tree_shape import RankPath, best_tree, expected_tree_tokens
from paceline.types import NamedProgress, SamplingParams, silent


@dataclass(frozen=True, slots=True)
class TreeSearch:
    """What was measured.

    Attributes:
        accuracies: fraction of output tokens that are the draft's guess of rank i.
        num_tokens: number of output tokens.
        depth: largest depth of a tree.
    """

    accuracies: tuple[float, ...]
    num_tokens: int
    depth: int

    def paths(self, num_nodes: int) -> list[RankPath]:
        """The best tree of `num_nodes` nodes."""
        return best_tree([self.accuracies] * self.depth, num_nodes)

    def tokens_per_pass(self, paths: Sequence[RankPath]) -> float:
        """Expected tokens per target pass with a tree, including the target's own."""
        return float(expected_tree_tokens([self.accuracies] * self.depth, paths))

    def chain(self, num_nodes: int) -> list[RankPath]:
        """The chain of `num_nodes` nodes, but no deeper than `depth`: the baseline of a tree."""
        return [(0,) * length for length in range(1, min(num_nodes, self.depth) + 1)]


def measure(
    llm: LLM,
    draft: CausalLM,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    num_ranks: int = 8,
    depth: int = 8,
    progress: NamedProgress = silent,
) -> TreeSearch:
    """Let the target answer `prompts`, and count the rank of each token among the draft's guesses.

    Args:
        llm: the target, with or without speculation.
        draft: shares its vocabulary.
        prompts: token ids.
        params: of the target's answers; at temperature 0 an accuracy is the probability of a greedy match.
        num_ranks: number of guesses counted, and so the largest number of children of a node.
        depth: largest depth of the trees.
        progress: called with (what, requests done, number of requests).

    Raises:
        InvalidParameter: a count below 1, or answers without a single token.
    """
    for field, value in (("num_ranks", num_ranks), ("depth", depth)):
        if value < 1:
            raise InvalidParameter(field, f"{value} is less than 1", "give a whole number of at least 1")
    counts = np.zeros(num_ranks + 1, np.int64)
    for done, prompt in enumerate(prompts):
        progress("reading answers with the draft", done, len(prompts))
        output = llm.generate([prompt], params)[0]
        counts += rank_counts(draft, [*output.prompt_token_ids, *output.token_ids], len(prompt), num_ranks)
    progress("reading answers with the draft", len(prompts), len(prompts))
    total = int(counts.sum())
    if total == 0:
        raise InvalidParameter("prompts", "the target answered nothing", "give prompts that it answers")
    return TreeSearch(tuple((counts[:-1] / total).tolist()), total, depth)
