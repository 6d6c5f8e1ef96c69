"""What a kernel reads of a batch: every row finds its keys, and tiles hold every row once."""

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.models.cuda_executor.paged_rows import FIELDS, key_slots, levels_below, pack_levels, pack_lines, tiles
from paceline.models.rows import Part, build_rows

from .batches import mixed_batch, paged


def test_every_row_finds_its_keys_where_the_batch_says():
    rows = mixed_batch()
    packed = paged(rows, padding=3)
    for row in range(len(rows.token_ids)):
        np.testing.assert_array_equal(key_slots(packed, row).numpy(), rows.key_slots(row))


def test_padded_rows_see_nothing_and_write_to_the_spare_slot():
    rows = mixed_batch()
    packed, size = paged(rows, padding=3), len(rows.token_ids)
    assert packed.lengths[size:].tolist() == [0, 0, 0]
    assert packed.slots[size:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("tile_size", [1, 2, 5])
def test_tiles_hold_every_row_once_and_never_a_branch_with_others(tile_size):
    rows = mixed_batch()
    first, sizes = tiles(rows.segments, rows.natural_lengths != rows.lengths, tile_size)
    covered = [row for start, size in zip(first, sizes, strict=True) for row in range(start, start + size)]
    assert covered == list(range(len(rows.token_ids)))
    assert sizes.max() == min(tile_size, 5) or tile_size > 5
    for start, size in zip(first, sizes, strict=True):
        members = slice(start, start + size)
        assert len(set(rows.segments[members].tolist())) == 1
        assert size == 1 or (rows.natural_lengths[members] == rows.lengths[members]).all()


def test_levels_of_chains_are_packed_as_one_after_another():
    rows = build_rows([Part((3, 0, 5), 10, [1] * 5, logits="last"), Part((1, 2, 6), 0, [2] * 17, logits="last")])
    wanted = np.full((4, len(FIELDS), 6), -1, np.int32)
    for level, lines in zip(levels_below(rows, 4), wanted, strict=True):
        pack_lines(level, 99, 1, lines)
    found = np.full_like(wanted, -2)
    pack_levels(rows, 99, found)
    assert (found == wanted).all()
    pack_levels(rows, 99, found[:0])
