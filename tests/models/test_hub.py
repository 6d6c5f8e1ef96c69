"""Pulling models: which files, what is fetched again, what the cache says, from a hub on this machine."""

import json
import shutil
from random import Random

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import save_file
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import DownloadFailed, ModelNotFound
from paceline.models.fetch import transfer
from paceline.models.fetch.hub import pull
from paceline.models.fetch.hub_copies import HubName, all_pulled, hub_name, pulled, unfinished
from paceline.models.resolve import resolve_model

from .converter import convert
from .hub_server import COMMIT, Hub, serving
from .tiny import SIZES
from .vocabularies import byte_level_gguf, transformers_twin

QUANTISED = {f"tiny-{kind}.gguf": kind.encode() for kind in ("Q4_K_M", "q8_0", "UD-Q4_K_XL", "IQ4_XS", "BF16")}
FOLDER = {"config.json": b"{}", "model.safetensors": b"s", "tokenizer.json": b"t", "README.md": b"r",
          "pytorch_model.bin": b"p", "onnx/config.json": b"o"}  # fmt: skip


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(transfer, "_WAITS", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(Hub(dict(QUANTISED))) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:a/b", ("a/b", "", "main")),
        ("a/b", ("a/b", "", "main")),
        ("hf:a/b-GGUF:Q4_K_M", ("a/b-GGUF", "Q4_K_M", "main")),
        ("hf:a/b:q8_0@refs/pr/1", ("a/b", "q8_0", "refs/pr/1")),
        ("hf:a", None), ("hf:a/b/c", None), ("hf:../b", None), ("hf:a/..", None), ("a/b@../c", None), ("C:/a/b", None),
        ("hf:a/b:", None),
    ],
)  # fmt: skip
def test_names(text, parts):
    found = hub_name(text)
    assert (found and (found.id, found.quant, found.revision)) == parts
    if found and text.startswith("hf:"):
        assert str(found) == text


@pytest.mark.parametrize(
    ("quant", "file"),
    [
        ("", "tiny-Q4_K_M.gguf"), ("q4_k_m", "tiny-Q4_K_M.gguf"), ("Q8_0", "tiny-q8_0.gguf"),
        ("Q4_K_XL", "tiny-UD-Q4_K_XL.gguf"), ("UD-Q4_K_XL", "tiny-UD-Q4_K_XL.gguf"), ("IQ4_XS", "tiny-IQ4_XS.gguf"),
    ],
)  # fmt: skip
def test_one_file_of_many(hub, quant, file):
    copy = pull(HubName("o/m", quant))
    assert copy.path.read_bytes() == QUANTISED[file] and copy.path.name == file
    assert copy.num_bytes == len(QUANTISED[file]) and pulled(HubName("o/m", quant)) == copy
    assert [asked[0].rsplit("/", 1)[1] for asked in hub.asked] == [file]


@pytest.mark.parametrize("quant", ["Q4_K", "K_M", "Q4_XS", "0", "Q6_K"])
def test_a_quantisation_that_is_not_there(hub, quant):
    with pytest.raises(ModelNotFound, match=r"no GGUF file is .*; there are BF16, IQ4_XS, Q4_K_M, UD-Q4_K_XL, q8_0"):
        pull(HubName("o/m", quant))


def test_what_is_no_model_or_in_parts(hub):
    hub.files = {"mmproj-Q8_0.gguf": b"", "m-Q4_K_M-00001-of-00002.gguf": b"1", "m-Q4_K_M-00002-of-00002.gguf": b"2"}
    copy = pull(HubName("o/m"))
    assert copy.path.name == "m-Q4_K_M-00001-of-00002.gguf" and copy.path.read_bytes() == b"1"
    assert [(copy.path.parent / file.name).read_bytes() for file in copy.files] == [b"1", b"2"]
    assert pulled(HubName("o/m")) == copy and copy.num_bytes == 2
    del hub.files["m-Q4_K_M-00001-of-00002.gguf"]
    with pytest.raises(ModelNotFound, match=r"one of 2 parts, of which the repository lacks m-Q4_K_M-00001-of-00002"):
        pull(HubName("o/m"))
    hub.files = {"mmproj-Q8_0.gguf": b"", "some.gguf": b"only"}
    assert pull(HubName("o/m")).path.read_bytes() == b"only"
    hub.files = dict(FOLDER)
    with pytest.raises(ModelNotFound, match="no GGUF files; leave the quantisation out"):
        pull(HubName("o/m", "Q8_0"))


