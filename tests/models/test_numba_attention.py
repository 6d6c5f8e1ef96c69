"""Long contexts on the fast executor: rows that walk one together compute what each computes alone, bit for bit."""

import numpy as np
import pytest

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.attend import ELEMENTS_AT_ONCE, MOST_BLOCKS
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.overlay import Overlay, overlay_rows
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

LENGTH = 400
TOKENS = np.random.default_rng(7).integers(0, 131, LENGTH).tolist()
PAGES = np.random.default_rng(8).permutation(40).tolist()
PARENTS = [-1, 0, 0, 1, 2, 2, 4, 3, 6, 8, 9, 10, 0]
HEADS = [(7, 1, 64), (6, 2, 128), (3, 3, 64), (5, 1, 32)]
pytestmark = pytest.mark.usefixtures("own_weight_cache")


def small_checkpoint(heads, kv_heads, head_dim):
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return RandomCheckpoint(small_config(num_hidden_layers=2, **shape))


def small_model(heads, kv_heads, head_dim, dtype="float32", num_threads=2, kept="auto"):
    return NumbaModel(small_checkpoint(heads, kv_heads, head_dim), dtype, num_threads, kv_cache_dtype=kept)


ROUNDED = [(7, 1, 64, "w8a8"), (6, 2, 128, "float32", 2, "int8"), (5, 1, 32, "float32", 2, "int8")]


@pytest.fixture(scope="module", params=[*HEADS, *ROUNDED], ids=str)
def model(request):
    return small_model(*request.param)


def run(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


def after(model, tokens):
    """A cache that holds `tokens`."""
    cache = model.new_cache(48)
    run(model, cache, Part(PAGES, 0, tokens, logits="none"))
    return cache


def test_the_contexts_here_are_walked_in_pieces_by_several_runs():
    assert all(LENGTH * head_dim > 2 * ELEMENTS_AT_ONCE for heads, _, head_dim in HEADS if head_dim >= 64)
    assert LENGTH > MOST_BLOCKS


def test_rows_of_a_prompt_are_bitwise_those_run_alone(model):
    cache = model.new_cache(48)
    whole = run(model, cache, Part(PAGES, 0, TOKENS))
    for position in (0, 1, 15, 16, 63, 64, 127, 128, 130, 255, 256, 257, 383, 384, LENGTH - 1):
        alone = run(model, cache, Part(PAGES, position, [TOKENS[position]]))
        assert np.array_equal(alone[0], whole[position])


@pytest.mark.parametrize("start", [126, 250, 256, 385])
def test_drafts_of_any_length_are_bitwise_their_rows_run_alone(model, start):
    drafted = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    cache = after(model, TOKENS[:start])
    alone = np.stack([run(model, cache, Part(PAGES, start + i, [token]))[0] for i, token in enumerate(drafted)])
    for length in (2, 4, 5, 9):
        together = run(model, after(model, TOKENS[:start]), Part(PAGES, start, drafted[:length]))
        assert np.array_equal(together, alone[:length])
    changed = after(model, [*TOKENS[: start - 1], TOKENS[start - 1] ^ 1])
    assert not np.array_equal(run(model, changed, Part(PAGES, start, drafted)), alone)


@pytest.mark.parametrize("start", [127, 253, 384])
def test_every_branch_behind_a_long_context_is_bitwise_its_path(model, start):
    tokens = list(range(20, 20 + len(PARENTS)))
    branched = run(model, after(model, TOKENS[:start]), Part(PAGES, start, tokens, PARENTS))
    for row in range(len(tokens)):
        path, node = [], row
        while node >= 0:
            path.insert(0, tokens[node])
            node = PARENTS[node]
        alone = run(model, after(model, TOKENS[:start]), Part(PAGES, start, path, logits="last"))
        assert np.array_equal(alone[0], branched[row])


def test_requests_of_different_lengths_keep_to_themselves(model):
    """Runs end where segments do, wherever the shares of the threads end."""
    pages = [range(20), range(20, 27), range(27, 28), range(28, 48)]
    starts, counts = (300, 100, 0, 290), (1, 5, 3, 12)
    cache = model.new_cache(48)
    for own, start in zip(pages, starts, strict=True):
        if start:
            run(model, cache, Part(own, 0, TOKENS[:start], logits="none"))
    parts = [Part(own, start, TOKENS[:n]) for own, start, n in zip(pages, starts, counts, strict=True)]
    together = run(model, cache, *parts)
    alone = [run(model, cache, part) for part in parts]
    assert np.array_equal(together, np.concatenate(alone))


def test_the_number_of_threads_changes_nothing():
    outputs = []
    for num_threads in (1, 2, 5):
        model = small_model(7, 1, 64, num_threads=num_threads)
        outputs.append(run(model, after(model, TOKENS), Part(PAGES, LENGTH, [5, 6, 7, 8], parents=[-1, 0, 0, 1])))
    assert np.array_equal(outputs[0], outputs[1])
    assert np.array_equal(outputs[0], outputs[2])


@pytest.mark.parametrize("shape", HEADS)
def test_long_contexts_equal_the_reference(shape):
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    fast, tree = small_model(*shape), build_rows([Part(PAGES, LENGTH, list(range(len(PARENTS))), PARENTS)])
    aside = np.array([47 * 16, 47 * 16 + 1])
    rows = overlay_rows([Overlay(7, PAGES[:25], 400, 400, aside[:1]), Overlay(8, PAGES[3:9], 90, 401, aside)])
    outputs = []
    for executor in (fast, torch_executor.TorchModel(small_checkpoint(*shape))):
        cache = after(executor, TOKENS)
        outputs.append(executor.forward(tree, cache).logits.copy())
        outputs.append(executor.page_attention(tree, cache)[:, : LENGTH // PAGE_SIZE])  # the tree lies after these
        outputs.append(executor.page_attention(rows, cache))
    for ours, theirs in zip(outputs[:3], outputs[3:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=2e-4)
