"""What the training commands say: of texts that were not measured, and how each recipe is asked for."""

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.train_head import head

pytest.importorskip("torch")


@pytest.mark.parametrize("replayed", [0.0, 1.5])
@pytest.mark.parametrize("command", ["head", "joint"])
def test_where_no_greedy_text_was_held_out_no_figure_is_shown(tmp_path, monkeypatch, command, replayed):
    from paceline.evaluation import head_training, joint_training
    from paceline.training.run.loop import Progress

    done = Progress(step=2, curve=[{"step": 2, "score": 1.0, "replayed": replayed, "sampled_eal": 1.25}])
    monkeypatch.setattr(head_training, "train_head", lambda *_: (None, done))
    monkeypatch.setattr(head_training, "save_trained", lambda *_: None)
    monkeypatch.setattr(joint_training, "train_joint", lambda *_: (done, {"other_best_token": 0.0, "kl": 0.0}))
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
