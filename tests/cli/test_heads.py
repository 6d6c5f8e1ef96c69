"""`paceline heads`: what it prints, as tables and as JSON, what it writes for whom, and what it refuses."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.engine.setup import load
from paceline.errors import InvalidParameter
from paceline.models.heads import build as net_build
from paceline.models.heads import registry, self_check
from paceline.models.heads.files import read_head, save_head
from paceline.models.heads.fingerprint import target_print
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.self_check import SelfCheck
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import resolve_model
from tests.fakes import RandomCheckpoint
from tests.models.heads.tiny_heads import LAYER, OURS, THEIRS, assert_equal, random_head
from tests.models.tiny import as_gguf
from tests.models.vocabularies import byte_level_gguf

TABLED = replace(OURS["eagle3.1"], fc_norm=False, norm_output=False, norm_before_fc=True)


@pytest.fixture
def target(tmp_path, monkeypatch) -> Path:
    """A tiny GGUF model of 40 rows, and a cache and a package without heads."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "shipped_heads", lambda: tmp_path / "package")
    checkpoint = RandomCheckpoint(replace(LAYER, num_hidden_layers=6))
    return as_gguf(tmp_path / "tiny.gguf", checkpoint, byte_level_gguf("smollm"))


def made_for(target: Path, config: HeadConfig) -> HeadRecord:
    record = random_head(config)
    return replace(record, config=replace(config, target=target_print(resolve_model(str(target)))))


def run(*arguments: object):
    return CliRunner().invoke(app, ["heads", *map(str, arguments)], env={"COLUMNS": "200"})


def refused(result) -> InvalidParameter:
    assert isinstance(result.exception, InvalidParameter), result.output
    return result.exception


