"""Where the logits are largest: as NumPy finds it, on ties and damaged numbers too, whatever the threads and sizes."""

import numpy as np
import pytest

from paceline.engine.loop.target_pass import PassOutput
from paceline.models.compiled.kernel import entry, kernel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.peaks import UNKNOWN, find_peaks
from paceline.models.numba_executor.reference import stored
from paceline.models.numba_executor.team import Team, share
from paceline.models.rows import Part, build_rows
from paceline.sampling import Warper
from paceline.types import SamplingParams
from tests.fakes import RandomCheckpoint, small_config


@kernel
def _peaks_of(thread, args):
    num_threads, counters, logits, num_rows, width, size, peaks = stored(args)
    find_peaks(counters, 0, 0, thread, num_threads, logits, num_rows, width, size, peaks)


@entry
def peaks_of(slot, args):
    share(slot, _peaks_of, args)


def found(logits: np.ndarray, size: int, num_threads: int) -> list[int]:
    """What the kernel says of the first `size` columns of `logits` [rows, width]."""
    rows, width = logits.shape
    peaks, team = np.full(rows * num_threads, -7), Team(num_threads)
    team.run(peaks_of, num_threads, np.zeros(2, np.int64), logits.reshape(-1), rows, width, size, peaks)
    team.close()
    return peaks[::num_threads].tolist()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 47, 131, 1000])
def test_peaks_are_numpys_and_the_padding_is_not_looked_at(num_threads, size):
    random = np.random.default_rng(size)
    logits = random.normal(size=(6, -(-size // 32) * 32)).astype(np.float32)
    logits[3] = np.round(logits[3])  # many ties
    logits[4] = -3
    logits[5] -= 100
    logits[:, size:] = 50
    assert found(logits, size, num_threads) == logits[:, :size].argmax(axis=1).tolist()


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 40, 99])
def test_a_row_with_a_number_that_is_none_has_no_peak_and_its_neighbours_have(damage, place):
    logits = np.random.default_rng(1).normal(size=(3, 128)).astype(np.float32)
    logits[1, place] = damage
    whole = logits[:, :100].argmax(axis=1).tolist()
    assert found(logits, 100, 2) == [whole[0], UNKNOWN, whole[2]]


@pytest.mark.usefixtures("own_weight_cache")
def test_a_pass_says_where_its_logits_are_largest():
    model = NumbaModel(RandomCheckpoint(small_config("qwen2")), "float32", num_threads=2)
    tokens = np.random.default_rng(2).integers(0, 131, 40).tolist()
    for part in (Part([0, 1, 2], 0, tokens), Part([0, 1, 2], 40, [7], logits="last"), Part([3], 0, [5], logits="none")):
        for view in (model, model.with_vocabulary(70)):
            output = view.forward(build_rows([part]), view.new_cache(4))
            assert output.peaks == output.logits.argmax(axis=1).tolist()
            assert len(output.peaks) == len(output.logits)


@pytest.mark.parametrize("more", [{}, {"logit_bias": {3: 50.0}}, {"temperature": 0.7}, {"min_tokens": 2}])
def test_a_law_is_the_same_with_and_without_the_peak(more):
    params = SamplingParams(**({"temperature": 0} | more))
    logits = np.random.default_rng(3).normal(size=50).astype(np.float32)
    warper = Warper(params, eos_token_ids=[int(logits.argmax())])
    plain, told = warper.law(logits), warper.law(logits, best=int(logits.argmax()))
    assert np.array_equal(plain.tokens, told.tokens)
    assert np.array_equal(plain.probs, told.probs)


def test_picks_look_at_the_logits_where_a_peak_is_unknown():
    logits = np.eye(3, dtype=np.float32)
    assert PassOutput(logits, {}, None, [0, 1, 2]).picks().tolist() == [0, 1, 2]
    assert PassOutput(logits, {}, None, [0, UNKNOWN, 2]).picks().tolist() == [0, 1, 2]
