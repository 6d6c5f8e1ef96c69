"""`paceline train memory`: recorded answers become a file that lookups read, and bad input is named."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app, main
from paceline.drafters.lookup.memory import read_memory
from paceline.models.resolve import resolve_model
from paceline.training.conversation_files import read_all, write_conversations
from paceline.training.heads.conversations import Conversation

runner = CliRunner()


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """A folder of a hundred conversations that say nearly the same."""
    tokenizer = resolve_model("smollm2-135m").tokenizer
    folder = tmp_path_factory.mktemp("talk")
    said = []
    for number in range(100):
        prompt = tokenizer.encode(f"Question {number}:", False)
        answer = tokenizer.encode(" The river is long and the bridge over it is old.", False)
        said.append(Conversation(np.array([*prompt, *answer], np.int32), len(prompt), 0.0))
    write_conversations(folder / "talk.npz", said)
    return folder


@pytest.mark.weights
def test_a_memory_is_written_and_worth_something(talk, tmp_path):
    output = tmp_path / "memory.safetensors"
    arguments = ["train", "memory", "--answers", str(talk), "-o", str(output)]
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["held_out_answers"] > 0
    assert record["with"]["tokens_per_pass"] > 2 * record["without"]["tokens_per_pass"]
    memory = read_memory(output)
    assert record["tokens"] == memory.info.num_tokens
    assert len(memory) == record["sequences"]
    shown = runner.invoke(app, [*arguments, "--tokens", "40"])
    assert "the request and the memory" in shown.stdout
    assert 40 <= read_memory(output).info.num_tokens < 60


@pytest.mark.weights
def test_a_memory_in_place_of_a_shipped_one_says_so(talk, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.drafters.lookup.find.cache_dir", lambda: tmp_path)
    arguments = ["train", "memory", "--answers", str(talk)]
    shown = " ".join(runner.invoke(app, arguments).stdout.split())
    assert str(tmp_path / "heads" / "smollm2-135m" / "memory.safetensors") in shown
    assert "auto reads it in place of" in shown and "delete it to go back to that one" in shown
    assert "in place of" not in runner.invoke(app, [*arguments, "-o", str(tmp_path / "aside")]).stdout


@pytest.mark.weights
def test_ctrl_c_while_answers_are_written_tells_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.training.self_written.SelfWriter.write", interrupted)
    result = runner.invoke(app, ["train", "memory", "-o", str(tmp_path / "memory")])
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "ended; start the same command again to go on"  # after long compilations


@pytest.mark.weights
def test_answers_that_share_words_with_a_benchmark_are_left_out(talk, tmp_path):
    (tmp_path / "bench.jsonl").write_text('{"prompt": "Question 1: The river is long and the bridge over it is old."}')
    arguments = ["train", "memory", "--answers", str(talk), "-o", str(tmp_path / "m"), "--json"]
    record = json.loads(runner.invoke(app, [*arguments, "--keep-clean", str(tmp_path / "bench.jsonl")]).stdout)
    counted = [one for one in read_all([talk]) if not one.is_held_out]
    assert record["tokens"] == sum(len(one.answer) for one in counted) - len(counted[0].answer)


@pytest.mark.weights
@pytest.mark.parametrize("content", [None, b"", b"no answers"])
def test_files_without_answers_are_named(tmp_path, capsys, monkeypatch, content):
    path = tmp_path / "talk.npz"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr("sys.argv", ["paceline", "train", "memory", "--answers", str(path), "-o", str(tmp_path / "m")])
    with pytest.raises(SystemExit):
        main()
    error = capsys.readouterr().err
    assert "answers" in error
    assert "talk.npz" in error
    assert "Traceback" not in error
