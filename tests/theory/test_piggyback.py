"""Riding decodes: the paper's own figures, and that the gain is largest at perfect coverage, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory.piggyback import (
    PassTimes,
    aligned_chunk,
    kv_loads,
    num_chunks,
    perfect_coverage,
)

TABLE_2 = PassTimes(chunk=1024, batch=4, prefill_only=234.8, decode_only=49.96, decode_maximal=238.4)
"""LLaMA-13B on an A6000, milliseconds."""

seconds = st.fractions(min_value=Fraction(1, 100), max_value=100)


@pytest.mark.parametrize(
    ("chunk", "batch", "ratio"),
    [(128, 4, 42.7), (256, 4, 85.3), (256, 6, 51.2), (256, 10, 28.4), (256, 5, 64), (256, 3, 128), (256, 18, 15.06),
     (512, 18, 30.1)],
)  # fmt: skip
def test_perfect_coverage(chunk, batch, ratio):
    assert float(perfect_coverage(chunk, batch)) == pytest.approx(ratio, abs=0.05)


def test_times_per_token_of_table_2():
    assert TABLE_2.per_prefill_token == pytest.approx(0.229, abs=5e-4)
    assert TABLE_2.per_decode == pytest.approx(12.49)
    assert TABLE_2.per_riding_decode == pytest.approx(1.2)
    assert TABLE_2.decode_speedup == pytest.approx(10.4, abs=0.05)
    assert 1 / TABLE_2.per_prefill_token == pytest.approx(4.36, abs=5e-3)  # tokens per millisecond


def test_an_aligned_chunk_fills_whole_tiles_with_its_decodes():
    """What a row beyond them costs is in tests/placement/test_pipeline_bubbles.py."""
    for batch in (1, 4, 18):
        assert (aligned_chunk(256, batch) + batch - 1) % 128 == 0
    assert aligned_chunk(256, 4) == 253


@pytest.mark.parametrize(("prompt", "chunk"), [(1024, 256), (1000, 256), (1, 7), (512, 512), (513, 512)])
def test_every_chunk_reads_all_before_it(prompt, chunk):
    ends = [min(start + chunk, prompt) for start in range(0, prompt, chunk)]
    assert kv_loads(prompt, chunk) == sum(ends)
    assert num_chunks(prompt, chunk) == len(ends)


@given(seconds, seconds, seconds, st.integers(1, 512), st.integers(2, 32))
def test_the_gain_is_largest_at_perfect_coverage(prefill, extra, decode, chunk, batch):
    times = PassTimes(chunk, batch, prefill, decode, prefill + extra)
    best = times.gain(times.best_ratio)
    factors = Fraction(1, 9), Fraction(9, 10), Fraction(11, 10), Fraction(9)
    around = [times.gain(times.best_ratio * factor) for factor in factors]
    if times.decode_speedup > 1:
        assert best > max(around)
    else:  # riding that does not pay never gains, and is least bad elsewhere
        assert best <= 1


def test_both_sides_of_the_optimum_by_hand():
    times = PassTimes(4, 3, prefill_only=Fraction(4), decode_only=Fraction(6), decode_maximal=Fraction(6))
    best, short, long = Fraction(2), Fraction(1), Fraction(4)
    assert times.throughput(best) == (best + 1) / (Fraction(1, 2) * 6)  # half a chunk, full of decodes
    assert times.throughput(short) == (short + 1) / (Fraction(1, 4) * 6 + Fraction(1, 2) * 2)  # half a decode alone
    assert times.throughput(long) == (long + 1) / (Fraction(1, 2) * 6 + Fraction(1, 2) * 4)  # half a chunk alone
    assert times.separate_throughput(best) == Fraction(3, 4)


def test_bad_numbers_are_refused():
    with pytest.raises(InvalidParameter, match="batch"):
        perfect_coverage(256, 1)
    with pytest.raises(InvalidParameter, match="rows"):
        aligned_chunk(3, 8)
    with pytest.raises(InvalidParameter, match="decode_only"):
        PassTimes(4, 3, 1.0, 0.0, 1.0)
    with pytest.raises(InvalidParameter, match="ratio"):
        TABLE_2.throughput(0)
