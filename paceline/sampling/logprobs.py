"""Log-probabilities of emitted tokens, from the row of logits that each was drawn from.

Logits are bitwise the same alone, in a batch or in a tree, and so are these. Not for laws to draw from (`warp.py`).
"""

import numpy as np

from paceline.sampling.law import GreedyLaw, Law
from paceline.types import TokenLogprobs


def raw_logprobs(logits: np.ndarray, token: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities under the model's unprocessed law at temperature 1.

    Args:
        logits: [vocab] float32.
        token: the emitted token.
        num_top: number of most probable tokens to include.
    """
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    return TokenLogprobs(token, float(scores[token]), _top(scores, num_top), _rank(scores, scores[token]))


def processed_logprobs(law: Law, token: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities under the warped law, or under `GreedyLaw.smooth` if greedy. Arguments as `raw_logprobs`."""
    full = law.smooth() if isinstance(law, GreedyLaw) else law
    tokens, probs = full.top(num_top) if num_top else ([], [])
    top = tuple((each, float(np.log(prob))) for each, prob in zip(tokens, probs, strict=True))
    prob = float(full.prob(token))
    return TokenLogprobs(token, float(np.log(prob)) if prob > 0 else -np.inf, top, _rank(full.probs, prob))


def _rank(weights: np.ndarray, own: float) -> int:
    return 1 + int((weights > own).sum())


def _top(scores: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` largest of `scores` with their ids, lower ids first on ties."""
    if not count:
        return ()
    count = min(count, len(scores))
    edge = np.partition(scores, len(scores) - count)[len(scores) - count]
    ids = np.flatnonzero(scores >= edge)
    best = ids[np.argsort(-scores[ids], kind="stable")][:count]
    return tuple((int(each), float(scores[each])) for each in best)
