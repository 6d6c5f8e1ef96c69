"""What speculation with a draft of sparse attention brings when contexts are long, by bytes and operations alone.

A step takes the longer of reading its bytes and doing its operations (the roofline). Contexts may differ from request
to request: what counts is their sum, not the longest. SPIRe (2504.06419) chooses drafts by such a modelled throughput.
Bytes and operations of a layer are those of MagicDec (2408.11049): hidden size d, feed-forward of 4 d, g query heads
share a key head, numbers of 2 bytes:

    weights 2 (10 d^2 + 2 d^2 / g) bytes;  keys and values of a token 4 d / g bytes
    products 2 (10 d^2 + 2 d^2 / g) operations a row;  attention 4 d a row and key

The draft reads at most `window` keys a request, whatever its context is. Not for measured passes (`round.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.theory.acceptance import expected_tokens
from paceline.theory.checks import check_count, check_positive
from paceline.theory.speedup import BestLength


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
    """

    hidden_size: int
    num_layers: int
    queries_per_key: int = 1
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "queries_per_key"):
            check_positive(name, getattr(self, name))
        if self.window is not None:
            check_count("window", self.window, 1)

    @property
    def weight_bytes(self) -> float:
        """Of all layers."""
        size = self.hidden_size
        return self.num_layers * 2 * (10 * size**2 + 2 * size**2 / self.queries_per_key)

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of a token in all layers."""
        return self.num_layers * 4 * self.hidden_size / self.queries_per_key

    def keys(self, context: int) -> int:
        """That a row of a request with this context attends to."""
        return context if self.window is None else min(context, self.window)


def step_seconds(shape: Shape, contexts: Sequence[int], machine: Machine, rows: int = 1) -> float:
    """Seconds of a pass over `rows` rows of each request, of contexts [requests] tokens.

    Raises:
        InvalidParameter: a negative count.
    """
    check_count("rows", rows)
    keys = sum(shape.keys(check_context(context)) for context in contexts)
    read = shape.weight_bytes + keys * shape.cache_bytes_per_token
    products = rows * len(contexts) * shape.weight_bytes
    attention = rows * keys * shape.num_layers * 4 * shape.hidden_size
    return max(read / machine.bytes_per_second, (products + attention) / machine.operations_per_second)


def throughput_multiplier(alpha: float, num_draft_tokens: int, target: Shape, draft: Shape, contexts: Sequence[int],
                          machine: Machine) -> float:  # fmt: skip
    """Tokens per second over those of plain decoding: E tokens for `num_draft_tokens` draft steps and one verify pass.

    Requests with other contexts in one batch gain together: the draft's part does not grow with them.
    """
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


def check_context(context: int) -> int:
    """`context` itself. Raises InvalidParameter for a negative one."""
    check_count("contexts", context)
    return context
