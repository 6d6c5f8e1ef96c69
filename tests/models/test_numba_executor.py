"""The fast executor against the reference, and against itself: a row's logits never depend on its company."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from paceline.errors import InvalidParameter, PacelineError, UnsupportedModel
from paceline.models.base import NORMED, PAGE_SIZE
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.numba_executor import executor, gemm, weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.overlay import Overlay, overlay_rows
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

from .tiny import as_gguf, gguf_name

DTYPES = ("float32", "bfloat16", "int8", "w8a8", "gguf")
TOKENS = np.random.default_rng(1).integers(0, 131, 90).tolist()
pytestmark = pytest.mark.usefixtures("own_weight_cache")


@pytest.fixture(scope="module", params=DTYPES)
def model(request, tmp_path_factory):
    head_dim = 32 if request.param in weights.ROUNDS else 16
    checkpoint = RandomCheckpoint(small_config("qwen2", head_dim=head_dim))
    if request.param == "gguf":
        checkpoint = in_blocks(checkpoint, tmp_path_factory.mktemp("blocks") / "model.gguf")
    return NumbaModel(checkpoint, request.param, num_threads=2)


def in_blocks(checkpoint, path):
    """The same model in a file that mixes Q4_1 and Q8_0, as the built-in one does."""
    storage = {
        gguf_name(checkpoint.config, name): "Q8_0" if "embed" in name or "v_proj" in name else "Q4_1"
        for name in checkpoint.names() if checkpoint.tensor(name).ndim == 2
    }  # fmt: skip
    return GGUFCheckpoint(as_gguf(path, checkpoint, storage=storage))


def run(model, cache, *parts, taps=()):
    output = model.forward(build_rows(list(parts)), cache, taps)
    return output.logits.copy(), output.taps


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("changes", [{}, {"head_dim": 64, "num_attention_heads": 2}, {"tie_word_embeddings": False}])
def test_float32_logits_equal_the_reference(model_type, changes):
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    checkpoint = RandomCheckpoint(small_config(model_type, **changes))
    fast, reference = NumbaModel(checkpoint, "float32", num_threads=2), torch_executor.TorchModel(checkpoint)
    caches = fast.new_cache(8), reference.new_cache(8)
    prompt = build_rows([Part(range(8), 0, TOKENS)])
    tree = build_rows([Part(range(8), len(TOKENS), [5, 6, 7, 8, 9], parents=[-1, 0, 0, 1, 2])])
    for rows in (prompt, tree):
        taps = (0, 2, 3, NORMED)
        ours, theirs = fast.forward(rows, caches[0], taps), reference.forward(rows, caches[1], taps)
        np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-4, rtol=1e-4)
        for tap in taps:
            scale = max(1, np.abs(theirs.taps[tap]).max())  # residual streams grow with every layer
            np.testing.assert_allclose(ours.taps[tap], theirs.taps[tap], atol=1e-4 * scale, rtol=1e-4)


def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(model):
    whole, _ = run(model, model.new_cache(8), Part(range(8), 0, TOKENS))
    cache, alone = model.new_cache(8), []
    for position, token in enumerate(TOKENS):
        alone.append(run(model, cache, Part(range(8), position, [token]))[0][0])
    assert np.array_equal(whole, np.stack(alone))


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_chunks_scattered_pages_and_company_change_nothing(model, chunk):
    whole, _ = run(model, model.new_cache(8), Part(range(8), 0, TOKENS))
    cache, chunks = model.new_cache(32), []
    pages, others = [17, 3, 30, 8, 11, 25], [1, 2, 4, 5, 6, 7]
    for start in range(0, len(TOKENS), chunk):
        mine = Part(pages, start, TOKENS[start : start + chunk])
        chunks.append(
            run(model, cache, Part(others, start, TOKENS[::-1][start : start + chunk], logits="none"), mine)[0]
        )
    assert np.array_equal(whole, np.concatenate(chunks))


def test_every_branch_of_a_tree_is_bitwise_the_path_run_alone(model):
    parents = [-1, 0, 0, 1, 2, 2, 4, 3, 6]
    tokens = [11, 12, 13, 14, 15, 16, 17, 18, 19]
    cache = model.new_cache(8)
    run(model, cache, Part(range(8), 0, TOKENS[:29]))
    branched, _ = run(model, cache, Part(range(8), 29, tokens, parents))
    for row in range(len(tokens)):
        path, node = [], row
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        fresh = model.new_cache(8)
        alone, _ = run(model, fresh, Part(range(8), 0, TOKENS[:29] + [tokens[i] for i in path], logits="last"))
        assert np.array_equal(alone[0], branched[row])


def test_the_number_of_threads_changes_nothing():
    checkpoint = RandomCheckpoint(small_config())
    logits = [
        run(m, m.new_cache(8), Part(range(8), 0, TOKENS))[0]
        for m in (NumbaModel(checkpoint, num_threads=n) for n in (1, 2, 3))
    ]
    assert np.array_equal(logits[0], logits[1])
    assert np.array_equal(logits[0], logits[2])


def test_cache_holds_what_was_computed_and_moves_slots(model):
    cache = model.new_cache(8)
    run(model, cache, Part(range(8), 0, TOKENS[:40]))
    keys, values = cache.read(range(40))
    cache.move([3, 20, 21], [20, 21, 100])
    moved_keys, moved_values = cache.read([20, 21, 100])
    assert np.array_equal(moved_keys, keys[:, [3, 20, 21]])
    assert np.array_equal(moved_values, values[:, [3, 20, 21]])
    bytes_per_head = keys.shape[-1] * keys.itemsize
    assert cache.num_bytes == 2 * 3 * 8 * PAGE_SIZE * 2 * bytes_per_head


def test_many_short_passes_never_lose_a_thread(model):
    cache = model.new_cache(2)
    first, _ = run(model, cache, Part([0], 0, [5]))
    for _ in range(300):
        again, _ = run(model, cache, Part([0], 0, [5]))
    assert np.array_equal(first, again)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 0), ("bfloat16", 2**-8), ("int8", 1 / 254), ("w8a8", 1 / 254)]
)
def test_stored_weights_are_as_close_as_their_type_allows(dtype, tolerance):
    values = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    stored, scales = weights.quantise(values, dtype)
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == "w8a8":
        stored = stored.astype(np.int16) - gemm.ZERO_BYTE
    error = np.abs(stored * scales[:, None] - values)
    reach = np.abs(values).max(axis=1, keepdims=True) if dtype in ("int8", "w8a8") else np.abs(values)
    assert (error <= tolerance * reach + 1e-7).all()


def test_packing_pads_to_whole_panels():
    values = np.arange(33 * 4, dtype=np.float32).reshape(33, 4)
    panels = gemm.pack(values).reshape(2, 4, 32)
    assert np.array_equal(panels[0].T, values[:32])
    assert np.array_equal(panels[1].T[0], values[32])
    assert not panels[1].T[1:].any()


def test_second_load_reads_the_cache(own_weight_cache):
    class Spent(RandomCheckpoint):
        def tensor(self, name):
            raise AssertionError("the weights were converted twice")

    config = small_config(num_hidden_layers=1)
    first = NumbaModel(RandomCheckpoint(config, 3), num_threads=1)
    second = NumbaModel(Spent(config, 3), num_threads=1)
    part = Part(range(8), 0, TOKENS)
    assert np.array_equal(run(first, first.new_cache(8), part)[0], run(second, second.new_cache(8), part)[0])


def test_progress_is_told_and_ends_complete():
    told = []
    weights.load_weights(RandomCheckpoint(small_config(), 8), "int8", lambda done, total: told.append((done, total)))
    assert told == [(i, told[-1][1]) for i in range(1, len(told) + 1)]


def test_a_full_disk_leaves_nothing_behind(own_weight_cache, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    before = sorted(own_weight_cache.rglob("*"))
    with pytest.raises(PacelineError, match=r"PACELINE_CACHE.*disk is full.*free some space"):
        weights.load_weights(RandomCheckpoint(small_config(), 9), "bfloat16")
    assert sorted(own_weight_cache.rglob("*")) == before


def test_a_conversion_that_fails_half_way_is_not_trusted(own_weight_cache):
    class Torn(RandomCheckpoint):
        def tensor(self, name):
            if "layers.2" in name:
                raise PacelineError("torn")
            return super().tensor(name)

    config = small_config(intermediate_size=192)
    before = sorted(own_weight_cache.rglob("*"))
    with pytest.raises(PacelineError, match="torn"):
        NumbaModel(Torn(config), num_threads=1)
    assert sorted(own_weight_cache.rglob("*")) == before


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (small_config(post_norms=True, norm="layer"), "post_norms"),
        (small_config(hidden_size=80), "hidden_size"),
        (small_config(intermediate_size=100), "intermediate_size"),
        (small_config(head_dim=8), "head_dim"),
    ],
)
def test_unsupported_shapes_are_refused_with_the_way_out(config, field):
    with pytest.raises(UnsupportedModel, match=rf"{field}.*torch"):
        NumbaModel(RandomCheckpoint(config))


def test_bad_options_name_their_field():
    checkpoint = RandomCheckpoint(small_config())
    with pytest.raises(InvalidParameter, match="dtype"):
        NumbaModel(checkpoint, "float8")
    with pytest.raises(InvalidParameter, match="num_threads"):
        NumbaModel(checkpoint, num_threads=0)


def test_all_layers_named_are_bitwise_the_whole_model(model):
    rows = build_rows([Part(range(8), 0, TOKENS)])
    whole = model.forward(rows, model.new_cache(8)).logits.copy()
    assert np.array_equal(model.with_layers([2, 0, 1]).forward(rows, model.new_cache(8)).logits, whole)
    assert not np.array_equal(model.with_layers([0, 2]).forward(rows, model.new_cache(8)).logits, whole)


@pytest.mark.parametrize("size", [1, 32, 45, 10_000])
def test_a_part_of_the_vocabulary_is_bitwise_the_whole_models(model, size):
    rows = build_rows([Part(range(8), 0, TOKENS, logits="all")])
    whole = model.forward(rows, model.new_cache(8)).logits.copy()
    assert np.array_equal(model.with_vocabulary(size).forward(rows, model.new_cache(8)).logits, whole[:, :size])
    assert np.array_equal(model.forward(rows, model.new_cache(8)).logits, whole)


@pytest.mark.parametrize("layers", [[0], [1, 2], [0, 2]])
def test_left_out_layers_equal_the_reference(layers):
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    checkpoint = RandomCheckpoint(small_config())
    models = NumbaModel(checkpoint, "float32", num_threads=2), torch_executor.TorchModel(checkpoint)
    rows = build_rows([Part(range(8), 0, TOKENS)])
    ours, theirs = (m.with_layers(layers).forward(rows, m.new_cache(8)).logits for m in models)
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_pass_over_some_layers_leaves_the_others_cache_alone(model):
    cache = model.new_cache(8)
    run(model, cache, Part(range(8), 0, TOKENS[:20]))
    before, _ = cache.read(range(20, 24))
    model.with_layers([0, 2]).forward(build_rows([Part(range(8), 20, TOKENS[20:24])]), cache)
    after, _ = cache.read(range(20, 24))
    assert np.array_equal(before[1], after[1])
    assert not np.array_equal(before[0], after[0])
    assert not np.array_equal(before[2], after[2])


@pytest.mark.parametrize("layers", [[], [0, 0], [3], [-1]])
def test_layers_that_cannot_be_run_are_refused(model, layers):
    with pytest.raises(InvalidParameter, match="layers"):
        model.with_layers(layers)


@pytest.mark.parametrize("executor", ["numba", "torch"])
def test_fewer_keys_than_positions_are_those_of_the_named_pages(executor):
    """A page left out of the table is a page not attended to: as if its keys were masked, positions unchanged."""
    checkpoint = RandomCheckpoint(small_config())
    if executor == "numba":
        model = NumbaModel(checkpoint, "float32", num_threads=2)
    else:
        model = pytest.importorskip("paceline.models.torch_executor").TorchModel(checkpoint)
    cache, position = model.new_cache(8), 40
    model.forward(build_rows([Part(range(8), 0, TOKENS[:position])]), cache)
    row = build_rows([Part(range(8), position, [7])])
    shortened = replace(
        row, page_tables=np.array([[0, 2]], np.int32), natural_lengths=np.array([25], np.int32),
        num_keys=np.array([25], np.int32),
    )  # fmt: skip
    assert shortened.key_slots(0).tolist() == [*range(16), *range(32, 41)]
    sparse = model.forward(shortened, cache).logits.copy()
    poisoned = model.new_cache(8)
    model.forward(build_rows([Part(range(8), 0, TOKENS[:position])]), poisoned)
    poisoned.move(range(16), range(16, 32))  # what lies in the page that is left out does not matter
    assert np.array_equal(model.forward(shortened, poisoned).logits, sparse)
    assert not np.allclose(model.forward(row, cache).logits, sparse, atol=1e-3)


def test_attention_by_page_equals_the_reference_and_adds_up():
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    checkpoint = RandomCheckpoint(small_config("llama", num_attention_heads=8))
    shares = []
    for model in (NumbaModel(checkpoint, "float32", num_threads=2), torch_executor.TorchModel(checkpoint)):
        cache = model.new_cache(9)
        model.forward(build_rows([Part([4, 0, 7, 2], 0, TOKENS[:40])]), cache)
        rows = [
            Overlay(7, np.array([4, 0, 7], np.int32), 40, 40, [128]),
            Overlay(8, np.array([4, 7], np.int32), 24, 41, [128, 129]),
        ]
        shares.append(model.page_attention(overlay_rows(rows), cache))
        own = model.page_attention(build_rows([Part([4, 0, 7, 2], 40, [7])]), cache)
        np.testing.assert_allclose(own.sum(), 1, rtol=1e-5)  # its own key lies in the table too
        assert own[0, 3] == 0
        np.testing.assert_allclose(own[0, :2], shares[-1][0, :2], rtol=1e-4)
    np.testing.assert_allclose(shares[0], shares[1], atol=1e-5)
    assert (shares[0].sum(axis=1) > 0).all()
    assert (shares[0].sum(axis=1) < 1).all()
    assert shares[0][1, 2] == 0


@pytest.mark.parametrize("where", ["_new_scratch", "rotary_tables", "Kept"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_pass_that_finds_no_room_leaves_the_next_one_all_of_it(error, where, monkeypatch):
    model = NumbaModel(RandomCheckpoint(small_config("qwen2")), "float32", num_threads=2)
    tokens = np.random.default_rng(3).integers(0, 131, 1500).tolist()
    long = build_rows([Part(range(94), 0, tokens, logits="last")])
    expected = model.forward(long, model.new_cache(94)).logits.copy()
    other = NumbaModel(RandomCheckpoint(small_config("qwen2")), "float32", num_threads=2)
    run(other, other.new_cache(1), Part([0], 0, [1]))

    def fail(*args):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(executor, where, fail)
        with pytest.raises(error):
            other.forward(long, other.new_cache(94))
    np.testing.assert_array_equal(other.forward(long, other.new_cache(94)).logits, expected)


def test_a_growing_context_gets_new_buffers_seldom(model):
    cache = model.new_cache(16)
    run(model, cache, Part(range(16), 0, TOKENS[:60]))
    used = [id(model._scratch.value.attention.scores)]
    for position in range(60, 120):
        run(model, cache, Part(range(16), position, [5]))
        used.append(id(model._scratch.value.attention.scores))
    assert sum(a != b for a, b in pairwise(used)) <= 1
