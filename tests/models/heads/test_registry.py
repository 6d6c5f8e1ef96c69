"""Heads by name and beside weights, and whether they fit: other weights are refused, other templates told."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import HeadWarning, InvalidParameter, ModelNotFound, PacelineError
from paceline.models.architecture.config import ModelConfig
from paceline.models.heads import registry
from paceline.models.heads.files import save_head
from paceline.models.heads.fingerprint import target_print
from paceline.models.heads.fit import check_fit
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.registry import all_heads, best_head, find_heads, load_best, load_head, user_heads
from paceline.models.resolve import ModelSource
from tests.fakes import ByteTokenizer, RandomCheckpoint
from tests.models.heads.tiny_heads import LAYER, OURS, random_head

CONFIG = replace(LAYER, num_hidden_layers=6, max_position_embeddings=128)


class OnDisk(RandomCheckpoint):
    """Random weights that stand for a file, whose bytes are its digest's."""

    def __init__(self, path: Path, content: str, config: ModelConfig = CONFIG) -> None:
        super().__init__(config)
        self.path, self.weight_files, self.fingerprint = path, (path,), f"{path.name}-{content}"
        path.write_text(content)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A cache and a package without heads."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "shipped_heads", lambda: tmp_path / "package")
    return tmp_path


def source(places: Path, content: str = "weights", name: str = "tiny") -> ModelSource:
    return ModelSource(name, OnDisk(places / f"{name}.gguf", content), ByteTokenizer())  # type: ignore[arg-type]


def head_for(target: ModelSource, form: str = "eagle3.1", **print_changes) -> HeadRecord:
    record = random_head(OURS[form])
    return replace(record, config=replace(record.config, target=replace(target_print(target), **print_changes)))


def test_heads_are_found_by_the_weights_they_were_trained_for(places: Path) -> None:
    target, other = source(places), source(places, "other weights", "other")
    save_head(head_for(target), user_heads() / "tiny" / "eagle3")
    save_head(head_for(target, "medusa"), places / "package" / "tiny" / "medusa", storage="int8")
    save_head(head_for(other), user_heads() / "other" / "eagle3")
    save_head(head_for(target, "mlp"), places / "tiny.heads" / "mlp")
    found = find_heads(target)
    assert [(ref.place, ref.family) for ref in found] == [
        ("beside", "mlp_speculator"), ("cache", "eagle3"), ("shipped", "medusa"),
    ]  # fmt: skip
    assert [ref.name for ref in found[1:]] == ["tiny/eagle3", "tiny/medusa"]
    assert found[2].card["licence"] == "Apache-2.0"
    for ref in found:
        assert load_head(ref.path, target).config.family == ref.family
    assert load_head("tiny/medusa", target).config.family == "medusa"
    assert find_heads(ModelSource("nowhere", RandomCheckpoint(CONFIG), ByteTokenizer())) == []  # type: ignore[arg-type]


def test_the_users_head_comes_before_a_shipped_one_of_its_name(places: Path) -> None:
    target = source(places)
    save_head(head_for(target), user_heads() / "tiny" / "eagle3")
    save_head(head_for(target), places / "package" / "tiny" / "eagle3")
    assert [ref.place for ref in all_heads()] == ["cache"]


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe{")


def damage_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])


