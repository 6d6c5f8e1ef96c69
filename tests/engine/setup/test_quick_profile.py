"""The first prices of passes: right although another process took the machine for a while, and soon there."""

from functools import partial
from types import SimpleNamespace

import pytest

from paceline.engine.setup.quick_profile import quick_profile


class Timed:
    """A model whose passes take `cost(rows)` seconds by its own clock, those numbered `disturbed` ten times as long."""

    config = SimpleNamespace(vocab_size=7)

    def __init__(self, cost, disturbed=()):
        self._cost, self._disturbed, self.now, self.seen = cost, disturbed, 0.0, []

    def clock(self):
        return self.now

    def new_cache(self, num_pages):
        return None

    def forward(self, rows, cache, taps=()):
        self.seen.append(len(rows.token_ids))
        slower = 10 if len(self.seen) in self._disturbed else 1
        self.now += slower * self._cost(len(rows.token_ids))


def cost(rows: int) -> float:
    return 0.002 + 0.0001 * rows


class Drawing(Timed):
    """A model that draws on its own device, where fetching logits takes longer than the pass."""

    def forward(self, rows, cache, taps=()):
        super().forward(rows, cache)
        self.now += 0.01 * len(rows.logit_rows)

    def begin_drawn(self, rows, cache, taps, questions):
        assert all(question.takes_argmax for question in questions) and len(questions) == len(rows.logit_rows)
        return partial(super().forward, rows, cache)


def test_logits_that_the_engine_does_not_fetch_are_not_in_the_price():
    model = Drawing(cost)
    profile = quick_profile(model, model.clock)  # type: ignore[arg-type]
    for rows in (1, 5, 16, 64):
        assert profile(rows, 256) == pytest.approx(cost(rows))


@pytest.mark.parametrize("disturbed", [range(1, 7), (3, 4), (9, 20)])
def test_a_disturbance_leaves_no_trace(disturbed):
    model = Timed(cost, disturbed)
    profile = quick_profile(model, model.clock)  # type: ignore[arg-type]
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16):
        assert profile(rows, 256) == pytest.approx(cost(rows))
    assert model.now < 1


def test_a_large_model_is_tried_for_about_a_second():
    model = Timed(lambda rows: 0.2 + 0.01 * rows)
    profile = quick_profile(model, model.clock)  # type: ignore[arg-type]
    assert model.seen == [1, 1, 2, 4, 5]
    assert profile(4, 256) == pytest.approx(0.24)


def test_a_clock_that_stands_still_gives_equal_prices():
    profile = quick_profile(Timed(lambda rows: 0.0), lambda: 0.0)  # type: ignore[arg-type]
    assert profile(1, 256) == profile(64, 256) > 0
