"""`resolve_model`: which of the four kinds of name wins, and what it says when none does."""

import json
import shutil
import sys
from fnmatch import fnmatch

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from paceline.errors import DownloadFailed, ModelNotFound, UnsupportedModel
from paceline.models import resolve
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.resolve import resolve_config, resolve_model

from .converter import convert
from .vocabularies import byte_level_gguf, transformers_twin


@pytest.fixture(scope="module")
def folder(tiny_models, tmp_path_factory):
    path = shutil.copytree(tiny_models["gpt2"][0], tmp_path_factory.mktemp("resolve") / "model")
    transformers_twin("gpt2").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def file(folder):
    return convert(folder.parent / "model.gguf", folder, byte_level_gguf("gpt2"))


@pytest.fixture(autouse=True)
def no_builtin(monkeypatch):
    """No test of this file may download: built-in names are answered by a failure that can be told apart."""

    def refuse(model, progress):
        raise DownloadFailed(f"asked for {model.name}")

    monkeypatch.setattr(resolve, "fetch_builtin", refuse)


def test_a_folder(folder):
    source = resolve_model(str(folder))
    assert source.name == str(folder) and source.checkpoint.config.model_type == "gpt2"
    assert source.tokenizer.decode(source.tokenizer.encode("the cat")) == "the cat"


def test_a_file_is_the_same_model_as_its_folder(folder, file):
    source, other = resolve_model(str(file)), resolve_model(str(folder))
    assert isinstance(source.checkpoint, GGUFCheckpoint)
    assert source.tokenizer.same_vocabulary(other.tokenizer)


def test_every_id_that_ends_an_answer(folder):
    source = resolve_model(str(folder))
    of_model, of_tokenizer = source.checkpoint.config.eos_token_ids, source.tokenizer.eos_token_ids
    assert of_model and of_tokenizer and set(of_model) != set(of_tokenizer)
    assert set(source.eos_token_ids) == {*of_model, *of_tokenizer}


def test_local_paths_win_over_built_in_names(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    shutil.copytree(folder, "smollm2-135m", dirs_exist_ok=True)
    assert resolve_model("smollm2-135m").checkpoint.config.model_type == "gpt2"


def test_built_in_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DownloadFailed, match="asked for smollm2-135m"):
        resolve_model("smollm2-135m")


def test_hub_ids(folder, monkeypatch):
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        on_hub = ["config.json", "model.safetensors", "pytorch_model.bin", "consolidated.safetensors"]
        fetched = [file for file in on_hub if any(fnmatch(file, pattern) for pattern in allow_patterns)]
        assert fetched == ["config.json", "model.safetensors"]  # no second copy of the weights
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert resolve_model("someone/model").checkpoint.config.model_type == "gpt2"
    assert asked == ["someone/model"]


def answer_with(error, monkeypatch):
    """Let the hub's client raise `error`, whose own constructor wants a whole web response."""

    class Answer(error):
        def __init__(self):
            Exception.__init__(self, "refused")

    def refuse(name, allow_patterns):
        raise Answer

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)


def test_hub_ids_nobody_knows(monkeypatch):
    answer_with(RepositoryNotFoundError, monkeypatch)
    with pytest.raises(ModelNotFound, match=r"the hub has no model of that name.*smollm2-135m"):
        resolve_model("someone/nothing")


def test_hub_ids_with_terms_to_accept(monkeypatch):
    answer_with(GatedRepoError, monkeypatch)
    with pytest.raises(DownloadFailed, match=r"someone/gated: .*accept terms"):
        resolve_model("someone/gated")


def test_a_hub_out_of_reach(monkeypatch):
    def offline(name, allow_patterns):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(DownloadFailed, match=r"someone/model: .*no route to host.*built-in model: smollm2-135m"):
        resolve_model("someone/model")


def test_without_the_hubs_client_a_hub_id_is_pulled(monkeypatch):
    asked = []

    def pull(name, progress):
        asked.append(str(name))
        raise DownloadFailed("no network in tests")

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("paceline.models.fetch.hub.pull", pull)
    for name in ("someone/model", "hf:someone/model:Q8_0@v1"):
        with pytest.raises(DownloadFailed, match="no network in tests"):
            resolve_model(name)
    assert asked == ["hf:someone/model", "hf:someone/model:Q8_0@v1"]


@pytest.mark.parametrize(
    "name",
    [
        "./no/such/folder",
        "../nothing",
        "model.gguf",
        "weights/model.gguf",
        "a/b.safetensors",
        "/tmp/nowhere/at/all",
        "~/nowhere",
    ],
)
def test_a_path_to_nothing_is_no_name_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    for find in (resolve_model, resolve_config):
        with pytest.raises(ModelNotFound, match=r"there is no such file or folder.*smollm2-135m"):
            find(name)


def test_a_name_in_a_folder_that_exists_is_a_file_where_the_hub_cannot_deliver_it(tmp_path, monkeypatch, folder):
    def offline(name, allow_patterns):
        raise ConnectionError("no route to host")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone").mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"there is no such file or folder below .*; check the path"):
        resolve_model("someone/model")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: str(folder))
    assert resolve_model("someone/model").name == "someone/model"


@pytest.mark.parametrize("name", ["", "nowhere", "a b/c", "a/b/c"])
def test_names_that_lead_nowhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=r"no local folder, no local file, no built-in name.*smollm2-135m"):
        resolve_model(name)


def test_an_empty_folder_is_no_model(tmp_path):
    with pytest.raises(ModelNotFound, match=r"config\.json: missing"):
        resolve_model(str(tmp_path))


