"""Small laws for the theory tests: one worked pair, and random ones in exact arithmetic."""

from fractions import Fraction as F

from hypothesis import strategies as st

P = [F(1, 2), F(3, 10), F(1, 5)]
Q = [F(1, 5), F(3, 10), F(1, 2)]


def _normalised(weights: list[int]) -> list[F]:
    return [F(weight, sum(weights)) for weight in weights]


def laws(vocab: int) -> st.SearchStrategy[list[F]]:
    """Laws over `vocab` tokens with small rational entries, zeros among them."""
    weights = st.lists(st.integers(0, 6), min_size=vocab, max_size=vocab)
    return weights.filter(any).map(_normalised)


def pairs(most: int = 4) -> st.SearchStrategy[tuple[list[F], list[F]]]:
    """Two laws over the same vocabulary of 2 .. `most` tokens."""
    return st.integers(2, most).flatmap(lambda vocab: st.tuples(laws(vocab), laws(vocab)))


rates = st.fractions(0, 1, max_denominator=50)
