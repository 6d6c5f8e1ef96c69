"""`paceline train head` from end to end with a random model of a few thousand weights."""

import json
import re
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.options.durations import seconds_of
from paceline.cli.train.options import _benchmark as benchmark_of
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.experts import Experts
from paceline.models.base import NORMED
from paceline.models.heads.files import read_head
from paceline.models.heads.fingerprint import target_print
from paceline.models.resolve import ModelSource
from paceline.training.heads import conversations
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.shards import TapStore
from paceline.training.heads.target import training_target
from tests.fakes import RandomCheckpoint, mixture_config, small_config
from tests.training_jobs.test_write_text import ChattyTokenizer

MIXTURE = mixture_config("gpt_oss", experts=Experts(8, 2, True, bias=True), mlp="gated_clamped", attention_sinks=True,
                         attention_bias=True, attention_out_bias=True, windows=(8, 0, 8))  # fmt: skip
OTHERS = {
    "olmo2": small_config("olmo2", pre_norms=False, post_norms=True, qk_norm=True, qk_norm_over="all"),
    "phi3": small_config("phi3", rotary_dim=8, windows=(9, 9, 9)),
    "gpt_oss": MIXTURE,
    "gemma2": small_config("gemma2", embedding_scale=9.8, logit_softcap=30.0, post_norms=True),
    "cohere": small_config("cohere", norm="layer", logit_scale=0.25, parallel=True),
}
"""Targets whose layers, embeddings or logits no published layout of heads can express."""


@pytest.fixture
def machine(monkeypatch, request):
    """A random model under every name, quick writing, and every third prompt held out."""
    pytest.importorskip("torch")
    from paceline.models import resolve
    from paceline.models.loaded import LoadedModel
    from paceline.models.torch_executor import TorchModel
    from paceline.training_jobs import head as head_job
    from paceline.training_jobs import write_text

    monkeypatch.setattr(ChattyTokenizer, "chat_template", "U:..|A:", raising=False)
    checkpoint = RandomCheckpoint(getattr(request, "param", None) or small_config())
    source = resolve.ModelSource("random", checkpoint, ChattyTokenizer())  # type: ignore[arg-type]
    monkeypatch.setattr(head_job, "load", lambda *_: LoadedModel(source, TorchModel(checkpoint)))
    monkeypatch.setattr(resolve, "resolve_model", lambda name: source)
    monkeypatch.setattr(write_text, "_ROUND", 12)
    monkeypatch.setattr(conversations, "HELD_OUT_SHARE", 3)
    return source


def run(*arguments):
    return CliRunner().invoke(app, ["train", "head", "--max-tokens", "24", *map(str, arguments)])


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


def test_raw_prompts_are_gone_on_with_as_they_are_and_as_far_as_asked(machine, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(24)))
    common = ["medusa", "--steps", 1, "--threads", 1, "--tokens", 100, "-o", tmp_path / "head", "--json"]
    found = run(*common, "--prompts", prompts, "--raw", "--max-tokens", 9, "--work", tmp_path / "work")
    assert found.exit_code == 0, found.exception
    kept = [one.conversation for one in TapStore(tmp_path / "work" / "taps").documents]
    asked = {machine.tokenizer.decode(one.ids[: one.num_prompt]) for one in kept}
    assert asked and asked <= {f"say {i}" for i in range(24)}
    assert {len(one.answer) for one in kept} == {9}


