"""What the training commands say: of texts that were not measured, and how each recipe is asked for."""

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.train.head import head
from paceline.errors import InvalidParameter

pytest.importorskip("torch")


@pytest.mark.parametrize("replayed", [0.0, 1.5])
@pytest.mark.parametrize("command", ["head", "joint"])
def test_where_no_greedy_text_was_held_out_no_figure_is_shown(tmp_path, monkeypatch, command, replayed):
    from paceline.training.run.loop import Progress
    from paceline.training_jobs import head as head_job
    from paceline.training_jobs import joint as joint_job

    done = Progress(step=2, curve=[{"step": 2, "score": 1.0, "replayed": replayed, "sampled_eal": 1.25}])
    monkeypatch.setattr(head_job, "train_head", lambda *_: (None, done))
    monkeypatch.setattr(head_job, "save_trained", lambda *_: None)
    monkeypatch.setattr(joint_job, "train_joint", lambda *_: (done, {"other_best_token": 0.0, "kl": 0.0}))
    place = ["-o", str(tmp_path / "made"), "--work", str(tmp_path / "work")]
    found = CliRunner().invoke(app, ["train", command, "medusa", *place])
    assert found.exit_code == 0, found.exception
    said = " ".join(found.output.split())
    shown = (
        "1.50 tokens per pass on held-out greedy text"
        if replayed
        else "- tokens per pass (no greedy text was held out)"
    )
    assert f" {shown}" in said and "0.00 tokens" not in said


def test_the_help_has_an_example_for_every_recipe():
    from paceline.training.heads.recipes import RECIPES

    assert [name for name in RECIPES if f"paceline train head {name} " not in (head.__doc__ or "")] == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("head medusa --steps 5", "head medusa -m smollm2-135m --steps 5"),
        ("joint medusa -k 2 --threads 1", "joint medusa -m smollm2-135m --time-budget 60m -k 2"),
        (
            "head eagle -m smollm2-135m --time-budget 2m --seed 3 -k 5 --dtype bfloat16 --text {folder}/a.txt --json",
            "head eagle -m smollm2-135m --time-budget 2m --seed 3 --dtype bfloat16 -k 5 --text a.txt",
        ),
        (
            "head eagle --steps 2 --resume {folder}/parent --release",
            "head eagle -m smollm2-135m --steps 2 --resume parent --release",
        ),
        ("draft --steps 5 --rate 0.01 --layers 2", "draft -m smollm2-135m --steps 5 --rate 0.01 --layers 2"),
        ("joint medusa --steps 5 --rate 0.01", "joint medusa -m smollm2-135m --steps 5 --rate 0.01"),
    ],
)
def test_the_card_keeps_the_options_that_are_not_as_by_default(tmp_path, monkeypatch, given, kept):
    from paceline.cli.train import head as train_head

    jobs = []

    def ending(job, *_):
        jobs.append(job)
        raise KeyboardInterrupt

    _end_with(ending, monkeypatch)
    monkeypatch.setattr(train_head, "_long_text", lambda *_: [])
    (tmp_path / "parent").mkdir()
    arguments = given.format(folder=tmp_path).split()
    CliRunner().invoke(app, ["train", *arguments, "-o", str(tmp_path / "made"), "--work", str(tmp_path / "work")])
    assert [job.command for job in jobs] == [f"paceline train {kept}"]


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ("head medusa", 2e-3),
        ("head medusa --resume parent", 2e-4),
        ("head medusa --resume parent --rate 1e-3", 1e-3),
        ("joint medusa", 5e-4),
        ("joint medusa --rate 1e-3", 1e-3),
        ("draft", 1e-3),
        ("draft --begin-with parent", 2e-4),
        ("draft --begin-with parent --rate 1e-3", 1e-3),
    ],
)
def test_the_rate_is_that_of_what_is_trained_unless_it_is_given(tmp_path, monkeypatch, given, rate):
    rates = []

    def ending(job, *_):
        rates.append(job.loop.rate)
        raise KeyboardInterrupt

    _end_with(ending, monkeypatch)
    CliRunner().invoke(app, ["train", *given.split(), "-o", str(tmp_path / "made"), "--work", str(tmp_path / "work")])
    assert rates == [rate]


def _end_with(ending, monkeypatch):
    """Have `ending` called in place of every training."""
    from paceline.training_jobs import draft as draft_job
    from paceline.training_jobs import head as head_job
    from paceline.training_jobs import joint as joint_job

    monkeypatch.setattr(head_job, "train_head", ending)
    monkeypatch.setattr(joint_job, "train_joint", ending)
    monkeypatch.setattr(draft_job, "train_draft", ending)


def test_a_draft_of_all_layers_says_so(tmp_path, monkeypatch):
    from paceline.training.run.loop import LoopSettings, Progress
    from paceline.training_jobs import draft as draft_job
    from paceline.training_jobs.text import TextJob

    monkeypatch.setattr(draft_job, "text_card", lambda *_: {})
    done = Progress(curve=[{"step": 0, "score": 1.0}])
    for layers, said in ((None, "all layers of small"), (4, "layers 4 of small")):
        job = draft_job.DraftJob(TextJob("m", tmp_path, 1), LoopSettings(1), "small", layers)
        assert draft_job.draft_card(job, None, done)["began_as"] == said  # type: ignore[arg-type]


def test_the_help_of_a_pool_says_what_steps_are():
    from typing import get_type_hints

    from paceline.cli.train.draft import draft

    pool = get_type_hints(draft, include_extras=True)["pool"].__metadata__[0]
    assert "equal parts of the time, or --steps each" in pool.help


def test_a_text_file_without_text_is_refused_before_a_model_is_sought(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    found = CliRunner().invoke(app, ["train", "head", "eagle", "-m", "nowhere", "--text", str(tmp_path / "empty.txt")])
    assert isinstance(found.exception, InvalidParameter)
    assert str(found.exception).startswith("text: ") and "holds no text" in str(found.exception)
