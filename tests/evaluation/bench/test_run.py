"""The loop and its file: balanced orders, whole cells, a run that goes on, and the three ways to end."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Cell, EngineArm
from paceline.evaluation.bench.gate import Gate
from paceline.evaluation.bench.own_arms import bases_of
from paceline.evaluation.bench.record import FORMAT, VERSION, BenchFile
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.schedule import balanced_orders
from paceline.evaluation.bench.show import as_json, markdown, page, verdict_of
from paceline.evaluation.bench.summary import tables_of
from paceline.evaluation.prompts import Prompt
from tests.evaluation.bench.simulated import TOKENS, arms, cells


def settings(some) -> dict:
    return {"arms": [each.label for each in some], "model": "m", "cells": 8}


@pytest.mark.parametrize("count", range(1, 8))
def test_every_arm_has_every_place_and_comes_before_every_other_equally_often(count):
    orders = balanced_orders(count)
    places = {(arm, place) for order in orders for place, arm in enumerate(order)}
    assert len(places) == count**2
    followed = [pair for order in orders for pair in pairwise(order)]
    assert {followed.count(pair) for pair in followed} <= {len(orders) // count}
    assert len(set(followed)) == count * (count - 1)
    if count > 2:
        assert all(order[-1] != after[0] for order, after in pairwise([*orders, orders[0]]))


def test_a_prompt_is_answered_by_all_arms_before_the_next(tmp_path):
    some = arms()
    file = BenchFile(tmp_path / "run.jsonl", settings(some))
    assert run_bench(some, Plan(cells(8), rounds=2), file) == "all"
    assert [len({m.cell for m in file.measurements[i : i + 3]}) for i in range(0, 48, 3)] == [1] * 16
    assert all(arm.begun == [0, 1] for arm in some)


def test_a_bench_that_was_stopped_goes_on_where_it_ended(tmp_path):
    path, first = tmp_path / "run.jsonl", arms()

    class Stopped(Exception):
        pass

    def fail(what, done, total):
        if done == 5:
            raise Stopped

    with pytest.raises(Stopped):
        run_bench(first, Plan(cells(8)), BenchFile(path, settings(first)), fail)
    with path.open("a") as file:
        file.write('{"round": 0, "cell": 5, "ar')  # the power went
    second = arms(1)
    resumed = BenchFile(path, settings(second))
    run_bench(second, Plan(cells(8)), resumed)
    assert second[0].asked == [5, 6, 7]
    assert resumed.num_resumed == 1
    assert len(resumed.measurements) == 24
    assert len(BenchFile(path, settings(second)).measurements) == 24
    with pytest.raises(InvalidParameter, match=r"resume.*other model"):
        BenchFile(path, settings(second) | {"model": "another"})


def test_answers_may_hold_any_end_of_a_line_and_a_cell_begun_twice_counts_once(tmp_path):
    path, some = tmp_path / "run.jsonl", arms()
    some[0].says = "one\u2028two\x85three\r\n"
    file = BenchFile(path, settings(some))
    run_bench(some, Plan(cells(2)), file)
    *_, last, _ = path.read_text().split("\n")
    with path.open("a") as more:
        more.write(last + "\n")
    again = BenchFile(path, settings(some))
    assert again.measurements == file.measurements


def test_minutes_and_precision_end_it():
    some, file = arms(), BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]})
    times = iter(range(0, 10_000, 25))
    assert run_bench(some, Plan(cells(50), minutes=2), file, clock=lambda: float(next(times))) == "minutes"
    file = BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]})
    assert run_bench(arms(2), Plan(cells(200), precision=0.05), file) == "precision"
    assert 6 <= len({one.cell for one in file.measurements}) < 60


def test_noise_above_the_precision_withholds_verdicts():
    some, file = arms(3, speedup=2.0, jitter=0.2), BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]})
    run_bench(some, Plan(cells(12)), file)
    for precision, verdict in ((0.01, "too noisy"), (None, "faster")):
        [table] = tables_of(file.measurements, *bases_of(some), precision)
        assert table.noise_floor > 0.01
        assert table.arms[2].verdict == verdict
        is_noisy = precision is not None
        told = (verdict_of(table), markdown([table]), as_json([table])["verdict"], page("t", [table], [], {}))
        assert [("NOISY" in text, "Speculation pays" in text) for text in told] == [(is_noisy, not is_noisy)] * 4
        assert bool(Gate("fast", 1.0).failures([table])) is is_noisy


@pytest.mark.parametrize(
    ("again", "verdict"), [(1.0, "faster"), (1.06, "no difference shown"), (0.95, "no difference shown")]
)
def test_no_difference_counts_that_is_smaller_than_plain_decodings_from_itself(again, verdict):
    """Without a precision too: on such a machine a gain of 4 % may be the same disturbance."""
    some, file = (
        arms(3, speedup=1.04, jitter=0.005, drift=0.001),
        BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]}),
    )
    some[1].speedup = again
    run_bench(some, Plan(cells(12)), file)
    [table] = tables_of(file.measurements, *bases_of(some))
    assert table.arms[2].decode.low > 1.02
    assert table.arms[2].verdict == verdict
    assert table.differs_from_itself is (again != 1)
    said = verdict_of(table)
    assert ("differs from itself by up to" in said, "No gain shown" in said) == 2 * (again != 1,)


def drafting(measurements, tokens_per_pass):
    """`measurements` with passes: that of ``fast`` makes so many tokens, and every row costs as much as a pass."""

    def with_passes(one):
        each = tokens_per_pass if one.arm == "fast" else 1
        passes = round((TOKENS - 1) / each)
        answers = tuple(
            replace(a, passes=passes, drafted=3 * passes if each > 1 else 0, verify_seconds=one.decode_seconds)
            for a in one.answers
        )
        return replace(one, answers=answers)

    return [with_passes(one) for one in measurements]


@pytest.mark.parametrize(
    ("tokens_per_pass", "speedup", "is_possible"),
    [(1.91, 2.4, False), (2.5, 2.4, True), (2.1, 2.4, True), (1.0, 0.5, False), (2.0, 0.8, True)],
)
def test_a_ratio_that_drafts_cannot_explain_is_no_verdict(tokens_per_pass, speedup, is_possible):
    some, file = arms(3, speedup=speedup), BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]})
    run_bench(some, Plan(cells(12)), file)
    [table] = tables_of(drafting(file.measurements, tokens_per_pass), *bases_of(some))
    fast = table.arms[2]
    assert fast.is_plausible is is_possible
    assert (fast.verdict == "drafts cannot be the cause") is not is_possible
    told = (verdict_of(table), markdown([table]), as_json([table])["verdict"], page("t", [table], [], {}))
    assert ["No verdict: drafts cannot be the cause of" in text for text in told] == [not is_possible] * 4
    assert bool(Gate("fast", 0.1).failures([table])) is not is_possible


def test_what_reports_no_passes_or_runs_beside_others_is_taken_as_it_is():
    some, file = arms(3, speedup=9.0), BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]})
    run_bench(some, Plan(cells(12)), file)
    [table] = tables_of(file.measurements, *bases_of(some))
    assert table.arms[2].verdict == "faster"
    beside = [replace(one, answers=one.answers * 2) for one in drafting(file.measurements, 2.0)]
    assert tables_of(beside, *bases_of(some))[0].arms[2].is_plausible
    assert not tables_of(drafting(file.measurements, 2.0), *bases_of(some))[0].arms[2].is_plausible


@pytest.mark.parametrize("stalled", ["plain", "plain (again)", "fast"])
def test_a_stall_leaves_no_verdict_that_rests_on_it(stalled):
    some, file = arms(3, speedup=2.0), BenchFile(None, {"arms": ["plain", "plain (again)", "fast"]})
    run_bench(some, Plan(cells(12)), file)
    file.measurements = [
        replace(one, seconds=900.0) if (one.arm, one.cell) == (stalled, 5) else one for one in file.measurements
    ]
    [table] = tables_of(file.measurements, *bases_of(some), 0.5)
    _, again, fast = table.arms
    assert (again.decode.lacking is None) == (stalled == "fast")
    assert fast.verdict == ("too noisy" if stalled == "plain (again)" else "too uneven")
    assert ("NOISY" in verdict_of(table)) == (stalled != "fast")
    assert ("too uneven" in verdict_of(table)) == (stalled == "fast")
    assert Gate("fast", 0.001).failures([table])


def test_requests_at_once_are_of_one_family():
    prompts = [Prompt(str(i), "ab"[i % 2]) for i in range(9)]
    found = cells_of(prompts, temperatures=(0.0, 1.0), concurrency=(1, 4))
    four = [cell for cell in found if len(cell.prompts) == 4]
    assert [cell.prompts for cell in four] == [("0", "2", "4", "6")] * 2 + [("1", "3", "5", "7")] * 2
    assert len(found) == 2 * 9 + 4
    assert [cell.number for cell in found] == list(range(len(found)))
    with pytest.raises(InvalidParameter, match=r"concurrency: no family has 6 prompts, the largest 5"):
        cells_of(prompts, concurrency=(6,))


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"minutes": 0.0}, {"precision": -1.0}, {"cells": []}])
def test_plans_that_measure_nothing_are_refused(wrong):
    with pytest.raises(InvalidParameter):
        Plan(**({"cells": cells(1)} | wrong))


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    for text in ("nonsense\n", "[]\n", "3\n", json.dumps({"format": "paceline-profile", "settings": {}}) + "\n"):
        path.write_text(text)
        with pytest.raises(InvalidParameter, match="resume"):
            BenchFile(path, {"arms": []})


def test_a_file_of_an_older_version_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    for head in ({"version": 1, "settings": {"arms": []}}, {"version": VERSION}):
        path.write_text(json.dumps({"format": FORMAT} | head) + "\n")
        with pytest.raises(InvalidParameter, match=r"resume.*another version.*another file"):
            BenchFile(path, {"arms": []})


def test_any_setting_that_is_new_gone_or_changed_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    BenchFile(path, {"arms": [], "rule": None, "raw": True})
    with pytest.raises(InvalidParameter, match=r"other rule, new, raw; .*another file"):
        BenchFile(path, {"arms": [], "rule": "p/q", "new": 1})


@pytest.mark.parametrize(
    "change",
    [{"answers": None}, {"answers": []}, {"answers": [3]}, {"answers": [{"tokens": 3}]}, {"seconds": "x"}, {"arm": []},
     {"temperature": None}, {"what": 1}, "a text"],
)  # fmt: skip
def test_a_line_that_lacks_something_is_named_and_no_traceback(tmp_path, change):
    path, some = tmp_path / "x.jsonl", arms()
    run_bench(some, Plan(cells(2)), BenchFile(path, settings(some)))
    head, line, *more = path.read_text().splitlines()
    line = json.dumps(json.loads(line) | change if isinstance(change, dict) else change)
    path.write_text("\n".join([head, line, *more, ""]))
    with pytest.raises(InvalidParameter, match=r"resume.*line 2 is damaged"):
        BenchFile(path, settings(some))


def test_a_drafter_remembers_nothing_of_another_setting(tiny):
    llm = LLM.from_loaded(tiny, EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 21, profile="none"))
    spec = {"method": "suffix", "num_draft_tokens": 4, "policy": "fixed"}
    arm = EngineArm(llm, "suffix", "plain", spec, raw=True)
    alone = Cell(0, ("abcabcabc",), "x", max_tokens=24, ignore_eos=True)
    together = Cell(1, ("abcabcabc", "xyzxyzxyz"), "x", max_tokens=24, ignore_eos=True)

    def passes(*cells):
        arm.begin(0)
        return [[answer.passes for answer in arm.answer(cell)[1]] for cell in cells]

    assert passes(alone, together)[-1] == passes(together)[-1]
    first, again = passes(alone, alone)
    assert again < first, "the same setting is remembered"
