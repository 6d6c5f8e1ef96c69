"""Lossy rules give a law that differs from the target's, and equals the one of their formulas."""

from collections.abc import Callable
from fractions import Fraction as F
from typing import Any

import numpy as np
import pytest

from paceline.sampling import RULES, GreedyLaw, Law, Warper, resolve
from paceline.sampling.lossy import typical_threshold
from paceline.theory import lenient_law
from paceline.types import SamplingParams

from .tables import Model, drawn, first_token, law, verdicts

TARGET, DRAFT = (F(1, 2), F(3, 10), F(1, 5)), (F(1, 5), F(3, 10), F(1, 2))
PAIRS = [
    (TARGET, DRAFT),
    ((F(1, 10), F(6, 10), F(3, 10)), (F(7, 10), F(1, 10), F(2, 10))),
    ((F(2, 9), F(4, 9), F(3, 9)), (F(1, 4), F(1, 4), F(1, 2))),
]
Row = tuple[F, ...]


def emitted(rule: str, target: Row, draft: Row, length: int = 1, greedy: bool = False, **options: Any) -> Row:
    """The law of the first token after one drafted chain, by enumeration."""
    smooth = law(*target)

    def model(_: tuple[int, ...]) -> Law:
        return GreedyLaw.of(smooth.mode, lambda: smooth) if greedy else smooth

    proposals: Model = lambda _: law(*draft)  # noqa: E731
    chain = drawn(proposals, (1,) * length)
    return first_token(verdicts(lambda randomness: chain((), randomness, 0), model, resolve(rule, **options)), 3)


def uniform_coin(target: Row, draft: Row, bound: F) -> Row:
    """min(p / b, q) + (1 - sum of that) norm(max(0, p - q))."""
    accepted = [min(p / bound, q) for p, q in zip(target, draft, strict=True)]
    left = [max(F(0), p - q) for p, q in zip(target, draft, strict=True)]
    return tuple(a + (1 - sum(accepted)) * r / sum(left) for a, r in zip(accepted, left, strict=True))


def picked(target: Row, draft: Row, stands: Callable[[F], bool]) -> Row:
    """The draft's law on the tokens that stand, and the rest on the target's most probable token."""
    row = [q if stands(p) else F(0) for p, q in zip(target, draft, strict=True)]
    row[target.index(max(target))] += 1 - sum(row)
    return tuple(row)


def near(target: Row, draft: Row, reach: int) -> Row:
    """The draft's law on ids near the target's most probable token, and the rest on that."""
    own = target.index(max(target))
    row = [q if abs(i - own) <= reach else F(0) for i, q in enumerate(draft)]
    row[own] += 1 - sum(row)
    return tuple(row)


def distance(one: Row, other: Row) -> F:
    """Total variation."""
    return sum((abs(a - b) for a, b in zip(one, other, strict=True)), F(0)) / 2


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("strictness", [F(1, 4), F(1, 2), F(4, 5), F(1)])
def test_every_lossy_law_is_the_one_its_formula_says(target: Row, draft: Row, strictness: F, length: int) -> None:
    threshold = typical_threshold(law(*target), strictness, 1)
    most = max(target)
    wanted = {
        "lenient": ({"lenience": strictness}, tuple(lenient_law(target, draft, strictness))),
        "uniform_coin": ({"bound": strictness}, uniform_coin(target, draft, strictness)),
        "lenient_greedy": ({"lenience": strictness}, picked(target, draft, lambda p: p >= strictness * most)),
        "typical": ({"epsilon": strictness, "delta": 1}, picked(target, draft, lambda p: p > threshold)),
        "top_k": ({"k": 2}, picked(target, draft, lambda p: p >= sorted(target)[-2])),
        "distance": ({"distance": 1}, near(target, draft, 1)),
    }
    assert set(wanted) == {name for name in RULES if RULES[name].is_lossy}
    for rule, (options, formula) in wanted.items():
        assert emitted(rule, target, draft, length, **options) == formula, rule


