import json

import pytest
from typer.testing import CliRunner

from paceline.cli.theory.group import app
from paceline.theory import best_length, wall_time_factor
from paceline.theory.curves import CURVES
from paceline.theory.long_context import Machine, Shape, best_multiplier
from paceline.theory.tables import TABLES


def run(*arguments, fails=False):
    """Output of `paceline theory ARGUMENTS`, which must succeed (or end in a usage error)."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == (2 if fails else 0), result.output
    return result.output


def test_table_prints_all_tables_by_default():
    output = run("table")
    assert "Expected tokens" in output
    assert "Best speculation length" in output
    assert "4.329" in output
    assert "7.486" in output


@pytest.mark.parametrize("name", TABLES)
def test_one_table_as_json(name):
    (table,) = json.loads(run("table", name, "-a", 0.8, "-c", 0.05, "--json"))
    assert len(table["rows"]) == 1
    assert len(table["rows"][0]) == len(table["columns"])


def test_table_follows_its_options():
    (table,) = json.loads(run("table", "speed-up", "-a", 0.8, "-c", 0.05, "--max-length", 3, "--json"))
    assert table["rows"] == [[0.8, *(wall_time_factor(0.8, g, 0.05) for g in range(4))]]


def test_wide_tables_keep_their_digits():
    result = CliRunner().invoke(app, ["table", "tokens", "--max-length", "30"], env={"COLUMNS": "60"})
    assert "…" not in result.output
    assert "9.618" in result.output


def test_predict_picks_the_best_length():
    prediction = json.loads(run("predict", "--alpha", 0.7, "--cost-ratio", 0.05, "--json"))
    best = best_length(0.7, 0.05)
    assert (prediction["length"], prediction["speedup"]) == (best.num_draft_tokens, pytest.approx(best.speedup))
    assert prediction["verdict"] == "speculation pays"


def test_predict_from_a_measured_acceptance_length_and_row_cost():
    given = ("--acceptance-length", 2.8, "-k", 4, "--cost-ratio", 0.05, "--row-cost", 0.03)
    prediction = json.loads(run("predict", *given, "--json"))
    assert prediction["tokens_per_pass"] == pytest.approx(2.8)
    assert prediction["cost_per_pass"] == pytest.approx(1.32)
    assert prediction["speedup"] == pytest.approx(2.8 / 1.32)
    alpha = prediction["alpha"]
    assert prediction["oracle_speedup"] == pytest.approx(1 / (1 - alpha + 0.08 * alpha))


def test_break_even_rate_breaks_even():
    first = json.loads(run("predict", "-a", 0.5, "-c", 0.1, "-k", 4, "--json"))
    again = json.loads(run("predict", "-a", first["break_even_alpha"], "-c", 0.1, "-k", 4, "--json"))
    assert again["speedup"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (("-a", 0.02, "-c", 0.05), "speculation does not pay"),
        (("-a", 0.1, "-c", 0.05, "-k", 4), "this length does not pay, the best one does"),
        (("-a", 0.9, "-c", 0.05), "speculation pays"),
    ],
)
def test_predict_says_whether_it_pays(arguments, verdict):
    assert verdict in run("predict", *arguments)


@pytest.mark.parametrize("arguments", [("-a", 1, "-c", 0), ("-a", 0.7, "-c", 1e308, "-k", 4)])
def test_infinite_figures_are_null_in_json(arguments):
    def no_json(word):
        raise AssertionError(f"{word} is no JSON")

    prediction = json.loads(run("predict", *arguments, "--json"), parse_constant=no_json)
    assert None in prediction.values()


def test_plot_writes_its_file_and_points(tmp_path):
    path = tmp_path / "plot.png"
    assert "wrote" in run("plot", "tokens", "-o", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    chart = json.loads(run("plot", "tokens", "-o", path, "--json"))
    assert chart["series"][0]["y"][:2] == [1.0, 1.5]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("predict", "-a", 1.4, "-c", 0.05), "alpha"),
        (("predict", "-c", 0.05), "--acceptance-length"),
        (("predict", "-a", 0.5, "--acceptance-length", 2, "-c", 0.05), "--acceptance-length"),
        (("predict", "--acceptance-length", 2.5, "-c", 0.05), "-k"),
        (("predict", "-a", 0.5, "-c", 0.05, "--row-cost", -1), "row_cost"),
        (("predict", "-a", 0.5, "-c", 0.05, "-k", -1), "num_draft_tokens"),
        (("predict", "--acceptance-length", 2, "-k", 10**6, "-c", 0.05), "k: 1000000 is more than 10000"),
        (("table", "--max-length", 10**6), "max_length: 1000000 is more than 1024"),
        (("long-context", "--max-length", 10**6), "max_length: 1000000 is more than 1024"),
        (("long-context", "--requests", 10**23), "more than 131072"),
        (("intensity", "--rows", 10**23), "more than 1048576"),
        (("intensity", "--chunk", 10**23), "more than 1048576"),
        (("table", "nothing"), "best-length"),
        (("plot", "nothing", "-o", "x.png"), "candidates"),
        (("plot", "tokens", "-o", "x.docx"), ".png"),
    ],
)
def test_wrong_usage_says_what_to_do(arguments, says):
    assert says in run(*arguments, fails=True)


def test_distributed_says_where_to_run_the_draft(tmp_path):
    assert "run the draft on 16 chips" in run("distributed")
    deep = json.loads(run("distributed", "--draft-layers", 36, "--json"))
    assert deep["best"]["tensor_parallel_size"] == 8
    assert [plan["tensor_parallel_size"] for plan in deep["plans"]] == [1, 2, 4, 8, 16]
    assert "do not draft" in run("distributed", "--alpha", 0)
    path = tmp_path / "latency.png"
    run("distributed", "--target-size", 6, "-o", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "hop_seconds" in run("distributed", "--hop", -1, fails=True)


def test_long_context_says_what_a_draft_over_part_of_the_context_brings():
    """The figures of docs/theory.md: 1.06, 2.2 and 3.5 times plain decoding."""
    printed = run("long-context")
    assert "1.062" in printed and "2.235" in printed and "3.545" in printed
    machine, target = Machine(3e12, 9e14), Shape(2048, 24, 4)
    given = ("--hidden-size", 2048, "--layers", 24, "--queries-per-key", 4, "--bandwidth", 3e12, "--peak", 9e14)
    given += ("--draft-layers", 6, "--window", 100, "-a", 0.7, "--context", 500, "--context", 9000, "--requests", 2)
    one, other = json.loads(run("long-context", *given, "--json"))
    draft = Shape(2048, 6, 4, 100)
    for found, contexts in ((one, [500] * 2), (other, [9000] * 2)):
        best = best_multiplier(0.7, target, draft, contexts, machine)
        assert (found["num_draft_tokens"], found["multiplier"]) == (best.num_draft_tokens, best.speedup)
        assert (found["num_requests"], found["mean_context"]) == (2, contexts[0])
    [mixed] = json.loads(run("long-context", *given, "--mixed", "--json"))
    assert mixed["multiplier"] == best_multiplier(0.7, target, draft, [500, 500, 9000, 9000], machine).speedup
    assert mixed["num_requests"] == 4 and mixed["mean_context"] == 4750
    shared, _ = json.loads(run("long-context", *given, "--shared-memory", "--json"))
    assert shared["cost_ratio"] < one["cost_ratio"]
    for wrong in (("--requests", 0), ("--window", 0), ("--layers", 0), ("--alpha", 2), ("--context", -1)):
        assert wrong[0].strip("-") in run("long-context", *wrong, fails=True).split("Invalid value")[1]


def test_intensity_says_from_how_many_rows_a_pass_is_bound_by_arithmetic(tmp_path):
    """The figures of docs/sarathi.md."""
    printed = run("intensity")
    for figure in ("10.779", "177.413", "201.6 operations per byte", "a chunk of 203 tokens", "never are"):
        assert figure in printed
    assert "592 decodes after 100 tokens" in run("intensity", "--context", 100)
    assert "over a million" in run("intensity", "--bandwidth", 1)
    path = tmp_path / "intensity.png"
    found = json.loads(run("intensity", "-n", 4, "-n", 2, "--chunk", 8, "-o", path, "--json"))
    assert [row[0] for row in found["rows"]] == [2, 4]
    assert (found["saturating_chunk"], found["saturating_decodes"]) == (203, None)
    assert path.read_bytes().startswith(b"\x89PNG")
    for wrong in (("--rows", 0), ("--chunk", 0), ("--layers", 0), ("--context", -1), ("--peak", 0)):
        assert "Invalid value" in run("intensity", *wrong, fails=True)


@pytest.mark.parametrize("command", ["table", "predict", "plot", "distributed", "long-context", "intensity"])
def test_help_shows_examples(command):
    assert f"paceline theory {command}" in run(command, "--help")


def test_help_of_plot_lists_every_name():
    output = run("plot", "--help")
    assert all(name in output for name in CURVES)
