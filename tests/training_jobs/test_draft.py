"""`paceline train draft` from end to end: a draft is trained, written, gone on with, and drafts for its target."""

import errno
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.config import EngineConfig, SpeculativeConfig
from paceline.errors import CorruptWeights, InvalidParameter, PacelineError
from paceline.models.resolve import resolve_model
from paceline.models.text.tokenizer import Tokenizer
from paceline.training.heads.shards import TapStore
from paceline.training_jobs.remarks import no_remarks
from paceline.types import SamplingParams
from tests.fakes import RandomCheckpoint, small_config
from tests.models.vocabularies import byte_level_gguf
from tests.training_jobs.test_head import ending_after

pytest.importorskip("torch")

TOKENIZER = Tokenizer.from_gguf(byte_level_gguf())
PROMPTS = "\n".join(f"the cat sat on mat {i}" for i in range(8))


@pytest.fixture
def loaded(monkeypatch):
    """A random model under every name, and every third prompt held out."""
    from paceline.models import resolve
    from paceline.models.loaded import LoadedModel
    from paceline.models.torch_executor import TorchModel
    from paceline.training.heads import conversations
    from paceline.training_jobs import draft as draft_job
    from paceline.training_jobs import write_text

    checkpoint = RandomCheckpoint(small_config(vocab_size=TOKENIZER.vocab_size, eos_token_ids=tuple(range(40))))
    source = resolve.ModelSource("random", checkpoint, TOKENIZER)
    found = LoadedModel(source, TorchModel(checkpoint))
    monkeypatch.setattr(draft_job, "load", lambda *_: found)
    monkeypatch.setattr(resolve, "resolve_model", lambda name: source)
    monkeypatch.setattr(write_text, "_ROUND", 8)
    monkeypatch.setattr(conversations, "HELD_OUT_SHARE", 3)
    return found


def run(*arguments):
    return CliRunner().invoke(app, ["train", "draft", "--max-tokens", "24", *map(str, arguments)])


def test_a_draft_is_trained_written_and_drafts(loaded, tmp_path, monkeypatch):
    from paceline.engine.setup.build import build_engine
    from paceline.models.loaded import LoadedModel
    from paceline.models.torch_executor import TorchModel

    prompts, folder = tmp_path / "prompts.txt", tmp_path / "draft"
    prompts.write_text(PROMPTS)
    common = ["--prompts", prompts, "--work", tmp_path / "work", "--tokens", 300, "--threads", 1, "-o", folder]
    wishes = ["--layers", "0,2", "--on-policy", 0.5, "--divergence", "jsd", "--steps", 2]
    found = run(*common, *wishes, "--json")
    assert found.exit_code == 0, found.output
    first = json.loads(found.stdout)
    assert first["step"] == 2 and [one["step"] for one in first["curve"]] == [0, 2] and first["peak_bytes"] > 1e6
    card = json.loads((folder / "paceline.json").read_text())
    assert card["divergence"] == "jsd" and card["training"]["updates"] == 2 and "replayed" in card["before"]
    again = run(*common, *wishes)
    assert again.exit_code == 0 and "tokens per pass" in again.output
    monkeypatch.undo()
    source = resolve_model(str(folder))
    assert source.checkpoint.config.num_hidden_layers == 2 and source.tokenizer.same_vocabulary(TOKENIZER)
    draft = LoadedModel(source, TorchModel(source.checkpoint))
    monkeypatch.setattr("paceline.engine.setup.build.load", lambda *_: draft)
    config = EngineConfig(max_model_len=64, profile="none")
    texts = []
    for spec in (None, SpeculativeConfig("draft_model", 3, str(folder), policy="fixed")):
        engine = build_engine(loaded, config, spec)
        engine.add_request("a", TOKENIZER.encode("the cat"), SamplingParams(temperature=0, max_tokens=20))
        while engine.has_unfinished_requests:
            outputs = engine.step()
        texts.append(outputs[0].finished.outputs[0].token_ids)
    assert texts[0] == texts[1] and len(texts[0]) > 0


def test_a_full_disk_at_the_end_loses_no_training(loaded, tmp_path, monkeypatch):
    """The command says so in one line; started again with another place it writes what was trained."""
    from paceline.models.files import save_folder

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "prompts.txt").write_text(PROMPTS)
    common = ["--prompts", tmp_path / "prompts.txt", "--work", tmp_path / "work", "--tokens", 100, "--threads", 1]
    common += ["--layers", 1, "--steps", 2, "--json", "-o"]
    with monkeypatch.context() as patch:
        patch.setattr(save_folder, "write_safetensors", full)
        with pytest.raises(InvalidParameter, match=r"^output: .*the disk is full.*name another place"):
            raise run(*common, tmp_path / "a").exception or AssertionError
    found = run(*common, tmp_path / "b")
    assert [one["step"] for one in json.loads(found.stdout)["curve"]] == [0, 2] and resolve_model(str(tmp_path / "b"))