def test_a_folder_without_what_is_not_needed(hub):
    hub.files = FOLDER | QUANTISED
    copy = pull(HubName("o/m"))
    assert copy.path.is_dir()
    assert {file.name for file in copy.files} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (copy.path / "model.safetensors").read_bytes() == b"s"


def test_names_that_lead_out_of_the_folder_are_not_files(hub, tmp_path):
    hub.files = {"../../evil-Q4_K_M.gguf": b"1", "/evil-Q8_0.gguf": b"2", "C:\\evil.gguf": b"3"}
    with pytest.raises(ModelNotFound, match="no GGUF files"):
        pull(HubName("o/m"))


def test_only_what_changed_is_fetched_again(hub):
    first, asked = pull(HubName("o/m", "Q8_0")), len(hub.asked)
    pull(HubName("o/m", "q8_0"))
    hub.commit = "b" * 40  # the page of text changed
    same = pull(HubName("o/m", "Q8_0"))
    assert len(hub.asked) == asked
    assert same.path != first.path and same.path.read_bytes() == b"q8_0" and not first.path.exists()
    hub.commit, hub.files["tiny-q8_0.gguf"] = "c" * 40, b"better"
    assert pull(HubName("o/m", "Q8_0")).path.read_bytes() == b"better"
    assert not same.path.exists() and [copy.name for copy in all_pulled()] == ["hf:o/m:Q8_0"]


def test_a_copy_that_lost_a_file_or_its_note_is_none(hub):
    copy = pull(HubName("o/m"))
    copy.path.write_bytes(b"cut")
    assert pulled(HubName("o/m")) is None and all_pulled() == []
    assert pull(HubName("o/m")).path.read_bytes() == b"Q4_K_M"
    for damaged in ("{", "[]", '{"@main": 1}', '{"@main": {"files": 3, "commit": "0123456789abcdef"}}'):
        (HubName("o/m").folder / "pulled.json").write_text(damaged)
        assert pulled(HubName("o/m")) is None


def test_what_the_hub_may_say(hub, monkeypatch):
    with pytest.raises(ModelNotFound, match="the hub has no such model or revision"):
        pull(HubName("o/nothing"))
    hub.listing = lambda: b'{"siblings": 3}'
    with pytest.raises(DownloadFailed, match=r"no listing of a hub.*HF_ENDPOINT"):
        pull(HubName("o/m"))
    hub.listing = lambda: b"<html>"
    with pytest.raises(DownloadFailed, match="no listing of a hub"):
        pull(HubName("o/m"))


