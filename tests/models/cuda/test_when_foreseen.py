"""When a pass is launched ahead, with stand-ins for passes and for the clock."""

import pytest

torch = pytest.importorskip("torch")

from types import SimpleNamespace  # noqa: E402

from paceline.models.cuda_executor.fetch import Fetch  # noqa: E402
from paceline.models.cuda_executor.foreseen import Foreseen  # noqa: E402
from paceline.models.cuda_executor.gain import Gain  # noqa: E402
from paceline.models.cuda_executor.passes import CudaKVCache  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.sampling.answered import Question  # noqa: E402
from tests.fakes import small_config  # noqa: E402

CPU = torch.device("cpu")
GREEDY = Question(0.0, 0.0, 0, 1.0, None, 0)
PASS, HOST = 8.0, 1.0
"""Seconds of a pass and of the host between two steps."""


class Steps:
    """Steps of one request whose tokens are all 5, on a clock of its own; the first one records its pass."""

    def __init__(self):
        self.now, self._passes, self._place = 0.0, SimpleNamespace(num_launched=0), 0
        self._cache = CudaKVCache(small_config(), 40, CPU, torch.float32)
        self.foreseen = Foreseen(
            self._launch,
            lambda *_: True,
            self._passes,
            Fetch(CPU),
            512,
            torch.zeros(8, dtype=torch.int32),
            clock=lambda: self.now,
        )

    def _launch(self, rows, cache, taps, questions, *, is_foreseen=False, advance=None, keys=None):
        self._passes.num_launched += 1
        cache.changes += 1
        cache.graphs["only"] = (lambda: ()), ()
        self.now += 0.0 if is_foreseen else PASS
        return torch.tensor([[5.0, 1.0]], dtype=torch.float64), None

    def run(self, count, *, follow):
        """So many, between which somebody else runs passes unless each is to follow from the one before."""
        for _ in range(count):
            self.now += HOST
            self._cache.changes += not follow
            rows = build_rows([Part(range(40), self._place, [5])])
            table, states = self.foreseen.begin(rows, self._cache, (), [GREEDY])()
            assert table.tolist() == [[5.0, 1.0]] and states is None
            self._place += 1


def test_steps_that_follow_from_each_other_are_launched_ahead_in_time():
    steps = Steps()
    steps.run(60, follow=True)
    assert 30 < steps.foreseen.num_taken <= steps.foreseen.num_foreseen < 60


def test_passes_that_are_repeated_to_be_timed_are_not_launched_ahead():
    steps = Steps()
    for _ in range(60):
        steps.run(1, follow=True)
        steps._place -= 1
    assert steps.foreseen.num_foreseen == 0


@pytest.mark.parametrize("before", [2, 60])
def test_passes_for_nothing_end(before):
    steps = Steps()
    steps.run(before, follow=True)
    begun = steps.foreseen.num_foreseen
    steps.run(200, follow=False)
    assert steps.foreseen.num_foreseen - begun <= 1


def test_what_the_caller_does_while_a_pass_runs_is_no_part_of_the_pass():
    known = Gain(lambda: 0.0)
    for seconds, ended_before, average in ((9, True, 9), (1, True, 8), (20, True, 8), (16, False, 9)):  # at most 9
        known.learn_pass(seconds, ended_before)
        assert known._pass_seconds == average
