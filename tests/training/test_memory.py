"""Memories built from texts: the sequences that repeat, their chances, and what is kept when room is short."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.lookup.memory import CHANCES, Memory, MemoryInfo, read_memory, write_memory
from paceline.errors import CorruptWeights, InvalidParameter
from paceline.training.memory import build_memory

texts = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=20), min_size=1, max_size=4)


def info(order: int = 4, vocab_size: int = 5) -> MemoryInfo:
    return MemoryInfo("fingerprint", vocab_size, order, 1, "tiny", "a test")


def sequences(memory: Memory) -> dict[tuple[int, ...], float]:
    """Every sequence of a memory with its chance, by walking from parents to children."""
    found: dict[tuple[int, ...], float] = {}
    names: list[tuple[int, ...]] = [()] * len(memory)
    top = int(memory.blocks[0]) if len(memory) else 0
    child = top
    for node in range(len(memory)):
        names[node] = (*names[node], int(memory.tokens[node]))
        found[names[node]] = float(CHANCES[memory.chances[node]])
        for _ in range(int(memory.counts[node])):
            names[child] = names[node]
            child += 1
    assert child == len(memory)
    return found


def counted(some: list[list[int]], order: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[at : at + n]) for text in some for n in range(1, order + 1) for at in range(len(text) - n + 1)
    )


@given(texts)
@settings(max_examples=40, deadline=None)
def test_what_occurs_twice_is_kept_and_nothing_else(some):
    memory = build_memory([np.array(text) for text in some], info())
    kept = sequences(memory)
    assert set(kept) == {sequence for sequence, count in counted(some, 4).items() if count >= 2}
    assert all(0 < chance <= 1 for chance in kept.values())


def test_the_chance_of_a_follower_is_smoothed_with_shorter_contexts():
    memory = sequences(build_memory([np.array([1, 2, 3])] * 3 + [np.array([1, 2, 4])] * 2, info(3)))
    single = (5 - 0.8 + (0.8 * 4 + 2) / 5) / (15 + 2)
    assert memory[(2,)] == pytest.approx(single, rel=0.03)
    pair = (5 - 0.8 + (0.8 * 1 + 2) * single) / (5 + 2)
    assert memory[(1, 2)] == pytest.approx(pair, rel=0.05)
    assert memory[(1, 2, 3)] > memory[(1, 2, 4)]


def test_siblings_stand_by_their_chance():
    memory = build_memory([np.array([1, 2])] * 2 + [np.array([1, 3])] * 5, info(2))
    kept = [sequence for sequence in sequences(memory) if len(sequence) == 2]
    assert kept == [(1, 3), (1, 2)]


def test_short_room_keeps_beginnings_of_what_it_keeps():
    rng = np.random.default_rng(0)
    some = [rng.integers(0, 40, 300) for _ in range(5)]
    whole = build_memory(some, info(5, 40))
    small = build_memory(some, info(5, 40), most_bytes=800)
    assert len(small) < len(whole)
    assert small.num_bytes <= 800
    kept = sequences(small)
    assert set(kept) <= set(sequences(whole))
    assert all(sequence[:-1] in kept for sequence in kept if len(sequence) > 1)


def test_a_file_says_the_same(tmp_path):
    memory = build_memory([np.array([1, 2, 3, 1, 2])] * 2, info())
    path = tmp_path / "deep" / "memory.safetensors"
    assert write_memory(path, memory) == path.stat().st_size
    again = read_memory(path)
    assert again.info == memory.info
    assert sequences(again) == sequences(memory)


def test_large_vocabularies_have_wider_tokens(tmp_path):
    memory = build_memory([np.array([70_000, 2])] * 2, info(2, 100_000))
    write_memory(tmp_path / "m", memory)
    assert set(sequences(read_memory(tmp_path / "m"))) == {(70_000,), (2,), (70_000, 2)}


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "memory.safetensors"
    write_memory(path, build_memory([np.array([1, 2, 3, 1, 2])] * 2, info()))
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:40], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"nothing of the kind"):
        path.write_bytes(damaged)
        with pytest.raises(CorruptWeights, match="memory=none"):
            read_memory(path)


def test_numbers_that_lead_outside_are_refused_though_the_digest_fits(tmp_path):
    good = build_memory([np.array([1, 2, 3, 1, 2])] * 2, info())
    for counts, vocab_size, order in ((good.counts + 1, 5, 4), (good.counts, 3, 4), (good.counts, 10**11, 4),
                                      (good.counts, 5, 10**11), (good.counts, 5, 0)):  # fmt: skip
        bad = Memory(MemoryInfo("v", vocab_size, order, 1), good.tokens, good.chances, counts, good.blocks)
        write_memory(tmp_path / "m", bad)
        with pytest.raises(CorruptWeights):
            read_memory(tmp_path / "m")


def test_other_files_are_no_memories(tmp_path):
    from safetensors.numpy import save_file

    save_file({"tokens": np.zeros(2)}, tmp_path / "m")
    with pytest.raises(InvalidParameter, match="paceline memory"):
        read_memory(tmp_path / "m")
    with pytest.raises(InvalidParameter, match="no file"):
        read_memory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("some", "options", "field"),
    [
        ([], {}, "answers"),
        ([np.array([9])], {}, "answers"),
        ([np.array([1])], {"least_count": 0}, "min_count"),
        ([np.array([1])], {"most_bytes": 0}, "max_bytes"),
        ([np.array([1])], {"info": info(0)}, "order"),
    ],
)
def test_impossible_texts_and_numbers_are_refused(some, options, field):
    with pytest.raises(InvalidParameter, match=field):
        build_memory(some, **{"info": info(), **options})