def test_configs_by_every_kind_of_name(folder, file, tmp_path, monkeypatch):
    shutil.copy(folder / "config.json", tmp_path)  # no weights
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: str(tmp_path))
    sizes = {
        (config.model_type, config.num_hidden_layers, config.hidden_size)
        for config in map(resolve_config, (str(folder), str(tmp_path), str(file), "someone/model"))
    }
    assert len(sizes) == 1
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DownloadFailed, match="asked for smollm2-135m"):
        resolve_config("smollm2-135m")


def test_no_weights_are_fetched_for_a_config(monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: asked.append(allow_patterns))
    with pytest.raises(DownloadFailed):  # the answer is no path
        resolve_config("someone/model")
    assert asked == [["config.json"]]
    with pytest.raises(ModelNotFound, match=r"not pulled yet .paceline pull hf:someone/model:Q4_K_M"):
        resolve_config("hf:someone/model:Q4_K_M")
    with pytest.raises(ModelNotFound, match="built-in models are smollm2-135m"):
        resolve_config("nothing")
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2-135m\?"):
        resolve_config("smollm2-135M")
    with pytest.raises(ModelNotFound, match="no adapter is at missing"):
        resolve_config("smollm2-135m+missing")
    with pytest.raises(ModelNotFound, match=r"no adapter is at lora-c\+\+;"):
        resolve_config("smollm2-135m+lora-c++")


@pytest.fixture
def adapter(folder, tmp_path):
    """Makes the folder of an adapter of `folder`, with the base that its file names."""
    import numpy as np
    from safetensors.numpy import save_file

    def make(base=folder, tokenizer=False):
        path = tmp_path / "adapter"
        path.mkdir()
        config = {"peft_type": "LORA", "lora_alpha": 2, "base_model_name_or_path": None if base is None else str(base)}
        (path / "adapter_config.json").write_text(json.dumps(config))
        width = resolve_config(str(folder)).hidden_size
        parts = {"A": np.ones((1, width), np.float32), "B": np.ones((3 * width, 1), np.float32)}
        name = "base_model.model.transformer.h.0.attn.c_attn.lora_"
        save_file(
            {f"{name}{part}.weight": values for part, values in parts.items()}, path / "adapter_model.safetensors"
        )
        if tokenizer:
            shutil.copy(folder / "tokenizer.json", path)
            shutil.copy(folder / "tokenizer_config.json", path)
        return path

    return make


QUERIES = "model.layers.0.self_attn.q_proj.weight"


def test_the_folder_of_an_adapter_is_its_model_with_it(adapter, folder):
    path = adapter()
    base, found = resolve_model(str(folder)), resolve_model(str(path))
    assert found.name == str(path) and found.base.name == str(folder)
    assert (found.checkpoint.tensor(QUERIES) == base.checkpoint.tensor(QUERIES) + 2).all()
    assert found.tokenizer.same_vocabulary(base.tokenizer)
    assert resolve_config(str(path)) == base.checkpoint.config


def test_an_adapter_is_named_after_any_base(adapter, folder, file):
    path = adapter(base=None)
    for base in (folder, file):
        found = resolve_model(f"{base}+{path}")
        assert (found.checkpoint.tensor(QUERIES) == resolve_model(str(base)).checkpoint.tensor(QUERIES) + 2).all()
        assert resolve_config(f"{base}+{path}") == resolve_config(str(base))
    with pytest.raises(DownloadFailed, match="asked for smollm2-135m"):
        resolve_model(f"smollm2-135m+{path}")


def test_the_tokenizer_that_lies_with_an_adapter_is_taken(adapter, folder):
    path = adapter(tokenizer=True)
    changed = json.loads((path / "tokenizer_config.json").read_text()) | {"chat_template": "of the adapter"}
    (path / "tokenizer_config.json").write_text(json.dumps(changed))
    found, base = resolve_model(f"{folder}+{path}"), resolve_model(str(folder))
    assert found.tokenizer.chat_template_digest != base.tokenizer.chat_template_digest


def test_an_adapters_path_may_have_a_plus(adapter, folder, tmp_path):
    path = shutil.move(adapter(), tmp_path / "a+b")
    assert resolve_model(f"{folder}+{path}").base.name == str(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(adapter, folder):
    path = adapter(tokenizer=True)
    values = json.loads((path / "tokenizer.json").read_text())
    last = resolve_config(str(folder)).vocab_size + 5
    values["added_tokens"].append({"id": last, "content": "<new>", "special": True, "single_word": False,
                                   "lstrip": False, "rstrip": False, "normalized": False})  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match=r"its tokenizer has \d+ tokens.*modules_to_save"):
        resolve_model(str(path))


def test_an_adapter_without_its_model_says_how_to_name_one(adapter):
    path = adapter(base=None)
    for resolves in (resolve_model, resolve_config):
        with pytest.raises(ModelNotFound, match=r"does not say which model.*write BASE\+"):
            resolves(str(path))
    shutil.rmtree(path)
    path = adapter(base=path)
    with pytest.raises(ModelNotFound, match=r"trained on .*, an adapter itself; write BASE\+"):
        resolve_model(str(path))
    shutil.rmtree(path)
    path = adapter(base="./gone")
    with pytest.raises(ModelNotFound, match=r"trained on './gone', which cannot be used.*write BASE\+"):
        resolve_model(str(path))


def test_a_plus_that_leads_nowhere_is_told_and_other_pluses_are_names(folder, tmp_path):
    with pytest.raises(ModelNotFound, match=r"no adapter is at .*nowhere"):
        resolve_model(f"{folder}+./nowhere")
    with pytest.raises(ModelNotFound, match="hub id"):
        resolve_model("c++")
    plus = shutil.copytree(folder, tmp_path / "c++")
    assert resolve_model(str(plus)).checkpoint.config.model_type == "gpt2"
