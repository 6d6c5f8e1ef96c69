from fractions import Fraction as F

import pytest

from paceline.errors import InvalidParameter
from paceline.theory.queueing import (
    md1_wait,
    mixture_wait,
    mm1_wait,
    most_communication_overhead,
    most_uneven_overhead,
    pipeline_latency,
    simple_latency,
)

TABLE = [  # load, alpha, beta, latency of two devices, of the ideal pipeline; both over the pass's own time
    (0.01, 1.0013, 1.4127, 1.0025, 1.0013),
    (0.25, 1.0331, 1.3757, 1.0714, 1.0357),
    (0.5, 1.0692, 1.3333, 1.1667, 1.0833),
    (0.75, 1.1047, 1.2868, 1.3000, 1.1500),
    (1.0, 1.1315, 1.2361, 1.5000, 1.2500),
    (1.25, 1.1365, 1.1813, 1.8333, 1.4167),
    (1.5, 1.1111, 1.1231, 2.5, 1.75),
    (1.75, 1.0610, 1.0623, 4.5, 2.75),
    (1.9, 1.0249, 1.0250, 10.5, 5.75),
]


@pytest.mark.parametrize(("load", "alpha", "beta", "simple", "pipeline"), TABLE)
def test_two_models_by_load(load, alpha, beta, simple, pipeline):
    assert most_communication_overhead(load) == pytest.approx(alpha, abs=6e-5)
    assert most_uneven_overhead(load) == pytest.approx(beta, abs=6e-5)
    assert simple_latency(load, 1.0) == pytest.approx(simple, abs=6e-5)
    assert pipeline_latency(load, 1.0, 0.5) == pytest.approx(pipeline, abs=6e-5)


@pytest.mark.parametrize("load", [0.01, 0.3, 1.0, 1.2, 1.9, 1.99])
def test_overheads_are_where_both_are_equal(load):
    simple = simple_latency(load, 1.0)
    alpha, beta = most_communication_overhead(load), most_uneven_overhead(load)
    assert pipeline_latency(load, alpha, alpha / 2) == pytest.approx(simple, rel=1e-9)
    assert pipeline_latency(load, 1.0, beta / 2) == pytest.approx(simple, rel=1e-9)
    assert pipeline_latency(load, 1.01 * alpha, 1.01 * alpha / 2) > simple  # a little more is too much


@pytest.mark.parametrize(
    ("load", "by_share"), [(F(1, 2), (1.1667, 1.1786, 1.2149, 1.2778)), (F(1), (1.5, 1.5833, 1.8810, 2.6250))]
)
def test_uneven_traffic_hurts_separate_devices(load, by_share):
    for share, expected in zip((F(1, 2), F(3, 5), F(7, 10), F(4, 5)), by_share, strict=True):
        latency = simple_latency(load, F(1), share)
        assert isinstance(latency, F)
        assert float(latency) == pytest.approx(expected, abs=6e-5)


def test_the_motivating_example():
    simple, pipeline = simple_latency(3, 0.395), pipeline_latency(3, 0.395, 0.395 / 2)
    assert (simple, pipeline) == (pytest.approx(0.6822, abs=6e-5), pytest.approx(0.5386, abs=6e-5))
    assert simple_latency(3, 0.395, 0.2) / pipeline == pytest.approx(6.10, abs=6e-3)


def test_waits():
    assert md1_wait(F(1, 2), F(1)) == F(1, 2)
    assert mm1_wait(F(1, 2), F(1)) == 1
    assert mixture_wait(F(1, 2), [(F(1), F(1))]) == md1_wait(F(1, 2), F(1))
    assert mixture_wait(F(1, 4), [(F(1, 2), F(1)), (F(1, 2), F(3))]) == F(5, 4)  # more than md1_wait(1/4, 2) = 1
    assert md1_wait(1, 1) == float("inf")
    assert simple_latency(F(1), F(1), F(0)) == float("inf")


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("rate", lambda: md1_wait(-1, 1)),
        ("seconds", lambda: mm1_wait(1, 0)),
        ("share", lambda: simple_latency(1, 1, 1.5)),
        ("bottleneck", lambda: pipeline_latency(1, 1, 2)),
        ("load", lambda: most_communication_overhead(2)),
        ("load", lambda: most_uneven_overhead(-0.1)),
        ("services", lambda: mixture_wait(1, [(F(1, 2), F(1))])),
    ],
)
def test_bad_input_is_refused(field, call):
    with pytest.raises(InvalidParameter) as refused:
        call()
    assert refused.value.field == field
