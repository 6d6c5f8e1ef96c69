"""GGUF files in parts: the model of the whole file, from any part; and parts that are missing, mixed up or doubled."""

import shutil

import numpy as np
import pytest

from paceline.errors import CorruptWeights
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.gguf_parts import part_names
from paceline.models.heads.fingerprint import weights_digest
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource, resolve_model
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

from .tiny import as_gguf, gguf_metadata, gguf_name, write_gguf
from .vocabularies import byte_level_gguf

CONFIG = small_config("qwen2", head_dim=32, num_attention_heads=4)
CHECKPOINT = RandomCheckpoint(CONFIG)
TENSORS = {gguf_name(CONFIG, name): CHECKPOINT.tensor(name) for name in CHECKPOINT.names()}
STORAGE = {name: "Q8_0" for name, values in TENSORS.items() if values.ndim == 2}
COUNT = 3
CUTS = (0, 1, 17, len(TENSORS))


def write_parts(folder, changes=None, moved=None):
    """The model in three parts as gguf-split cuts it; `changes` of keys by part, `moved` tensors added to parts."""
    names, paths = list(TENSORS), []
    for number in range(COUNT):
        told = {"split.no": number, "split.count": COUNT, "split.tensors.count": len(names)}
        metadata = {"general.architecture": "qwen2"} | (gguf_metadata(CONFIG) if number == 0 else {}) | told
        metadata |= (changes or {}).get(number, {})
        chosen = [*names[CUTS[number] : CUTS[number + 1]], *(moved or {}).get(number, [])]
        path = folder / f"m-Q8_0-{number + 1:05d}-of-{COUNT:05d}.gguf"
        paths.append(write_gguf(path, metadata, {name: TENSORS[name] for name in chosen}, STORAGE))
    return paths


@pytest.mark.usefixtures("own_weight_cache")
def test_parts_are_the_whole_file(tmp_path):
    whole = GGUFCheckpoint(as_gguf(tmp_path / "whole.gguf", CHECKPOINT, storage=STORAGE))
    paths, prints = write_parts(tmp_path), set()
    for path in paths:
        found = GGUFCheckpoint(path)
        prints.add(found.fingerprint)
        assert found.names() == whole.names() and found.config == whole.config and found.storage == whole.storage
        for name in whole.names():
            np.testing.assert_array_equal(found.tensor(name), whole.tensor(name))
    assert len(prints) == 1

    def logits(checkpoint):
        model = NumbaModel(checkpoint, "auto", num_threads=1)
        assert model.dtype_choice.name == "gguf"
        return model.forward(build_rows([Part(range(2), 0, range(30))]), model.new_cache(2)).logits.copy()

    np.testing.assert_array_equal(logits(found), logits(whole))
    touched = GGUFCheckpoint(paths[0]).fingerprint
    write_gguf(paths[2], {"split.no": 2, "split.count": COUNT}, {n: TENSORS[n] * 2 for n in list(TENSORS)[17:]})
    assert GGUFCheckpoint(paths[0]).fingerprint != touched


def test_heads_are_bound_to_the_weights_of_all_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    paths = write_parts(tmp_path)
    found = [weights_digest(ModelSource("m", GGUFCheckpoint(path), None)) for path in paths]  # type: ignore[arg-type]
    assert len(set(found)) == 1
    write_gguf(paths[2], {"split.no": 2, "split.count": COUNT}, {n: TENSORS[n] * 2 for n in list(TENSORS)[17:]})
    changed = weights_digest(ModelSource("m", GGUFCheckpoint(paths[0]), None))  # type: ignore[arg-type]
    assert changed != found[0]


def test_a_first_part_may_have_no_tensors(tmp_path):
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    write_gguf(first, gguf_metadata(CONFIG) | {"split.no": 0, "split.count": 2}, {})
    write_gguf(second, {"split.no": 1, "split.count": 2}, TENSORS)
    assert GGUFCheckpoint(first).names() == CHECKPOINT.names()


