"""Ways to get speculation wrong, planted here and nowhere in the product: each draws one token in place of p."""

import numpy as np

from paceline.sampling.law import Law


def laws(rng: np.random.Generator, size: int = 50) -> tuple[Law, Law]:
    """A target's and a draft's law that agree on about two thirds of their mass."""
    logits = 2.2 * rng.standard_normal(size)
    theirs = logits + 0.9 * rng.standard_normal(size)
    return tuple(Law.from_dense(np.exp(one) / np.exp(one).sum()) for one in (logits, theirs))  # type: ignore[return-value]


def pick(rng, probs) -> int:
    return int(rng.choice(len(probs), p=np.asarray(probs) / np.sum(probs)))


def speculate(rng, p, q, accept, residual) -> int:
    """One drafted token, judged: `accept` is its chance, `residual` the weights a recovered one is drawn from."""
    x = pick(rng, q)
    if rng.random() < min(1.0, accept(p, q, x)):
        return x
    left = residual(p, q, x)
    return pick(rng, left if np.sum(left) > 0 else p)


def fair(p, q, x):
    return p[x] / q[x]


def rest(p, q, x):
    return np.maximum(p - q, 0)


def without(x, p):
    kept = p.copy()
    kept[x] = 0
    return kept


def top(values, k):
    kept = np.zeros_like(values)
    best = np.argsort(-values)[:k]
    kept[best] = values[best]
    return kept


def tempered(p, value):
    return p ** (1 / value)


def nucleus(p, mass):
    order = np.argsort(-p)
    kept = np.zeros_like(p)
    inside = order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]
    kept[inside] = p[inside]
    return kept


def swap(p):
    order = np.argsort(-p)
    wrong = p.copy()
    wrong[order[:2]] = wrong[order[[1, 0]]]
    return wrong


def exact(rng, p, q):
    return speculate(rng, p, q, fair, rest)


def merged_duplicates(rng, p, q):
    """Two independent draws; a repeated one is tested once, as if it had been drawn with its chance of appearing."""
    first, second = pick(rng, q), pick(rng, q)
    seen = 1 - (1 - q) ** 2
    for x in {first, second}:
        if rng.random() < min(1.0, p[x] / seen[x]):
            return x
    return pick(rng, np.maximum(p - q, 0))


def no_renormalisation(rng, p, q):
    """Two draws; the second is judged against p and not against what the first left of it."""
    for _ in range(2):
        x = pick(rng, q)
        if rng.random() < min(1.0, p[x] / q[x]):
            return x
    return pick(rng, np.maximum(p - q, 0))


def soft_top(rng, p, q):
    x = int(np.argmax(q))
    return x if rng.random() < min(1.0, p[x] / q[x]) else pick(rng, np.maximum(p - q, 0))


def stops_by_token(rng, p, q):
    """The draft is thrown away when the drawn token looks unlikely, and then judged no more."""
    x = pick(rng, q)
    return pick(rng, p) if q[x] < 0.05 else (x if rng.random() < min(1.0, fair(p, q, x)) else pick(rng, rest(p, q, x)))


FAULTS = {
    "lenience 1.05": lambda r, p, q: speculate(
        r, p, q, lambda p, q, x: 1.05 * p[x] / q[x], lambda p, q, x: np.maximum(p - q / 1.05, 0)
    ),
    "lenience 1.1": lambda r, p, q: speculate(
        r, p, q, lambda p, q, x: 1.1 * p[x] / q[x], lambda p, q, x: np.maximum(p - q / 1.1, 0)
    ),
    "lenience 1.5": lambda r, p, q: speculate(
        r, p, q, lambda p, q, x: 1.5 * p[x] / q[x], lambda p, q, x: np.maximum(p - q / 1.5, 0)
    ),
    "coin below 0.9": lambda r, p, q: speculate(r, p, q, lambda p, q, x: p[x] / q[x] / 0.9, rest),
    "coin below 0.5": lambda r, p, q: speculate(r, p, q, lambda p, q, x: 2 * p[x] / q[x], rest),
    "no residual": lambda r, p, q: speculate(r, p, q, fair, lambda p, q, x: p),
    "residual only without the refused token": lambda r, p, q: speculate(r, p, q, fair, lambda p, q, x: without(x, p)),
    "residual taken from the draft": lambda r, p, q: speculate(r, p, q, fair, lambda p, q, x: np.maximum(q - p, 0)),
    "residual squared": lambda r, p, q: speculate(r, p, q, fair, lambda p, q, x: np.maximum(p - q, 0) ** 2),
    "ratio upside down": lambda r, p, q: speculate(r, p, q, lambda p, q, x: q[x] / p[x], rest),
    "ratio squared": lambda r, p, q: speculate(r, p, q, lambda p, q, x: fair(p, q, x) ** 2, rest),
    "accepts by p alone": lambda r, p, q: speculate(r, p, q, lambda p, q, x: p[x], rest),
    "typical acceptance": lambda r, p, q: speculate(r, p, q, lambda p, q, x: float(p[x] > 0.09), lambda p, q, x: p),
    "accepts what is in the top five": lambda r, p, q: speculate(
        r, p, q, lambda p, q, x: float(p[x] >= np.sort(p)[-5]), lambda p, q, x: p
    ),
    "top child judged as drawn": soft_top,
    "merged duplicates": merged_duplicates,
    "no renormalisation between siblings": no_renormalisation,
    "a stop that looks at the drawn token": stops_by_token,
    "draft leaks 10 %": lambda r, p, q: pick(r, 0.9 * p + 0.1 * q),
    "temperature 0.9": lambda r, p, q: pick(r, tempered(p, 0.9)),
    "temperature 1.1": lambda r, p, q: pick(r, tempered(p, 1.1)),
    "top-p 0.95": lambda r, p, q: pick(r, nucleus(p, 0.95)),
    "top-k 10": lambda r, p, q: pick(r, top(p, 10)),
    "draft judged at another temperature": lambda r, p, q: speculate(
        r, p, tempered(q, 2) / tempered(q, 2).sum(), lambda p, _q, x: p[x] / q[x], lambda p, _q, x: np.maximum(p - q, 0)
    ),
    "two best tokens mixed up": lambda r, p, q: pick(r, swap(p)),
}
