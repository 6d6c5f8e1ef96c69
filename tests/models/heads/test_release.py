"""`tools/release_head.py`: what a shipped card says, and that the head is read again."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.models.heads.files import save_head
from paceline.models.heads.fingerprint import target_print
from paceline.models.heads.registry import load_head
from paceline.models.resolve import ModelSource
from tests.fakes import ByteTokenizer
from tests.models.heads.test_registry import OnDisk
from tests.models.heads.tiny_heads import OURS, random_head

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import release_head  # type: ignore[import-not-found]

TRAINING = {"command": "paceline train head eagle3", "prompts": "7 given", "updates": 7}


@pytest.fixture
def target(tmp_path) -> ModelSource:
    return ModelSource("tiny", OnDisk(tmp_path / "tiny.gguf", "weights"), ByteTokenizer())  # type: ignore[arg-type]


@pytest.fixture
def trained(tmp_path, target) -> Path:
    record = random_head(OURS["eagle3.1"])
    card = {"licence": "as the target's", "training": TRAINING, "held_out": {"greedy": (1 / 3,)}}
    return save_head(
        replace(record, config=replace(record.config, target=target_print(target)), card=card), tmp_path / "t"
    )


def test_a_card_keeps_what_training_wrote_and_what_was_said_of_the_head_before(tmp_path, target, trained):
    shipped, accepted = tmp_path / "shipped", {"conversations": {"tokens_per_pass": 1.85}}
    told, of_training = {"licence": "Apache-2.0", "weak_spots": "rhyme"}, {"prompts": "of our own", "kept_out": "tests"}
    release_head.release(trained, target, shipped, told, of_training, {})
    nothing = dict.fromkeys(told), dict.fromkeys(of_training)
    release_head.release(trained, target, shipped, *nothing, accepted)
    card = load_head(shipped, target).card
    assert card["training"] == TRAINING | {"prompts": "of our own", "kept_out": "tests"}
    assert (card["licence"], card["weak_spots"], card["accepted"]) == ("Apache-2.0", "rhyme", accepted)
    assert card["held_out"] == {"greedy": [0.3333]}
    release_head.release(shipped, target, tmp_path / "again", *nothing, {})
    assert load_head(tmp_path / "again", target).card["accepted"] == accepted


def test_what_the_engine_printed_is_read_for_one_way_of_drafting(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    found = {"tokens_per_pass": 1.8, "error": 0.05, "passes": 20, "acceptance_rate": 0.4}
    one.write_text("a table\n" + json.dumps({"drafters": {"head": found}}))
    two.write_text(json.dumps({"drafters": {"head": found, "other": found}}))
    label, figures = release_head.measured(f"T=0, greedy={one}")
    assert (label, figures) == ("T=0, greedy", {"tokens_per_pass": 1.8, "error": 0.05, "passes": 20})
    (tmp_path / "empty.json").touch()
    for wrong in (f"label={two}", str(one), f"label={tmp_path / 'empty.json'}", f"label={tmp_path / 'none.json'}"):
        with pytest.raises(argparse.ArgumentTypeError, match="no LABEL=FILE"):
            release_head.measured(wrong)


def test_a_head_that_went_on_from_the_shipped_one_names_the_runs_before(tmp_path, target):
    record = random_head(OURS["eagle3.1"])
    config, shipped = replace(record.config, target=target_print(target)), tmp_path / "tiny" / "eagle3"
    nothing = dict.fromkeys(("licence",)), dict.fromkeys(("prompts",))
    for number, command in enumerate(("first", "second --resume tiny/eagle3", "third --resume grown/eagle3 -k 3")):
        card = {"training": {"command": command, "updates": 1000, "rows_seen": 7, "minutes": number}}
        trained = save_head(replace(record, config=config, card=card), tmp_path / "again")
        release_head.release(trained, target, shipped, *nothing, {})
    assert release_head.card_of(shipped)["training"]["runs_before"] == [
        "1,000 updates, 7 rows, 0 minutes: first", "1,000 updates, 7 rows, 1 minutes: second --resume tiny/eagle3",
    ]  # fmt: skip
