"""Damaged head files: every one is refused by an error of ours, quickly, or reads as something whole."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import CorruptWeights, InvalidParameter, PacelineError
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
    rng, read = random.Random(name), 0
    for _ in range(TIMES):
        damaged = json.loads(json.dumps(values))
        put(damaged, rng.choice(places(damaged)), rng.choice(WRONG))
        (tmp_path / "config.json").write_text(json.dumps(damaged))
        read += read_or_refuse(tmp_path) is not None
    assert read < TIMES  # the check can fail


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
