"""The roofline of long contexts: bytes as published, order of the gains, and requests of different lengths."""

from typing import Any

import pytest

from paceline.errors import InvalidParameter
from paceline.theory.acceptance import expected_tokens
from paceline.theory.long_context import Machine, Shape, best_multiplier, step_seconds, throughput_multiplier

A100S = Machine(8 * 1.555e12, 8 * 312e12)
TARGET, DRAFT = Shape(4096, 32), Shape(4096, 32, window=512)
HALF: Any = 2.5


def test_bytes_of_a_layer_are_those_of_magicdec():
    one = Shape(4096, 1)
    assert one.weight_bytes == 402_653_184
    for queries, batch, context, ratio in ((1, 1, 1024, 0.042), (1, 32, 1024, 1.333), (1, 128, 8000, 41.67)):
        shape = Shape(4096, 1, queries)
        assert batch * context * shape.cache_bytes_per_token / shape.weight_bytes == pytest.approx(ratio, rel=0.01)
    shared = Shape(4096, 1, 4)
    assert 32 * 32000 * shared.cache_bytes_per_token / shared.weight_bytes == pytest.approx(11.90, rel=0.01)


@pytest.mark.parametrize(
    ("batch", "context", "gain"), [(32, 1024, 1.06), (32, 8000, 2.21), (128, 8000, 2.75), (32, 32000, 3.50)]
)
def test_upper_bounds_of_self_speculation(batch, context, gain):
    """Acceptance 0.82, a window of 512, a 7B target on eight A100s: 1.06 to 3.50, computed independently."""
    assert best_multiplier(0.82, TARGET, DRAFT, [context] * batch, A100S).speedup == pytest.approx(gain, rel=0.02)


def test_a_step_by_hand():
    machine, shape = Machine(100.0, 1000.0), Shape(2, 3, 2, window=4)
    weights, per_token = 3 * 2 * (40 + 4), 3 * 4 * 2 / 2
    keys = 3 + 4  # of contexts 3 and 10, the window cuts the second
    read = (weights + keys * per_token) / 100
    done = (2 * 5 * weights + 5 * keys * 3 * 4 * 2) / 1000
    assert step_seconds(shape, [3, 10], machine, 5) == max(read, done)
    assert step_seconds(shape, [3, 10], Machine(100.0, 1e9), 5) == read


def test_a_drafts_step_does_not_grow_with_the_context():
    assert step_seconds(DRAFT, [600] * 8, A100S) == step_seconds(DRAFT, [60_000] * 8, A100S)
    gains = [throughput_multiplier(0.8, 3, TARGET, DRAFT, [n] * 32, A100S) for n in (1024, 4096, 16384, 65536)]
    assert gains == sorted(gains) and gains[-1] < float(expected_tokens(0.8, 3))


def test_different_contexts_count_by_their_sum():
    even, uneven = [8000] * 4, [2000, 2000, 4000, 24000]
    assert step_seconds(TARGET, even, A100S) == step_seconds(TARGET, uneven, A100S)
    assert throughput_multiplier(0.8, 3, TARGET, DRAFT, even, A100S) == pytest.approx(
        throughput_multiplier(0.8, 3, TARGET, DRAFT, uneven, A100S)
    )


def test_a_memory_that_all_layers_share_counts_once():
    """By hand: L of 10 d^2 weights, one pair of 2 d^2 / g, one key and value; every layer attends all the same."""
    shape, plain = Shape(8, 3, 2, shared_memory=True), Shape(8, 3, 2)
    assert shape.weight_bytes == 2 * (3 * 10 * 64 + 64) and shape.cache_bytes_per_token == 4 * 8 / 2
    assert plain.cache_bytes_per_token == 3 * shape.cache_bytes_per_token
    slow = Machine(1e15, 1.0)  # operations decide
    attention = 10 * 3 * 4 * 8
    assert step_seconds(shape, [10], slow) == shape.weight_bytes + attention
    assert step_seconds(plain, [10], slow) == plain.weight_bytes + attention
    one_layer = Shape(64, 1, 1, shared_memory=True)
    assert one_layer.weight_bytes == Shape(64, 1).weight_bytes


def test_no_draft_is_plain_decoding():
    assert throughput_multiplier(0.5, 0, TARGET, DRAFT, [100], A100S) == pytest.approx(1.0)
    assert best_multiplier(0.0, TARGET, DRAFT, [100], A100S).num_draft_tokens == 0


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("bytes_per_second", lambda: Machine(0, 1)),
        ("hidden_size", lambda: Shape(0, 1)),
        ("num_layers", lambda: Shape(4096, HALF)),
        ("queries_per_key", lambda: Shape(4096, 2, HALF)),
        ("window", lambda: Shape(64, 1, window=0)),
        ("contexts", lambda: step_seconds(TARGET, [-1], A100S)),
        ("contexts", lambda: step_seconds(TARGET, [HALF], A100S)),
        ("contexts", lambda: throughput_multiplier(0.8, 3, TARGET, DRAFT, [], A100S)),
        ("rows", lambda: step_seconds(TARGET, [10], A100S, HALF)),
        ("num_draft_tokens", lambda: throughput_multiplier(0.8, HALF, TARGET, DRAFT, [100], A100S)),
        ("num_draft_tokens", lambda: expected_tokens(0.8, HALF)),
        ("most", lambda: best_multiplier(0.5, TARGET, DRAFT, [100], A100S, most=-1)),
        ("most", lambda: best_multiplier(0.5, TARGET, DRAFT, [100], A100S, most=True)),
    ],
)
def test_bad_numbers_are_refused_by_name(field, wrong):
    with pytest.raises(InvalidParameter, match=f"^{field}: "):
        wrong()