def test_a_missing_part_is_named(tmp_path):
    first, second, third = write_parts(tmp_path)
    second.unlink()
    with pytest.raises(CorruptWeights, match=r"one of 3 parts, of which m-Q8_0-00002-of-00003\.gguf is missing"):
        GGUFCheckpoint(first)
    third.unlink()
    with pytest.raises(CorruptWeights, match=r"00002-of-00003\.gguf and 1 more is missing; download all parts"):
        GGUFCheckpoint(first)


def test_parts_that_were_mixed_up_are_named(tmp_path):
    first, second, third = write_parts(tmp_path)
    aside = tmp_path / "aside"
    second.rename(aside)
    third.rename(second)
    aside.rename(third)
    with pytest.raises(CorruptWeights, match=r"00002-of-00003\.gguf: by its header it is part 3 of 3; names.*mixed up"):
        GGUFCheckpoint(first)
    shutil.copy(first, second)
    with pytest.raises(CorruptWeights, match=r"00002-of-00003\.gguf: by its header it is part 1 of 3"):
        GGUFCheckpoint(first)


@pytest.mark.parametrize("name", ["model.gguf", "m-00001-of-00002.gguf", "m-00000-of-00003.gguf"])
def test_a_part_under_another_name_says_what_to_call_it(name, tmp_path):
    first = write_parts(tmp_path)[0].rename(tmp_path / name)
    with pytest.raises(CorruptWeights, match=r"one of 3 parts.*NAME-00001-of-00003\.gguf.*gguf-split --merge"):
        GGUFCheckpoint(first)


@pytest.mark.parametrize(
    ("changes", "moved", "says"),
    [
        ({}, {2: list(TENSORS)[:1]}, r"00003-of-00003\.gguf: .token_embd\.weight. stands in two parts"),
        ({0: {"split.tensors.count": 99}}, {}, r"should have 99 tensors, and have \d+"),
        ({1: {"split.count": 2}}, {}, r"00002-of-00003\.gguf: by its header it is part 2 of 2"),
        ({1: {"split.no": 7}}, {}, r"00002-of-00003\.gguf: by its header it is part 8 of 3"),
    ],
)
def test_parts_that_are_not_of_one_model(changes, moved, says, tmp_path):
    with pytest.raises(CorruptWeights, match=says):
        GGUFCheckpoint(write_parts(tmp_path, changes, moved)[0])


def test_a_part_that_was_cut_is_named(tmp_path):
    paths = write_parts(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-40])
    with pytest.raises(CorruptWeights, match=r"00003-of-00003\.gguf: truncated"):
        GGUFCheckpoint(paths[0])
    paths[2].write_bytes(b"")
    with pytest.raises(CorruptWeights, match=r"00003-of-00003\.gguf: the file is empty"):
        GGUFCheckpoint(paths[0])


def test_names_of_parts():
    assert part_names("a/m-00002-of-00002.gguf") == ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"]
    assert part_names("m.gguf") == part_names("m-1-of-2.gguf") == []


@pytest.mark.parametrize("named", [0, 1])
def test_the_words_are_those_of_the_first_part(named, tmp_path):
    tokens = byte_level_gguf()
    config = small_config("qwen2", vocab_size=len(tokens["tokenizer.ggml.tokens"]))
    checkpoint = RandomCheckpoint(config)
    tensors = {gguf_name(config, name): checkpoint.tensor(name) for name in checkpoint.names()}
    paths = [tmp_path / name for name in part_names("m-00001-of-00002.gguf")]
    write_gguf(paths[0], gguf_metadata(config, tokens) | {"split.no": 0, "split.count": 2}, {})
    write_gguf(paths[1], {"split.no": 1, "split.count": 2}, tensors)
    assert resolve_model(str(paths[named])).tokenizer.encode("the cat")
