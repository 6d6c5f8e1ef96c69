"""`paceline bench`: the object that scripts read, the page, gates, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.bench import Prompts
from paceline.cli.main import app
from paceline.cli.options import model as options
from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.bench import run
from paceline.evaluation.bench.gate import Gate
from paceline.evaluation.prompts import load_prompts
from tests.evaluation.bench.openai_server import Fake, serving


def in_even_time(measured):
    """`_measured` with times that depend on the passes alone, give or take 2 %, rather than on the machine.

    On a busy one an answer of twelve tokens may take most of the run's time, and there is no interval then.
    """

    def measure(arms, number, cell, now, meter):
        return [_even(one, (number, cell.number, i)) for i, one in enumerate(measured(arms, number, cell, now, meter))]

    return measure


def _even(one, seed):
    if any(each.passes is None for each in one.answers):  # a server's
        return one
    pace = 0.01 * (1 + 0.02 * np.random.default_rng(seed).standard_normal())
    answers = [
        replace(each, first_token_seconds=0.1, seconds=0.1 + pace * each.passes, verify_seconds=pace * each.passes)
        for each in one.answers
    ]
    return replace(one, seconds=max(each.seconds for each in answers), answers=tuple(answers))


@pytest.fixture
def command(tiny, monkeypatch, tmp_path):
    """Runs `paceline bench` on the tiny model with eight short prompts, in virtual time."""
    monkeypatch.setattr(run, "_measured", in_even_time(run._measured))
    path = tmp_path / "prompts.jsonl"
    texts = ["abcabcabc", "the cat the cat", "x y x y x y", "one two one two"] * 2
    path.write_text(
        "".join(json.dumps({"prompt": f"{t} {i}", "category": "ab"[i % 2]}) + "\n" for i, t in enumerate(texts))
    )

    def load(name, speculative, **engine):
        llm = LLM.from_loaded(tiny, EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 21, profile="none"))
        return llm

    monkeypatch.setattr(options, "load_llm", load)
    arguments = ["bench", "any", "--prompts", str(path), "--max-tokens", "12", "--ignore-eos"]
    return lambda *more: CliRunner().invoke(app, [*arguments, *more])


def test_the_object_that_scripts_read(command, tmp_path):
    page, run = tmp_path / "run.html", tmp_path / "run.jsonl"
    result = command("--drafts", "ngram,medusa:no/such/head", "--json", "--html", str(page), "-o", str(run))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert list(record["arms"]) == ["plain", "plain (again)", "ngram"]
    for arm in record["arms"].values():
        assert arm["low"] <= arm["ratio"] <= arm["high"]
        assert arm["identical"] is True
        assert arm["tokens_per_pass"] >= 1
    assert record["arms"]["plain"]["tokens_per_pass"] == 1
    assert record["noise_floor"] > 0
    assert "no/such/head" in record["skipped"]["medusa:no/such/head"]
    assert {table["family"] for table in record["tables"]} == {"all", "a", "b"}
    assert len(run.read_text().splitlines()) == 1 + 3 * 8
    text = page.read_text()
    assert not re.search(r'(?:src|href)="?http', text), "the page must not need a network"
    assert json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])["arms"] == record["arms"]


@pytest.mark.parametrize(
    ("more", "named"),
    [(["--rule", "p/q"], "rule"), (["--raw"], "raw"), (["--max-tokens", "9"], "max_tokens"), (["-k", "2"], "num_draft"),
     (["--per-family", "2"], "prompts"), (["--threads", "1"], "threads"), (["--unseeded"], "unseeded")],
)  # fmt: skip
def test_a_run_goes_on_only_with_all_that_decides_a_figure(command, tmp_path, more, named):
    file = str(tmp_path / "run.jsonl")
    assert command("--drafts", "ngram", "-o", file, "--slo", "ttft=1s").exit_code == 0
    assert command("--drafts", "ngram", "-o", file, "--html", str(tmp_path / "x.html")).exit_code == 0
    assert named in str(command("--drafts", "ngram", "-o", file, *more).exception)


def test_other_prompts_in_a_file_of_the_same_name_are_other_prompts(command, tmp_path):
    file, prompts = str(tmp_path / "run.jsonl"), tmp_path / "prompts.jsonl"
    assert command("--drafts", "ngram", "-o", file).exit_code == 0
    prompts.write_text(prompts.read_text().replace("cat", "dog"))
    found = command("--drafts", "ngram", "-o", file).exception
    assert isinstance(found, InvalidParameter)
    assert "other prompts" in str(found)


def test_a_folder_is_no_file_to_keep_answers_in(command, tmp_path):
    found = command("-o", str(tmp_path)).exception
    assert isinstance(found, InvalidParameter)
    assert found.field == "resume"


def test_a_gate_fails_the_command_and_says_why(command):
    result = command("--drafts", "ngram", "--gate", "ngram>=50@b")
    assert result.exit_code == 1
    assert "gate: ngram on b" in result.stderr
    assert "verdict" in result.stdout


def test_tables_are_printed_once_and_the_object_alone(command, tmp_path):
    found, document = command("--drafts", "ngram"), tmp_path / "tables.md"
    for text in ("all prompts, temperature 0", "a, temperature 0", "acceptance", "Plain decoding against itself"):
        assert text in found.stdout
        assert text not in found.stderr
    assert found.stdout.count("all prompts, temperature 0") == 1
    found = command("--drafts", "ngram", "--json", "--markdown", str(document))
    assert [line[:1] for line in found.stdout.splitlines()] == ["{"]
    assert "temperature 0" not in found.stderr
    assert "| ngram |" in document.read_text()


def test_temperatures_and_requests_at_once_have_tables_of_their_own(command):
    result = command("--drafts", "suffix", "-t", "0,1", "-c", "1,2", "--json", "-k", "3")
    record = json.loads(result.stdout.splitlines()[-1])
    settings = {(table["temperature"], table["concurrency"]) for table in record["tables"]}
    assert settings == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert all(table["arms"]["suffix k=3"]["identical"] for table in record["tables"]), (
        "a seed is a wish for the same text"
    )


def test_servers_alone_can_be_measured(command):
    with serving(Fake(lambda body: ["a"] * 9)) as url, serving(Fake(lambda body: ["a"] * 8 + ["b"])) as plain:
        result = CliRunner().invoke(
            app, ["bench", "none", "--per-family", "2", "--url", f"x={url}", "--plain-url", f"x={plain}", "--json"]
        )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert list(record["arms"]) == ["x plain", "x plain (again)", "x"]
    assert record["arms"]["x"]["identical"] is False
    assert record["arms"]["x"]["tokens_per_pass"] is None
    assert record["arms"]["x plain (again)"]["identical"] is True


def test_a_server_whose_speculation_is_off_is_named():
    said = ["a"] * 9
    off, on = ({"predicted_n": 9, "draft_n": count, "draft_n_accepted": 0} for count in (0, 4))
    with serving(Fake(lambda body: said, timings=off)) as idle, serving(Fake(lambda body: said, timings=on)) as busy:
        urls = [f"--url=idle={idle}", f"--plain-url=idle={idle}", f"--url=busy={busy}", f"--plain-url=busy={idle}"]
        result = CliRunner().invoke(app, ["bench", "none", "--per-family", "1", *urls, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["drafted_nothing"] == ["idle"]
    assert "idle drafted nothing" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--families", "nope"], "families"), (["--precision", "3"], "precision"), (["-c", "x"], "concurrency"),
     (["--gate", "x>y"], "gate"), (["--spec", "x={"], "spec"), (["--rounds", "0"], "rounds"),
     (["--slo", "ttft=5"], "slo"), (["--drafts", "nope"], "drafter"), (["--prompts", "long:x"], "prompts"),
     (["--turns", "last"], "turns"), (["--prompts", "/dev/null"], "prompts"), (["--per-family", "-1"], "per_family"),
     (["--per-family", "0"], "per_family"), (["--temperature", ""], "temperature"), (["-c", ""], "concurrency"),
     (["--rate", ""], "rate"), (["-k", ""], "num_draft_tokens")],
)  # fmt: skip
def test_bad_input_names_its_field(command, arguments, field):
    result = command(*arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--gate", "nope>=1"], "gate"), (["--gate", "ngram>=1@nope"], "gate"), (["--html", "/dev/null/x.html"], "html"),
     (["--markdown", "/dev/null/x.md"], "markdown"), (["--minutes", "0"], "minutes")],
)  # fmt: skip
def test_what_would_fail_after_the_bench_is_refused_before_it(command, monkeypatch, arguments, field):
    monkeypatch.setattr(run, "_measured", lambda *_: pytest.fail("measured first"))
    result = command("--drafts", "ngram", *arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["-n", "1"], "max_tokens"), (["-n", "0"], "max_tokens"), (["--temperature=-1"], "temperature")],
)  # fmt: skip
def test_what_no_request_may_ask_for_is_refused_before_the_model_is_loaded(command, monkeypatch, arguments, field):
    monkeypatch.setattr(options, "load_llm", lambda *_, **__: pytest.fail("loaded first"))
    result = command("--drafts", "ngram", *arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


_HERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--drafts", "ngram,ngram"], "drafts"), (["--drafts", "plain"], "drafts"), (["-k", "2,2"], "num_draft_tokens"),
     (["--spec", 'ngram={"method": "ngram"}'], "spec"), (["--spec", 'plain={"method": "ngram"}'], "spec"),
     (["--spec", 'x={"method": "ngram"}', "--spec", 'x={"method": "suffix"}'], "spec"),
     (["--url", f"ngram={_HERE}"], "url"), (["--url", f"plain={_HERE}"], "url"),
     (["--url", f"x={_HERE}", "--url", f"x={_HERE}"], "url"),
     (["--url", f"x={_HERE}", "--plain-url", f"x={_HERE}", "--plain-url", f"x={_HERE}"], "plain_url"),
     (["--url", f"x={_HERE}", "--plain-url", f"x={_HERE}", "--url", f"x plain={_HERE}"], "plain_url"),
     (["-t", "0,0.0"], "temperature"), (["-c", "1,1"], "concurrency"), (["--rate", "2,2"], "rate")],
)  # fmt: skip
def test_what_is_given_twice_is_refused_before_anything_is_asked(command, monkeypatch, arguments, field):
    monkeypatch.setattr(options, "load_llm", lambda *_, **__: pytest.fail("loaded first"))
    result = command(*(() if "--drafts" in arguments else ("--drafts", "ngram")), *arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field
    assert "another arm" in str(result.exception) or "twice" in str(result.exception)


def test_answers_of_one_token_are_not_called_a_ratio_of_1(tmp_path):
    page = tmp_path / "page.html"
    with serving(Fake(lambda body: ["a"])) as url:
        servers = ["--url", f"x={url}", "--plain-url", f"x={url}"]
        arguments = ["bench", "none", "-c", "1,2", *servers, "--gate", "x>=0.1", "--html", str(page), "--json"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert {arm["ratio"] for arm in record["arms"].values()} == {None}
    assert record["arms"]["x"]["verdict"] == "nothing measured"
    assert record["verdict"].startswith("Nothing was measured")
    assert "nothing measured" in record["gate_failures"][0]
    assert not re.search(r"\bnan\b", page.read_text(), re.I)


def test_minutes_that_end_before_the_first_answer_are_named(command):
    result = command("--drafts", "ngram", "--minutes", "1e-9")
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "minutes"


def test_a_family_that_was_not_reached_fails_its_gate():
    assert Gate("suffix", 1.0, "qa").failures([]) == ["suffix on qa: not measured"]


def test_without_a_model_there_must_be_a_server():
    result = CliRunner().invoke(app, ["bench", "none"])
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "url"


def test_gates_are_read():
    assert Gate.of("suffix k=4 >= 1.2 @ qa") == Gate("suffix k=4", 1.2, "qa")
    assert Gate.of("x>=1") == Gate("x", 1.0, "all")


def test_commands_of_the_page_ask_for_no_more_at_once_than_the_built_in_prompts_allow():
    page = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()
    found = re.findall(r"^paceline bench(?!.*--prompts).*--concurrency (\S+)", page, re.M)
    assert found
    assert all(Prompts(concurrency=each).cells() for each in found)


def test_it_explains_itself():
    assert "Examples" in CliRunner().invoke(app, ["bench", "--help"]).stdout


def test_prompts_of_every_layout(tmp_path):
    path = tmp_path / "p.jsonl"
    lines = [{"turns": ["a", "b"], "category": "writing"}, {"messages": [{"role": "user", "content": "c"}]},
             {"text": "d", "answer": "e", "category": "qa"}]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    found = load_prompts(f"spec-bench:{path}", all_turns=True)
    assert {(p.text, p.family, p.answer) for p in found} == {
        ("a", "conversation", None), ("b", "conversation", None), ("c", "no category", None), ("d", "qa", "e"),
    }  # fmt: skip
    assert [p.family for p in load_prompts("builtin", per_family=1)] == ["copying", "code", "reading", "free"]
    assert [p.text for p in load_prompts(str(path), ["qa"])] == ["d"]
    path.write_text('{"x": 1}')
    with pytest.raises(InvalidParameter, match=r"prompts.*line 1"):
        load_prompts(str(path))


def test_prompts_without_a_category_are_a_family_and_the_total_is_none(command, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"abc abc {i}"} | ({"category": "qa"} if i % 2 else {}) for i in range(4)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    result = command("--drafts", "ngram", "--json")
    tables = json.loads(result.stdout)["tables"]
    found = {table["family"]: table["arms"]["plain"]["prompts"] for table in tables}
    assert (len(tables), found) == (3, {"all": 4, "no category": 2, "qa": 2})
    prompts.write_text(prompts.read_text().replace("qa", "all"))
    result = command("--drafts", "ngram", "--json")
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "prompts"
    assert command("--drafts", "ngram", "--families", "all", "--json").exit_code == 0


def test_a_prompt_that_the_model_cannot_read_is_named_before_any_is_answered(command, tmp_path):
    file = tmp_path / "run.jsonl"
    with (tmp_path / "prompts.jsonl").open("a") as prompts:
        prompts.write(json.dumps({"prompt": "so long" + " x" * 9000, "category": "a"}))
    result = command("--drafts", "ngram", "-o", str(file))
    assert isinstance(result.exception, InvalidParameter) and not file.exists()
    assert re.search(r"^prompts: 'so long x x.* tokens", str(result.exception))


def test_stretches_of_a_text_are_prompts(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text("abcdefghijkl")
    found = load_prompts(f"long:{path}@2,4", per_family=2)
    assert [(p.text, p.family) for p in found] == [
        ("ab", "2 characters"), ("abcd", "4 characters"), ("cd", "2 characters"), ("efgh", "4 characters"),
    ]  # fmt: skip
    assert len(load_prompts(f"long:{path}@1,2")) == 12
    for wrong in (f"long:{path}", f"long:{path}@2,x", f"long:{path}@0", f"long:{path}@7", "long:none.txt@2"):
        with pytest.raises(InvalidParameter):
            load_prompts(wrong, per_family=2)
