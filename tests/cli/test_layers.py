"""`paceline layers`: what it prints, as a table and as JSON, and what it refuses."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from paceline.cli.layers import _advice
from paceline.cli.main import app
from paceline.engine.setup import load
from paceline.errors import InvalidParameter
from paceline.evaluation.layer_search import LayerChoice
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text file, and a tiny model under every name."""
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    checkpoint = RandomCheckpoint(small_config())
    source = ModelSource("tiny", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    monkeypatch.setattr(load, "load", lambda *_: LoadedModel(source, NumbaModel(checkpoint, "float32", 1)))
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat")
    return str(path)


def test_json_holds_the_best_set_and_all_that_were_tried(text):
    result = CliRunner().invoke(app, ["layers", text, "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["best"] in record["tried"]
    assert [len(one["skip_layers"]) for one in record["tried"]] == [1, 2]
    assert all(0 <= one["agreement"] <= 1 and one["num_draft_tokens"] >= 1 for one in record["tried"])


def test_people_get_a_table_and_the_option_to_copy_or_the_truth(text):
    result = CliRunner().invoke(app, ["layers", text, text, "--max-tokens", "30"])
    assert result.exit_code == 0, result.output
    assert "agreement" in result.stdout
    assert ("--draft-option 'skip_layers=[" in result.stdout) != ("No set of layers" in result.stdout)


def test_the_option_to_copy_is_one_word_for_every_shell():
    advice = _advice(LayerChoice((3, 14), 0.9, 2, 1.1))
    assert shlex.split(advice)[-1] == "skip_layers=[3,14]" and "'skip_layers=[3,14]'" in advice


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["no/such/file"], "texts: .*no/such/file"), (["--max-tokens", "1"], "max_tokens: .*at least two")],
)
def test_bad_input_names_its_field(text, arguments, field):
    result = CliRunner().invoke(app, ["layers", text, *arguments])
    assert isinstance(result.exception, InvalidParameter)
    with pytest.raises(InvalidParameter, match=field):
        raise result.exception


def test_it_explains_itself():
    result = CliRunner().invoke(app, ["layers", "--help"])
    assert "Examples" in result.stdout
