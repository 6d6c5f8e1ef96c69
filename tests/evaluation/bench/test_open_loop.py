"""Arrivals fixed beforehand: when requests are asked, what is measured of them, and what their tables say."""

import json
import time

import pytest

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Answer, Cell, EngineArm
from paceline.evaluation.bench.open_loop import answers_as_they_arrive, arrival_times
from paceline.evaluation.bench.record import Measurement
from paceline.evaluation.bench.run import open_cells_of
from paceline.evaluation.bench.server_arm import EndpointArm
from paceline.evaluation.bench.show import header_of, rows_of, title_of
from paceline.evaluation.bench.summary import tables_of
from paceline.evaluation.endpoint import connect
from paceline.evaluation.prompts import Prompt
from paceline.types import SamplingParams
from tests.evaluation.bench.openai_server import Fake, serving
from tests.evaluation.bench.test_bench_command import command  # noqa: F401 - a fixture

STARTS = (0.0, 0.05, 0.051, 0.12)


@pytest.fixture
def llm(tiny):
    made = LLM.from_loaded(tiny, EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 21, profile="none"))
    return made


def open_cell() -> Cell:
    prompts = ("abcabcabc", "the cat the cat", "x y x y x y", "one two one two")
    return Cell(0, prompts, "mixed", max_tokens=12, ignore_eos=True, rate=20.0, starts=STARTS)


def test_arrivals_come_at_their_rate_and_are_the_same_again():
    times = arrival_times(4.0, 4001, seed=1)
    assert times[0] == 0
    assert list(times) == sorted(times)
    assert times[-1] == pytest.approx(1000, rel=0.05)
    assert arrival_times(4.0, 4001, seed=1) == times


def test_nobody_is_asked_before_it_arrives_and_nobody_waits_for_others(llm):
    now = [0.0]

    def clock():
        now[0] += 0.001
        return now[0]

    slept = []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    starts = (0.0, 0.002, 10.0)
    params = [SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)] * 3
    found = answers_as_they_arrive(llm, [[65, 66, 67]] * 3, params, starts, "", clock, sleep)
    assert [len(output.token_ids) for output, _ in found] == [5, 5, 5]
    assert all(0 <= late < 0.1 for _, late in found)
    assert max(slept) > 9, "nothing ran until the third came"


def test_an_engine_says_in_an_open_loop_what_it_says_alone(llm):
    arm = EngineArm(llm, "ngram", "plain", {"method": "ngram", "num_draft_tokens": 3}, raw=True)
    cell = open_cell()
    arm.begin(0)
    seconds, answers = arm.answer(cell)
    assert seconds >= STARTS[-1]
    for text, answer in zip(cell.prompts, answers, strict=True):
        alone = EngineArm(llm, "plain", "plain", None, raw=True).answer(
            Cell(1, (text,), "mixed", max_tokens=12, ignore_eos=True)
        )
        assert answer.token_ids == alone[1][0].token_ids
        assert 0 < answer.first_token_seconds <= answer.seconds


def test_a_server_is_asked_when_requests_arrive():
    asked = []

    def say(body):
        asked.append(time.perf_counter())
        return ["a "]

    with serving(Fake(say)) as url:
        EndpointArm(connect(url), "x", "plain").answer(open_cell())
    assert sorted(asked)[-1] - sorted(asked)[0] == pytest.approx(STARTS[-1], abs=0.05)


def test_times_of_answers_count_and_not_the_waiting_between_them():
    def measured(cell: int, arm: str, pace: float) -> Measurement:
        answers = tuple(Answer(11, "same", 0.5, 0.5 + 10 * pace * (1 + number)) for number in range(2))
        return Measurement(0, cell, arm, "mixed", 0.0, 2, 0, 60.0, answers, rate=2.0)

    both = [measured(cell, arm, pace) for cell in range(8) for arm, pace in (("plain", 0.2), ("fast", 0.1))]
    [table] = tables_of(both, {"plain": "plain", "fast": "plain"}, {})
    fast = table.arms[1]
    assert fast.decode.ratio == pytest.approx(2.0)
    assert fast.whole.ratio == pytest.approx((1 + 6) / (1 + 3))
    assert (fast.first_token_95, fast.per_token_95) == (0.5, pytest.approx(0.2))
    assert title_of(table) == "all prompts, temperature 0, 2 requests a second"
    assert len(header_of(table)) == len(rows_of(table)[0])


def test_every_prompt_arrives_once_at_each_rate():
    prompts = [Prompt(str(number), "ab"[number % 2]) for number in range(25)]
    cells = open_cells_of(prompts, (1.0, 4.0))
    assert {len(cell.prompts) for cell in cells} == {4}
    assert {cell.family for cell in cells} == {"mixed"}
    slow = [text for cell in cells if cell.rate == 1.0 for text in cell.prompts]
    assert slow == [prompt.text for prompt in prompts[:24]]
    for wrong in ((0.0,), (-1.0,)):
        with pytest.raises(InvalidParameter, match="rate"):
            open_cells_of(prompts, wrong)
    with pytest.raises(InvalidParameter, match="rate"):
        open_cells_of(prompts[:1], (1.0,))


def test_the_command_takes_rates(command):  # noqa: F811
    result = command("--drafts", "ngram", "--rate", "200,400", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert [(table["rate"], table["family"]) for table in record["tables"]] == [(200.0, "all"), (400.0, "all")]
    assert record["arms"]["ngram"]["identical"] is True
    assert record["arms"]["ngram"]["per_token_95"] > 0
    assert "concurrency" in str(command("--rate", "2", "-c", "2").exception)
