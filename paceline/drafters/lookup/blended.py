"""`Blended`: a lookup drafter that combines matches in the request's text and past outputs with the model's memory.

A draft is a tree of the nodes most likely to be accepted. Needs no model; a proposal takes tens of microseconds. Exact
like every lookup, because proposals are deterministic. `grow.py` estimates the probabilities; the scoring of the
SuffixDecoding paper is in `drafters/lookup/suffix.py`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.lookup import grow as compiled
from paceline.drafters.lookup.calibration import Calibration
from paceline.drafters.lookup.grow import LONGEST_MATCH, MOST_CANDIDATES
from paceline.drafters.lookup.memory import Memory, no_memory
from paceline.drafters.lookup.past_pools import PastPools
from paceline.drafters.lookup.texts import PastOutputs, TextIndex
from paceline.drafters.same_text import CHECKED_TAIL, goes_on
from paceline.errors import InvalidParameter
from paceline.models.compiled.disk import keep_on_disk
from paceline.models.numba_executor.sources import kernel_sources
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

Mode = Literal["path", "tree"]

_TRUST = (6, 4, 3, 2, 1.5, 1, 0.6, 0.4, 0.25, 0.2, 0.2, 0.2)
"""Smoothing weights `trust_n` (see `grow.py`) by match length, 1 to `LONGEST_MATCH`. Chosen on conversations of the
default model, where halving or doubling all of them costs two per cent of the tokens per pass."""
_LESS_TRUST = 4.0
"""How much less past answers are trusted than the text itself; on the same conversations 1 to 16 differ by 0.4 %."""
_NO_TRUST = 1e9
LEAST_CHANCE = 0.02
"""Smallest proposed probability: on no machine does a row cost less than a fiftieth of a token."""
NO_KEYS = np.zeros(0, np.uint64)
MOST_NODES = 16
"""Largest number of nodes. On conversations, further ones have probabilities below 0.04, and each takes 3 microseconds
to find."""


def trust(order: int) -> np.ndarray:
    """[2, LONGEST_MATCH + 1] smoothing weights by match length, for the request's own text and for past outputs.

    With a memory of sequences up to `order` tokens, which has far larger counts of short matches, past outputs count
    only for matches of at least `order` tokens; otherwise unrelated outputs cost five per cent.
    """
    own = np.array((0.0, *_TRUST))
    past = own.copy()
    if order > 1:
        past *= _LESS_TRUST
        past[:order] = _NO_TRUST
    return np.stack((own, past))


class Blended:
    """Drafts from the request's text, past outputs and a memory together.

    Args:
        memory: of the model's answers; None for none.
        mode: ``tree`` proposes the nodes most likely to be accepted, ``path`` a single continuation.
        min_token_prob: nodes with a smaller estimated acceptance probability are not proposed. The length policy
            decides how many of the others are verified.
        max_cached_tokens: past output tokens to keep; the oldest outputs are dropped first, 0 keeps none.

    Raises:
        InvalidParameter: an unknown mode, a number out of range.
    """

    name = "suffix"

    def __init__(
        self,
        memory: Memory | None = None,
        mode: Mode = "tree",
        min_token_prob: float = LEAST_CHANCE,
        max_cached_tokens: int = 32_768,
    ) -> None:
        if mode not in ("path", "tree"):
            raise InvalidParameter("mode", f"{mode!r} is unknown", "use 'path' or 'tree'")
        if not 0 <= min_token_prob <= 1:
            raise InvalidParameter("min_token_prob", f"{min_token_prob} is not in [0, 1]", "give a probability")
        if max_cached_tokens < 0:
            raise InvalidParameter("max_cached_tokens", f"{max_cached_tokens} is negative", "give 0 or more")
        remembers = max_cached_tokens > 0
        self.traits = DrafterTraits(
            branches=mode == "tree", whole=True, natural_budget=MOST_NODES, deterministic=True, remembers=remembers,
            estimates=True, prefers_coupled=True,
        )  # fmt: skip
        self._least = max(min_token_prob, 1e-9)
        memory = no_memory() if memory is None else memory
        self._memory, self._order = memory.arrays, memory.info.order
        self._trust = trust(memory.info.order)
        self._past = PastPools(lambda: PastOutputs(max_cached_tokens), max_cached_tokens)
        self._requests: dict[str, _Request] = {}
        self._calibration, self._raced = Calibration(), Calibration()
        self._room = _Room(1, self._order)
        any_text = TextIndex()
        any_text.append([0])
        self._grown(any_text, self._past.of(b"").index, 1, 1, NO_KEYS, 0.0)  # compiles, or reads what was compiled

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context; empty when no continuation is probable enough."""
        return [self._tree(context) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Update the calibration; a finished request's output is added to the past outputs."""
        request = self._requests.get(outcome.request_id)
        if request is None:
            return
        if request.proposed is not None:
            calibration, tokens, parents, reached = request.proposed
            calibration.judge(tokens, parents, reached, outcome)
            request.proposed = None
        if outcome.finished:
            self._past.add(request.salt, outcome.token_ids[request.num_prompt_tokens :])
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request, but not past outputs; if it returns, its text is indexed again."""
        self._requests.pop(request_id, None)

    def _tree(self, context: DraftContext) -> TokenTree:
        request = self._request(context)
        budget = context.budget if self.traits.branches else context.longest
        past = self._past.of(context.salt).index
        keys = np.array(context.target_keys(min(context.max_depth, budget)), np.uint64)
        size = self._grown(request.index, past, budget, context.max_depth, keys, context.params.temperature)
        tokens, parents, reached = (array[:size].tolist() for array in self._room.tree)
        calibration = self._raced if len(keys) else self._calibration
        request.proposed = calibration, tokens, parents, reached
        chances = calibration(self._room.tree[2][:size])
        return TokenTree(tuple(tokens), tuple(parents), chances=tuple(chances.tolist()))

    def _grown(
        self, own: TextIndex, past: TextIndex, budget: int, max_depth: int, keys: np.ndarray, temperature: float
    ) -> int:
        """Grow the tree after the text `own`, also from `past`, in the work arrays; returns its number of nodes.

        Other arguments as of `grow`.
        """
        if budget > self._room.budget:
            self._room = _Room(budget, self._order)
        room = self._room
        return _grow()(
            _arrays(own), _arrays(past), self._memory, self._trust, budget, max_depth, self._least,
            self.traits.branches, keys, temperature, room.tree, room.queue, room.nodes, room.path, room.work,
        )  # fmt: skip

    def _request(self, context: DraftContext) -> "_Request":
        """The request's indexed text, extended by new tokens; restarted when it is not a continuation."""
        request = self._requests.get(context.request_id)
        if request is None or not request.is_prefix_of(context.token_ids):
            request = self._requests[context.request_id] = _Request(context.num_prompt_tokens, context.salt)
        request.index.append(context.token_ids[request.index.length :])
        return request


class _Request:
    """A request's indexed text, and the latest proposal: (calibration, tokens, parents, uncalibrated probabilities)."""

    def __init__(self, num_prompt_tokens: int, salt: bytes) -> None:
        self.index = TextIndex()
        self.num_prompt_tokens, self.salt = num_prompt_tokens, salt
        self.proposed: tuple[Calibration, list[int], list[int], list[float]] | None = None

    def is_prefix_of(self, token_ids: Sequence[int]) -> bool:
        """Whether `token_ids` continues the indexed text, judged by its length and last tokens."""
        length = self.index.length
        return goes_on(token_ids, length, self.index.tokens[max(0, length - CHECKED_TAIL) : length].tolist())


class _Room:
    """Work arrays of a call of `grow`."""

    def __init__(self, budget: int, order: int) -> None:
        self.budget = budget
        candidates, lengths = MOST_CANDIDATES, LONGEST_MATCH + 1
        self.tree = (np.zeros(budget, np.int64), np.zeros(budget, np.int64), np.zeros(budget))
        queued = (budget + 1) * candidates
        self.queue = (np.zeros(queued, np.int64), np.zeros(queued, np.int64), np.zeros(queued))
        self.nodes = np.zeros((budget + 2, max(1, order)), np.int64)
        self.path = np.zeros(budget + 1, np.int64)
        counts = [np.zeros((lengths, candidates)) for _ in range(2)]
        totals = [np.zeros(lengths) for _ in range(2)]
        tokens, chances = np.zeros(candidates, np.int64), np.zeros(candidates)
        self.work = (tokens, chances, counts[0], totals[0], counts[1], totals[1])


def _arrays(index: TextIndex) -> tuple[Any, ...]:
    return index.tokens, index.previous, index.heads, index.begin, index.length


@cache
def _grow() -> Callable[..., int]:
    """`grow.grow`, compiled and cached on disk until its files change."""
    return keep_on_disk(compiled.grow, [Path(compiled.__file__), *kernel_sources()])