def test_wishes_that_text_which_is_there_does_not_heed_are_named(machine, tmp_path):
    first, second, log = (tmp_path / name for name in ("first.txt", "second.txt", "log.jsonl"))
    first.write_text("\n".join(f"say {i}" for i in range(24)))
    second.write_text("\n".join(f"tell {i}" for i in range(24)))
    log.write_text(json.dumps({"prompt": "what", "answer": "this and that and more"}))
    common = ["--steps", 1, "--threads", 1, "--tokens", 100, "-o", tmp_path / "head", "--work", tmp_path / "work"]
    written = run("medusa", *common, "--prompts", first)
    assert written.exit_code == 0 and "not heeded" not in written.stderr
    again = run("blockwise", *common, "--prompts", first)
    assert again.exit_code == 0 and "not heeded" not in again.stderr
    other = run("mlp_speculator", *common, "--prompts", second, "--max-tokens", 9, "--seed", 3)
    assert "the text that is there is enough" in other.stderr and "given)" in other.stderr
    texts = len(TapStore(tmp_path / "work" / "taps").documents)
    unheeded = f"not heeded: --prompts (0 of {texts} texts are of them), --max-tokens 9, --seed 3 (of the text)."
    assert unheeded in other.stderr
    assert f"not heeded: --answers (0 of {texts} texts" in run("eagle", *common, "--answers", log).stderr
    assert "not heeded" not in run("dspark", *common).stderr, "defaults are no wishes"
    more = run("medusa", *common[:4], "--tokens", 10_000, *common[6:], "--prompts", first)
    assert (
        "this run goes on with the text it began with" in more.stderr and "not heeded: --tokens 10000." in more.stderr
    )
    card = read_head(tmp_path / "head").card["training"]
    assert card["prompts"] == f"{card['conversations']} given"  # type: ignore[index]


def test_a_head_learns_from_a_log(machine, tmp_path):
    prompts, log = tmp_path / "prompts.txt", tmp_path / "log.jsonl"
    prompts.write_text("\n".join(f"say {i}" for i in range(24)))
    common = ["medusa", "--steps", 1, "--threads", 1, "--tokens", 200, "-o", tmp_path / "head", "--json"]
    assert run(*common, "--prompts", prompts, "--work", tmp_path / "written").exit_code == 0
    common += ["--work", tmp_path / "read", "--answers", log]
    decode, said, foreign = machine.tokenizer.decode, [], []
    for one in TapStore(tmp_path / "written" / "taps").documents:
        ids = one.conversation.ids
        if max(ids) < 128:
            prompt = decode(ids[: one.conversation.num_prompt]).removeprefix("U:").removesuffix("|A:")
            said.append({"prompt": prompt, "answer": decode(one.conversation.answer)})
            foreign.append({"prompt": prompt, "answer": "what another model said to it"})
    for records, problem in (
        ([{"prompt": "say 1"}], "has prompts and no answers"),
        (foreign, "no answers of this model"),
    ):
        log.write_text("\n".join(map(json.dumps, records)))
        with pytest.raises(InvalidParameter, match=problem):
            raise run(*common).exception or AssertionError
    log.write_text("\n".join(map(json.dumps, said)))
    found = run(*common)
    assert found.exit_code == 0, found.exception
    read = {decode(one.conversation.ids) for one in TapStore(tmp_path / "read" / "taps").documents}
    assert len(said) > 3 and read >= {f"U:{one['prompt']}|A:{one['answer']}" for one in said}
    assert f"{len(said)} given with the answers" in read_head(tmp_path / "head").card["training"]["prompts"]


