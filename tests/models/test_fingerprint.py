"""A fingerprint tells weights apart that differ in place, size, time or contents."""

import os

import numpy as np
import pytest

from paceline.models.files.fingerprint import fingerprint_of


def written(path, values, at=0):
    path.write_bytes(values.tobytes())
    os.utime(path, (at, at))
    return path


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, 1_000_000])
def test_the_same_file_has_the_same(tmp_path, size):
    path = written(tmp_path / "a", np.arange(size, dtype=np.uint8))
    assert fingerprint_of([path]) == fingerprint_of([path])


def test_another_place_size_time_or_number_of_files_has_another(tmp_path):
    values = np.arange(10_000, dtype=np.uint8)
    one, two = written(tmp_path / "a", values), written(tmp_path / "b", values)
    found = [fingerprint_of(paths) for paths in ([one], [two], [one, two], [two, one])]
    found.append(fingerprint_of([written(one, values, at=1)]))
    found.append(fingerprint_of([written(one, values[:-1])]))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("size", [10, 5000, 1_000_000])
def test_other_weights_of_the_same_size_and_time_have_another(tmp_path, size):
    found = {
        fingerprint_of([written(tmp_path / "a", np.random.default_rng(seed).integers(0, 256, size, np.uint8))])
        for seed in range(3)
    }
    assert len(found) == 3
