"""Two models on two devices: the paper's numbers, where the overheads peak, and what is refused."""

import json
from math import inf

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.theory.two_models import CHARTS, latency_curves, overhead_curves, two_models, two_models_table


def test_the_motivating_example():
    even, skewed = two_models(3.0, 0.395), two_models(3.0, 0.395, share=0.2)
    assert (even.apart, even.together) == pytest.approx((0.6822, 0.5386), abs=1e-4)
    assert even.gain == pytest.approx(1.27, abs=0.005)
    assert skewed.gain == pytest.approx(6.10, abs=0.005)
    assert skewed.together == even.together  # how the traffic divides does not matter to the pipeline


def test_an_overhead_of_the_table_makes_both_equal():
    for load, communication, uneven, *_ in two_models_table().rows:
        assert two_models(load, 1.0, communication=communication).gain == pytest.approx(1, abs=1e-9)
        assert two_models(load, 1.0, uneven=uneven).gain == pytest.approx(1, abs=1e-9)


def test_table_at_half_load():
    row = dict(zip(two_models_table().columns, two_models_table().rows[4], strict=True))
    assert row["load"] == 1.0
    assert row["communication overhead"] == pytest.approx(1.1315, abs=1e-4)
    assert row["uneven overhead"] == pytest.approx(1.2361, abs=1e-4)
    assert (row["apart"], row["together"]) == pytest.approx((1.5, 1.25))


def test_communication_peaks_and_unevenness_falls():
    communication, uneven = overhead_curves().series
    (peak,) = communication.marked
    assert communication.x[peak] == pytest.approx(1.2, abs=0.05)
    assert communication.y[peak] == pytest.approx(1.138, abs=0.001)
    assert uneven.y[0] == pytest.approx(2**0.5)
    assert all(a > b for a, b in zip(uneven.y, uneven.y[1:], strict=False))


def test_a_skewed_split_is_slower_apart_and_ends_earlier():
    together, *apart = latency_curves().series
    assert all(together.y[0] < curve.y[0] for curve in apart)
    assert [curve.x[-1] for curve in apart] == sorted((curve.x[-1] for curve in apart), reverse=True)


def test_an_overloaded_device_waits_for_ever():
    assert two_models(1.5, 1.0, share=0.8).apart == inf


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"rate": 6}, "rate"), ({"rate": -1}, "rate"), ({"seconds": 0}, "seconds"), ({"share": 2}, "share"),
        ({"communication": 0.9}, "communication"), ({"uneven": 2.5}, "uneven"),
    ],
)  # fmt: skip
def test_bad_numbers_are_named(arguments, field):
    with pytest.raises(InvalidParameter) as caught:
        two_models(**({"rate": 3.0, "seconds": 0.395} | arguments))
    assert caught.value.field == field


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["theory", "parallel", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_prints_table_verdict_and_json():
    assert "1.137" in run()
    assert "share a pipeline" in run("--rate", 3, "--seconds", 0.395)
    assert "keep a device each" in run("--rate", 3, "--seconds", 0.395, "--communication", 1.2)
    assert json.loads(run("--rate", 3, "--seconds", 0.395, "--share", 0.2, "--json"))["gain"] > 6
    assert json.loads(run("--share", 0.8, "--json"))["rows"][-1][3] is None
    assert "--seconds" in run("--rate", 3, code=2)


@pytest.mark.parametrize("name", CHARTS)
def test_the_plots(tmp_path, name):
    pytest.importorskip("matplotlib")
    run("--plot", name, "-o", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