def test_a_head_goes_on_with_served_texts_and_is_never_worse_there(machine, tmp_path):
    """The text that was written stands for served ones, since both are kept alike."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    work, folder = tmp_path / "work", tmp_path / "head"
    common = ["medusa", "--work", work, "--tokens", 300, "--json", "--threads", 1, "--draft-vocabulary", 50]
    assert run(*common, "--prompts", prompts, "--steps", 2, "-o", folder).exit_code == 0
    wishes = ["--resume", folder, "--served", work / "taps", "--steps", 2, "-o", tmp_path / "second"]
    found = run(*common, *wishes)
    assert found.exit_code == 0, found.output
    curve = json.loads(found.stdout)["curve"]
    assert [one["step"] for one in curve] == [0, 2]
    before, after = read_head(folder), read_head(tmp_path / "second")
    assert np.array_equal(after.draft_ids, before.draft_ids) and after.config.num_steps == before.config.num_steps
    assert len(list((work / "runs").glob("medusa-resumed-*"))) == 1
    assert_checked_on_text_of_nobody(machine, folder, tmp_path / "second")
    assert after.card["training"]["prompts"].endswith("given")  # type: ignore[index]
    again = run(*common, *wishes)
    assert "this run was finished before, after 2 updates" in again.stderr
    store = TapStore(work / "taps")
    one = store.documents[0]
    store.add([one.conversation], [store.rows([one], range(len(store.taps)))])
    grown = run(*common, *wishes)
    assert [one["step"] for one in json.loads(grown.stdout)["curve"]] == [0, 2] and "before" not in grown.stderr
    assert len(list((work / "runs").glob("medusa-resumed-*"))) == 1 and "has changed since" in grown.stderr
    for wrong, complaint in (
        (wishes[2:], "--resume"), (["--resume", folder, "--text", prompts], "new head"),
        ([*wishes, "--prompts", prompts], "prompts: are not read"), ([*wishes, "-k", 5], "num_draft_tokens: is 5"),
        ([*wishes, "--draft-vocabulary", 100], "draft_vocabulary: is 100"),
    ):  # fmt: skip
        refused = run(*common, *wrong, *([] if "-o" in wrong else ["-o", tmp_path / "third"]))
        assert refused.exit_code and complaint in str(refused.exception or refused.output)


def assert_checked_on_text_of_nobody(source, *folders):
    """A card goes wherever its head goes: the text in it must be what the target says by itself, not a user's."""
    from paceline.models.heads.self_check import own_opening, own_text
    from paceline.models.torch_executor import TorchModel

    opening = own_opening(source.tokenizer)
    said = own_text(TorchModel(source.checkpoint), opening)
    for folder in folders:
        check: Any = read_head(folder).card["check"]
        assert check["tokens"] == said and check["prompt_tokens"] == len(opening)


def ending_after(steps, step):
    """A step that ends the program, its state saved, after so many."""
    left = [steps]

    def ending(self):
        if not left[0]:
            self.save()
            raise KeyboardInterrupt
        left[0] -= 1
        step(self)

    return ending


def test_a_run_goes_on_with_the_texts_it_began_with(machine, tmp_path):
    """Another command has written more meanwhile: places, figures and card are still those of the first texts."""
    prompts, work = tmp_path / "prompts.txt", tmp_path / "work"
    prompts.write_text("\n".join(f"say {i}" for i in range(24)))
    common = ["medusa", "--threads", 1, "--tokens", 100, "--work", work, "--prompts", prompts, "--json"]
    assert run(*common, "--steps", 2, "-o", tmp_path / "head").exit_code == 0
    store = TapStore(work / "taps")
    count = len(store.documents)
    states = [store.rows([one], range(len(store.taps))) for one in store.documents]
    store.add([one.conversation for one in store.documents], states)
    more = run(*common, "--steps", 4, "-o", tmp_path / "head")
    curve = json.loads(more.stdout)["curve"]
    assert curve[0]["num_places"] == curve[-1]["num_places"] and [one["step"] for one in curve] == [2, 4]
    assert read_head(tmp_path / "head").card["training"]["conversations"] == count  # type: ignore[index]


