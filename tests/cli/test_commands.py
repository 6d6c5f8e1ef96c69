"""The command line: what scripts read, what people see, and what happens to bad input."""

import json
import subprocess
import sys
import warnings
from functools import partial

import pytest
from typer.testing import CliRunner

from paceline.cli import options
from paceline.cli.main import app, main
from paceline.errors import HeadWarning

runner = CliRunner()


def invoke(*arguments, code=0):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.mark.parametrize(
    "command", [[], ["generate"], ["chat"], ["models"], ["demo"], ["tree"], ["theory"], ["theory", "table"]]
)
def test_every_command_explains_itself(command):
    text = invoke(*command, "--help")
    assert "Usage" in text
    if command and command != ["theory"]:
        assert "Examples" in text


@pytest.mark.weights
@pytest.mark.parametrize("draft", ["ngram", "suffix", "none"])
def test_generate_prints_the_object_that_scripts_read(draft):
    always = [] if draft == "none" else ["--policy", "fixed"]  # what pays depends on what else the machine does
    text = invoke(
        "generate", "--model", "smollm2-135m", "--draft", draft, *always, "--max-tokens", "24", "--temperature", "0",
        "--seed", "0", "--raw", "--compare", "--json", "red green blue red green blue red green",
    )  # fmt: skip
    record = json.loads(text)
    assert record["identical"] is True
    assert record["text"] == record["plain"]["text"]
    assert record["token_ids"] == record["plain"]["token_ids"]
    assert len(record["provenance"]) == len(record["token_ids"]) == 24
    assert set(record["provenance"]) <= {"target", "drafted", "bonus", "recovered"}
    stats = record["stats"]
    for name in ("tokens_per_second", "acceptance_length", "target_passes", "predicted_speedup", "speedup"):
        assert stats[name] > 0
    if draft == "none":
        assert stats["acceptance_rate"] is None
        assert stats["acceptance_length"] == 1
    else:
        assert 0 < stats["acceptance_rate"] <= 1
        assert "drafted" in record["provenance"]


@pytest.mark.weights
def test_generate_streams_text_and_closes_with_a_table():
    arguments = ["generate", "--raw", "--draft", "ngram", "-n", "40", "--compare", "[b]one[/b] two three one two"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout == json.loads(invoke(*arguments, "--json"))["text"] + "\n"
    for words in ("tokens/s", "acceptance length", "speed-up, theory", "same text", "Drafting", "gguf"):
        assert words in result.stderr


@pytest.mark.weights
def test_coupled_sampling_is_identical_under_compare():
    record = json.loads(
        invoke(
            "generate", "--temperature", "0.8", "--top-p", "0.95", "--seed", "5", "--rule", "coupled", "-n", "24",
            "--compare", "--json", "the sea the sea the sea",
        )
    )  # fmt: skip
    assert record["identical"] is True


@pytest.mark.weights
def test_chat_answers_takes_commands_and_leaves():
    result = runner.invoke(
        app, ["chat", "-t", "0", "-n", "8"], input="Say hello.\n/stats\n/reset\n/nonsense\n/help\n/quit\n"
    )
    assert result.exit_code == 0, result.output
    assert "tokens/s" in result.stderr
    assert "No such command" in result.stderr and "/save FILE" in result.stderr


def test_models_lists_the_default_model():
    record = json.loads(invoke("models", "--json"))
    assert record["models"][0]["name"] == options.DEFAULT_MODEL
    assert options.DEFAULT_MODEL in invoke("models")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "--model", "no-such-model", "hi"], ["no-such-model", "smollm2-135m"]),
        (["generate", "--temperature", "-1", "hi"], ["temperature", "greedy"]),
        (["generate", "--top-p", "0", "hi"], ["top_p", "(0, 1]"]),
        (["generate", "--top-p", "1.5", "hi"], ["top_p"]),
        (["generate", "--top-k", "-3", "hi"], ["top_k"]),
        (["generate", "--max-tokens", "0", "hi"], ["max_tokens"]),
        (["generate", "-k", "-1", "hi"], ["num_draft_tokens"]),
        (["generate", "--policy", "guess", "hi"], ["policy", "fixed"]),
        (["generate", "--draft-option", "oops", "hi"], ["draft_option", "NAME=VALUE"]),
        (["generate", "--draft", "draft_model", "hi"], ["model", "smaller model"]),
        (["generate", "--temperature", "1", "--compare", "hi"], ["seed"]),
        (["generate", ""], ["prompt", "empty"]),
        (["generate", "--chat", "--raw", "hi"], ["raw", "--chat", "leave one"]),
        (["generate", "--draft", "none", "--draft-option", "x=1", "hi"], ["draft_option", "none"]),
        (["generate", "--draft", "none", "-k", "4", "hi"], ["num_draft_tokens", "none"]),
        (["train", "disco", "--prompts", "x", "--draft-model", "y", "-o", "/"], ["output", "name a file"]),
        (["train", "head", "medusa", "--steps", "0"], ["steps", "at least 1"]),
        (["train", "head", "medusa", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["train", "draft", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["train", "joint", "medusa", "-o", "x", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["train", "memory", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["generate", "--model", "[/red]x", "hi"], ["[/red]x"]),
        (["generate", "--model", "x[bold]y:smile:", "hi"], ["x[bold]y:smile:"]),
        pytest.param(
            ["generate", "--kv-cache-memory-bytes", "1000", "hi"],
            ["kv_cache_memory_bytes", "raise it"],
            marks=pytest.mark.weights,
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_field_and_the_remedy(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    check_refusal(said.out, said.err, words)


def test_a_warning_is_one_line_without_its_place_in_the_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paceline", "models"])
    warns = partial(warnings.warn, "a [head] is passed over", HeadWarning, stacklevel=1)
    monkeypatch.setattr("paceline.cli.main.app", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main()
    assert capsys.readouterr().err == "warning: a [head] is passed over\n"


def test_a_refusal_is_the_same_in_a_process_of_its_own():
    command = [sys.executable, "-m", "paceline.cli.main", "generate", "--temperature", "-1", "hi"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    check_refusal(done.stdout, done.stderr, ["temperature", "greedy"])


def check_refusal(output, errors, words):
    assert not output
    assert errors.strip().startswith("error:")
    assert len(errors.strip().splitlines()) == 1
    assert "Traceback" not in errors
    for word in words:
        assert word in errors