def test_the_token_is_sent(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    pull(HubName("o/m"))
    assert hub.asked[0][3] == "Bearer secret"


def test_a_pulled_model_is_used_without_the_hub(hub, tiny_models, tmp_path, monkeypatch):
    folder = tmp_path / "made"
    folder.mkdir()
    transformers_twin("gpt2").save_pretrained(folder)
    for path in tiny_models["gpt2"][0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    file = convert(tmp_path / "tiny.gguf", folder, byte_level_gguf("gpt2"))
    hub.files = {"tiny-Q8_0.gguf": file.read_bytes()}
    assert resolve_model("hf:o/m:Q8_0").checkpoint.config.model_type == "gpt2"  # pulls
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    pull(HubName("o/whole"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for name in ("hf:o/m:Q8_0", "o/m:q8_0", "hf:o/whole", "o/whole"):
        assert resolve_model(name).checkpoint.config.model_type == "gpt2"


def test_an_adapter_of_the_hub_is_its_model_with_it(hub, tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models["gpt2"][0], tmp_path / "base")
    transformers_twin("gpt2").save_pretrained(folder)
    saved = tmp_path / "adapter"
    saved.mkdir()
    name, width = "base_model.model.transformer.h.0.attn.c_attn.lora_", SIZES["hidden_size"]
    tensors = {f"{name}A.weight": np.ones((1, width), "f4"), f"{name}B.weight": np.ones((3 * width, 1), "f4")}
    save_file(tensors, saved / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "base_model_name_or_path": str(folder)}
    (saved / "adapter_config.json").write_text(json.dumps(config))
    hub.files = {path.name: path.read_bytes() for path in saved.iterdir()} | {"training_args.bin": b"t"}
    found, queries = resolve_model("hf:a/adapter"), "model.layers.0.self_attn.q_proj.weight"
    assert (found.checkpoint.tensor(queries) == found.base.checkpoint.tensor(queries) + 2).all()
    assert sorted(path.name for path in pulled(hub_name("a/adapter")).path.iterdir() if path.suffix != ".lock") == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip


def test_the_command_and_the_list(hub):
    def run(*arguments, code=0):
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    [record] = json.loads(run("pull", "hf:o/m:Q8_0", "--json").stdout)
    assert record["name"] == "hf:o/m:Q8_0" and record["bytes"] == 4 and record["path"].endswith("tiny-q8_0.gguf")
    assert run("pull", "hf:o/m:Q8_0").stdout.strip() == record["path"]
    part = HubName("o/m").folder / "abc" / "tiny-BF16.gguf.part"
    part.parent.mkdir()
    part.write_bytes(b"half")
    listed = json.loads(run("models", "--json").stdout)
    assert listed["pulled"] == [{key: record[key] for key in ("name", "path", "bytes")}]
    assert listed["unfinished"] == [{"path": str(part.with_suffix("")), "bytes": 4}] and len(unfinished()) == 1
    shown = run("models").stdout
    assert "hf:o/m:Q8_0" in shown and "pull it again" in shown
    with pytest.raises(ModelNotFound, match="not of the form hf:owner/model"):
        CliRunner().invoke(app, ["pull", "nonsense"], catch_exceptions=False)


def interrupted(name, at):
    """A pull that its user ends after `at` bytes."""

    def stop(done, total):
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(name, stop)


SHARDS = {f"model-0000{i}-of-00002.safetensors": Random(i).randbytes(2 << 20) for i in (1, 2)}


def asked_again(hub):
    """(file, from which byte on) of what was asked for since the last call."""
    found = [(path.rsplit("/", 1)[1], asked and asked.removesuffix("-")) for path, asked, *_ in hub.asked]
    hub.asked.clear()
    return found


@pytest.mark.parametrize("commit", [COMMIT, "d" * 40])
def test_an_interrupted_pull_goes_on_where_it_stopped(hub, commit):
    """Also when only a page of text changed meanwhile, and so the commit; nothing is left of the first try."""
    hub.files, name = {"config.json": b"{}"} | SHARDS, HubName("o/m")
    interrupted(name, 3 << 20)
    [(left, have)] = unfinished()
    assert pulled(name) is None and have >= 1 << 20
    asked_again(hub)
    hub.commit = commit
    copy = pull(name)
    second = "model-00002-of-00002.safetensors"
    assert left.name == second and asked_again(hub) == [(second, f"bytes={have}")]
    assert {file.name: (copy.path / file.name).read_bytes() for file in copy.files} == hub.files
    assert unfinished() == [] and copy.path.name == commit


def test_a_file_that_changed_after_an_interrupted_pull_is_fetched_anew(hub):
    hub.files, name = {"config.json": b"{}"} | SHARDS, HubName("o/m")
    interrupted(name, 3 << 20)
    hub.commit, hub.files = "e" * 40, {file: content[::-1] for file, content in hub.files.items()}
    copy = pull(name)
    assert {file.name: (copy.path / file.name).read_bytes() for file in copy.files} == hub.files
    assert unfinished() == []


def test_a_part_that_another_process_works_on_is_left_to_it(hub):
    hub.files, name = {"config.json": b"{}"} | SHARDS, HubName("o/m")
    interrupted(name, 3 << 20)
    [(left, have)] = unfinished()
    hub.commit = "f" * 40
    with FileLock(left.with_name(f"{left.name}.lock")):
        copy = pull(name)
    assert unfinished() == [(left, have)]
    assert {file.name: (copy.path / file.name).read_bytes() for file in copy.files} == hub.files
