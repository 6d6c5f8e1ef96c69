"""The paged kernel, run by Triton's interpreter, against its slow twin and PyTorch's attention, and row by row."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dataclasses import replace  # noqa: E402
from functools import partial  # noqa: E402

import numpy as np  # noqa: E402

from paceline.models.base import PAGE_SIZE  # noqa: E402
from paceline.models.cuda_executor.attention import attend_by_position  # noqa: E402
from paceline.models.cuda_executor.kernels import attention as kernels  # noqa: E402
from paceline.models.cuda_executor.paged_rows import key_slots  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor.attention import AttentionForm, SegmentAttention  # noqa: E402
from paceline.models.torch_executor.cache import segment_views  # noqa: E402

from .batches import TREE, mixed_batch, paged, tokens_of  # noqa: E402

FORMS = [
    AttentionForm(0.3),
    AttentionForm(0.25, cap=2.0),
    AttentionForm(0.3, window=7),
    AttentionForm(0.3, window=7, sinks=torch.tensor([0.5, -3.0, 4.0, 1.5])),
]


@pytest.fixture(autouse=True)
def small_splits(monkeypatch):
    """Contexts of a few dozen keys then have several splits of two blocks."""
    from paceline.models.cuda_executor import paged_rows

    monkeypatch.setattr(paged_rows, "SPLIT_KEYS", 32)
    monkeypatch.setattr(kernels, "SPLIT_KEYS", 32)
    monkeypatch.setattr(kernels, "block_keys", lambda *_: (16, 4))


def reference(query, keys, values, form, rows):
    return attend_by_position(query, keys, values, form, partial(key_slots, paged(rows)))


def tensors(rows, heads=4, key_heads=2, dim=16, dtype=torch.float32, seed=0):
    """Queries of the rows, and keys and values of every slot there is."""
    make = torch.Generator().manual_seed(seed)
    slots = (int(rows.page_tables.max()) + 1) * PAGE_SIZE
    shapes = ((len(rows.token_ids), heads, dim), (slots, key_heads, dim), (slots, key_heads, dim))
    return [torch.randn(shape, generator=make).to(dtype) for shape in shapes]


def run(rows, query, keys, values, form, padding=0):
    group = query.shape[1] // keys.shape[1]
    wider = torch.cat([query, query.new_ones(padding, *query.shape[1:])])
    return kernels.paged_attention(wider, keys, values, paged(rows, kernels.rows_of_tile(group), padding), form)


@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_is_its_twin_and_pytorchs_attention(form):
    rows = mixed_batch(70)
    query, keys, values = tensors(rows)
    found = run(rows, query, keys, values, form, padding=2)
    twin = reference(query, keys, values, form, rows)
    views = segment_views(rows, torch.device("cpu"), (form.window,))
    torch.testing.assert_close(found[:-2], twin, atol=2e-6, rtol=0)
    torch.testing.assert_close(twin, SegmentAttention(views)(query, keys, values, form), atol=2e-6, rtol=0)
    assert not found[-2:].any()


@pytest.mark.parametrize(("heads", "key_heads", "dim"), [(6, 1, 24), (3, 3, 16), (20, 1, 16)])
def test_heads_of_any_number_and_size(heads, key_heads, dim):
    rows = mixed_batch(20)
    query, keys, values = tensors(rows, heads, key_heads, dim)
    found = run(rows, query, keys, values, FORMS[0])
    torch.testing.assert_close(found, reference(query, keys, values, FORMS[0], rows), atol=2e-6, rtol=0)


def test_half_precision_is_near():
    rows = mixed_batch(20)
    query, keys, values = tensors(rows, dtype=torch.float16)
    found = run(rows, query, keys, values, FORMS[0])
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, reference(query, keys, values, FORMS[0], rows), atol=4e-3, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_bitwise_the_same_alone_in_a_chunk_and_in_a_tree(form):
    """One position of one text: by itself, as the end of a chunk, as a node of a tree that lies elsewhere."""
    start, pages = 37, [4, 1, 3, 0]
    together = mixed_batch(70)
    query, keys, values = tensors(together)
    tree = build_rows([Part(pages, start, tokens_of(len(TREE)), TREE)])
    last = 4  # row 4 of the tree: root, row 2, row 4
    path = [0, 2, 4]
    chunk = build_rows([Part(pages, start, tokens_of(3))])
    alone = replace(build_rows([Part(pages, start + 2, tokens_of(1))]))
    moved = [stored.clone() for stored in (keys, values)]
    for stored in moved:  # the accepted path at its natural slots
        for depth, row in enumerate(path):
            stored[int(chunk.slots[depth])] = (keys if stored is moved[0] else values)[int(tree.slots[row])]
    asked = query[5:6]
    in_tree = run(tree, asked.expand(len(TREE), -1, -1), keys, values, form)[last]
    in_chunk = run(chunk, asked.expand(3, -1, -1), *moved, form, padding=4)[2]
    by_itself = run(alone, asked, *moved, form)[0]
    assert torch.equal(in_tree, by_itself)
    assert torch.equal(in_chunk, by_itself)


def test_other_requests_do_not_change_a_row():
    rows = mixed_batch(70)
    query, keys, values = tensors(rows)
    every = run(rows, query, keys, values, FORMS[0])
    one = build_rows([Part(rows.page_tables[1].tolist(), 70, tokens_of(1))])
    place = int(np.flatnonzero(rows.segments == 1)[0])
    assert torch.equal(run(one, query[place : place + 1], keys, values, FORMS[0])[0], every[place])
