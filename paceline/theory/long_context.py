"""Speed-up of speculation with a sparse-attention draft for long contexts, by a roofline model.

A step takes the longer of reading its bytes and doing its operations. Contexts may differ between requests: their sum
counts, not the longest. SPIRe (2504.06419) chooses drafts by such a modelled throughput.
Bytes and operations of a layer are those of MagicDec (2408.11049): hidden size d, feed-forward of 4 d, g query heads
share a key head, numbers of 2 bytes:

    weights 2 (10 d^2 + 2 d^2 / g) bytes;  keys and values of a token 4 d / g bytes
    products 2 (10 d^2 + 2 d^2 / g) operations a row;  attention 4 d a row and key

The draft reads at most `window` keys per request, whatever the context. Where all layers share one feedback memory (Fan
et al. 2021; SPIRe), keys and values are computed once per token, by one pair of matrices, and count once. Not for
measured passes (`round.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.theory.acceptance import expected_tokens
from paceline.theory.checks import check_count, check_positive
from paceline.theory.speedup import BestLength
from paceline.theory.tables import Table


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes read and operations done per second, all devices together."""

    bytes_per_second: float
    operations_per_second: float

    def __post_init__(self) -> None:
        check_positive("bytes_per_second", self.bytes_per_second)
        check_positive("operations_per_second", self.operations_per_second)


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer's layers.

    Attributes:
        hidden_size, num_layers: d, and how many.
        queries_per_key: g, query heads that share a key head.
        window: keys that a row attends to, at most; None for all.
        shared_memory: all layers attend to the same keys and values. These count as read once a step, which is true of
            a machine that keeps them on chip between layers; on others only their size is smaller.

    Raises:
        InvalidParameter: a number that is not whole, or below 1.
    """

    hidden_size: int
    num_layers: int
    queries_per_key: int = 1
    window: int | None = None
    shared_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "queries_per_key"):
            check_count(name, getattr(self, name), 1)
        if self.window is not None:
            check_count("window", self.window, 1)

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights of all layers."""
        size = self.hidden_size
        return 2 * (self.num_layers * 10 * size**2 + self._num_caches * 2 * size**2 / self.queries_per_key)

    @property
    def cache_bytes_per_token(self) -> float:
        """Bytes of the keys and values of a token in all layers."""
        return self._num_caches * 4 * self.hidden_size / self.queries_per_key

    @property
    def _num_caches(self) -> int:
        return 1 if self.shared_memory else self.num_layers

    def keys(self, context: int) -> int:
        """Number of keys that a row of a request with this context attends to."""
        return context if self.window is None else min(context, self.window)


def step_seconds(shape: Shape, contexts: Sequence[int], machine: Machine, rows: int = 1) -> float:
    """Seconds of a pass over `rows` rows of each request, of contexts [requests] tokens.

    Raises:
        InvalidParameter: a count that is negative or not whole, or no request.
    """
    check_count("rows", rows)
    check_contexts(contexts)
    keys = sum(map(shape.keys, contexts))
    read = shape.weight_bytes + keys * shape.cache_bytes_per_token
    products = rows * len(contexts) * shape.weight_bytes
    attention = rows * keys * shape.num_layers * 4 * shape.hidden_size
    return max(read / machine.bytes_per_second, (products + attention) / machine.operations_per_second)


def throughput_multiplier(alpha: float, num_draft_tokens: int, target: Shape, draft: Shape, contexts: Sequence[int],
                          machine: Machine) -> float:  # fmt: skip
    """Tokens per second over those of plain decoding: E tokens for `num_draft_tokens` draft steps and one verify pass.

    Requests with other contexts in one batch gain together: the draft's part does not grow with them.

    Raises:
        InvalidParameter: as `step_seconds`, and an `alpha` outside [0, 1].
    """
    check_count("num_draft_tokens", num_draft_tokens)
    plain = step_seconds(target, contexts, machine)
    drafting = num_draft_tokens * step_seconds(draft, contexts, machine)
    verifying = step_seconds(target, contexts, machine, num_draft_tokens + 1)
    return float(expected_tokens(alpha, num_draft_tokens)) * plain / (drafting + verifying)


def best_multiplier(alpha: float, target: Shape, draft: Shape, contexts: Sequence[int], machine: Machine,
                    most: int = 16) -> BestLength:  # fmt: skip
    """The draft length of 0 .. `most` with the largest multiplier, the smallest one on ties."""
    check_count("most", most)
    found = [throughput_multiplier(alpha, length, target, draft, contexts, machine) for length in range(most + 1)]
    best = max(range(most + 1), key=lambda length: (found[length], -length))
    return BestLength(best, found[best])


@dataclass(frozen=True, slots=True)
class BatchGain:
    """The gain of drafting for one batch.

    Attributes:
        num_requests: of the batch.
        mean_context: tokens.
        cost_ratio: a draft step over a plain pass of the target.
        num_draft_tokens: the best draft length; 0 where drafting does not pay.
        multiplier: tokens per second over those of plain decoding, at that length.
    """

    num_requests: int
    mean_context: float
    cost_ratio: float
    num_draft_tokens: int
    multiplier: float


def batch_gain(alpha: float, target: Shape, draft: Shape, contexts: Sequence[int], machine: Machine,
               most: int = 16) -> BatchGain:  # fmt: skip
    """`best_multiplier` with the quantities behind it. Raises as `best_multiplier`."""
    best = best_multiplier(alpha, target, draft, contexts, machine, most)
    ratio = step_seconds(draft, contexts, machine) / step_seconds(target, contexts, machine)
    mean = sum(contexts) / len(contexts)
    return BatchGain(len(contexts), mean, ratio, best.num_draft_tokens, float(best.speedup))


def gains_table(gains: Sequence[BatchGain]) -> Table:
    """One row per batch."""
    columns = ("requests", "mean context", "draft step / pass", "best length", "speed-up")
    rows = tuple((g.num_requests, round(g.mean_context), g.cost_ratio, g.num_draft_tokens, g.multiplier) for g in gains)
    return Table("Drafting over part of the context", columns, rows)


def check_contexts(contexts: Sequence[int]) -> None:
    """Raises InvalidParameter for no request, and for a context that is negative or not whole."""
    if len(contexts) == 0:
        raise InvalidParameter("contexts", "is empty", "give the context of one request or more")
    for context in contexts:
        check_count("contexts", context)
