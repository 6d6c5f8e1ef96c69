"""Maps of when model parallelism pays: the two ends of memory and load that the paper names, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.placement import Case
from paceline.placement.parallel_map import example_case, parallel_map

CASE = example_case(duration=60.0)


def test_little_memory_calls_for_model_parallelism_and_plenty_for_replicas():
    """At half the memory a device holds one model, so bursts wait; at twice all four, and splitting only costs."""
    found = parallel_map(CASE, ("memory", "rate"), {"memory": (0.5, 2.0), "rate": (1.0,)})
    short, plenty = found.gain[0]
    assert short > 5
    assert plenty < short
    assert found.heat_map().values == found.gain


def test_tight_deadlines_call_for_model_parallelism_where_memory_is_scarce_and_for_replicas_where_it_is_not():
    """As in AlpaServe, section 3; the page on maps (docs/placement-advisor.md) has the whole table."""
    case = example_case()
    found = parallel_map(case, ("slo", "memory"), {"slo": (0.5, 1.0, 2.0, 4.0), "memory": (1.0, 2.0)})
    scarce, plenty = found.gain
    assert scarce == sorted(scarce, reverse=True) and scarce[0] > 10 and scarce[-1] > 0
    assert plenty == sorted(plenty) and plenty[0] < -2
    assert [f"{gain:+.1f}" for gain in scarce] == ["+12.9", "+6.8", "+1.8", "+0.4"]  # the page's row


def test_too_little_memory_for_single_devices_is_no_attainment():
    found = parallel_map(CASE, ("slo", "memory"), {"slo": (1.0,), "memory": (0.4,)})
    assert found.replicated == ((0.0,),)
    assert found.parallel[0][0] > 0.5


def test_each_axis_makes_its_side_easier_or_harder():
    found = parallel_map(CASE, ("slo", "rate"), {"slo": (0.5, 4.0), "rate": (0.5, 3.0)})
    for side in (found.parallel, found.replicated):
        assert side[0][0] < side[0][1]  # more time
        assert side[1][1] < side[0][1]  # more traffic
    bursts = parallel_map(CASE, ("cv", "rate"), {"cv": (0.3, 2.0), "rate": (1.0,)})
    assert bursts.parallel[0][1] < bursts.parallel[0][0]


def test_progress_counts_cells():
    seen = []
    parallel_map(CASE, ("slo", "rate"), {"slo": (1.0,), "rate": (1.0, 2.0)}, 0, lambda *now: seen.append(now))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("axes", "factors", "field"),
    [
        (("rate", "rate"), {}, "over"), (("rate", "size"), {}, "over"), (("rate", "cv"), {"rate": (0.0,)}, "rate"),
        (("rate", "cv"), {"cv": ()}, "cv"),
    ],
)  # fmt: skip
def test_bad_axes_are_named(axes, factors, field):
    with pytest.raises(InvalidParameter) as caught:
        parallel_map(CASE, axes, factors)
    assert caught.value.field == field


def test_deadlines_and_splits_are_needed():
    relaxed = CASE.scale_slo(1e12)
    with pytest.raises(InvalidParameter, match="slo"):
        parallel_map(relaxed, ("rate", "cv"))
    single = {name: type(p)(name, {s: e for s, e in p.entries.items() if s.num_devices == 1})
              for name, p in CASE.profiles.items()}  # fmt: skip
    with pytest.raises(InvalidParameter, match="several devices"):
        parallel_map(Case("c", CASE.cluster, CASE.models, single, CASE.workload), ("rate", "cv"))


def run(*arguments):
    return CliRunner().invoke(app, ["place-map", *map(str, arguments)])


def test_the_command(tmp_path):
    result = run("--over", "memory,slo", "--x", "0.5,2", "--y", "1", "--json")
    record = json.loads(result.stdout)
    assert record["axes"] == ["memory", "slo"] and record["gain"][0][0] > record["gain"][0][1]
    assert "of 1 cells" in run("--x", "1", "--y", "1").stdout
    for bad, field in ((("--over", "rate"), "over"), (("--x", "a"), "x"), (("--y", "0,1"), "y"),
                       (("--x", "1,1e-300"), "x"), (("--y", "1e9"), "y")):  # fmt: skip
        error = run(*bad).exception
        assert isinstance(error, InvalidParameter) and error.field == field
    assert "Examples" in run("--help").stdout


def test_the_plot(tmp_path):
    pytest.importorskip("matplotlib")
    run("--x", "1,2", "--y", "1", "-o", tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
