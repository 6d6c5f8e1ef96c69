"""The store of texts on disk: what is damaged, of another model or cannot be written is said in one line."""

import errno

import numpy as np
import pytest

from paceline.errors import CorruptWeights, InvalidParameter
from paceline.training.heads.origins import GIVEN, NOT_KEPT, Origin
from paceline.training.heads.shards import TapStore
from tests.training.heads.tiny import TAPS, conversation, states_of, tiny_store, tiny_target


@pytest.fixture
def folder(tmp_path):
    """Two shards."""
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target, num=4)
    one = conversation(9, False)
    store.add([one], [states_of(one, target)])
    return store.folder


@pytest.mark.parametrize("name", ["shard-0001.npz", "taps-0001.npy"])
@pytest.mark.parametrize("size", [0, 60, 300])
def test_a_shard_that_was_cut_short_is_named(folder, name, size):
    path = folder / name
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptWeights, match=r"shard-0001.npz and taps-0001.npy: cannot be read .*delete both"):
        TapStore(folder)


def test_a_shard_without_its_states_is_named(folder):
    (folder / "taps-0000.npy").unlink()
    with pytest.raises(CorruptWeights, match="delete both"):
        TapStore(folder)


def test_states_of_fewer_rows_are_named(folder):
    (folder / "taps-0000.npy").write_bytes((folder / "taps-0001.npy").read_bytes())
    with pytest.raises(CorruptWeights, match="fewer rows"):
        TapStore(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"taps": ["a"]}', '{"taps": 3}', "{}"])
def test_an_index_that_cannot_be_read_is_named(folder, text):
    (folder / "taps.json").write_text(text)
    with pytest.raises(CorruptWeights, match=r"taps.json: cannot be read"):
        TapStore(folder)


def test_another_model_is_refused(tmp_path):
    TapStore(tmp_path, TAPS, "one")
    assert TapStore(tmp_path, TAPS, "one").taps == TapStore(tmp_path, TAPS).taps == TAPS
    with pytest.raises(InvalidParameter, match="of another model"):
        TapStore(tmp_path, TAPS, "other")


def test_a_folder_that_is_only_read_is_not_made(tmp_path):
    with pytest.raises(InvalidParameter, match="holds no hidden states"):
        TapStore(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_full_disk_leaves_what_was_kept(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    store, target, one = TapStore(folder), tiny_target(), conversation(10, False)
    number = len(store.documents)
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InvalidParameter, match=r"^work: .*the disk is full.*still there"):
        store.add([one], [states_of(one, target)])
    assert len(TapStore(folder).documents) == len(store.documents) == number


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameter, match=r"^work: .*cannot be written"):
        TapStore(tmp_path / "file" / "taps", TAPS)


def test_a_shard_says_how_its_texts_came_about(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target, num=4)
    one, origin = conversation(9, False), Origin(GIVEN, 3, 64)
    store.add([one], [states_of(one, target)], origin)
    *before, last = (each.origin for each in TapStore(store.folder).documents)
    assert last == origin and set(before) == {NOT_KEPT}


@pytest.mark.parametrize("text", ["", "3", "{}", '{"prompts": 3}', '{"prompts": "given", "seed": "a"}'])
def test_an_origin_that_cannot_be_read_is_named(folder, text):
    path = folder / "shard-0001.npz"
    with np.load(path) as data:
        entries = {**data, "origin": np.array(text)}
    np.savez(path, **entries)
    with pytest.raises(CorruptWeights, match=r"shard-0001.npz .*cannot be read"):
        TapStore(folder)


def test_a_shard_of_before_origins_were_kept_is_read(folder):
    path = folder / "shard-0001.npz"
    with np.load(path) as data:
        entries = {name: data[name] for name in data if name != "origin"}
    np.savez(path, **entries)
    assert TapStore(folder).documents[-1].origin == NOT_KEPT


def test_two_programs_that_write_at_once_lose_nothing(folder):
    target, one = tiny_target(), conversation(10, False)
    first, second = TapStore(folder), TapStore(folder)
    first.add([one], [states_of(one, target)], Origin(GIVEN, 1, 8))
    second.add([one], [states_of(one, target)], Origin(GIVEN, 2, 8))
    first.add([one], [states_of(one, target)], Origin(GIVEN, 3, 8))
    assert [each.origin.seed for each in TapStore(folder).documents[-3:]] == [1, 2, 3]
    assert [each.origin.seed for each in first.documents[-3:]] == [1, 2, 3]


def test_files_of_other_names_are_left_alone(folder):
    count = len(TapStore(folder).documents)
    (folder / "shard-x.npz").touch()
    (folder / "shard-0001.npz.bak").touch()
    assert len(TapStore(folder).documents) == count


def test_texts_that_came_later_can_be_forgotten(folder):
    store = TapStore(folder)
    store.keep_first(2)
    assert len(store.documents) == 2 and len(TapStore(folder).documents) > 2
    assert store.rows(store.documents, [0]).shape[0] == sum(one.num_rows for one in store.documents)
