"""`suffix` by name: which scoring, which memory, and the same text whatever is remembered."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.drafters.lookup import find
from paceline.drafters.lookup.blended import Blended
from paceline.drafters.lookup.find import cached_path, find_memory
from paceline.drafters.lookup.memory import MemoryInfo, write_memory
from paceline.drafters.lookup.suffix import Suffix
from paceline.drafters.registry import make_drafter
from paceline.errors import InvalidParameter
from paceline.training.memory import build_memory
from tests.fakes import ByteTokenizer


class Tokenizer(ByteTokenizer):
    """With a fingerprint."""

    def __init__(self, fingerprint: str = "bytes") -> None:
        self._fingerprint = fingerprint

    def vocabulary_fingerprint(self) -> str:
        return self._fingerprint


def source(name: str = "smollm2-135m", fingerprint: str = "bytes"):
    return SimpleNamespace(name=name, tokenizer=Tokenizer(fingerprint), checkpoint=SimpleNamespace(fingerprint="0123"))


def written(path, said=(1, 2, 3), fingerprint: str = "bytes"):
    """A memory of a model that always says the same."""
    write_memory(path, build_memory([np.array(said)] * 3, MemoryInfo(fingerprint, 131, 4, 9, "bytes-model")))
    return path


@pytest.fixture(autouse=True)
def nothing_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(find, "SHIPPED", tmp_path / "shipped")


def test_auto_takes_the_users_own_before_that_beside_the_weights_before_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built_in = source()
    assert find_memory("auto", built_in) is None
    for path, said in (
        (tmp_path / "shipped/smollm2-135m/memory.safetensors", 7),
        (tmp_path / "smollm2-135m.memory.safetensors", 8),
        (cached_path(built_in), 9),
    ):
        written(path, (1, said))
        found = find_memory("auto", built_in)
        assert found is not None
        assert said in found.tokens


def test_a_folder_of_weights_may_hold_its_memory(tmp_path):
    written(tmp_path / "weights" / "memory.safetensors")
    assert find_memory("auto", source(str(tmp_path / "weights"))) is not None
    assert find_memory("none", source(str(tmp_path / "weights"))) is None


def test_a_memory_is_named_by_its_path_or_its_model(tmp_path):
    path = written(tmp_path / "mine")
    written(tmp_path / "shipped/smollm2-135m/memory.safetensors")
    assert find_memory(str(path), source("other")) is not None
    assert find_memory("smollm2-135m", source("other")) is not None
    with pytest.raises(InvalidParameter, match=r"memory: .*nowhere is no file"):
        find_memory("nowhere", source())


def test_a_memory_of_another_vocabulary_is_refused(tmp_path):
    path = written(tmp_path / "mine", fingerprint="another")
    with pytest.raises(InvalidParameter, match="another vocabulary"):
        find_memory(str(path), source())


def test_the_scoring_decides_which_drafter_it_is():
    assert isinstance(make_drafter("suffix"), Blended)
    published = make_drafter("suffix", scoring="published", max_depth=8)
    assert isinstance(published, Suffix)
    assert make_drafter("suffix").traits.branches
    assert not published.traits.branches
    assert not make_drafter("suffix", mode="path").traits.branches


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"scoring": "best"}, "scoring"),
        ({"max_depth": 8}, "max_depth"),
        ({"scoring": "published", "memory": "auto"}, "memory"),
        ({"memory": "some.file"}, "memory"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options, field):
    with pytest.raises(InvalidParameter, match=f"^{field}: "):
        make_drafter("suffix", **options)