@pytest.mark.parametrize(
    ("rule", "options", "row", "how_far"),
    [
        ("lenient", {"lenience": F(1, 2)}, (F(3, 11), F(18, 55), F(2, 5)), F(5, 22)),
        ("lenient", {"lenience": F(1, 4)}, DRAFT, F(3, 10)),
        ("uniform_coin", {"bound": F(1, 2)}, (F(3, 10), F(3, 10), F(2, 5)), F(1, 5)),
        ("lenient_greedy", {"lenience": F(1, 2)}, (F(7, 10), F(3, 10), F(0)), F(1, 5)),
        ("typical", {"epsilon": F(1, 4), "delta": 1}, (F(7, 10), F(3, 10), F(0)), F(1, 5)),
    ],
)
def test_how_far_from_the_target(rule: str, options: dict, row: Row, how_far: F) -> None:
    """The published pair: the law by hand, and its distance from the target's in total variation."""
    assert emitted(rule, TARGET, DRAFT, **options) == row
    assert distance(row, TARGET) == how_far > 0


@pytest.mark.parametrize("rule", ["lenient", "uniform_coin"])
def test_the_strictest_option_is_exact(rule: str) -> None:
    option = {"lenient": "lenience", "uniform_coin": "bound"}[rule]
    for target, draft in PAIRS:
        assert emitted(rule, target, draft, **{option: F(1)}) == target


@pytest.mark.parametrize(("rule", "option"), [("top_k", {"k": 1}), ("distance", {"distance": 0})])
def test_the_strictest_criterion_of_blockwise_decoding_is_greedy(rule: str, option: dict) -> None:
    for target, draft in PAIRS:
        greedy = tuple(F(int(p == max(target))) for p in target)
        assert emitted(rule, target, draft, length=2, greedy=True, **option) == greedy


@pytest.mark.parametrize(("rule", "option"), [("top_k", {"k": 3}), ("distance", {"distance": 2})])
def test_the_loosest_criterion_says_what_the_draft_says(rule: str, option: dict) -> None:
    for target, draft in PAIRS:
        assert emitted(rule, target, draft, greedy=True, **option) == draft


@pytest.mark.parametrize("rule", ["lenient", "lenient_greedy"])
@pytest.mark.parametrize(("lenience", "row"), [(F(1), (1, 0, 0)), (F(1, 2), (F(7, 10), F(3, 10), 0)), (F(1, 5), DRAFT)])
def test_lenience_at_temperature_zero_relaxes_the_law_before_it_is_one_hot(rule: str, lenience: F, row: Row) -> None:
    assert emitted(rule, TARGET, DRAFT, greedy=True, lenience=lenience) == row


@pytest.mark.parametrize(
    ("rule", "options"), [("typical", {"epsilon": F(1, 100)}), ("uniform_coin", {"bound": F(1, 9)})]
)
def test_typical_and_a_smaller_coin_are_exact_at_temperature_zero(rule: str, options: dict) -> None:
    for target, draft in PAIRS:
        greedy = tuple(F(int(p == max(target))) for p in target)
        assert emitted(rule, target, draft, length=2, greedy=True, **options) == greedy


def test_the_law_before_temperature_zero_keeps_the_processors() -> None:
    """A penalised, biased, greedy law remembers the softmax of the edited logits, with no truncation."""
    params = SamplingParams(temperature=0, logit_bias={1: 1.0}, presence_penalty=0.5, top_k=1)
    greedy = Warper(params, bad_word_ids=[(3,)], token_ids=[2]).law(np.zeros(4, np.float32))
    assert isinstance(greedy, GreedyLaw) and greedy.tokens.tolist() == [1]
    weights = np.exp([0, 1, -0.5])
    np.testing.assert_allclose(greedy.smooth().probs, weights / weights.sum())