def test_a_draft_of_low_rank_updates_is_written_whole(loaded, tmp_path):
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "draft"
    prompts.write_text(PROMPTS)
    common = ["--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "--threads", 1, "-o", folder]
    wishes = ["--layers", 3, "--lora-rank", 2, "--on-policy", 0.5, "--steps", 2]
    found = run(*common, *wishes, "--json")
    assert found.exit_code == 0, found.output
    assert json.loads((folder / "paceline.json").read_text())["lora_rank"] == 2
    source, target = resolve_model(str(folder)).checkpoint, loaded.source.checkpoint
    assert source.config == target.config
    for name in ("model.norm.weight", "model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"):
        assert np.abs(source.tensor(name) - target.tensor(name)).max() < 0.02 * np.abs(target.tensor(name)).max()


def test_a_draft_goes_on_with_served_texts(loaded, tmp_path):
    """Text that was written stands for served text, which is kept alike; more of it is another run."""
    prompts, work = tmp_path / "prompts.txt", tmp_path / "work"
    prompts.write_text(PROMPTS)
    common = ["--work", work, "--threads", 1, "--steps", 2, "--json"]
    made = run(*common, "--prompts", prompts, "--tokens", 100, "--layers", "0,2", "-o", tmp_path / "begun")
    assert made.exit_code == 0
    store, common = TapStore(work / "taps"), [*common, "-o", tmp_path / "draft"]
    wishes = ["--begin-with", tmp_path / "begun", "--served", work / "taps"]
    found = run(*common, *wishes)
    assert found.exit_code == 0, found.output
    assert [one["step"] for one in json.loads(found.stdout)["curve"]] == [0, 2] and "written" not in found.stderr
    assert json.loads((tmp_path / "draft" / "paceline.json").read_text())["training"]["conversations"] == len(
        store.documents
    )
    assert "this run was finished before" in run(*common, *wishes).stderr
    one = store.documents[0]
    store.add([one.conversation], [store.rows([one], range(len(store.taps)))])
    grown = run(*common, *wishes)
    assert "has changed since the last run" in grown.stderr and "finished before" not in grown.stderr
    assert len(list((work / "runs").glob("*-served-*"))) == 1
    for wrong, complaint in (
        (wishes[2:], "--begin-with"), ([*wishes, "--sparse"], "memory"), ([*wishes, "--pool", 2], "of new drafts"),
        ([*wishes, "--prompts", prompts], "prompts: are not read"),
    ):  # fmt: skip
        refused = run(*common, *wrong)
        assert refused.exit_code and complaint in str(refused.exception or refused.output)


def test_a_sparse_draft_is_trained_written_and_drafts(loaded, tmp_path, monkeypatch):
    from paceline.engine.setup.build import build_engine
    from paceline.models.loaded import LoadedModel
    from paceline.models.torch_executor import TorchModel

    prompts, folder = tmp_path / "prompts.txt", tmp_path / "sparse"
    prompts.write_text(PROMPTS)
    common = ["--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "--threads", 1, "-o", folder]
    found = run(*common, "--sparse", "--window", 8, "--layers", 2, "--steps", 1, "--json")
    assert found.exit_code == 0, found.output
    monkeypatch.undo()
    source = resolve_model(str(folder))
    draft = LoadedModel(source, TorchModel(source.checkpoint))
    monkeypatch.setattr("paceline.engine.setup.build.load", lambda *_: draft)
    texts, drafted = [], 0
    for spec in (None, SpeculativeConfig("spire", 3, str(folder), policy="fixed")):
        engine = build_engine(loaded, EngineConfig(max_model_len=64, profile="none"), spec)
        engine.add_request("a", TOKENIZER.encode("the cat"), SamplingParams(temperature=0, max_tokens=20))
        while engine.has_unfinished_requests:
            outputs = engine.step()
        texts.append(outputs[0].finished.outputs[0].token_ids)
        drafted = engine.metrics.spec_decode_num_draft_tokens
    assert texts[0] == texts[1] and drafted > 0
    assert engine.drafter.name == "spire"
    for method in ("draft_model", "cross_vocabulary"):
        with pytest.raises(InvalidParameter, match=r"feedback memory.*method='spire'"):
            build_engine(loaded, EngineConfig(profile="none"), SpeculativeConfig(method, 3, str(folder)))
    (folder / "paceline.json").write_text("{}")
    with pytest.raises(CorruptWeights, match="--sparse"):
        build_engine(loaded, EngineConfig(max_model_len=64, profile="none"), spec)


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        (["--layers", "some"], "write how many"), (["--layers", "0,9"], "count from 0"),
        (["--divergence", "l2"], "choose one of: forward_kl"), (["--on-policy", 3], "from 0 to 1"),
        (["--time-budget", "soon"], "write 90s"), (["--sparse", "--pool", 2], "not merged"),
        (["--sparse", "--on-policy", 0.5], "do not write text"), (["--sparse", "--lora-rank", 4], "learnt whole"),
        (["--layers", "9"], "cannot be kept of 3"), (["--layers", "-1"], "write how many"), (["-k", 0], "at least 1"),
        (["--lora-rank", 999], "smallest side is 32"), (["--match", 2, "--pool", 2], "above 0, up to 1"),
        (["--rate", 0], "no learning rate"), (["--rate", "nan"], "no learning rate"),
        (["--steps", 0], "updates are none"), (["-o", "prompts.txt"], "output: "), (["--pool", 1], "give 2 or more"),
        (["--match", 0.5], "give --pool too"), (["--window", 8], "give --sparse too"),
        (["--pool", 2, "--plot", "a.png"], "of one draft"), (["--sparse", "--window", 10**6], "more than the model's"),
    ],
)  # fmt: skip
def test_bad_wishes_are_refused_before_anything_is_written(loaded, tmp_path, wishes, complaint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    common = ["--prompts", "prompts.txt", "--work", "work", "--tokens", 100, "-o", "draft", "--layers", 1]
    found = run(*common, "--threads", 1, *wishes)
    assert found.exit_code and complaint in str(found.exception or found.output)
    assert isinstance(found.exception, PacelineError) and not list(tmp_path.glob("work/taps/shard*"))


def test_heads_and_a_changed_target_are_saved_as_models_of_their_own(loaded, tmp_path, monkeypatch):
    from paceline.models.heads.files import read_head
    from paceline.models.heads.fingerprint import target_print
    from paceline.training_jobs import joint as joint_job

    monkeypatch.setattr(joint_job, "load", lambda *_: loaded)
    monkeypatch.setattr(joint_job, "resolve_model", resolve_model)
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "changed"
    prompts.write_text(PROMPTS)
    arguments = ["--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "--threads", 1, "--steps", 2]
    found = CliRunner().invoke(app, ["train", "joint", "blockwise", *map(str, arguments), "-o", str(folder), "--json"])
    assert found.exit_code == 0, found.output
    assert set(json.loads(found.stdout)["drift"]) == {"kl", "other_best_token"}
    source, head = resolve_model(str(folder / "target")), read_head(folder / "heads")
    assert source.checkpoint.config == loaded.model.config and source.tokenizer.same_vocabulary(TOKENIZER)
    assert head.config.family == "blockwise" and head.config.target == target_print(source)
    card = json.loads((folder / "target" / "paceline.json").read_text())
    assert "says other text" in card["changed_target"] and card["tree"]["tokens_per_pass"] >= 1
    arguments[-1] = 3  # a finished run is gone on with, with the draft vocabulary of its checkpoint
    again = CliRunner().invoke(app, ["train", "joint", "blockwise", *map(str, arguments), "-o", str(folder), "--json"])
    assert again.exit_code == 0, again.output
    assert [one["step"] for one in json.loads(again.stdout)["curve"]] == [2, 3]
    refused = CliRunner().invoke(app, ["train", "joint", "eagle3", "-o", str(folder), "--work", str(tmp_path)])
    assert "choose one of: medusa" in str(refused.exception or refused.output)


@pytest.mark.parametrize(("wish", "named"), [(["-k", 2], "num_draft_tokens"), (["--raw"], "raw")])
def test_a_run_of_other_wishes_is_not_gone_on_with(loaded, tmp_path, wish, named):
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    common = ["--prompts", tmp_path / "prompts.txt", "--tokens", 100, "--threads", 1, "--layers", 1]
    common += ["--work", tmp_path / "work", "-o", tmp_path / "draft"]
    assert run(*common, "--steps", 1).exit_code == 0
    refused = run(*common, "--steps", 2, *wish)
    assert f"another {named};" in str(refused.exception)
    assert run(*common, "--steps", 2).exit_code == 0


def test_raw_prompts_have_to_be_there(loaded, tmp_path):
    assert "give --prompts" in str(run("--raw", "-o", tmp_path / "draft", "--work", tmp_path / "work").exception)


@pytest.mark.parametrize("more", [[], ["--pool", 2]])
def test_a_run_that_is_gone_on_with_writes_no_more_text(loaded, tmp_path, more):
    """Though there is less of it than was asked for: the time for writing was over."""
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    common = ["--prompts", tmp_path / "prompts.txt", "--tokens", 10**6, "--time-budget", "2s", "--threads", 1]
    common += ["--layers", 1, "--work", tmp_path / "work", "-o", tmp_path / "draft", *more]
    assert run(*common, "--steps", 1).exit_code == 0
    written = {path.name for path in (tmp_path / "work" / "taps").iterdir()}
    assert run(*common, "--steps", 1).exit_code == 0
    assert {path.name for path in (tmp_path / "work" / "taps").iterdir()} == written


def test_a_pool_that_was_ended_within_its_second_draft_goes_on_bit_for_bit(loaded, tmp_path, monkeypatch):
    """Nor does a list of hits that was cut short matter: it is found again."""
    from paceline.training.run.loop import Trainer

    (tmp_path / "prompts.txt").write_text(PROMPTS)
    common = ["--prompts", tmp_path / "prompts.txt", "--tokens", 100, "--threads", 1, "--layers", 1, "--pool", 2]
    common += ["--steps", 3]
    assert run(*common, "--work", tmp_path / "a", "-o", tmp_path / "whole").exit_code == 0
    monkeypatch.setattr(Trainer, "step", ending_after(4, step := Trainer.step))
    assert run(*common, "--work", tmp_path / "b", "-o", tmp_path / "parts").exit_code
    monkeypatch.setattr(Trainer, "step", step)
    [hits] = (tmp_path / "b" / "runs").glob("*-pool-places-1/hits-*.npy")
    hits.write_bytes(hits.read_bytes()[:-2])
    assert run(*common, "--work", tmp_path / "b", "-o", tmp_path / "parts").exit_code == 0
    for number in "12":
        whole, parts = (tmp_path / name / number / "model.safetensors" for name in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()


def test_a_pool_begun_anew_takes_no_hits_of_the_draft_before(loaded, tmp_path, monkeypatch):
    """What a draft names is found again for other weights, though they were made by as many updates."""
    from paceline.training_jobs import pool as pool_job

    found, find = [], pool_job.hits_on
    monkeypatch.setattr(pool_job, "hits_on", lambda *given: found.append(1) or find(*given))
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    common = ["--prompts", tmp_path / "prompts.txt", "--tokens", 100, "--threads", 1, "--layers", 1, "--pool", 2]
    common += ["--steps", 2, "--work", tmp_path / "work", "-o", tmp_path / "pool"]
    for more, times in (([], 1), ([], 1), (["--rate", 0.02], 2)):
        if more:
            for checkpoint in (tmp_path / "work" / "runs").glob("*/checkpoint.pt"):
                checkpoint.unlink()
        assert run(*common, *more).exit_code == 0
        assert len(found) == times


def test_a_pool_is_trained_and_gone_on_with(loaded, tmp_path):
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "pool"
    prompts.write_text(PROMPTS)
    common = ["--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "--threads", 1, "-o", folder]
    wishes = ["--layers", 1, "--pool", 2, "--match", 0.9, "--steps", 1]
    first = json.loads(run(*common, *wishes, "--json").stdout)
    assert len(first["folders"]) == 2 and first["texts"][0] >= first["texts"][1] > 0
    assert first["merged"] >= max(first["alone"]) and resolve_model(str(folder / "2"))
    assert list((tmp_path / "work" / "runs" / "draft-1-forward_kl-0-pool-0.9-1").glob("hits-*.npy"))
    store = TapStore(tmp_path / "work" / "taps")  # what another command writes meanwhile is not the pool's
    states = [store.rows([one], range(len(store.taps))) for one in store.documents]
    store.add([one.conversation for one in store.documents], states)
    again = run(*common, *wishes)
    assert again.exit_code == 0 and "merged into one tree" in again.output and "-d specinfer" in again.output
    assert "finished before" in again.stderr
    refused = run(*common, "--pool", 1, "--layers", 1)
    assert "give 2 or more" in str(refused.exception or refused.output)


def test_answers_that_are_too_few_for_a_model_without_template_are_counted(tmp_path, monkeypatch):
    """The wish for more is named, not the prompts: two million tokens are the default."""
    from types import SimpleNamespace

    from paceline.training_jobs import text as text_job

    monkeypatch.setattr(text_job, "_read_given", lambda *_: None)
    bare = SimpleNamespace(source=SimpleNamespace(tokenizer=SimpleNamespace(has_chat_template=False)))
    job = text_job.TextJob("m", tmp_path, 2_000_000, answers=[([1], [2, 3, 4, 5])])
    store = SimpleNamespace(num_answer_tokens=731)
    with pytest.raises(InvalidParameter, match=r"^tokens: 2000000 .*the answers have 731.*give --tokens 731"):
        text_job.ready_text(job, bare, EngineConfig(), store, lambda *_: None, [tmp_path / "run"], no_remarks)  # type: ignore[arg-type]
