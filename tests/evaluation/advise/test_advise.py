"""Predictions by hand, flags of every engine, and the command on a tiny model."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.options import model as options
from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.advise import run
from paceline.evaluation.advise.predict import Prediction, Regret, advice_of, best_of, pays_up_to, predict, regret_of
from paceline.evaluation.advise.prices import MeasuredPrices
from paceline.evaluation.advise.replay import Text, replay_chain
from paceline.placement.acceptance import Trace
from paceline.placement.serving_simulator import ServingModel, TokenRequest, simulate_serving
from paceline.scheduling.profile import Profile
from paceline.speculation import CostProfile, Fixed

TEXTS = [Text((1,) * 10, (2,) * 41) for _ in range(8)]


def profile(slope: float = 0.1, **changes) -> Profile:
    """A pass takes 1 s and `slope` for every further row."""
    table = {0: {rows: 1 + slope * (rows - 1) for rows in (1, 2, 4, 8, 16, 64)}}
    return Profile("m", "f", "float32", "x", 1, "here", table, table, **changes)


def chains(chance: float, k: int):
    return [replay_chain(np.full(40, chance), k) for _ in TEXTS]


def test_a_perfect_lookup_is_worth_its_tokens_over_its_rows():
    found = predict("x", 3, "float32", TEXTS, chains(1.0, 3), MeasuredPrices(profile()))
    assert found.tokens_per_pass == 4
    assert found.predicted == pytest.approx(4 / 1.3)
    assert found.low < found.predicted < found.high
    assert found.break_even == pytest.approx(1.3)
    assert found.losing_share == 0


def test_what_is_never_accepted_loses_what_its_rows_cost():
    found = predict("x", 3, "float32", TEXTS, chains(0.0, 3), MeasuredPrices(profile()))
    assert found.predicted == pytest.approx(40 / (37 * 1.3 + 1.2 + 1.1 + 1), rel=1e-6)
    assert found.losing_share == 1
    assert best_of([found]) is None
    assert advice_of([found]).startswith("do not speculate: 0.7")


def test_a_draft_model_pays_for_its_steps_and_for_reading_the_prompt():
    prices = MeasuredPrices(profile(), 1, profile(0.0))
    found = predict("x", 3, "float32", TEXTS, chains(1.0, 3), prices)
    assert found.predicted == pytest.approx(40 / (10 * (1.3 + 3) + 1), rel=1e-6)


def test_overhead_and_further_requests_are_part_of_both_sides():
    own = profile(step_overhead=1.0, segment_seconds={0: 0.5})
    found = predict("x", 3, "float32", TEXTS, chains(1.0, 3), MeasuredPrices(own), 4)
    plain = 1.3 + 3 * 0.5 + 1.0
    assert found.predicted == pytest.approx(4 * plain / (2.5 + 3 * 0.5 + 1.0))


def test_the_best_is_the_largest_that_surely_gains():
    sure = predict("x", 3, "float32", TEXTS, chains(1.0, 3), MeasuredPrices(profile()))
    few = predict("y", 8, "float32", TEXTS[:2], chains(1.0, 8)[:2], MeasuredPrices(profile()))
    assert few.low is None
    assert best_of([few, sure]) == sure
    assert "x, 3 drafted tokens" in advice_of([few, sure])
    assert advice_of([few]).startswith("too few texts")


def prediction(draft, predicted, low, high, batch=1):
    return Prediction(draft, 4, batch, "float32", predicted, low, high, 2.0, 1.5, 0.0)


def test_regret_is_the_most_that_an_advice_loses_within_the_intervals():
    good, unsure = prediction("a", 1.5, 1.2, 1.8), prediction("b", 1.3, 0.8, 2.4)
    assert regret_of([good, unsure]) == Regret(pytest.approx(0.5), "b k=4")
    assert regret_of([good]) == Regret(0.0, "plain decoding")
    assert regret_of([unsure]) == Regret(pytest.approx(1 - 1 / 2.4), "b k=4"), "plain decoding is advised"
    assert regret_of([prediction("a", 0.8, 0.7, 0.9)]) == Regret(0.0, "plain decoding")
    assert regret_of([prediction("a", 1.5, None, None)]) is None
    assert regret_of([good], batch=2) is None


def test_where_drafting_stops_to_pay():
    found = [prediction("a", ratio, None, None, batch) for batch, ratio in ((1, 1.4), (4, 1.1), (8, 0.9), (16, 1.2))]
    never = prediction("b", 0.9, None, None)
    assert pays_up_to([*reversed(found), never], found[0]) == 4
    assert pays_up_to([*found, never], never) == 0


@pytest.fixture
def unpriced(tiny, monkeypatch, tmp_path):
    """The command without a profile."""
    config = EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 21, profile="none")
    llm = LLM.from_loaded(tiny, config)
    monkeypatch.setattr(options, "load_llm", lambda name, speculative, **engine: llm)
    log = tmp_path / "log.jsonl"
    lines = [{"prompt": f"abcabcabc {i}", "category": "x"} for i in range(6)]
    lines.append({"prompt": "someone else", "answer": "said this, and it is not what this model says", "category": "x"})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["advise", "any", "--traffic", str(log), "--max-tokens", "20", "-k", "2,4"]
    return lambda *more: CliRunner().invoke(app, [*arguments, *more])


@pytest.fixture
def command(unpriced, tmp_path):
    own = tmp_path / "profile.json"
    own.write_text(json.dumps(profile().as_dict()))
    return lambda *more: unpriced("--profile", str(own), *more)


def test_the_object_that_scripts_read(command, tmp_path):
    export = tmp_path / "speculation_profile.json"
    result = command("--json", "-c", "1,4", "--for", "paceline,vllm,sglang", "--export", str(export))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert {(one["draft"], one["k"], one["batch"]) for one in record["candidates"]} == {
        (draft, k, batch) for draft in ("ngram", "suffix") for k in (2, 4) for batch in (1, 4)
    }
    for one in record["candidates"]:
        assert one["low"] <= one["predicted"] <= one["high"]
        assert one["dtype"] == "float32"
        assert one["pays_up_to"] in (0, 1, 4)
    assert record["advice"]
    assert 0 <= record["regret"]["share"] < 1
    assert record["foreign_texts"] == 1
    assert set(record["flags"]) == {"paceline", "vllm", "sglang"}
    kept = json.loads(export.read_text())
    assert kept["marginal_accept_rates"] == kept["profiles"][0]["marginal_accept_rates"]
    for one in kept["profiles"]:
        assert one["mean_accept_length"] == pytest.approx(1 + sum(one["marginal_accept_rates"]))
        assert all(0 <= rate <= 1 for rate in one["conditional_accept_rates"])
        lengths = {int(length): number for length, number in one["acceptance_length_histogram"].items()}
        mean = sum(length * number for length, number in lengths.items()) / sum(lengths.values())
        assert mean == pytest.approx(one["mean_accept_length"])
        assert [len(answer) for answer in one["trace"]] == [19] * 7
        assert all(
            len(stands) <= size <= one["num_speculative_tokens"] for answer in one["trace"] for size, stands in answer
        )


def test_what_was_exported_is_predicted_again_from_its_rates(command, tmp_path):
    path = tmp_path / "speculation_profile.json"
    command("--json", "--export", str(path), "--candidates", "suffix")
    result = command("--json", "--acceptance", str(path), "--candidates", "suffix")
    assert result.exit_code == 0, result.output
    found = {(one["draft"], one["k"]): one for one in json.loads(result.stdout.splitlines()[-1])["candidates"]}
    for k in (2, 4):
        assert found["suffix (file)", k]["tokens_per_pass"] == pytest.approx(
            found["suffix", k]["tokens_per_pass"], rel=0.15
        )
    dear = command("--json", "--acceptance", str(path), "--candidates", "", "--draft-ms", "1000")
    [some, *_] = json.loads(dear.stdout.splitlines()[-1])["candidates"]
    assert some["predicted"] < found[some["draft"], some["k"]]["predicted"]


def test_a_trace_of_an_advice_runs_in_the_simulator(command, tmp_path):
    path = tmp_path / "speculation_profile.json"
    command("--json", "--export", str(path), "--candidates", "ngram")
    kept = json.loads(path.read_text())["profiles"][0]
    trace = Trace.read(path, kept["draft"])
    model = ServingModel(CostProfile({1: 0.01}), length=Fixed(kept["num_speculative_tokens"]), acceptance=trace)
    texts = len(trace.answers)
    result = simulate_serving([TokenRequest(float(i), 5, 20) for i in range(texts)], model)
    assert result.acceptance_length == pytest.approx(kept["mean_accept_length"], rel=1e-6)


def test_files_without_rates_are_refused(command, tmp_path):
    path = tmp_path / "x.json"
    twice = [{"draft": "x", "marginal_accept_rates": [0.5], "num_speculative_tokens": 1}] * 2
    for text in (
        "{}", '{"marginal_accept_rates": [2], "num_speculative_tokens": 1}', json.dumps({"profiles": twice}),
    ):  # fmt: skip
        path.write_text(text)
        result = command("--acceptance", str(path))
        assert isinstance(result.exception, InvalidParameter)
        assert result.exception.field == "acceptance"


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_advised_is_measured_at_as_many_requests(command, batch):
    result = command("--validate", "1", "--candidates", "ngram", "-c", f"{batch},2", "--json")
    assert result.exit_code == 0, result.output
    checked = json.loads(result.stdout.splitlines()[-1])["validation"]
    assert {(one["draft"], one["k"], one["batch"]) for one in checked} == {("ngram", 2, batch), ("ngram", 4, batch)}
    assert all(one["measured"] > 0 for one in checked)
    shown = command("--validate", "1", "--candidates", "ngram", "-c", str(batch)).stdout
    assert shown.count(f"{batch} at once: predicted") == 2


def test_what_was_measured_elsewhere_needs_no_rehearsal(unpriced, monkeypatch, tmp_path):
    path = tmp_path / "elsewhere.json"
    path.write_text('{"marginal_accept_rates": [0.5], "num_speculative_tokens": 1, "method": "suffix"}')
    monkeypatch.setattr(run, "profile_of", lambda *_: profile())
    result = unpriced("--candidates", "", "--acceptance", str(path), "-c", "1", "--json")
    assert result.exit_code == 0, result.output
    [one] = json.loads(result.stdout.splitlines()[-1])["candidates"]
    assert one["draft"] == "suffix (file)"


def test_answers_of_one_token_cannot_be_replayed(command, monkeypatch):
    monkeypatch.setattr(run, "texts_of", lambda *_: ([], 0))
    result = command("--candidates", "ngram")
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "traffic"


def test_what_was_not_measured_is_said(command, tmp_path):
    path = tmp_path / "elsewhere.json"
    path.write_text('{"marginal_accept_rates": [0.5], "num_speculative_tokens": 1, "method": "from another engine"}')
    result = command("--validate", "1", "--candidates", "", "--acceptance", str(path), "-c", "1")
    assert "from another engine (file) k=1, 1 at once: predicted" in result.stdout
    assert "not measured, drafter: 'from another engine' is unknown" in result.stdout
    short = command("--validate", "0.0000001", "--candidates", "ngram", "-k", "2", "-c", "1")
    assert "not measured, no prompt was answered in 1e-07 minutes" in short.stdout


@pytest.mark.parametrize("step", ["texts_of", "replayed"])
def test_ctrl_c_before_an_advice_says_that_there_is_none(command, monkeypatch, tmp_path, step):
    monkeypatch.setattr(run, step, _press_ctrl_c)
    result = command("--candidates", "ngram", "-c", "1", "--export", str(tmp_path / "export.json"))
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "ended before there was an advice; nothing is written\n"
    assert not (tmp_path / "export.json").exists()


@pytest.mark.parametrize(
    ("step", "told"),
    [("validate.own_arms", None), ("bench.run._measured", ["ended before", "ended before"])],
)
def test_ctrl_c_while_an_advice_is_validated_keeps_the_advice(command, monkeypatch, tmp_path, step, told):
    place = "paceline.evaluation." + ("advise." if step.startswith("validate") else "")
    monkeypatch.setattr(place + step, _press_ctrl_c)
    export = tmp_path / "export.json"
    result = command("--validate", "1", "--candidates", "ngram", "-c", "1", "--json", "--export", str(export))
    assert result.exit_code == 130 and export.exists()
    assert result.stderr == "ended while the advice was validated; the advice itself is complete\n"
    record = json.loads(result.stdout)
    assert record["candidates"] and record["advice"]
    assert told == (record["validation"] and [one["why"] for one in record["validation"]])


def _press_ctrl_c(*_, **__):
    raise KeyboardInterrupt


def test_people_get_a_table_and_what_was_measured(command):
    result = command("--validate", "0.001", "--candidates", "ngram", "-c", "1")
    assert result.exit_code == 0, result.output
    assert "break-even" in result.stdout
    assert "The advice loses" in result.stdout
    assert "paceline serve" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--candidates", "lookahead"], "candidates"), (["--candidates", "ngram", "--spec", "x={}"], "method")],
)
def test_what_this_model_cannot_replay_is_refused_before_it_answers(command, monkeypatch, arguments, field):
    monkeypatch.setattr(run, "texts_of", lambda *_: pytest.fail("answered first"))
    result = command(*arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--for", "nope"], "for"), (["-c", "x"], "concurrency"), (["-c", "0"], "concurrency"),
        (["-k", "0"], "num_draft_tokens"), (["-k", ""], "num_draft_tokens"), (["--candidates", "none"], "drafter"),
        (["--candidates", "nope"], "drafter"), (["--validate", "0"], "validate"),
        (["--acceptance", "x", "--draft-ms", "nan"], "draft_ms"),
        (["--export", "/dev/null/x.json"], "export"), (["--max-tokens", "0"], "max_tokens"),
        (["--temperature", "-1"], "temperature"), (["--traffic", "/no/such/log.jsonl"], "prompts"),
        (["--validate", "1", "-c", "9"], "concurrency"), (["--candidates", ""], "candidates"),
        (["--candidates", " , "], "candidates"), (["--candidates", "ngram,ngram"], "candidates"),
        (["--spec", 'x={"method": "ngram"}', "--spec", 'x={"method": "suffix"}'], "spec"),
        (["--candidates", "ngram", "--spec", 'ngram={"method": "suffix"}'], "spec"),
        (["-k", "4,4"], "num_draft_tokens"), (["-c", "1,1"], "concurrency"), (["--draft-ms", "0"], "draft_ms"),
        (["--draft-url", "http://127.0.0.1:9"], "draft_url"), (["--max-tokens", "1"], "max_tokens"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field_before_a_model_is_loaded(command, monkeypatch, arguments, field):
    monkeypatch.setattr(options, "load_llm", lambda *_, **__: pytest.fail("loaded first"))
    result = command(*arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


def test_a_prompt_that_the_model_cannot_read_is_named_before_any_is_answered(command, monkeypatch, tmp_path):
    monkeypatch.setattr(LLM, "generate", lambda *_, **__: pytest.fail("answered first"))
    (tmp_path / "long.txt").write_text("short\nso long" + " x" * 9000)
    result = command("--traffic", str(tmp_path / "long.txt"), "--candidates", "ngram")
    assert isinstance(result.exception, InvalidParameter)
    assert str(result.exception).startswith("prompts: 'so long x x")


def test_a_prompt_that_is_too_long_is_named_before_passes_are_measured(unpriced, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "profile_of", lambda *_: pytest.fail("measured first"))
    (tmp_path / "long.txt").write_text("so long" + " x" * 9000)
    result = unpriced("--traffic", str(tmp_path / "long.txt"), "--candidates", "ngram")
    assert isinstance(result.exception, InvalidParameter)
    assert str(result.exception).startswith("prompts: 'so long x x")


def test_it_explains_itself():
    assert "Examples" in CliRunner().invoke(app, ["advise", "--help"]).stdout
