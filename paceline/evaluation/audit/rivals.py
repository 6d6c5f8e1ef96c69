"""Rivals: laws that faulty speculation would emit, given the target's law p and the draft's law q at one position.

Bets are placed on them (`betting.py`). They are fixed before any data, and most depend on q: a bet on the temperature
alone would never find a lenient rule. Not the lossy rules themselves (`sampling/lossy.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.sampling.law import Law

Emitted = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(p [k], q [k]) to the law [k] that is emitted in place of p."""

LENIENCES = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 16.0)
"""Factors by which an acceptance probability may be too large; 1 is exact."""
_COARSE = 1e-5
"""Tokens below this fraction of the largest probability are merged into one."""
_KEPT = 0.02
"""Weight of p in a rival that forbids tokens, so that one such token does not end its wealth."""


@dataclass(frozen=True, slots=True)
class Rival:
    """One law to bet on.

    Attributes:
        name: of the fault.
        emitted: the law that would be emitted.
        reads_draft: it depends on q, and so differs from p only where something was drafted.
    """

    name: str
    emitted: Emitted
    reads_draft: bool = True


def _lenient(factor: float) -> Emitted:
    def emitted(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return recovered(np.minimum(p * factor, q), np.maximum(p - q / factor, 0))

    return emitted


def _coin(bound: float) -> Emitted:
    def emitted(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return recovered(np.minimum(p / bound, q), np.maximum(p - q, 0))

    return emitted


def _no_residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return recovered(np.minimum(p, q), p)


def _leak(share: float) -> Emitted:
    def emitted(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return (1 - share) * p + share * q / q.sum() if q.sum() > 0 else p

    return emitted


def _soft_top(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The draft's most probable token is proposed, but verified by p/q as if it had been drawn."""
    best = int(np.argmax(q))
    if not q[best] > 0:  # what the draft proposes cannot be said
        return p
    accepted = np.zeros_like(p)
    accepted[best] = min(1.0, p[best] / q[best])
    return recovered(accepted, np.maximum(p - q, 0))


def _merged_duplicates(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Two draws from q, duplicates merged, and each token verified with its probability of being drawn at all as q."""
    accepts = np.minimum(1.0, p / np.maximum(1 - (1 - q) ** 2, np.finfo(float).tiny))
    refused = q * (1 - accepts)
    return recovered(q * accepts * (1 + refused.sum() - refused), np.maximum(p - q, 0))


def _temperature(value: float) -> Emitted:
    def emitted(p: np.ndarray, _q: np.ndarray) -> np.ndarray:
        weights = p ** (1 / value)
        return weights / weights.sum()

    return emitted


def _without_tail(least: float) -> Emitted:
    def emitted(p: np.ndarray, _q: np.ndarray) -> np.ndarray:
        cut = np.where(p >= least * p.max(), p, 0)
        return (1 - _KEPT) * cut / cut.sum() + _KEPT * p

    return emitted


def recovered(accepted: np.ndarray, left: np.ndarray) -> np.ndarray:
    """[k] the emitted law: `accepted` mass of the draft, and the remaining mass from norm(`left`)."""
    total = left.sum()
    return accepted + (1 - accepted.sum()) * left / total if total > 0 else accepted / accepted.sum()


def lenience_name(factor: float) -> str:
    """Name of the rival with this degree of lenience."""
    return f"lenience {factor:g}"


RIVALS = (
    *(Rival(lenience_name(factor), _lenient(factor)) for factor in LENIENCES),
    Rival("accept coin below 0.9", _coin(0.9)),
    Rival("accept coin below 0.5", _coin(0.5)),
    Rival("no residual", _no_residual),
    Rival("draft leaks 1 %", _leak(0.01)),
    Rival("draft leaks 10 %", _leak(0.1)),
    Rival("top child judged as drawn", _soft_top),
    Rival("merged duplicates", _merged_duplicates),
    *(Rival(f"temperature {value:g}", _temperature(value), False) for value in (0.5, 0.9, 0.98, 1.02, 1.1)),
    *(Rival(f"no token below {least:g} of the peak", _without_tail(least), False) for least in (1e-3, 3e-2)),
)
"""All rivals; the bets also have a histogram for unforeseen faults."""


def ratios(p: Law, q: Law | None, token: int) -> np.ndarray:
    """[rivals] a(token) / p(token) for each of `RIVALS`; 1 where a rival needs a draft and there is none.

    Args:
        p: the target's law at the position.
        q: the law the draft was drawn from, one-hot for a deterministic draft, None where nothing was drafted.
        token: the emitted token; its probability under `p` is positive.
    """
    ours, theirs, at = _coarse(p, q, token)
    found = np.ones(len(RIVALS))
    for number, rival in enumerate(RIVALS):
        if theirs is not None or not rival.reads_draft:
            draft = ours if theirs is None else theirs
            found[number] = rival.emitted(ours, draft)[at] / ours[at]
    return found


def draft_quantile(p: Law, q: Law, token: int, uniform: float) -> float:
    """The randomised quantile of `token` under `p` by descending q / p; uniform on [0, 1) if `p` is its law."""
    ours, theirs, place = _coarse(p, q, token)
    assert theirs is not None
    order = theirs / ours
    own = order[place]
    return float(ours[order > own].sum() + uniform * ours[order == own].sum())


def _coarse(p: Law, q: Law | None, token: int) -> tuple[np.ndarray, np.ndarray | None, int]:
    """(p [k], q [k], index of `token`) with the least probable tokens merged into one.

    A bet on merged tokens is as valid as one on tokens, and a vocabulary becomes a few hundred numbers. The draft's
    mass on tokens that are impossible under p is dropped, because these are always rejected.
    """
    probs = p.probs.astype(np.float64)
    theirs = None if q is None else np.asarray(q.on(p.tokens), np.float64)
    likely = probs >= _COARSE * probs.max()
    at = int(np.searchsorted(p.tokens, token))
    place = int(likely[:at].sum()) if likely[at] else int(likely.sum())
    tail = float(probs[~likely].sum())
    if not tail > 0:
        return probs[likely], None if theirs is None else theirs[likely], place
    ours = np.append(probs[likely], tail)
    return ours, None if theirs is None else np.append(theirs[likely], theirs[~likely].sum()), place
