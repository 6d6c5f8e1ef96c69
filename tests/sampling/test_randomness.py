"""`CounterRandomness`: known answers, a slow twin, uniformity, and independence of keys. Seeds are fixed."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sampling import CounterRandomness, Law, fresh_seed
from paceline.sampling.randomness import ROOT, Purpose, _stream

MASK = 2**64 - 1
keys = st.tuples(st.integers(0, 10**6), st.sampled_from(["target", "draft", "accept"]), st.integers(-1, 300))


def splitmix64(state: int) -> int:
    """One output of the generator's published definition, on plain integers."""
    z = state & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def slow_noise(seed: int, position: int, purpose: str, node: int, token: int) -> float:
    step = 0x9E3779B97F4A7C15
    key = 0
    for word in (seed, position, {"target": 1, "draft": 2, "accept": 3}[purpose], node):
        key = splitmix64((key ^ (word & MASK)) + step)
    bits = splitmix64(key + (token + 1) * step) >> 12
    return -math.log((bits + 0.5) / 2**52)


def test_stream_gives_the_published_outputs_of_splitmix64() -> None:
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert _stream(1234567, np.arange(4)).tolist() == wanted


@given(st.integers(-(2**70), 2**70), keys)
def test_fast_noise_is_the_slow_noise(seed: int, key: tuple[int, Purpose, int]) -> None:
    tokens = np.array([0, 1, 7, 49151, 2**31])
    fast = CounterRandomness(seed).exponentials(tokens, *key)
    slow = [slow_noise(seed, *key, token) for token in tokens.tolist()]
    np.testing.assert_allclose(fast, slow, rtol=1e-14)


@given(st.integers(-(2**70), 2**70), st.integers(0, 3), st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_target_keys_are_the_keys_of_the_targets_draws(seed: int, stream: int, positions: list[int]) -> None:
    """They are computed many at a time; in whatever order they are asked for, each is that of its position."""
    randomness = CounterRandomness(seed, stream)
    for position in [*positions, 2**40, *positions]:
        assert randomness.target_key(position) == randomness.key(position, "target", ROOT)


def test_known_answers() -> None:
    """What a seed says is part of the product: these values may not change between releases."""
    law = Law(np.arange(1000), np.full(1000, 1e-3))
    randomness = CounterRandomness(42)
    assert [randomness.draw(law, position, "target") for position in range(5)] == [465, 545, 384, 937, 443]
    assert [randomness.draw(law, 7, "draft", node) for node in range(5)] == [260, 212, 130, 571, 51]
    assert randomness.uniform(3, 1) == 0.1773285728536217


def test_streams_of_a_seed_share_nothing() -> None:
    """Stream 0 is the seed's own; coins and draws of two streams agree as often as chance makes them."""
    assert CounterRandomness(7, 0).uniform(3, 1) == CounterRandomness(7).uniform(3, 1)
    assert CounterRandomness(7, 2).uniform(3, 1) == CounterRandomness(7, 2).uniform(3, 1)
    fair, trials = Law(np.arange(2), np.full(2, 0.5)), 4000
    for first, second in ((0, 1), (1, 2)):
        streams = CounterRandomness(7, first), CounterRandomness(7, second)
        uniforms = np.array([[one.uniform(position, 0) for position in range(trials)] for one in streams])
        draws = np.array([[one.draw(fair, position, "target") for position in range(trials)] for one in streams])
        assert abs(np.corrcoef(uniforms)[0, 1]) < 4 / trials**0.5
        assert abs((draws[0] == draws[1]).mean() - 0.5) < 4 * 0.5 / trials**0.5


def test_answers_do_not_depend_on_the_order_of_calls() -> None:
    law = Law(np.arange(50), np.full(50, 0.02))
    forward, backward = CounterRandomness(5), CounterRandomness(5)
    places = [(position, node) for position in range(6) for node in range(4)]
    first = {place: (forward.draw(law, place[0], "draft", place[1]), forward.uniform(*place)) for place in places}
    second = {
        place: (backward.draw(law, place[0], "draft", place[1]), backward.uniform(*place)) for place in places[::-1]
    }
    assert first == second


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_coins_are_uniform() -> None:
    randomness = CounterRandomness(11)
    uniforms = np.array([randomness.uniform(position, node) for position in range(2000) for node in range(5)])
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    counts = np.histogram(uniforms, bins=20, range=(0, 1))[0]
    assert chi_square(counts, np.full(20, 500)) < 43.8  # 19 degrees of freedom, 0.1 %
    assert [randomness.coin(1.0, p, 0) for p in range(50)] == [True] * 50
    assert [randomness.coin(0.0, p, 0) for p in range(50)] == [False] * 50


@pytest.mark.parametrize("purpose", ["target", "draft"])
def test_draws_follow_their_law(purpose: Purpose) -> None:
    probs = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    law = Law(np.array([3, 17, 40, 1000, 30000, 49151]), probs)
    randomness = CounterRandomness(123)
    drawn = [randomness.draw(law, position, purpose, 2) for position in range(10_000)]
    counts = np.array([drawn.count(token) for token in law.tokens.tolist()])
    assert chi_square(counts, 10_000 * probs) < 20.5  # 5 degrees of freedom, 0.1 %


def exponentials(seed: int, position: int, purpose: Purpose, node: int, num_tokens: int = 40_000) -> np.ndarray:
    return CounterRandomness(seed).exponentials(np.arange(num_tokens), position, purpose, node)


@pytest.mark.parametrize(
    "other", [(8, 5, "target", -1), (7, 6, "target", -1), (7, 5, "draft", -1), (7, 5, "target", 0)]
)
def test_noise_under_neighbouring_keys_is_uncorrelated(other: tuple[int, int, Purpose, int]) -> None:
    """Each neighbour differs in one word of the key."""
    one, two = exponentials(7, 5, "target", -1), exponentials(*other)
    bound = 4 / math.sqrt(len(one))
    assert abs(one.mean() - 1) < bound
    for lag in (0, 1, 2):
        assert abs(np.corrcoef(one[lag:], two[: len(two) - lag])[0, 1]) < bound
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < bound


def test_same_noise_races_both_laws_of_a_key() -> None:
    """A law that only scales the losers down keeps its winner."""
    randomness = CounterRandomness(3)
    flat = Law(np.arange(30), np.full(30, 1 / 30))
    for position in range(40):
        winner = randomness.draw(flat, position, "target")
        tilted = np.where(np.arange(30) == winner, 2.0, 1.0)
        assert randomness.draw(Law(np.arange(30), tilted / tilted.sum()), position, "target") == winner


def test_one_hot_takes_no_noise_and_no_time() -> None:
    law, randomness = Law.one_hot(31337), CounterRandomness(0)
    start = time.perf_counter()
    assert {randomness.draw(law, position, "target") for position in range(1000)} == {31337}
    assert time.perf_counter() - start < 0.1


def test_fresh_seeds_differ_and_fit_63_bits() -> None:
    seeds = {fresh_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.filterwarnings("error")
def test_probabilities_next_to_nothing_lose_without_a_word():
    law = Law(np.array([1, 2]), np.array([1.0, 1e-320]))
    assert {CounterRandomness(seed).draw(law, 0, "target") for seed in range(50)} == {1}
