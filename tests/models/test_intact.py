"""Damage in the cache is noticed, and what was damaged is made anew: weights, kernels, downloads."""

import errno
import json
import os
import tempfile
import time
from random import Random

import numpy as np
import pytest

from paceline import disk
from paceline.models import intact
from paceline.models.cache_use import DAY, unused
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.conversions import LAYOUT, of_other_versions, place_of
from tests.fakes import RandomCheckpoint, small_config


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def zero_inside(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)


def delete(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


DAMAGES = [truncate, zero_inside, delete, empty]


@pytest.fixture
def sealed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(Random(name).randbytes(5000))
    intact.seal(tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["a", intact.MANIFEST])
def test_a_damaged_file_breaks_the_seal(sealed, damage, name):
    assert intact.is_sealed(sealed)
    damage(sealed / name)
    assert not intact.is_sealed(sealed)
    assert not intact.is_sealed(sealed)  # nor is it trusted the second time


@pytest.mark.parametrize("manifest", ["{}", "[]", "7"])
def test_a_seal_of_nothing_is_none(sealed, manifest):
    (sealed / intact.MANIFEST).write_text(manifest)
    assert not intact.is_sealed(sealed)


def test_contents_are_hashed_after_a_start_of_the_machine_and_not_before(sealed, monkeypatch):
    hashed = []
    digest = intact.file_digest
    monkeypatch.setattr(intact, "file_digest", lambda path: hashed.append(path.name) or digest(path))
    assert intact.is_sealed(sealed) and not hashed
    monkeypatch.setattr(intact, "_boot", lambda: "another")
    assert intact.is_sealed(sealed) and sorted(hashed) == ["a", "b"]
    assert intact.is_sealed(sealed) and len(hashed) == 2


def test_damage_that_leaves_the_times_alone_is_found_after_the_next_start(sealed, monkeypatch):
    states = intact._states([sealed / name for name in ("a", "b", intact.MANIFEST)])
    zero_inside(sealed / "a")
    monkeypatch.setattr(intact, "_states", lambda paths: states)
    assert intact.is_sealed(sealed)
    monkeypatch.setattr(intact, "_boot", lambda: "another")
    assert not intact.is_sealed(sealed)


def test_a_cache_that_cannot_be_written_is_checked_every_time(sealed, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(disk.os, "replace", refuse)
    monkeypatch.setattr(intact, "_boot", lambda: "another")
    assert intact.is_sealed(sealed)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["down.npy", "qkv_scales.npy", "final_norm.npy"])
def test_damaged_weights_are_converted_again(damage, name, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=1))
    good = {key: np.array(value) for key, value in weights.load_weights(checkpoint, "int8").items() if key != "experts"}
    (folder,) = (tmp_path / "converted").iterdir()
    damage(folder / name)
    healed = weights.load_weights(checkpoint, "int8")
    assert all(np.array_equal(value, healed[key]) for key, value in good.items())
    assert list((tmp_path / "converted").iterdir()) == [folder]  # nothing is left beside it


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_where_the_cache_is_read_only_weights_are_converted_for_now(tmp_path, monkeypatch, code):
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=1))
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "open")
    kept = weights.load_weights(checkpoint, "int8")
    make, asides = tempfile.mkdtemp, []

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    def aside(*arguments, **how):
        asides.append(make(*arguments, **how))
        return asides[-1]

    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "closed")
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(tempfile, "mkdtemp", aside)
    with pytest.warns(UserWarning, match=r"not kept.*PACELINE_CACHE"):
        found = weights.load_weights(checkpoint, "int8")
    assert all(np.array_equal(value, kept[key]) for key, value in found.items() if key != "experts")
    assert not any((tmp_path / "closed").rglob("*.npy")) and not any(map(os.path.exists, asides))


def test_weights_of_other_versions_are_told_apart(tmp_path):
    ours = place_of(tmp_path, "abc", "bfloat16-pairs")
    theirs = tmp_path / "converted" / f"abc-int8-{LAYOUT + 1}"
    for folder in (ours, theirs, tmp_path / "converted" / "unfinished-x1"):
        folder.mkdir(parents=True)
    assert of_other_versions(tmp_path) == [theirs]
    assert of_other_versions(tmp_path / "nothing") == []


def test_weights_that_are_used_are_no_old_weights(tmp_path, monkeypatch):
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=1))
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    weights.load_weights(checkpoint, "int8")
    (folder,) = (tmp_path / "converted").iterdir()
    os.utime(folder, (0, time.time() - 40 * DAY))
    assert unused(tmp_path, 30) == [folder] and unused(tmp_path, 50) == []
    weights.load_weights(checkpoint, "int8")
    assert unused(tmp_path, 30) == []


def test_a_manifest_that_is_no_object_is_not_trusted(sealed):
    (sealed / intact.MANIFEST).write_text(json.dumps(["a"]))
    assert not intact.is_sealed(sealed)
