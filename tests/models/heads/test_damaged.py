"""Damaged head files: every one is refused by an error of ours, quickly, or reads as something whole."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import CorruptWeights, InvalidParameter, PacelineError, UnsupportedModel
from paceline.models.heads.files import read_head, save_head
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.tensor_file import read_safetensors, write_safetensors
from tests.models.heads.tiny_heads import OURS, THEIRS, random_head

EVERY = {name: (config, None) for name, config in OURS.items()} | THEIRS
WRONG: tuple[Any, ...] = (
    None, -1, 0, 1, 3, 10**9, 10**30, 1.5, float("nan"), True, "", "x", "3", [], [0], ["x"], [[1]], [None], {},
    {"a": 1},
)  # fmt: skip
TIMES = 8
WRONG_PER_PLACE = 3
OPTIONAL = ("embed_tokens.weight", "lm_head.weight", "bias")
"""Tensors without which some layouts read a head of another form."""


def places(values: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a config stands, nested ones too."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [place for key, value in pairs for place in ((*above, key), *places(value, (*above, key)))]


def put(values: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        values = values[key]
    values[place[-1]] = value


def read_or_refuse(folder: Path) -> HeadRecord | None:
    try:
        return read_head(folder)
    except PacelineError:
        return None


@pytest.mark.parametrize("name", EVERY)
def test_a_damaged_config_is_refused_or_read(tmp_path: Path, name: str) -> None:
    config, layout = EVERY[name]
    save_head(random_head(config), tmp_path, layout=layout)
    values = json.loads((tmp_path / "config.json").read_text())
    rng, refused = random.Random(name), 0
    for place in places(values):
        for wrong in rng.sample(WRONG, WRONG_PER_PLACE):
            damaged = json.loads(json.dumps(values))
            put(damaged, place, wrong)
            (tmp_path / "config.json").write_text(json.dumps(damaged))
            try:
                read_head(tmp_path)
            except PacelineError as error:
                refused += 1
                assert str(tmp_path) in str(error) and "do not fit together" not in str(error), (place, wrong)
    assert refused > 20


@pytest.mark.parametrize(
    ("name", "place", "wrong", "field"),
    [
        ("eagle", ("vocab_size",), 3_000_000, "vocab_size"), ("eagle", ("vocab_size",), 5, "vocab_size"),
        ("eagle3.1", ("transformer_layer_config", "vocab_size"), 41, "vocab_size"),
        *[("eagle3.1", ("speculators_config", "proposal_methods", 0, "speculative_tokens"), wrong, "speculative_tokens")
          for wrong in (-1, 0, 1.5, True, "3")],
        ("eagle3.1", ("speculators_config", "proposal_methods"), 3, "proposal_methods"),
        ("eagle3.1", ("speculators_model_type",), ["eagle3"], "speculators_model_type"),
        ("eagle3.1", ("eagle_aux_hidden_state_layer_ids",), 2, "layer_ids"),
        ("dflash", ("block_size",), 1, "block_size"), ("dflash z-lab", ("block_size",), 1, "block_size"),
        *[(name, ("markov_head_type",), wrong, "markov_head_type")
          for name in ("dspark", "dspark deepspec") for wrong in ("no such thing", [1], {})],
        *[("eagle", ("max_position_embeddings",), wrong, "max_position") for wrong in ("", [], {}, False, 0)],
        ("mlp tied", ("paceline", "embedding_scale"), 1e300, "embedding_scale"),
        ("arctic lstm", ("inner_dim",), {"a": 1}, "inner_dim"), ("arctic lstm", ("emb_dim",), [8.5], "emb_dim"),
        ("eagle", ("rms_norm_eps",), -1, "rms_norm_eps"),
    ],
)  # fmt: skip
def test_values_that_would_be_read_as_something_else_are_refused(
    tmp_path: Path, name: str, place: tuple[Any, ...], wrong: Any, field: str
) -> None:
    config, layout = EVERY[name]
    save_head(random_head(config), tmp_path, layout=layout)
    values = json.loads((tmp_path / "config.json").read_text())
    put(values, place, wrong)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(PacelineError, match=field) as refused:
        read_head(tmp_path)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("name", ["eagle3.1", "p_eagle", "dflash", "dspark", "eagle", "mtp", "falcon"])
@pytest.mark.parametrize("width", [8, 32])
def test_a_head_of_another_width_needs_tables_of_its_own(tmp_path: Path, name: str, width: int) -> None:
    """It would read and write beyond the rows of the target's tables."""
    config = EVERY[name][0]
    assert config.layer is not None
    other = replace(config, layer=replace(config.layer, hidden_size=width), owns_embedding=False, owns_head=False)
    save_head(random_head(other), tmp_path)
    with pytest.raises(InvalidParameter, match=f"hidden_size: is {width}"):
        read_head(tmp_path)


def test_a_head_of_another_width_is_read_with_tables_of_its_own(tmp_path: Path) -> None:
    config = OURS["eagle3 of its own"]
    assert config.layer is not None
    save_head(random_head(replace(config, layer=replace(config.layer, hidden_size=8))), tmp_path)
    record = read_head(tmp_path)
    assert record.config.layer is not None and record.config.layer.hidden_size == 8


def test_what_is_no_head_s_file_is_named(tmp_path: Path) -> None:
    save_head(random_head(THEIRS["eagle"][0]), tmp_path / "head", layout="eagle")
    with pytest.raises(UnsupportedModel, match=r"config\.json: is no file of tensors"):
        read_head(tmp_path / "head" / "config.json")
    (tmp_path / "head" / "config.json").unlink()
    with pytest.raises(InvalidParameter, match=r"config\.json: is missing"):
        read_head(tmp_path / "head")
    weights = tmp_path / "head" / "model.safetensors"
    weights.unlink()
    weights.mkdir()
    with pytest.raises(CorruptWeights, match="cannot be read"):
        read_head(tmp_path / "head")


@pytest.mark.parametrize("name", EVERY)
def test_missing_and_misshapen_tensors_are_refused(tmp_path: Path, name: str) -> None:
    config, layout = EVERY[name]
    save_head(random_head(config), tmp_path, layout=layout)
    path = next(tmp_path.glob("*.safetensors"))
    tensors = dict(read_safetensors(path))
    rng = random.Random(name)
    for _ in range(TIMES):
        damaged = dict(tensors)
        victim = rng.choice(list(damaged))
        is_missing = rng.random() < 0.5
        if is_missing:
            del damaged[victim]
        else:
            damaged[victim] = damaged[victim].reshape(-1)[:-1]
        write_safetensors(path, damaged)
        record = read_or_refuse(tmp_path)
        assert record is None or "t2d" in victim or (is_missing and victim.endswith(OPTIONAL)), (victim, is_missing)


def test_too_many_steps_are_refused_before_their_names_are_made(tmp_path: Path) -> None:
    save_head(random_head(OURS["mlp"]), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | {"n_predict": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises((InvalidParameter, CorruptWeights), match="num_steps"):
        read_head(tmp_path)


@pytest.mark.parametrize("name", [name for name, (config, _) in EVERY.items() if config.mask_token_id is not None])
@pytest.mark.parametrize("mask", [None, -1, 10**7, "x", 1.5, True])
def test_a_mask_that_is_no_token_is_refused(tmp_path: Path, name: str, mask: Any) -> None:
    config, layout = EVERY[name]
    save_head(random_head(config), tmp_path, layout=layout)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    holder = values if "mask_token_id" in values else values["dflash_config"]
    holder["mask_token_id"] = mask
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidParameter, match="mask_token_id"):
        read_head(tmp_path)
