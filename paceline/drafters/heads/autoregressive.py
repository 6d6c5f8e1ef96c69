"""`AutoregressiveRunner`: heads with their own KV cache that run once per drafted level (EAGLE, MTP).

Row r of such a head combines token r + 1 with the target's hidden state at r; for drafted tokens the head's own state
replaces the latter (Li et al. 2024, EAGLE, section 4.1; Li et al. 2025, EAGLE-3, section 3.1). Rows of committed tokens
are recomputed with the target's true states, so the cache equals that of a fresh prefill. Not for trees
(`drafters/trees/`) or arithmetic (`models/heads/nets.py`).
"""

from collections.abc import Sequence

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.heads.paged import PagedRunner, keys_of_pairs
from paceline.drafters.runners.draft_pages import Kept
from paceline.drafters.trees.growth import Growth
from paceline.models.chains import ChainDraft, Draws
from paceline.models.heads.nets import AutoregressiveNet, DraftsAtOnce
from paceline.models.rows import Logits, Part, build_rows
from paceline.models.states import States, concatenate
from paceline.sampling.randomness import ROOT


class AutoregressiveRunner(PagedRunner):
    """Scores growing trees with `net`; other arguments as `PagedRunner`."""

    def __init__(self, net: AutoregressiveNet, states: HiddenStates, num_pages: int, vocab_size: int) -> None:
        super().__init__(states, net.new_cache(num_pages), vocab_size)
        self.score_with(net)
        self.drafts_ahead = self.at_once is not None and self.at_once.verifies_early
        self._below: dict[str, dict[int, np.ndarray]] = {}

    def score_with(self, net: AutoregressiveNet) -> None:
        """Draft with `net` from now on, whose caches are those of the present one."""
        self._net = net
        self.at_once = net if isinstance(net, DraftsAtOnce) else None

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """Run one pass: for each admitted growth the logits [len(nodes), draft vocab] after its `nodes`, all of one
        level."""
        if work[0][1][0] == ROOT:
            parts, sizes, fed = self._roots([growth for growth, _ in work])
        else:
            made = [self._nodes(growth, nodes) for growth, nodes in work]
            parts, sizes = [part for part, _ in made], [len(states) for _, states in made]
            fed = np.concatenate([states for _, states in made])
        logits, hidden = self._net.forward(build_rows(parts), fed, self.cache)
        found, row, asked = [], 0, 0
        for (growth, nodes), size in zip(work, sizes, strict=True):
            row += size
            below = self._below.setdefault(growth.context.request_id, {})
            below.update(zip(nodes, hidden[row - len(nodes) : row].copy(), strict=True))
            found.append(logits[asked : asked + len(nodes)].copy())
            asked += len(nodes)
        return found

    def draft_chains(self, growths: Sequence[Growth], num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """See `ChainRunner`; only where the net drafts `at_once`."""
        assert self.at_once is not None
        parts, _, fed = self._roots(growths)
        drawn = () if draws is None else (draws,)
        return self.at_once.draft_chains(build_rows(parts), fed, self.cache, num_tokens, *drawn)

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self._below.pop(request_id, None)

    def key_of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Prefix-cache keys, one per row: the next token, and for the first row its own token as well."""
        return keys_of_pairs(token_ids, self._vocab_size)

    def compute(self, context: DraftContext, kept: Kept, last: int) -> None:
        """Compute committed rows up to `last` without logits."""
        part, taps = self._committed(context, kept, last, "none")
        self._net.forward(build_rows([part]), self._net.project(taps).copy(), self.cache)

    def _roots(self, growths: Sequence[Growth]) -> tuple[list[Part], list[int], States]:
        """(committed rows of each growth that are not in the cache yet, their numbers, what all of them are fed)."""
        made = []
        for growth in growths:
            kept = self.pages[growth.context.request_id]
            self._below[growth.context.request_id] = {}
            made.append(self._committed(growth.context, kept, len(growth.context.token_ids) - 1, "last"))
        fed = self._net.project(concatenate([taps for _, taps in made])).copy()
        return [part for part, _ in made], [len(taps) for _, taps in made], fed

    def _committed(self, context: DraftContext, kept: Kept, last: int, logits: Logits) -> tuple[Part, States]:
        """(rows from the end of the cache to `last` - 1, the target's states for them); recorded as cached."""
        start = len(kept.tokens)
        following = context.token_ids[start + 1 : last + 1]
        part = Part(kept.pages, start, following, logits=logits)
        kept.tokens += following if start else self.key_of(context.token_ids[: last + 1])
        return part, self.states.take(context, start, last)

    def _nodes(self, growth: Growth, nodes: Sequence[int]) -> tuple[Part, np.ndarray]:
        """(rows of drafted nodes, the head's state at each node's parent)."""
        kept, below = self.pages[growth.context.request_id], self._below[growth.context.request_id]
        fed = np.stack([below[growth.parents[node]] for node in nodes])
        return kept.part_of(growth, nodes), fed