def test_a_first_stage_that_was_ended_goes_on_with_its_vocabulary(machine, tmp_path, monkeypatch):
    """Text written meanwhile would name other tokens, which the rows of the first stage were not trained for."""
    from paceline.training.run.checkpoint import read_checkpoint
    from paceline.training.run.loop import Trainer
    from paceline.training_jobs import long_text

    monkeypatch.setattr(long_text, "PIECE", 20)
    prompts, book, work = tmp_path / "prompts.txt", tmp_path / "book.txt", tmp_path / "work"
    prompts.write_text("\n".join(f"say {i}" for i in range(24)))
    book.write_text("the quick brown fox jumps over the lazy dog. " * 9)
    common = ["dspark", "--threads", 1, "--tokens", 100, "--work", work, "--prompts", prompts, "--text", book]
    common += ["--steps", 5, "--draft-vocabulary", 60, "-o", tmp_path / "head", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", ending_after(2, Trainer.step))
        assert run(*common).exit_code
    (first,) = (work / "runs").glob("dspark-long-*")
    before = read_checkpoint(first)
    ids, store = np.arange(64, 128, dtype=np.int32), TapStore(work / "taps")  # tokens that no answer had
    states = np.zeros((len(ids) - 1, len(store.taps), store.width), np.uint16)
    store.add([Conversation(ids, 4, 0.0)] * 40, [states] * 40)
    found = run(*common)
    assert found.exit_code == 0, found.exception
    assert before is not None and before["progress"]["step"] == 2
    assert np.array_equal(read_head(tmp_path / "head").draft_ids, before["draft_ids"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wrapped.txt", "one two three four five six seven\neight nine ten eleven twelve thirteen fourteen"),
        ("lines.jsonl", '{"turns": ["one two three four five six seven\\neight nine ten eleven twelve thirteen"]}'),
        ("separated.jsonl", '"u\u2028v"\n"one two three four five six\\nseven eight nine ten eleven twelve thirteen"'),
        ("whole.json", '[\n"one two three four five six\\nseven eight nine ten eleven twelve thirteen"]'),
        ("deep.jsonl", '{"a": {"b": "one two three\\u0020four five six seven eight nine ten eleven twelve thirteen"}}'),
    ],
)
def test_a_benchmark_is_found_however_it_is_written(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    words = "one two three four five six seven eight nine ten eleven twelve thirteen"
    assert conversations.is_contaminated(f"so {words} it goes", set(benchmark_of(tmp_path / name)))


def test_a_benchmark_without_text_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("a few words")
    with pytest.raises(InvalidParameter, match=r"^exclude: .*no 13 words in a row"):
        benchmark_of(tmp_path / "short.txt")


def test_a_benchmark_of_which_a_part_cannot_be_read_is_refused(tmp_path):
    words = " ".join(map(str, range(20)))
    (tmp_path / "cut.jsonl").write_text(f'"{words}"\n"{words}')
    with pytest.raises(InvalidParameter, match=r"^exclude: .*cut\.jsonl is not JSON throughout"):
        benchmark_of(tmp_path / "cut.jsonl")


def test_ordinary_text_is_kept_clean_too(machine, tmp_path):
    prompts, book = tmp_path / "prompts.txt", tmp_path / "book.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(24)))
    book.write_text(" ".join(f"w{i}" for i in range(200)))
    common = ["medusa", "--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "-o", tmp_path / "head"]
    with pytest.raises(InvalidParameter, match=r"^text: .*in the benchmark"):
        raise run(*common, "--text", book, "--exclude", book).exception or AssertionError


def test_two_stages_end_and_go_on_bit_for_bit(machine, tmp_path, monkeypatch):
    """Long text first, then answers from where that ended; ended between and within them, the head is the same."""
    import numpy as np

    from paceline.training.run.loop import Trainer
    from paceline.training_jobs import long_text

    monkeypatch.setattr(long_text, "PIECE", 20)
    monkeypatch.setattr(long_text, "_SHARD", 4)
    prompts, book = tmp_path / "prompts.txt", tmp_path / "book.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    book.write_text("the quick brown fox jumps over the lazy dog. " * 9)
    common = ["mlp_speculator", "--prompts", prompts, "--text", book, "--tokens", 60, "--threads", 1, "--steps", 10]
    assert run(*common, "--work", tmp_path / "a", "-o", tmp_path / "whole").exit_code == 0
    names = {path.name for path in (tmp_path / "a" / "runs").iterdir()}
    step = Trainer.step
    for steps in (4, 5, 99):
        monkeypatch.setattr(Trainer, "step", ending_after(steps, Trainer.step))
        found = run(*common, "--work", tmp_path / "b", "-o", tmp_path / "parts")
        monkeypatch.setattr(Trainer, "step", step)
    assert found.exit_code == 0, found.output
    whole, parts = read_head(tmp_path / "whole"), read_head(tmp_path / "parts")
    for name, values in whole.tensors.items():
        np.testing.assert_array_equal(values, parts.tensors[name], err_msg=name)
    first: dict[str, Any] = whole.card["first_stage"]  # type: ignore[assignment]
    assert first["updates"] == 7 and whole.card["training"]["updates"] == 3  # type: ignore[index]
    assert {path.name for path in (tmp_path / "a" / "runs").iterdir()} == names
    book.write_text("a first stage on another book is not thrown away after it. " * 9)
    assert run(*common, "--work", tmp_path / "a", "-o", tmp_path / "other").exit_code == 0
    assert len(list((tmp_path / "a" / "runs").iterdir())) == 4
    other = read_head(tmp_path / "other").tensors
    assert any(not np.array_equal(values, other[name]) for name, values in whole.tensors.items())


def assert_refused_unwritten(config, common, prompts, folder):
    """A head of a form that is not trained is refused before anything is written for it."""
    (folder / "other").mkdir()
    weights = (folder / "head" / "model.safetensors").read_bytes()
    (folder / "other" / "model.safetensors").write_bytes(weights)
    config["rms_norm_eps"] = 0.5
    (folder / "other" / "config.json").write_text(json.dumps(config))
    place = ["--work", folder / "unwritten", "--prompts", prompts, "-o", folder / "third"]
    found = run(*common, "--resume", folder / "other", *place)
    assert "another layer.norm_eps" in str(found.exception), found.output
    assert not list(folder.glob("unwritten/taps/shard*"))


def test_a_head_of_eagle_goes_on_with_chains_of_its_length(machine, tmp_path):
    """Its file does not say how long they were, nor do shorter texts make it forget how far it was trained."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    common = ["hass", "--work", tmp_path / "work", "--tokens", 100, "--json", "--threads", 1, "-k", 2, "--steps", 1]
    assert run(*common, "--prompts", prompts, "-o", tmp_path / "head").exit_code == 0
    other = json.loads((tmp_path / "head" / "config.json").read_text())
    assert_refused_unwritten(other, common, prompts, tmp_path)
    (config := json.loads((tmp_path / "head" / "config.json").read_text()))["paceline"]["max_positions"] += 100
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    found = run(*common, "--resume", tmp_path / "head", "-o", tmp_path / "second")
    assert found.exit_code == 0, found.output
    assert [len(one["greedy"]) for one in json.loads(found.stdout)["curve"]] == [2, 2]
    longest = read_head(tmp_path / "head").config.max_positions
    assert read_head(tmp_path / "second").config.max_positions == longest


@pytest.mark.parametrize("machine", OTHERS.values(), ids=OTHERS, indirect=True)
def test_targets_with_other_layers_have_heads_of_plain_ones(machine, tmp_path):
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "head"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    common = ["eagle3", "--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "--threads", 1]
    found = run(*common, "--steps", 1, "-o", folder)
    assert found.exit_code == 0, found.output
    record, target = read_head(folder), machine.checkpoint.config
    layer: Any = record.config.layer
    assert layer.has_plain_layers and layer.num_attention_heads == target.num_attention_heads
    assert 0 <= dict(record.card)["check"]["acceptance"] <= 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"logit_scale": 0.5}, "models that scale their logits"),
        ({"logit_softcap": 30.0}, "models that cap their logits"),
    ],
)
def test_targets_with_other_logits_have_heads_with_a_norm_of_their_own(changes, named):
    source = ModelSource("random", RandomCheckpoint(small_config(**changes)), ChattyTokenizer())  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match=named):
        training_target(source)
    found = training_target(source, any_logits=True).output_head()
    assert {"logit_scale": found.scale, "logit_softcap": found.softcap}.items() >= changes.items()
    can = {name for name, recipe in RECIPES.items() if recipe.learns_any_logits}
    assert can == {"eagle3", "eagle3_one_norm", "p_eagle", "dspark"}


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        (["eagle9"], "choose one of: eagle3"), (["medusa", "-k", 0], "num_draft_tokens: "),
        (["medusa", "-k", 1025], "give at most 1024"),
        (["medusa", "--draft-vocabulary", 0], "draft_vocabulary: "), (["medusa", "--steps", 0], "steps: 0 updates"),
        (["medusa", "--tokens", -1], "tokens: "), (["medusa", "--seed", 2**64], "seed: .* of 64 bits"),
        (["medusa", "--plot", "curve.gif"], "plot: "),
        (["medusa", "--served", "nowhere"], "--resume"), (["medusa", "-o", "{file}"], "output: "),
        (["medusa", "--work", "{file}"], "work: "), (["medusa", "--prompts", "{file}"], "none of them would be held"),
        (["medusa", "--answers", "{odd}"], "answers: .*line 2 holds no prompt"),
        (["medusa", "--prompts", "{long}"], "prompts: number 2 has .* tokens, the model reads"),
        (["medusa", "--text", "{file}"], "text: has 10 tokens, .*give a longer text"),
    ],
)  # fmt: skip
def test_bad_wishes_are_refused_before_anything_is_written(machine, tmp_path, wishes, complaint, monkeypatch):
    monkeypatch.setattr(conversations, "HELD_OUT_SHARE", 40)
    (tmp_path / "file").write_text("one prompt")
    (tmp_path / "odd.jsonl").write_text('{"prompt": "a", "answer": "b"}\n[3]\n')
    (tmp_path / "long").write_text("short\n" + "so long " * 9000)
    places = {"file": tmp_path / "file", "odd": tmp_path / "odd.jsonl", "long": tmp_path / "long"}
    options = [str(one).format(**places) for one in wishes[1:]]
    common = ["--work", tmp_path / "work", "-o", tmp_path / "head", "--tokens", 10, "--threads", 1, *options]
    found = run(wishes[0], *common)
    assert found.exit_code and re.search(complaint, str(found.exception or found.output))
    assert isinstance(found.exception, (InvalidParameter, SystemExit))
    assert not list(tmp_path.glob("*/taps/shard*"))


def test_a_run_with_another_draft_vocabulary_is_not_gone_on_with(machine, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    common = ["medusa", "--prompts", prompts, "--work", tmp_path / "work", "--tokens", 60, "--threads", 1]
    common += ["--steps", 1, "-o", tmp_path / "head", "--draft-vocabulary"]
    assert run(*common, 60).exit_code == 0
    with pytest.raises(InvalidParameter, match=r"draft_vocabulary: is 70 tokens, .* has 60; give 60"):
        raise run(*common, 70).exception or AssertionError
    assert run(*common, 60).exit_code == 0


def test_text_of_another_model_is_refused(machine, tmp_path, monkeypatch):
    from paceline.training_jobs import text as text_job

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    common = ["medusa", "--prompts", prompts, "--work", tmp_path / "work", "--tokens", 60, "--threads", 1]
    common += ["--steps", 1, "-o", tmp_path / "head"]
    digest = ["one"]
    monkeypatch.setattr(text_job, "weights_digest", lambda _: digest[0])
    assert run(*common).exit_code == 0
    digest[0] = "another"
    with pytest.raises(InvalidParameter, match=r"work: .* of another model; use another folder"):
        raise run(*common).exception or AssertionError


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("60m", 3600), ("1.5h", 5400), ("12", 12)])
def test_times(text, seconds):
    assert seconds_of("time_budget", text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3m", "0", "nan", "soon", "1e12h"])
def test_no_times(text):
    with pytest.raises(InvalidParameter, match=r"write 90s, 60m or 1\.5h"):
        seconds_of("time_budget", text)


@pytest.mark.parametrize("family", list(RECIPES))
def test_every_family_is_trained_saved_and_checked(machine, tmp_path, family):
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "head"
    prompts.write_text("\n".join(f"say {i}" for i in range(12)))
    common = [family, "--prompts", prompts, "--work", tmp_path / "work", "--tokens", 100, "--threads", 1]
    found = run(*common, "--steps", 1, "-o", folder)
    assert found.exit_code == 0, found.output
    record = read_head(folder)
    check: Any = record.card["check"]
    assert record.config.family == RECIPES[family].family and 0 <= check["acceptance"] <= 1 and check["tokens"]