def test_list_says_which_heads_are_damaged(target: Path) -> None:
    folder = registry.user_heads() / "tiny" / "broken"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{not json")
    listed = run("list")
    assert "damaged" in listed.stdout and "tiny/broken: " in listed.output and "config.json" in listed.output
    [row] = [row for row in json.loads(run("list", "--json").stdout) if row["name"] == "tiny/broken"]
    assert "config.json" in row["problem"]


def test_list_names_heads_and_those_of_a_model(target: Path, tmp_path: Path) -> None:
    save_head(made_for(target, TABLED), registry.user_heads() / "tiny" / "eagle3")
    save_head(random_head(OURS["medusa"]), registry.user_heads() / "other" / "medusa")
    assert "tiny/eagle3" in run("list").stdout and "other/medusa" in run("list").stdout
    found = json.loads(run("list", "-m", target, "--json").stdout)
    assert [(ref["name"], ref["family"], ref["place"]) for ref in found] == [("tiny/eagle3", "eagle3", "cache")]
    assert "paceline train head" in run("list", "-m", as_gguf(tmp_path / "b.gguf", RandomCheckpoint(LAYER),
                                                              byte_level_gguf("smollm"))).stdout  # fmt: skip


def test_inspect_says_what_files_leave_open(target: Path, tmp_path: Path) -> None:
    config, layout = THEIRS["eagle3 sglang"]
    save_head(random_head(config), tmp_path / "head", layout=layout)
    text = run("inspect", tmp_path / "head").stdout
    for part in ("sglang", "2, 3, 3 (each enters the layer", "over all taps", "before the last norm", "20 of 40 tokens",
                 "note: taps [2, 3, 3]: the file says [1, 2, 2]", "row p holds the token at p + 1"):  # fmt: skip
        assert part in text
    asked = json.loads(run("inspect", tmp_path / "head", "--taps", "entering", "--norm-output", "--json").stdout)
    assert asked["conventions"]["taps"].startswith("1, 2, 2") and "after" in asked["conventions"]["fed back"]
    assert asked["card"]["licence"] == "Apache-2.0"


@pytest.mark.parametrize("program", ["vllm", "sglang", "paceline"])
def test_convert_writes_what_can_be_read_back(target: Path, tmp_path: Path, program: str) -> None:
    record = made_for(target, TABLED)
    save_head(record, tmp_path / "head")
    result = run(
        "convert", tmp_path / "head", "--to", program, "-m", target, "-o", tmp_path / "out", "--dtype", "float32"
    )
    assert result.exit_code == 0, result.output
    back = read_head(tmp_path / "out")
    steps = back.config.num_steps if program == "sglang" else record.config.num_steps
    layer = replace(LAYER, max_position_embeddings=64)
    assert_equal(back, replace(record, config=replace(record.config, num_steps=steps, layer=layer)))


@pytest.mark.parametrize("family", ["dflash", "dspark", "eagle"])
def test_sglang_reads_heads_that_name_every_token(target: Path, tmp_path: Path, family: str) -> None:
    config = replace(OURS[family] if family in OURS else THEIRS[family][0], draft_vocab_size=20)
    record = made_for(target, config)
    assert record.draft_ids is not None
    save_head(record, tmp_path / "head")
    result = run("convert", tmp_path / "head", "--to", "sglang", "-m", target, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    back = read_head(tmp_path / "out")
    assert back.config.family == family and back.draft_ids is None and back.config.draft_vocab_size == 40


def test_convert_names_the_target_as_vllm_knows_it(target: Path, tmp_path: Path) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    result = run(
        "convert", tmp_path / "head", "--to", "vllm", "-m", target, "-o", tmp_path / "out", "--verifier", "a/b"
    )
    assert result.exit_code == 0, result.output
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["speculators_config"]["verifier"]["name_or_path"] == "a/b"


def test_convert_to_llama_cpp(target: Path, tmp_path: Path) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    result = run("convert", tmp_path / "head", "--to", "llama.cpp", "-m", target, "-o", tmp_path / "draft.gguf")
    assert result.exit_code == 0, result.output
    assert gguf.GGUFReader(tmp_path / "draft.gguf").fields["general.architecture"].contents() == "eagle3"


@pytest.mark.parametrize("program", ["llama.cpp", "sglang"])
def test_convert_writes_one_norm_where_a_program_computes_no_more(target: Path, tmp_path: Path, program: str) -> None:
    pytest.importorskip("numba")
    check = {"tokens": list(range(12)), "acceptance": 0.5}
    save_head(replace(made_for(target, OURS["eagle3.1"]), card={"check": check}), tmp_path / "head")
    common = ("convert", tmp_path / "head", "--to", program, "-m", target, "-o", tmp_path / "out.gguf")
    assert "--one-norm" in str(refused(run(*common)))
    assert refused(run(*common[:4], *common[6:], "--one-norm")).field == "model"
    result = run(*common, "--one-norm")
    assert result.exit_code == 0, result.output
    if program == "sglang":
        config = read_head(tmp_path / "out.gguf").config
        assert config.norm_before_fc and not config.fc_norm and not config.norm_output


@pytest.mark.parametrize("program", ["vllm", "sglang", "llama.cpp"])
def test_blocks_that_read_scaled_embeddings_stay_here(target: Path, tmp_path: Path, program: str) -> None:
    save_head(made_for(target, replace(OURS["dspark"], embedding_scale=9.8)), tmp_path / "head")
    other = refused(run("convert", tmp_path / "head", "--to", program, "-m", target, "-o", tmp_path / "out"))
    assert "embedding" in str(other) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("program", ["vllm", "llama.cpp", "paceline"])
def test_a_place_that_cannot_be_written_is_told(target: Path, tmp_path: Path, program: str) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    (tmp_path / "file").touch()
    common = ("convert", tmp_path / "head", "--to", program, "-m", target)
    assert refused(run(*common, "-o", tmp_path / "file")).field == "output"


def test_a_full_disk_leaves_the_file_for_llama_cpp_as_it_was(target: Path, tmp_path: Path, monkeypatch) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    (tmp_path / "draft.gguf").write_text("whole")

    def full(writer: gguf.GGUFWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    result = run("convert", tmp_path / "head", "--to", "llama.cpp", "-m", target, "-o", tmp_path / "draft.gguf")
    assert "the disk is full" in str(refused(result))
    assert (tmp_path / "draft.gguf").read_text() == "whole" and not list(tmp_path.glob("partial-*"))


def test_what_convert_cannot_do_is_told(target: Path, tmp_path: Path) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    common = ("convert", tmp_path / "head", "-o", tmp_path / "out")
    assert refused(run(*common, "--to", "ollama")).field == "to"
    save_head(made_for(target, OURS["medusa"]), tmp_path / "medusa")
    other = refused(run("convert", tmp_path / "medusa", "-o", tmp_path / "out", "--to", "sglang", "-m", target))
    assert "no medusa heads" in str(other) and "dspark" in str(other)
    save_head(made_for(target, THEIRS["blockwise"][0]), tmp_path / "blockwise")
    other = refused(run("convert", tmp_path / "blockwise", "-o", tmp_path / "out", "--to", "vllm", "-m", target))
    assert "runs no blockwise heads" in str(other) and not (tmp_path / "out").exists()
    assert refused(run(*common, "--to", "vllm")).field == "model"
    assert refused(run(*common, "--to", "vllm", "-m", target, "--dtype", "int8")).field == "dtype"
    assert refused(run("inspect", tmp_path / "head", "--taps", "sideways")).field == "taps"
    save_head(made_for(target, OURS["medusa"]), tmp_path / "medusa")
    assert refused(run("convert", tmp_path / "medusa", *common[2:], "--to", "sglang", "-m", target)).field == "to"


@pytest.mark.parametrize(("check", "code"), [(SelfCheck(0.6, 0.6), 0), (SelfCheck(0.1, 0.6), 1), (None, 0)])
def test_verify(target: Path, tmp_path: Path, monkeypatch, check: SelfCheck | None, code: int) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    loaded = LoadedModel(resolve_model(str(target)), object())  # type: ignore[arg-type]
    monkeypatch.setattr(load, "load", lambda *_: loaded)
    monkeypatch.setattr(net_build, "make_net", lambda record, target: record)
    monkeypatch.setattr(self_check, "run_self_check", lambda *_: check)
    result = run("verify", tmp_path / "head", "-m", target)
    assert result.exit_code == code
    expected = "Its card stores no text" if check is None else "as expected" if check.passed else "far too low"
    assert expected in result.stdout
    assert json.loads(run("verify", tmp_path / "head", "-m", target, "--json").stdout)["passed"] is (code == 0)


def test_verify_stores_what_it_measured(target: Path, tmp_path: Path, monkeypatch) -> None:
    save_head(made_for(target, TABLED), tmp_path / "head")
    before = (tmp_path / "head" / "model.safetensors").read_bytes()
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=40))
    loaded = LoadedModel(resolve_model(str(target)), model)  # type: ignore[arg-type]
    monkeypatch.setattr(load, "load", lambda *_: loaded)
    monkeypatch.setattr(net_build, "make_net", lambda record, target: SimpleNamespace(record=record))
    monkeypatch.setattr(self_check, "own_opening", lambda tokenizer: [4, 5])
    monkeypatch.setattr(self_check, "own_text", lambda model, prompt: [*prompt, 1, 2, 3])
    monkeypatch.setattr(self_check, "first_share", lambda model, net, tokens, num_prompt_tokens: 0.4)
    result = run("verify", tmp_path / "head", "-m", target, "--store")
    assert result.exit_code == 0 and "right for 40.0% of stored tokens" in result.stdout, result.output
    card = read_head(tmp_path / "head").card
    assert (
        card["check"] == {"tokens": [4, 5, 1, 2, 3], "prompt_tokens": 2, "acceptance": 0.4}
        and card["licence"] == "Apache-2.0"
    )  # type: ignore[index]
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == before
    assert "acceptance: 0.4" in (tmp_path / "head" / "CARD.md").read_text()


@pytest.mark.parametrize("command", ["list", "inspect", "convert", "verify"])
def test_they_explain_themselves(command: str) -> None:
    assert "Examples" in run(command, "--help").stdout
