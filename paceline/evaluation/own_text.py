"""Is a text what this model says? One rule for logs that are replayed and for answers that heads learn from."""

import numpy as np

GREEDY_SHARE = 0.9
"""Share of greedy picks below which a text counts as no greedy answer of the model."""
_ERRORS = 3.0


def is_greedy(picked: np.ndarray) -> bool:
    """Whether a text is a greedy answer; `picked` [n] bool says which tokens are the model's own choice.

    Not all of them need be: weights may have been rounded otherwise when it was written.
    """
    return bool(picked.mean() >= GREEDY_SHARE)


def is_drawn(logprobs: np.ndarray, entropies: np.ndarray) -> bool:
    """Whether a text can be a draw of the law that gives its tokens `logprobs` [n] and has `entropies` [n], in nats.

    Under its own law a token's surprise is its entropy on average; another model's text surprises more.
    """
    error = max(1.0, float(entropies.std())) / len(logprobs) ** 0.5
    return bool(-logprobs.mean() <= entropies.mean() + _ERRORS * error)
