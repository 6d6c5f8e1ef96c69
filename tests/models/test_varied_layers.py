"""Layers of different sizes (Gemma 4) on both executors: every storage, caches, skipped layers, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.size import bytes_per_pass, num_parameters
from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, varied_config, varied_mixture_config

torch = pytest.importorskip("torch")

from paceline.models.torch_executor.model import TorchModel  # noqa: E402
from paceline.models.torch_executor.parallel.layout import Layout  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_weight_cache")
PAGES, TOKENS = [3, 0, 5, 1], np.random.default_rng(3).integers(0, 131, 50).tolist()
DENSE = varied_config()
LOCAL = DENSE.layer_sizes[0]
MIXTURE = varied_mixture_config()


def run(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


@pytest.fixture(scope="module", params=["dense", "mixture"])
def checkpoint(request):
    return RandomCheckpoint(DENSE if request.param == "dense" else MIXTURE)


@pytest.mark.parametrize(
    ("config", "dtype", "kept"),
    [(DENSE, "bfloat16", "int8"), (DENSE, "int8", "auto"), (DENSE, "w8a8", "float16"), (MIXTURE, "w8a8", "float16")],
)
def test_a_row_is_bitwise_the_same_in_every_storage(config, dtype, kept):
    model = NumbaModel(RandomCheckpoint(config), dtype, num_threads=2, kv_cache_dtype=kept)
    whole, cache, others = run(model, model.new_cache(6), Part(PAGES, 0, TOKENS)), model.new_cache(12), [9, 6, 8, 7]
    rows = []
    for first, last in ((0, 1), (1, 2), (2, 9), (9, 31), (31, 50)):
        company = Part(others, first, TOKENS[::-1][first:last], logits="none")
        rows.append(run(model, cache, company, Part(PAGES, first, TOKENS[first:last])))
    assert np.array_equal(whole, np.concatenate(rows))
    tree = run(model, cache, Part(PAGES, 50, [5, 9, 9], [-1, 0, 0]))
    assert np.array_equal(tree[2], run(model, model.new_cache(6), Part(PAGES, 0, [*TOKENS, 5, 9], logits="last"))[0])


@pytest.mark.parametrize("kept", ["float32", "float16", "int8"])
def test_a_cache_moves_and_reads_what_was_computed(kept):
    checkpoint = RandomCheckpoint(DENSE)
    ours, theirs = NumbaModel(checkpoint, "float32", num_threads=2, kv_cache_dtype=kept), TorchModel(checkpoint)
    cache, reference = ours.new_cache(6), theirs.new_cache(6)
    for model, kind in ((ours, cache), (theirs, reference)):
        run(model, kind, Part(PAGES, 0, TOKENS))
    slots = [PAGES[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(50)]
    for found, want in zip(cache.read(slots), reference.read(slots), strict=True):
        assert found.shape == want.shape == (4, 50, 1, 64)
        layers, tolerance = {"float32": (4, 1e-4), "float16": (1, 1e-2), "int8": (1, 1e-1)}[kept]
        np.testing.assert_allclose(found[:layers], want[:layers], atol=tolerance)
    assert reference.num_bytes == 2 * 6 * PAGE_SIZE * 2 * (2 * 32 + 64) * 4  # as of `test_a_page_keeps_no_more` below
    other = theirs.new_cache(6)
    other.write(slots[:3], *reference.read(slots[:3]))
    for found, want in zip(other.read(slots[:3]), reference.read(slots[:3]), strict=True):
        assert np.array_equal(found, want)
    before = cache.read([0, 1, 2])
    cache.move([0, 1], [1, 90])
    for old, new in zip(before, cache.read([1, 90, 2]), strict=True):
        assert np.array_equal(old, new)


def test_a_page_keeps_no_more_than_its_layers_compute():
    cache = NumbaModel(RandomCheckpoint(DENSE), "float32", num_threads=1).new_cache(3)
    assert cache.num_bytes == 2 * 3 * PAGE_SIZE * 2 * (2 * 32 + 64) * 4  # kinds, pages, slots, pairs of layers, bytes


def test_attention_per_page_is_that_of_the_reference(checkpoint):
    shares = []
    for model in (NumbaModel(checkpoint, "float32", num_threads=2), TorchModel(checkpoint)):
        cache = model.new_cache(6)
        run(model, cache, Part(PAGES, 0, TOKENS))
        shares.append(model.page_attention(build_rows([Part(PAGES, 50, [7])]), cache))
    np.testing.assert_allclose(*shares, atol=1e-4)


def test_a_layer_that_others_read_is_not_skipped():
    checkpoint, logits = RandomCheckpoint(DENSE), []
    assert DENSE.with_sources([0, 5]) == (0, 3, 5)
    for model in (NumbaModel(checkpoint, "float32", num_threads=2), TorchModel(checkpoint)):
        views = [model.with_layers(layers) for layers in ([0, 5], [0, 3, 5])]
        logits += [run(view, view.new_cache(6), Part(PAGES, 0, TOKENS)) for view in views]
    assert np.array_equal(logits[0], logits[1])
    for found in logits[1:]:
        np.testing.assert_allclose(found, logits[0], atol=1e-4)


def test_tables_of_which_one_row_is_read_are_not_counted():
    tables = 131 * (64 + 6 * 32)
    assert bytes_per_pass(DENSE, "int8") == num_parameters(DENSE) - tables + 131 * 64
    assert bytes_per_pass(DENSE, "int8", num_layers=2) < bytes_per_pass(DENSE, "int8") / 2


def test_what_cannot_run_layers_of_different_sizes_says_so():
    for degrees in ((2, 1), (1, 2)):
        with pytest.raises(InvalidParameter, match="layers of different sizes"):
            Layout.of(DENSE, *degrees)


@pytest.mark.parametrize(("change", "problem"), [
    ({"hidden_size_per_layer_input": 40}, "hidden_size_per_layer_input"),
    ({"layer_sizes": (replace(LOCAL, head_dim=24), *DENSE.layer_sizes[1:])}, "head_dim"),
    ({"layer_sizes": DENSE.layer_sizes[1:]}, "layer_sizes"),
    ({"layer_sizes": (replace(LOCAL, num_key_value_heads=3), *DENSE.layer_sizes[1:])}, "num_key_value_heads"),
])  # fmt: skip
def test_sizes_that_kernels_do_not_cover_are_refused(change, problem):
    with pytest.raises(UnsupportedModel, match=problem):
        NumbaModel(RandomCheckpoint(replace(DENSE, **change)), "float32")
