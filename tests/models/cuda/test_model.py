"""The cuda executor on CPU tensors: the torch executor's numbers, few graphs, nothing written where it matters."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.errors import InvalidParameter  # noqa: E402
from paceline.models.base import NORMED, PAGE_SIZE  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.graphs import EagerGraphs  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.model import usable_device  # noqa: E402
from tests.fakes import RandomCheckpoint, mixture_config, small_config  # noqa: E402

from .batches import TREE, mixed_batch, tokens_of  # noqa: E402

PAGES = (3, 0, 5, 1)
CHECKPOINT = RandomCheckpoint(small_config())


@pytest.fixture(scope="module")
def reference():
    return TorchModel(CHECKPOINT)


def model_of(checkpoint=CHECKPOINT, attention="by_position", **options):
    return CudaModel(checkpoint, "cpu", "float32", attention=attention, **options)


def close(ours, want):
    np.testing.assert_allclose(ours, want, atol=2e-4, rtol=0)


@pytest.mark.parametrize("attention", ["by_position", "sdpa", "triton"])
def test_a_batch_of_everything_has_the_torch_executors_logits(reference, attention):
    if attention == "triton":
        pytest.importorskip("triton")
    model, rows = model_of(attention=attention), mixed_batch(30)
    ours, theirs = (each.forward(rows, each.new_cache(16), (0, 2, NORMED)) for each in (model, reference))
    close(ours.logits, theirs.logits)
    assert ours.taps.keys() == theirs.taps.keys()
    for tap, states in ours.taps.items():
        close(states, theirs.taps[tap])


def test_windows_caps_and_positions_of_other_families():
    config = small_config("gemma2", windows=(5, 0, 7), attention_softcap=3.0, logit_softcap=4.0, post_norms=True,
                          qk_norm=False)  # fmt: skip
    checkpoint, rows = RandomCheckpoint(config), mixed_batch(30)
    ours, theirs = model_of(checkpoint), TorchModel(checkpoint)
    close(ours.forward(rows, ours.new_cache(16)).logits, theirs.forward(rows, theirs.new_cache(16)).logits)


def test_prefill_decode_and_tree_in_one_cache(reference):
    model = model_of()
    caches = [each.new_cache(6) for each in (model, reference)]
    tokens = tokens_of(40)
    for part in (
        Part(PAGES, 0, tokens[:33], logits="none"),
        Part(PAGES, 33, tokens[33:34]),
        Part(PAGES, 34, tokens[: len(TREE)], TREE),
    ):
        rows = build_rows([part])
        close(model.forward(rows, caches[0]).logits, reference.forward(rows, caches[1]).logits)
    slots = [PAGES[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(34)]
    for ours, theirs in zip(*(cache.read(slots) for cache in caches), strict=True):
        close(ours, theirs)


def test_padded_rows_leave_every_page_alone():
    model = model_of()
    cache = model.new_cache(2)
    model.forward(build_rows([Part((1,), 0, tokens_of(5))]), cache)
    keys, values = cache.read(range(2 * PAGE_SIZE))
    written = np.abs(keys).sum((0, 2, 3)) + np.abs(values).sum((0, 2, 3)) > 0
    assert np.flatnonzero(written).tolist() == list(range(PAGE_SIZE, PAGE_SIZE + 5))
    assert cache.num_bytes == TorchModel(CHECKPOINT).new_cache(2).num_bytes


def test_one_graph_serves_all_passes_of_a_bucket(reference):
    capture = EagerGraphs()
    model = model_of(capture=capture)
    cache, theirs = model.new_cache(8), reference.new_cache(8)
    for start, count in ((0, 3), (3, 4), (7, 3), (10, 4)):
        rows = build_rows([Part(PAGES, start, tokens_of(count, start))])
        close(model.forward(rows, cache).logits, reference.forward(rows, theirs).logits)
    assert capture.num_captured == 1
    assert len(cache.graphs) == 1
    model.forward(build_rows([Part(PAGES, 14, tokens_of(9))]), cache)
    assert capture.num_captured == 2


def test_logits_on_the_device_are_good_until_the_next_pass():
    model = model_of()
    cache = model.new_cache(4)
    first = model.launch(build_rows([Part(PAGES, 0, [5])]), cache).logits
    kept = first.clone()
    model.launch(build_rows([Part(PAGES, 1, [9])]), cache)
    assert not torch.equal(first, kept)


def test_prompts_longer_than_any_bucket_and_passes_without_questions(reference):
    pages, tokens = range(22), tokens_of(340)
    model = model_of(attention="sdpa")
    by_position = model_of()
    rows = build_rows([Part(pages, 0, tokens, logits="last")])
    want = reference.forward(rows, reference.new_cache(22)).logits
    for ours in (model, by_position):
        cache = ours.new_cache(22)
        close(ours.forward(rows, cache).logits, want)
        assert not cache.graphs
    silent = build_rows([Part(pages, 0, tokens[:5], logits="none")])
    assert model.forward(silent, model.new_cache(22)).logits.shape == (0, 131)
    assert by_position.forward(silent, by_position.new_cache(22)).logits.shape == (0, 131)


def test_experts_run_without_graphs_where_there_are_no_kernels():
    checkpoint, rows = RandomCheckpoint(mixture_config()), mixed_batch(30)
    ours, theirs = model_of(checkpoint), TorchModel(checkpoint)
    cache = ours.new_cache(16)
    close(ours.forward(rows, cache).logits, theirs.forward(rows, theirs.new_cache(16)).logits)
    assert not cache.graphs


def test_some_layers_of_the_model_have_graphs_of_their_own(reference):
    model, rows = model_of(), build_rows([Part(PAGES, 0, tokens_of(4))])
    cache = model.new_cache(4)
    fewer = model.with_layers([0, 2]).forward(rows, cache).logits
    close(fewer, reference.with_layers([0, 2]).forward(rows, reference.new_cache(4)).logits)
    close(model.forward(rows, cache).logits, reference.forward(rows, reference.new_cache(4)).logits)
    assert len(cache.graphs) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near(reference, dtype):
    model, rows = CudaModel(CHECKPOINT, "cpu", dtype, attention="by_position"), mixed_batch(30)
    ours, want = (each.forward(rows, each.new_cache(16)).logits for each in (model, reference))
    assert ours.dtype == np.float32
    assert np.corrcoef(ours.ravel(), want.ravel())[0, 1] > 0.999


def test_the_description_tells_profiles_apart():
    plain, exact = (model_of(deterministic=each).description for each in (False, True))
    assert plain == "CudaModel on cpu, by_position"
    assert exact == f"{plain}, deterministic"


def test_what_cannot_be_had_is_refused():
    with pytest.raises(InvalidParameter, match="attention"):
        model_of(attention="flash")
    with pytest.raises(InvalidParameter, match="cache"):
        model_of().forward(mixed_batch(), TorchModel(CHECKPOINT).new_cache(16))
    if not torch.cuda.is_available():
        for device in ("cuda", "cuda:0"):
            with pytest.raises(InvalidParameter, match="cannot be used"):
                CudaModel(CHECKPOINT, device)


def test_a_device_without_a_number_is_the_one_that_is_current_when_the_model_is_loaded(monkeypatch):
    current, empty = torch.device("cuda", 1), torch.empty

    def made(*size, device=None, **how):
        return SimpleNamespace(device=current) if device == "cuda" else empty(*size, device=device, **how)

    monkeypatch.setattr(torch, "empty", made)
    assert usable_device("cuda") == current
    assert usable_device("cpu") == torch.device("cpu")
