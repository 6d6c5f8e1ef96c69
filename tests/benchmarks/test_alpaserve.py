"""AlpaServe's sets with recorded traffic, and with batches."""

import json
import sys

import alpaserve
import numpy as np
import pytest
from alpaserve_sets import SETS, Trace, make_case

from paceline.errors import InvalidParameter
from paceline.placement.arrivals import gamma_times

S4 = SETS["S4"]


def write_2021(path, cv, num_functions=8, minutes=30):
    """Azure's trace of 2021: app, func, end_timestamp, duration. Of function i about twice the requests of i - 4."""
    rng = np.random.default_rng(0)
    streams = [gamma_times(0.5 * (1 + i // 4), cv, 60 * minutes, rng) for i in range(num_functions)]
    rows = [(time, f"app,f{i},{time + 0.1:.6f},0.1") for i, times in enumerate(streams) for time in times]
    path.write_text("\n".join(["app,func,end_timestamp,duration", *(row for _, row in sorted(rows))]))
    return Trace(path, minutes)


def write_2019(path, counts):
    """Azure's trace of 2019: a count per minute for each function."""
    header = ",".join(["HashOwner,HashApp,HashFunction,Trigger", *map(str, range(1, len(counts[0]) + 1))])
    rows = [",".join([f"o,a,f{i},http", *map(str, row)]) for i, row in enumerate(counts)]
    path.write_text("\n".join([header, *rows]))
    return path


def gap_cv(case):
    gaps = [np.diff(case.workload.times_of(m)) for m in range(len(case.models))]
    return float(np.mean([each.std() / each.mean() for each in gaps]))


def test_the_traffic_is_the_traces_at_the_rate_of_the_set(tmp_path):
    steady = make_case("S4", trace=write_2021(tmp_path / "steady.csv", 1.0))
    assert steady.workload.num_requests / (30 * 60) == pytest.approx(S4.rate, rel=0.05)
    double = make_case("S4", trace=Trace(tmp_path / "steady.csv", 30), rate_scale=2.0)
    assert double.workload.num_requests == pytest.approx(2 * steady.workload.num_requests, rel=0.05)
    half = make_case("S4", trace=Trace(tmp_path / "steady.csv", 30), quick=True)
    assert half.workload.num_requests == pytest.approx(steady.workload.num_requests / 4, rel=0.15)


def test_a_bursty_trace_stays_bursty_and_may_be_burstier(tmp_path):
    steady, bursty = (make_case("S4", trace=write_2021(tmp_path / f"{cv}.csv", cv)) for cv in (1.0, 4.0))
    assert gap_cv(steady) == pytest.approx(1.0, abs=0.15) and gap_cv(bursty) > 1.8
    burstier = make_case("S4", trace=Trace(tmp_path / "1.0.csv", 30), cv=4.0)
    assert gap_cv(burstier) > 1.8


def test_rates_over_time_and_shares_of_models_are_the_traces(tmp_path):
    path = write_2019(tmp_path / "day.csv", [[600, 60], [0, 120], [120, 120], [60, 60]])
    case = make_case("S4", trace=Trace(path, 2))
    counts = np.array([case.workload.between(60 * i, 60 * i + 60).counts(4) for i in range(2)])
    found, wanted = counts / counts.sum(), np.array([[600, 0, 120, 60], [60, 120, 120, 60]]) / 1140
    np.testing.assert_allclose(found, wanted, atol=0.05)
    drawn = make_case("S4").workload.counts(4) / make_case("S4").workload.num_requests
    assert np.abs(drawn - wanted.sum(axis=0)).max() > 0.1  # unlike those of the drawn traffic


def test_a_part_without_requests_is_refused(tmp_path):
    path = write_2019(tmp_path / "late.csv", [[0, 0, 5]])
    with pytest.raises(InvalidParameter, match="trace"):
        make_case("S4", trace=Trace(path, 2))
    assert make_case("S4", trace=Trace(path, 3)).workload.num_requests


def test_without_a_trace_or_batches_the_sets_are_as_before():
    case = make_case("S4")
    assert case.batch_sizes == (1,) and make_case("S4", max_batch=4).batch_sizes == (1, 2, 4)
    assert case.workload.num_requests == pytest.approx(S4.rate * S4.duration, rel=0.1)


def test_the_command_sweeps_over_a_trace(tmp_path, monkeypatch, capsys):
    write_2021(tmp_path / "trace.csv", 4.0)

    def swept(*flags):
        flags = ["--trace", str(tmp_path / "trace.csv"), "--policies", "mp-search", "--axes", "slo", *flags]
        monkeypatch.setattr(sys, "argv", ["alpaserve.py", "--quick", "--sets", "S4", *flags])
        alpaserve.main()
        (sweep,) = json.loads(capsys.readouterr().out)["sweeps"]
        return sweep

    found, batched = swept(), swept("--max-batch", "8")
    assert found["trace"] == "trace.csv" and (found["max_batch"], batched["max_batch"]) == (1, 8)
    reached = found["slo_attainment"]["mp-search"]
    assert 0 < reached[0] < reached[-1]
    assert batched["slo_attainment"]["mp-search"] != reached
