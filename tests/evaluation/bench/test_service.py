"""Times that a service promises, and the energy of answers."""

import pytest

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Answer
from paceline.evaluation.bench.energy import EnergyMeter
from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, run_bench
from paceline.evaluation.bench.show import as_json, header_of, rows_of
from paceline.evaluation.bench.slo import Slo
from paceline.evaluation.bench.summary import tables_of
from tests.evaluation.bench.simulated import arms, cells

BASES, AGAIN = {"plain": "plain", "plain (again)": "plain", "fast": "plain"}, {"plain": "plain (again)"}


def zone(folder, name, energy, most=1000):
    path = folder / name
    path.mkdir()
    (path / "energy_uj").write_text(f"{energy}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")
    return path / "energy_uj"


def test_packages_are_added_up_and_counters_may_begin_anew(tmp_path):
    first, _ = zone(tmp_path, "intel-rapl:0", 900), zone(tmp_path, "intel-rapl:0:0", 5)
    second = zone(tmp_path, "intel-rapl:1", 10)
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    first.write_text("100")
    second.write_text("30")
    assert before == [900, 10]
    assert meter.joules(before, meter.read()) == pytest.approx(220e-6)
    first.unlink()
    assert meter.joules(before, meter.read()) is None


def test_a_machine_without_counters_tells_nothing(tmp_path):
    assert EnergyMeter(tmp_path).read() is None
    assert EnergyMeter(tmp_path / "none").joules(None, None) is None


@pytest.mark.parametrize(
    ("text", "slo"),
    [("ttft=1s,tpot=80ms", Slo(1.0, 0.08)), ("tpot=0.5s", Slo(None, 0.5)), ("ttft=250ms", Slo(0.25, None))],
)
def test_times_are_read(text, slo):
    assert Slo.of(text) == slo


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=1", "e2e=1s", "ttft=-1s", "ttft=infs", "ttft=1s,ttft=2s", "ttft=nans"]
)
def test_times_that_cannot_be_read_are_refused(text):
    with pytest.raises(InvalidParameter, match="slo"):
        Slo.of(text)


def test_an_answer_is_in_time_when_it_keeps_all_times():
    answer = Answer(11, "x", 0.5, 1.5)  # ten tokens in a second after the first
    assert Slo(0.5, 0.1).keeps(answer)
    assert not Slo(0.4, None).keeps(answer)
    assert not Slo(None, 0.09).keeps(answer)
    assert Slo(1.0).share([answer, Answer(1, "y", 2.0, 2.0)]) == 0.5


def test_a_table_has_goodput_and_energy_where_they_are_known(tmp_path):
    some = arms(speedup=2.0)
    counter = zone(tmp_path, "intel-rapl:0", 0, most=10**12)

    class Meter(EnergyMeter):
        def read(self):
            counter.write_text(str(int(counter.read_text()) + 101_000_000))
            return super().read()

    file = BenchFile(None, {"arms": [arm.label for arm in some]})
    run_bench(some, Plan(cells(8)), file, meter=Meter(tmp_path))
    table = tables_of(file.measurements, BASES, AGAIN, slo=Slo(tpot=0.0075))[0]
    plain, _, fast = table.arms
    assert (plain.in_time, fast.in_time) == (0.0, 1.0)
    assert fast.goodput == pytest.approx(1 / 0.6, rel=0.1)
    assert plain.joules_per_token == pytest.approx(1.0)
    assert {"in time", "in time a second", "J/token"} <= set(header_of(table))
    assert {len(row) for row in rows_of(table)} == {len(header_of(table))}
    assert as_json([table])["arms"]["fast"]["joules_per_token"] == pytest.approx(1.0)
    bare = tables_of(file.measurements, BASES, AGAIN)[0]
    assert "in time" not in header_of(bare)