def damage_card(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    values["paceline"]["card"] |= {"check": {"tokens": [10**7] * 5, "acceptance": 0.5}}
    (folder / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize("damage", [damage_config, damage_weights, damage_card])
def test_a_damaged_head_is_passed_over_and_told(places: Path, damage) -> None:
    target = source(places)
    save_head(head_for(target, "medusa"), places / "package" / "tiny" / "medusa")
    save_head(head_for(target), places / "package" / "tiny" / "eagle3")
    best = replace(head_for(target), card={"accepted": {"chat": {"tokens_per_pass": 2.9}}})
    save_head(best, user_heads() / "tiny" / "eagle3")
    damage(user_heads() / "tiny" / "eagle3")
    with pytest.warns(HeadWarning, match="passed over.*tiny/eagle3"):
        chosen = load_best(target)
    assert chosen is not None and chosen[0].place == "shipped"
    with pytest.raises(PacelineError):
        load_head(user_heads() / "tiny" / "eagle3", target)


def test_a_damaged_config_is_found_and_refused_when_read(places: Path) -> None:
    folder = user_heads() / "tiny" / "eagle3"
    save_head(head_for(source(places)), folder)
    (folder / "config.json").write_text("{")
    assert [ref.name for ref in all_heads()] == ["tiny/eagle3"] and find_heads(source(places)) == []


@pytest.mark.parametrize(
    "own",
    [{"card": [1]}, {"card": "good"}, {"embedding_scale": "x"}, {"embedding_scale": float("nan")}, {"target": 3}, None],
)
def test_a_damaged_part_of_ours_does_not_hide_other_heads(places: Path, own: dict | None) -> None:
    target = source(places)
    save_head(head_for(target), user_heads() / "tiny" / "eagle3")
    save_head(head_for(target, "medusa"), user_heads() / "tiny" / "medusa")
    config = user_heads() / "tiny" / "medusa" / "config.json"
    values = json.loads(config.read_text())
    values["paceline"] = values["paceline"] | own if own else own
    config.write_text(json.dumps(values))
    assert [ref.name for ref in all_heads()] == ["tiny/eagle3", "tiny/medusa"]
    assert [ref.name for ref in find_heads(target)] == ["tiny/eagle3"]
    with pytest.raises(PacelineError, match="paceline"):
        load_head("tiny/medusa", target)


def test_a_figure_that_is_no_number_does_not_choose_a_head(places: Path) -> None:
    target = source(places)
    for form, figures in {"eagle3.1": (1.9, None, "9"), "medusa": (1.2, float("nan"), [3], 10**400, True)}.items():
        accepted = {str(number): {"tokens_per_pass": one} for number, one in enumerate(figures)}
        save_head(replace(head_for(target, form), card={"accepted": accepted}), user_heads() / "tiny" / form)
    chosen = best_head(target)
    assert chosen is not None and chosen.family == "eagle3"


@pytest.mark.parametrize(("replayed", "place"), [(2.0, "cache"), (1.1, "shipped"), (float("nan"), "shipped")])
def test_a_head_of_the_users_own_training_is_taken_where_it_does_better(places: Path, replayed, place) -> None:
    target = source(places)
    shipped = replace(head_for(target), card={"accepted": {"chat": {"tokens_per_pass": 1.9}}})
    save_head(shipped, places / "package" / "tiny" / "eagle3")
    own = replace(head_for(target, "medusa"), card={"held_out": {"replayed": replayed, "eal": 5.0}})
    save_head(own, user_heads() / "tiny" / "medusa")
    chosen = best_head(target)
    assert chosen is not None and chosen.place == place


def test_other_weights_are_refused_unless_asked_for(places: Path) -> None:
    target = source(places)
    save_head(head_for(target, sha256="0" * 64), places / "head")
    with pytest.raises(InvalidParameter, match="trained for other weights"):
        load_head(places / "head", target)
    with pytest.warns(HeadWarning, match="other weights"):
        load_head(places / "head", target, any_weights=True)


@pytest.mark.filterwarnings("error")
def test_another_template_is_a_warning_and_none_is_fine(places: Path) -> None:
    target = source(places)
    own = replace(target_print(target), template_sha256="1" * 64)
    trained = replace(head_for(target).config, target=replace(own, template_sha256="2" * 64))
    record = replace(head_for(target), config=trained)
    assert check_fit(record, replace(own, template_sha256="2" * 64)) == ()
    assert "another chat template" in check_fit(record, own)[0]
    assert check_fit(record, replace(own, template_sha256="")) == ()


def test_another_depth_is_refused(places: Path) -> None:
    record = head_for(source(places), num_hidden_layers=7)
    with pytest.raises(InvalidParameter, match="depth 7"):
        check_fit(record, target_print(source(places)))


def test_positions_go_as_far_as_the_target_and_training_is_told(places: Path) -> None:
    target = source(places)
    save_head(head_for(target), places / "head")
    record = load_head(places / "head", target)
    assert any("trained to 64 positions, the target goes to 128" in note for note in record.notes)
    assert record.config.layer is not None and record.config.layer.max_position_embeddings == 128
    assert record.config.max_positions == 64


@pytest.mark.parametrize(
    ("model_type", "layout", "own", "scale"),
    [("gemma3_text", "dflash", False, 8.0), ("gemma3_text", "speculators", False, 1.0),
     ("granite", "dflash", False, 1.0), ("gemma3_text", "dflash", True, 3.0), ("granite", "speculators", True, 3.0)],
)  # fmt: skip
def test_a_block_reads_embeddings_as_those_who_made_it(places: Path, model_type, layout, own, scale) -> None:
    """z-lab's code calls the target's layer, which multiplies in Gemma only; ours says the factor in its own block."""
    checkpoint = OnDisk(places / "t.gguf", "weights", replace(CONFIG, model_type=model_type, embedding_scale=8.0))
    target = ModelSource("t", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    record = head_for(target, "dflash")
    record = replace(record, config=replace(record.config, embedding_scale=3.0 if own else 1.0))
    save_head(record, places / "head", layout=layout)
    if not own:
        (config := json.loads((places / "head" / "config.json").read_text())).pop("paceline")
        (places / "head" / "config.json").write_text(json.dumps(config))
    assert load_head(places / "head", target).config.embedding_scale == scale


def test_a_replaced_file_is_another_target(places: Path) -> None:
    first = target_print(source(places))
    assert target_print(source(places)) == first
    assert target_print(source(places, "replaced")).sha256 != first.sha256


def test_a_name_that_leads_nowhere_lists_what_there_is(places: Path) -> None:
    save_head(head_for(source(places)), user_heads() / "tiny" / "eagle3")
    with pytest.raises(ModelNotFound, match="tiny/eagle3"):
        load_head("smollm2-135m/nothing")
    with pytest.raises(ModelNotFound, match="no draft head here"):
        shutil.rmtree(user_heads() / "tiny" / "eagle3")
        (places / "empty").mkdir()
        load_head(places / "empty")


def test_heads_of_a_model_draft_for_it_with_an_adapter_too(places: Path) -> None:
    base = source(places)
    adapted = replace(source(places, "with an adapter", "adapted"), base=base)
    save_head(head_for(base), user_heads() / "tiny" / "eagle3")
    assert [ref.name for ref in find_heads(adapted)] == ["tiny/eagle3"]
    assert load_head("tiny/eagle3", adapted).config.family == "eagle3"
    card = {"held_out": {"replayed": 2.5}}
    save_head(replace(head_for(base, "medusa"), card=card), user_heads() / "tiny" / "medusa")
    save_head(head_for(adapted, "mlp"), user_heads() / "adapted" / "mlp_speculator")
    assert best_head(adapted).name == "adapted/mlp_speculator"  # its own, though it has no figure
    assert best_head(base).name == "tiny/medusa"
    with pytest.raises(InvalidParameter, match="other weights"):
        load_head("adapted/mlp_speculator", base)
