"""A law that cannot be had ends a text where plain decoding ends it, whatever was drafted: by enumeration."""

from fractions import Fraction

import numpy as np
import pytest

from paceline.sampling import Law, TokenTree
from paceline.sampling.enumeration import EnumeratedRandomness, law_of
from paceline.sampling.randomness import ROOT
from paceline.sampling.rules import resolve, verify_as_far

LENGTH = 3
DRAFT = Law.from_dense(np.array([Fraction(1, 4), Fraction(3, 4)]))
Text = tuple[int | str, ...]


class Forbidden(ValueError):
    """Nothing may follow."""


def law_after(text: tuple[int, ...]) -> Law:
    """The target's; nothing may follow "0 1"."""
    if text[-2:] == (0, 1):
        raise Forbidden
    first = Fraction(1, 3) if text[-1:] == (1,) else Fraction(2, 5)
    return Law.from_dense(np.array([first, 1 - first]))


def plain(randomness: EnumeratedRandomness) -> Text:
    text: tuple[int, ...] = ()
    while len(text) < LENGTH:
        try:
            text += (randomness.draw(law_after(text), len(text), "target"),)
        except Forbidden:
            return (*text, "error")
    return text


def drafted(rule: str, one_hot: bool, num_drafted: int):
    def run(randomness: EnumeratedRandomness) -> Text:
        text: tuple[int, ...] = ()
        while len(text) < LENGTH:
            tokens = [
                1 if one_hot else randomness.draw(DRAFT, len(text) + at, "draft", at) for at in range(num_drafted)
            ]
            laws = None if one_hot else tuple([DRAFT] * num_drafted)
            tree = TokenTree.chain(tokens, laws) if laws else TokenTree.chain(tokens)

            def target(node: int, said: tuple[int, ...] = text, tree: TokenTree = tree) -> Law:
                return law_after(said if node == ROOT else said + tree.tokens_to(node))

            try:
                verdict = verify_as_far(resolve(rule), tree, target, randomness, len(text))
            except Forbidden:
                return (*text, "error")
            text += (*(tree.tokens[node] for node in verdict.path), verdict.token)
        return text[:LENGTH]

    return run


@pytest.mark.parametrize("num_drafted", [1, 2, 3])
@pytest.mark.parametrize(
    ("rule", "one_hot"),
    [("p/q", False), ("p/q", True), ("block", False), ("sample_and_match", False),
     ("rejection_sampling", False), ("rejection_sampling", True), ("auto", True)],
)  # fmt: skip
def test_texts_and_errors_have_plain_decodings_law(rule, one_hot, num_drafted):
    expected = law_of(plain, number=Fraction)
    assert any("error" in text for text in expected)
    assert law_of(drafted(rule, one_hot, num_drafted), number=Fraction) == expected


def test_what_fails_at_the_root_is_raised_as_it_is():
    def target(node: int) -> Law:
        raise Forbidden

    with pytest.raises(Forbidden):
        verify_as_far(resolve("p/q"), TokenTree.chain([1]), target, EnumeratedRandomness(), 0)
