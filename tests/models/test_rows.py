"""Flat batches: positions, slots, ancestry of chains and trees, and where an accepted path must move."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.models.base import PAGE_SIZE, pages_for, slot_of
from paceline.models.rows import Part, build_rows, compaction


def test_pages_are_whole_and_a_position_lies_in_its_own():
    assert [pages_for(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
    assert [slot_of([7, 2], position) for position in (0, 15, 16, 31)] == [112, 127, 32, 47]
    assert slot_of(np.array([7, 2]), np.arange(32)).tolist() == [*range(112, 128), *range(32, 48)]


def test_two_chains_share_a_batch():
    rows = build_rows([Part([7], 3, [10, 11], logits="none"), Part([2, 5], 15, [20, 21, 22], logits="last")])
    assert rows.positions.tolist() == [3, 4, 15, 16, 17]
    assert rows.slots.tolist() == [115, 116, 47, 80, 81]
    assert rows.segments.tolist() == [0, 0, 1, 1, 1]
    assert rows.natural_lengths.tolist() == [4, 5, 16, 17, 18]
    assert rows.branch_slots.shape == (5, 0)
    assert rows.logit_rows.tolist() == [4]


def test_the_first_branch_of_a_tree_is_natural_and_others_are_not():
    # root 0, children 1 and 3, 2 below 1, 4 below 3
    rows = build_rows([Part([0, 1], 14, [9, 1, 2, 3, 4], parents=[-1, 0, 1, 0, 3])])
    assert rows.positions.tolist() == [14, 15, 16, 15, 16]
    assert rows.natural_lengths.tolist() == [15, 16, 17, 15, 15]
    assert rows.branch_slots.tolist() == [[-1, -1], [-1, -1], [-1, -1], [17, -1], [17, 18]]
    assert rows.key_slots(4).tolist() == [*range(15), 17, 18]


@st.composite
def trees(draw):
    size = draw(st.integers(1, 12))
    return [-1, *(draw(st.integers(0, j - 1)) for j in range(1, size))]


@given(trees(), st.integers(0, 40))
def test_every_row_sees_the_context_and_its_ancestors_in_order(parents, start):
    pages = list(np.random.default_rng(start).permutation(10))
    rows = build_rows([Part(pages, start, list(range(len(parents))), parents)])

    def slot(offset):
        return pages[offset // PAGE_SIZE] * PAGE_SIZE + offset % PAGE_SIZE

    for row in range(len(parents)):
        path, node = [], row
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        assert rows.positions[row] == start + len(path) - 1
        assert rows.key_slots(row).tolist() == [slot(i) for i in range(start)] + [slot(start + i) for i in path]


@given(trees(), st.integers(0, 40), st.data())
def test_rows_that_were_computed_leave_the_others_as_they_are(parents, start, data):
    done = data.draw(st.integers(0, len(parents) - 1))
    tokens, pages = list(range(len(parents))), list(range(10))
    whole = build_rows([Part(pages, start, tokens, parents), Part([11], 3, [7, 8])])
    part = build_rows([Part(pages, start, tokens, parents, num_computed=done), Part([11], 3, [7, 8])])
    assert len(part.token_ids) == len(whole.token_ids) - done
    assert part.logit_rows.tolist() == list(range(len(part.token_ids)))
    for row in range(len(part.token_ids)):
        for name in ("token_ids", "positions", "slots", "segments"):
            assert getattr(part, name)[row] == getattr(whole, name)[row + done]
        assert part.key_slots(row).tolist() == whole.key_slots(row + done).tolist()


@given(trees(), st.integers(0, 40), st.data())
def test_compaction_moves_an_accepted_path_to_its_place(parents, start, data):
    path = [data.draw(st.integers(0, len(parents) - 1))]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    pages = list(range(10))
    cache = {start + row: f"row {row}" for row in range(len(parents))}
    sources, destinations = compaction(pages, start, path)
    read = [cache[s] for s in sources]
    cache.update(zip(destinations, read, strict=True))
    assert [cache[start + depth] for depth in range(len(path))] == [f"row {row}" for row in path]


@pytest.mark.parametrize(("logits", "asked"), [("all", [0, 1, 2]), ("last", [2]), ("none", [])])
def test_asked_logits(logits, asked):
    assert build_rows([Part([0], 0, [1, 2, 3], logits=logits)]).logit_rows.tolist() == asked
