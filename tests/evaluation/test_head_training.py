"""`paceline train head` from end to end with a random model of a few thousand weights."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.train_options import seconds_of
from paceline.errors import InvalidParameter
from paceline.models.base import NORMED
from paceline.models.heads.files import read_head
from paceline.models.heads.fingerprint import target_print
from paceline.training.heads import conversations
from tests.evaluation.test_head_data import ChattyTokenizer
from tests.fakes import RandomCheckpoint, small_config


@pytest.fixture
def machine(monkeypatch):
    """A random model under every name, quick writing, and every third prompt held out."""
    pytest.importorskip("torch")
    from paceline.evaluation import head_data, head_training
    from paceline.models import resolve
    from paceline.models.loaded import LoadedModel
    from paceline.models.torch_executor import TorchModel

    monkeypatch.setattr(ChattyTokenizer, "chat_template", "U:..|A:", raising=False)
    checkpoint = RandomCheckpoint(small_config())
    source = resolve.ModelSource("random", checkpoint, ChattyTokenizer())  # type: ignore[arg-type]
    monkeypatch.setattr(head_training, "load", lambda *_: LoadedModel(source, TorchModel(checkpoint)))
    monkeypatch.setattr(resolve, "resolve_model", lambda name: source)
    monkeypatch.setattr(head_data, "_ROUND", 12)
    monkeypatch.setattr(conversations, "HELD_OUT_SHARE", 3)
    return source


def run(*arguments):
    return CliRunner().invoke(app, ["train", "head", *map(str, arguments)])


def test_a_head_is_trained_saved_and_gone_on_with(machine, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    common = ["medusa", "--prompts", prompts, "--work", tmp_path / "work", "--tokens", 300, "--json", "--threads", 1]
    plot, folder = tmp_path / "curve.svg", tmp_path / "head"
    found = run(*common, "--steps", 2, "--plot", plot, "-o", folder)
    assert found.exit_code == 0, found.output
    first = json.loads(found.stdout)
    assert first["step"] == 2 and first["output"] == str(folder) and plot.exists()
    record = read_head(folder)
    assert record.config.family == "medusa" and record.config.taps == (NORMED,)
    assert record.config.target == target_print(machine)
    card: dict[str, Any] = dict(record.card)
    assert card["training"]["updates"] == 2 and 0 < card["draft_vocabulary"]["coverage"] <= 1
    shards = sorted((tmp_path / "work" / "taps").glob("shard-*"))
    again = run(*common, "--steps", 2, "-o", folder)
    assert json.loads(again.stdout)["curve"] == first["curve"]
    assert sorted((tmp_path / "work" / "taps").glob("shard-*")) == shards


def test_bad_wishes_are_refused(machine, tmp_path):
    found = run("eagle9", "--work", tmp_path, "--tokens", 10)
    assert found.exit_code and "choose one of: eagle3" in str(found.exception or found.output)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("60m", 3600), ("1.5h", 5400), ("12", 12)])
def test_times(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3m", "0", "nan", "soon", "1e12h"])
def test_no_times(text):
    with pytest.raises(InvalidParameter, match=r"write 90s, 60m or 1\.5h"):
        seconds_of(text)
