"""Batches of everything at once, for the tests of this folder: chunks of prompts, decodes, chains and trees."""

import numpy as np
import torch

from paceline.models.base import PAGE_SIZE
from paceline.models.cuda_executor.paged_rows import PagedRows, num_splits, pack, packed_size
from paceline.models.rows import Part, build_rows

TREE = (-1, 0, 0, 1, 2, 2)
"""Parents of the rows of a part: the root, and a tree with branches below it."""


def tokens_of(count, seed=0):
    return np.random.default_rng(seed).integers(0, 100, count).tolist()


def mixed_batch(longest=40):
    """A chunk of a prompt, a decode after a long context, a chain and a tree; pages are nobody's neighbours."""
    pages = np.random.default_rng(1).permutation(4 * (longest // PAGE_SIZE + 2)).reshape(4, -1).tolist()
    return build_rows(
        [
            Part(pages[0], 3, tokens_of(9), logits="last"),
            Part(pages[1], longest, tokens_of(1)),
            Part(pages[2], 17, tokens_of(4)),
            Part(pages[3], 14, tokens_of(len(TREE)), TREE),
        ]
    )


def paged(rows, tile_size=1, padding=0):
    """`rows` as the kernel takes them, with padded rows at the end."""
    size = len(rows.token_ids) + padding
    packed = np.empty(packed_size(rows, size), np.int32)
    pack(rows, size, 0, tile_size, packed)
    return PagedRows.of(torch.from_numpy(packed), size, num_splits(rows))
