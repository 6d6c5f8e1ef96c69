"""Draws without a law: the token that the host draws from the law, or none."""

import numpy as np
import pytest

from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.races import race
from paceline.sampling import CounterRandomness, Warper
from paceline.sampling.answered import question_about
from paceline.types import SamplingParams
from tests.fakes import RandomCheckpoint, small_config

SIZES = (1, 2, 255, 256, 257, 3000)
LIMITS = [
    {"temperature": 1.0}, {"temperature": 0.05}, {"temperature": 30.0}, {"temperature": 1e-6},
    {"temperature": 1.0, "top_k": 1}, {"temperature": 0.8, "top_k": 7}, {"temperature": 1.0, "top_k": 4000},
    {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.5, "top_p": 0.3}, {"temperature": 1.0, "top_p": 0.99999},
]  # fmt: skip
NOISE = CounterRandomness(5)


def rows_of(size, seed=0):
    """Logits of several shapes: even, peaked, with ties, far below the largest, all equal."""
    random = np.random.default_rng(seed)
    rows = random.normal(0, 3, (40, size)).astype(np.float32)
    rows[8:16] *= 4
    rows[16:24] = np.round(rows[16:24])
    rows[24:28, 1:] -= 150
    rows[28:32, 1:] -= np.float32(1e30)
    rows[32:] = random.normal(size=(8, 1))
    return rows


def drawn(values, rows):
    """(what the race says of each row, what the host draws from its law)."""
    params = SamplingParams(**values)
    warper = Warper(params, token_ids=[1], num_prompt_tokens=1)
    ours = [
        race(
            row if place % 2 else row.astype(np.float64),
            int(row.argmax()),
            params.temperature,
            params.top_k,
            params.top_p,
            np.uint64(_key(place)),
        )
        for place, row in enumerate(rows)
    ]
    return ours, [NOISE.draw(warper.law(row), place, "target") for place, row in enumerate(rows)]


def _key(position):
    return NOISE.key(position, "target", -1)


@pytest.mark.parametrize("values", LIMITS, ids=str)
def test_the_race_is_won_by_the_token_of_the_law(values):
    decided = 0
    for size in SIZES:
        ours, theirs = drawn(values, rows_of(size))
        assert all(one in (other, -1) for one, other in zip(ours, theirs, strict=True))
        decided += sum(one >= 0 for one in ours)
    least = {"top_k": 0.15, "top_p": 0.15}.get(next(reversed(values)), 1)
    assert decided >= least * 40 * len(SIZES)


def test_the_share_of_a_nucleus_is_the_laws():
    """A token is refused only outside the nucleus or within a thousandth of its edge."""
    params, rows = SamplingParams(temperature=1.3, top_p=0.6), rows_of(3000)[:24]
    for place, row in enumerate(rows):
        weights = np.exp((row - row.max()).astype(np.float64) / 1.3)
        token = race(row, int(row.argmax()), 1.3, 0, 1.0, np.uint64(_key(place)))
        above = weights[row > row[token]].sum() / weights.sum()
        kept = race(row, int(row.argmax()), 1.3, 0, params.top_p, np.uint64(_key(place)))
        is_inside = above < 0.6 * (1 - 1e-3) and (row == row[token]).sum() == 1
        assert kept == (token if is_inside else -1) or abs(above - 0.6) < 1e-3


def test_logits_that_differ_too_little_for_double_precision_are_left_to_the_law():
    """Their weights are the same, and a nucleus takes lower ids first, not larger logits."""
    params, warper = SamplingParams(temperature=1.0, top_p=0.5), Warper(SamplingParams(temperature=1.0, top_p=0.5))
    near = np.arange(300, dtype=np.float32) * np.float32(1e-20)
    for row in (near, np.append(near, np.float32(1.0)), -near.astype(np.float64)):
        best = int(row.argmax())
        for place in range(60):
            token = race(row, best, params.temperature, 0, params.top_p, np.uint64(_key(place)))
            assert token in (-1, NOISE.draw(warper.law(row), place, "target"))


def test_a_temperature_too_small_for_single_precision_is_left_to_the_law():
    row = rows_of(300)[0]
    assert race(row, int(row.argmax()), 1e-39, 0, 1.0, np.uint64(1)) == -1


@pytest.mark.usefixtures("own_weight_cache")
def test_laws_that_are_cheap_or_have_two_limits_are_left_to_the_host():
    model, row = NumbaModel(RandomCheckpoint(small_config()), "float32", num_threads=1), rows_of(131)[0]
    for values, is_raced in (({}, True), ({"min_p": 0.1}, False), ({"top_k": 5, "top_p": 0.9}, False)):
        warper = Warper(SamplingParams(temperature=1.0, **values), token_ids=[1], num_prompt_tokens=1)
        token = model.race(row, int(row.argmax()), question_about(warper, (), _key(3)))
        assert token == (NOISE.draw(warper.law(row), 3, "target") if is_raced else None)
