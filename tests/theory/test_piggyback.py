"""Riding decodes: the paper's own figures, and that the gain is largest at perfect coverage, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory.intensity import A6000, LLAMA_13B, Part, work
from paceline.theory.long_context import Machine, Shape
from paceline.theory.piggyback import (
    PassTimes,
    aligned_chunk,
    gain_of_decodes,
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


A100, LLAMA_33B = Machine(2.0e12, 312e12), Shape(6656, 60)


@pytest.mark.parametrize(
    ("shape", "machine", "length", "batch", "ratio", "decode_speedup", "printed"),
    [
        (LLAMA_13B, A6000, 1024, 6, 50, 5.45, 1.33),
        (LLAMA_13B, A6000, 2048, 6, 50, 3.26, 1.26),
        (LLAMA_13B, A6000, 3072, 6, 50, 2.51, 1.22),
        (LLAMA_33B, A100, 1024, 10, 28, 3.83, 1.25),
        (LLAMA_33B, A100, 2048, 5, 63, 4.25, 1.22),
        (LLAMA_33B, A100, 3072, 3, 127, 3.51, 1.14),
    ],
)
def test_gains_of_table_4_follow_from_its_decode_speedups(
    shape, machine, length, batch, ratio, decode_speedup, printed
):
    """Prompts and decodes apart cost what bytes and operations say, and chunks of 256 have 7/8 of the peak rate."""
    prompt = work(shape, [Part(length)]).seconds(machine) / length
    decode = work(shape, [Part(1, length)] * batch).seconds(machine) / batch
    gain = gain_of_decodes(ratio, prompt, decode, decode_speedup, chunk_loss=Fraction(1, 7))
    assert 1.01 * printed < gain < 1.075 * printed
    assert gain_of_decodes(ratio, prompt, decode, decode_speedup) > 1.13 * printed, "without the loss it does not"


def test_decode_speedups_of_table_4_are_below_the_bound_of_bytes_and_operations():
    """Times of passes are printed for table 2 only; bounds of passes give 5 to 59 where the table has 2.5 to 5.5."""
    for length, printed in ((1024, 5.45), (2048, 3.26), (3072, 2.51)):
        chunk, decodes = Part(251, length // 2), [Part(1, length)] * 5
        kinds = [chunk], [*decodes, Part(1, length)], [chunk, *decodes]
        times = PassTimes(251, 6, *(work(LLAMA_13B, parts).seconds(A6000) for parts in kinds))
        assert times.decode_speedup > 2 * printed


@given(seconds, seconds, seconds, st.integers(1, 512), st.integers(2, 32))
def test_the_gain_of_decodes_is_that_of_passes_at_perfect_coverage(prefill, extra, decode, chunk, batch):
    times = PassTimes(chunk, batch, prefill, decode, prefill + extra)
    shown = times.per_prefill_token, times.per_decode, times.decode_speedup
    assert gain_of_decodes(times.best_ratio, *shown) == times.gain(times.best_ratio)
    if shown[2] > 1:
        assert gain_of_decodes(2 * times.best_ratio, *shown) == times.gain(2 * times.best_ratio)


def test_both_sides_of_the_optimum_by_hand():
    times = PassTimes(4, 3, prefill_only=Fraction(4), decode_only=Fraction(6), decode_maximal=Fraction(6))
    best, short, long = Fraction(2), Fraction(1), Fraction(4)
    assert times.throughput(best) == (best + 1) / (Fraction(1, 2) * 6)  # half a chunk, full of decodes
    assert times.throughput(short) == (short + 1) / (Fraction(1, 4) * 6 + Fraction(1, 2) * 2)  # half a decode alone
    assert times.throughput(long) == (long + 1) / (Fraction(1, 2) * 6 + Fraction(1, 2) * 4)  # half a chunk alone
    assert times.separate_throughput(best) == Fraction(3, 4)
    assert all(isinstance(times.gain(ratio), Fraction) for ratio in (best, short, long))


def test_bad_numbers_are_refused():
    with pytest.raises(InvalidParameter, match="batch"):
        perfect_coverage(256, 1)
    with pytest.raises(InvalidParameter, match="rows"):
        aligned_chunk(3, 8)
    with pytest.raises(InvalidParameter, match="decode_only"):
        PassTimes(4, 3, 1.0, 0.0, 1.0)
    with pytest.raises(InvalidParameter, match="ratio"):
        TABLE_2.throughput(0)
    with pytest.raises(InvalidParameter, match="decode_speedup"):
        gain_of_decodes(50, 1.0, 8.0, 0)
