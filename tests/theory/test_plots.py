import re
import subprocess
import sys
from dataclasses import replace

import pytest

from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.theory import best_length, expected_tokens, plots
from paceline.theory.curves import CURVES, Chart, Series, best_speedup_curves, speedup_curves
from paceline.theory.grid import Grid
from paceline.theory.plots import draw

SMALL = Grid(alphas=(0.5, 0.8), cost_ratios=(0.05,), max_length=5)


@pytest.mark.parametrize("name", CURVES)
def test_every_named_curve_is_well_formed(name):
    chart = CURVES[name](SMALL)
    assert chart.series
    assert all(len(series.x) == len(series.y) > 1 for series in chart.series)
    assert len({series.label for series in chart.series}) == len(chart.series)


def test_curves_hold_the_formulas_numbers():
    (half, most) = CURVES["tokens"](SMALL).series
    assert half.y == [float(expected_tokens(0.5, g)) for g in range(6)]
    assert most.y[-1] == pytest.approx(3.68928)


def test_speedup_curves_mark_the_best_length_only_where_it_is_shown():
    half, most = speedup_curves(SMALL).series
    assert list(half.marked) == [best_length(0.5, 0.05).num_draft_tokens] == [half.y.index(max(half.y))]
    assert list(most.marked) == []  # its best length, 8, lies beyond the plot


def test_band_reaches_from_the_fixed_length_to_the_oracle():
    (series,) = best_speedup_curves(SMALL).series
    assert series.band is not None
    assert all(low == y <= high for y, (low, high) in zip(series.y, series.band, strict=True))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_draw_writes_a_file_of_the_asked_kind(tmp_path, suffix):
    path = draw(best_speedup_curves(SMALL), tmp_path / f"plot{suffix}")
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in start


def test_svg_carries_title_and_labels(tmp_path, monkeypatch):
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    chart = Chart("A title", "along", "up", (Series("one", [0, 1], [1, 2], marked=[1]),), discrete=True)
    text = draw(chart, tmp_path / "chart.svg").read_text()
    assert all(word in text for word in ("A title", "along", "up", "one"))


def test_draw_makes_folders_and_refuses_unknown_formats_and_what_cannot_be_written(tmp_path):
    chart = speedup_curves(SMALL)
    with pytest.raises(InvalidParameter, match=r"\.png"):
        draw(chart, tmp_path / "plot.docx")
    assert draw(chart, tmp_path / "new" / "plot.png").is_file()
    with pytest.raises(InvalidParameter, match="cannot be written"):
        draw(chart, "/dev/null/plot.png")


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidParameter, match=re.escape(install("plots"))):
        draw(speedup_curves(SMALL), tmp_path / "plot.png")


def test_theory_loads_neither_matplotlib_nor_torch():
    code = "import sys, paceline.theory.plots; print({'matplotlib', 'torch', 'numba'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_series_and_grid_refuse_what_cannot_be_drawn():
    with pytest.raises(InvalidParameter, match="y:"):
        Series("short", [1, 2], [1])
    with pytest.raises(InvalidParameter, match="alphas"):
        Grid(alphas=())
    with pytest.raises(InvalidParameter, match="cost_ratios"):
        Grid(cost_ratios=(-1.0,))
    with pytest.raises(InvalidParameter, match="max_length"):
        Grid(max_length=0)


def test_a_curve_of_one_point_can_be_seen():
    figure = pytest.importorskip("matplotlib.figure")
    for x, marker in (([0.2], "."), ([0.2, 0.4], "None")):
        axes = figure.Figure().subplots()
        plots._draw_curves(axes, Chart("held-out text", "minutes", "tokens", (Series("greedy", x, x),)))
        assert axes.lines[0].get_marker() == marker


def test_an_axis_may_double(tmp_path):
    chart = Chart("t", "requests", "times", (Series("a", [1, 2, 64], [1.0, 1.1, 0.9]),), doubling=True)
    assert "<!-- 64 -->" in draw(chart, tmp_path / "doubling.svg").read_text()
    assert "<!-- 64 -->" not in draw(replace(chart, doubling=False), tmp_path / "even.svg").read_text()
