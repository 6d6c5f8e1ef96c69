"""Heads of this project: saved and loaded they are the same, in every storage, with and without the target's tables."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from paceline.errors import CorruptWeights, InvalidParameter
from paceline.models.heads.card import card_text
from paceline.models.heads.draft_ids import to_mask
from paceline.models.heads.files import check_record, read_head, save_head
from paceline.models.heads.record import HeadRecord
from tests.models.heads.tiny_heads import OURS, VOCAB, assert_equal, random_head, random_tables


@pytest.mark.parametrize("copies", [False, True], ids=["shared", "copied"])
@pytest.mark.parametrize("name", OURS)
def test_a_saved_head_comes_back(tmp_path: Path, name: str, copies: bool) -> None:
    record = random_head(OURS[name])
    tables = random_tables() if copies else None
    if name == "mlp" or not copies or record.config.family != "mlp_speculator":
        save_head(record, tmp_path, tables=tables)
        assert_equal(read_head(tmp_path), record)


@pytest.mark.parametrize(("storage", "tolerance"), [("bfloat16", 0.02), ("int8", 0.03)])
@pytest.mark.parametrize("name", OURS)
def test_small_storage_is_close_and_saves_to_itself(tmp_path: Path, name: str, storage, tolerance: float) -> None:
    record = random_head(OURS[name])
    save_head(record, tmp_path / "once", storage=storage)
    once = read_head(tmp_path / "once")
    assert_equal(once, record, tolerance)
    save_head(once, tmp_path / "twice")
    assert_equal(read_head(tmp_path / "twice"), once)


def test_a_release_file_holds_one_byte_per_weight_of_a_matrix(tmp_path: Path) -> None:
    record = random_head(OURS["eagle3.1"])
    save_head(record, tmp_path, storage="int8")
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert kinds["fc.weight"] == "I8" and kinds["fc.weight_scale"] == "F32"
    assert kinds["norm.weight"] == "BF16" and kinds["d2t"] == "I64" and kinds["t2d"] == "BOOL"


def test_the_markov_table_is_stored_without_rows_that_are_alike(tmp_path: Path) -> None:
    record = random_head(OURS["dspark"])
    assert record.draft_ids is not None
    table = record.tensors["markov_head.markov_w1.weight"].copy()
    table[~to_mask(record.draft_ids, VOCAB)] = table[0]
    alike = HeadRecord(
        record.config, {**record.tensors, "markov_head.markov_w1.weight": table}, record.draft_ids, record.card
    )
    save_head(alike, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert file.get_tensor("markov_head.markov_w1_drafted.weight").shape == (21, 4)
    assert_equal(read_head(tmp_path), alike)


def test_the_card_says_how_the_head_is_to_be_run(tmp_path: Path) -> None:
    save_head(random_head(OURS["eagle3.1"]), tmp_path)
    card = (tmp_path / "CARD.md").read_text()
    for line in ("taps: 2, 3, 3", "norm before fc: per tap", "fed back: after the last norm", "licence**: Apache-2.0"):
        assert line in card


def test_a_card_keeps_lists_within_a_list_apart() -> None:
    record = random_head(OURS["medusa"])
    card = card_text(
        HeadRecord(record.config, record.tensors, record.draft_ids, {"tree": {"paths": [[0], [1], [0, 2]]}})
    )
    assert "paths: [0], [1], [0, 2]\n" in card


def test_a_record_without_one_of_its_tensors_is_not_saved(tmp_path: Path) -> None:
    record = random_head(OURS["medusa"])
    part = dict(record.tensors)
    del part["blocks.1.layers.0.bias"]
    with pytest.raises(InvalidParameter, match=r"blocks\.1\.layers\.0\.bias"):
        save_head(HeadRecord(record.config, part, record.draft_ids), tmp_path)
    with pytest.raises(InvalidParameter, match="draft_ids"):
        check_record(HeadRecord(record.config, record.tensors, None))


def test_copies_for_other_programs_need_a_layout_that_knows_draft_vocabularies(tmp_path: Path) -> None:
    record = random_head(replace(OURS["mlp tied"], owns_head=True))
    with pytest.raises(InvalidParameter, match="draft_vocab_size"):
        save_head(record, tmp_path, tables=random_tables())


def test_copies_of_the_targets_tables_are_what_the_speculator_would_compute(tmp_path: Path) -> None:
    record, tables = random_head(OURS["mlp tied"]), random_tables()
    save_head(record, tmp_path, tables=tables)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        embedding, head = (file.get_tensor(f"speculator.{part}.0.weight") for part in ("emb", "head"))
    state = np.random.default_rng(2).standard_normal(8).astype(np.float32)
    np.testing.assert_allclose(head @ state, tables.head @ (record.tensors["head_proj.weight"] @ state), rtol=1e-4)
    token = record.tensors["embed_proj.weight"] @ (2.5 * tables.embedding[3])
    np.testing.assert_allclose(embedding[3], token, rtol=1e-4)


def test_the_map_of_another_head_is_refused(tmp_path: Path) -> None:
    save_head(random_head(OURS["eagle3.1"], seed=1), tmp_path / "one")
    save_head(random_head(OURS["eagle3.1"], seed=2), tmp_path / "other")
    (tmp_path / "one" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(InvalidParameter, match="not the draft vocabulary"):
        read_head(tmp_path / "one")


def test_damage_is_told(tmp_path: Path) -> None:
    save_head(random_head(OURS["medusa"]), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CorruptWeights, match="damaged"):
        read_head(tmp_path)
