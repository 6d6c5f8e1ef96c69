"""Drawn arrivals have the law they claim; fitted ones look like what they were fitted to."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import PlacedModel, Workload
from paceline.placement.arrivals import (
    assign_models,
    draw_for_models,
    fit,
    gamma_times,
    poisson_times,
    power_law_shares,
)
from paceline.placement.workload import merge


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_asked_mean_and_variation(cv):
    gaps = np.diff(gamma_times(5.0, cv, 40_000.0, generator()))
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


@pytest.mark.parametrize("cv", [0.0, 1.0, 4.0])
def test_a_short_window_carries_its_rate(cv):
    counts = [len(gamma_times(2.0, cv, 10.0, generator(seed))) for seed in range(3000)]
    assert np.mean(counts) == pytest.approx(20, rel=0.06)  # a start on an arrival would add (cv^2 - 1) / 2: 7.5 at 4


def test_a_clock_ticks():
    assert np.diff(gamma_times(4.0, 0.0, 100.0, generator())) == pytest.approx(0.25)


def test_no_rate_no_arrivals():
    assert len(poisson_times(0.0, 100.0, generator())) == 0


@pytest.mark.parametrize(("rate", "cv", "duration"), [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (float("inf"), 1, 1)])
def test_bad_laws_are_refused(rate, cv, duration):
    with pytest.raises(InvalidParameter, match="is not 0 or more"):
        gamma_times(rate, cv, duration, generator())


def test_models_draw_apart_and_reproducibly():
    models = [PlacedModel("a", "x", rate=3.0), PlacedModel("b", "x", rate=1.0, cv=2.0)]
    first, again = draw_for_models(models, 500.0, seed=4), draw_for_models(models, 500.0, seed=4)
    np.testing.assert_array_equal(first.times, again.times)
    assert first.rates(2) == pytest.approx([3.0, 1.0], rel=0.15)
    alone = draw_for_models(models[:1], 500.0, seed=4)
    np.testing.assert_array_equal(first.times_of(0), alone.times)
    assert (draw_for_models(models, 500.0, seed=5).times[:5] != first.times[:5]).all()


def test_power_law_and_assignment():
    shares = power_law_shares(4)
    assert shares / shares[0] == pytest.approx([1, 2**-0.5, 3**-0.5, 0.5])
    workload = assign_models(poisson_times(50.0, 400.0, generator()), shares, generator(1))
    assert np.bincount(workload.models) / workload.num_requests == pytest.approx(shares, abs=0.01)


def test_fit_and_resample():
    calm, busy = gamma_times(2.0, 1.0, 600.0, generator(1)), 600 + gamma_times(8.0, 3.0, 600.0, generator(2))
    workload = merge([np.concatenate([calm, busy]), poisson_times(1.0, 1200.0, generator(3))])
    fitted = fit(workload, 600.0)
    assert fitted.rates[:, 0] == pytest.approx([2, 8], rel=0.15)
    assert fitted.cvs[:, 0] == pytest.approx([1, 3], rel=0.25)
    alike = fit(fitted.resample(generator(9)), 600.0)
    assert alike.rates == pytest.approx(fitted.rates, rel=0.25)
    wilder = fit(fitted.resample(generator(9), rate_scale=3.0, cv_scale=2.0), 600.0)
    assert wilder.rates[:, 1] == pytest.approx(3 * fitted.rates[:, 1], rel=0.25)
    assert (wilder.cvs > 1.5 * fitted.cvs).all()


def test_a_model_that_sleeps_stays_asleep():
    fitted = fit(Workload(np.array([1.0, 130.0]), np.array([0, 0])), 60.0, num_models=2)
    assert fitted.rates.shape == (3, 2) and fitted.rates[:, 1].sum() == 0
    assert (fitted.resample(generator()).models == 0).all()


def test_workloads():
    workload = merge([np.array([0.0, 2.0, 4.0]), np.array([2.0, 3.0])])
    assert workload.models.tolist() == [0, 0, 1, 1, 0]
    assert workload.between(2.0, 4.0).times.tolist() == [2.0, 2.0, 3.0]
    assert workload.scale_rate(2.0).times.tolist() == [0.0, 1.0, 1.0, 1.5, 2.0]
    assert merge([]).num_requests == 0


@pytest.mark.parametrize(
    ("times", "models", "problem"),
    [
        ([1.0, 0.5], [0, 0], "request 1 at 0.5 s comes after one at 1.0 s"),
        ([1.0], [0, 0], "give one model per time"),
        ([float("nan")], [0], "not finite"),
        ([0.0], [-1], "model index -1"),
    ],
)
def test_bad_workloads_are_refused(times, models, problem):
    with pytest.raises(InvalidParameter, match=problem):
        Workload(np.array(times), np.array(models))


def test_streams_so_bursty_that_they_would_never_end_are_refused():
    with pytest.raises(InvalidParameter, match="cv: 1e\\+06 leaves all arrivals at one time"):
        gamma_times(2.0, 1e6, 10.0, generator())
    counts = [len(gamma_times(2.0, 1000.0, 1e6, generator(seed))) for seed in range(20)]
    assert any(counts) and not all(counts)  # one burst, or none
