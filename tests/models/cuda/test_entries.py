"""The kernels between products, run by Triton's interpreter, against torch's layers; and models made of them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from paceline.models.architecture.experts import Experts  # noqa: E402
from paceline.models.base import NORMED  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.fused_layers import FusedAttention, FusedFeedForward, FusedLayer, FusedNorm  # noqa: E402
from paceline.models.cuda_executor.kernels import entries  # noqa: E402
from paceline.models.cuda_executor.kernels.dependent import IN_TURN  # noqa: E402
from paceline.models.cuda_executor.kernels.entries import HeadNorms, gated, place_heads, rms_norm  # noqa: E402
from paceline.models.cuda_executor.peers import LinkedPeers, Peers  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.layers import RMSNorm, _gelu_tanh, rotate, row_angles  # noqa: E402
from paceline.models.torch_executor.shard import Shard  # noqa: E402
from tests.fakes import RandomCheckpoint, mixture_config, small_config  # noqa: E402

MAKE = torch.Generator().manual_seed(5)


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=MAKE).to(dtype)


@pytest.fixture(params=[torch.float32, torch.float16], ids=str)
def dtype(request):
    return request.param


def close(ours, want):
    small = 1e-5 if want.dtype == torch.float32 else 2e-3
    torch.testing.assert_close(ours, want, atol=small, rtol=small)


@pytest.mark.parametrize("columns", [96, 1300])
def test_norm_of_a_sum(dtype, columns):
    norm = RMSNorm(columns, 1e-5)
    norm.weight = torch.nn.Parameter(numbers(columns, dtype=dtype), requires_grad=False)
    x, added = numbers(5, columns, dtype=dtype), numbers(5, columns, dtype=dtype)
    total, normed = rms_norm(x, norm.weight, 1e-5, added)
    assert torch.equal(total, x + added)
    close(normed, norm(x + added))
    same, alone = rms_norm(x, norm.weight, 1e-5)
    assert torch.equal(same, x)
    close(alone, norm(x))
    assert torch.equal(rms_norm(x[2:3], norm.weight, 1e-5)[1], alone[2:3])


def test_a_norm_adds_the_parts_of_a_sum_up_and_takes_some_rows():
    x, parts, bias, weight = numbers(6, 40), numbers(3, 6, 40), numbers(40), numbers(40, dtype=torch.float16)
    total, normed = rms_norm(x, weight, 1e-5, parts, bias)
    torch.testing.assert_close(total, x + parts.sum(0) + bias)
    assert normed.dtype == torch.float16
    norm = RMSNorm(40, 1e-5)
    norm.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
    torch.testing.assert_close(normed.float(), norm(total), atol=2e-2, rtol=2e-3)
    asked = torch.tensor([4, 0], dtype=torch.int32)
    same, some = rms_norm(x, weight, 1e-5, parts, bias, asked)
    assert torch.equal(same, x)
    assert torch.equal(some, normed[[4, 0]])
    wide = torch.zeros(6, 100, dtype=torch.float16)
    rms_norm(x, weight.float(), 1e-5, parts, bias, out=wide[:, 60:])
    assert torch.equal(wide[:, 60:], normed) and not wide[:, :60].any()


@pytest.mark.parametrize("size", [1, 2])
def test_norms_begin_early_where_no_other_rank_is_waited_for(size, monkeypatch):
    """A kernel right after a collective begins in turn: graphs need not hold a dependent launch there."""
    asked = []
    monkeypatch.setattr(entries, "dependent", lambda device: asked.append(device) or IN_TURN)
    own = RMSNorm(40, 1e-5)
    peers = Peers() if size == 1 else LinkedPeers(Shard(small_config(), range(1), 0, size), None, True)
    x, parts = numbers(3, 40), numbers(2, 3, 40)
    close(FusedNorm(own, peers).after(x, parts)[0], x + parts.sum(0))
    assert len(asked) == (size == 1)


def test_heads_are_made_of_parts_of_sums(dtype):
    rows, heads, key_heads, size = 3, 4, 2, 24
    parts, bias = numbers(4, rows, (heads + 2 * key_heads) * size), numbers((heads + 2 * key_heads) * size)
    angles, slots = row_angles(torch.tensor([3, 90, 0]), numbers(12).abs()), torch.tensor([7, 2, 0])
    both = []
    for source, extra in ((parts, bias), (parts.sum(0) + bias, None)):
        stored = torch.zeros(2, 9, key_heads, size, dtype=dtype)
        cut = source.split([heads * size, key_heads * size, key_heads * size], dim=-1)
        both.append((place_heads(*cut, None, angles, slots, *stored, extra), stored))
    for ours, want in zip(*both, strict=True):
        close(ours, want)
    assert both[0][0].dtype == dtype


@pytest.mark.parametrize("rotary", [24, 16])
@pytest.mark.parametrize("has_norm", [False, True])
def test_heads_are_normed_turned_and_placed(dtype, rotary, has_norm):
    rows, heads, key_heads, size = 4, 6, 2, 24
    joined = numbers(rows, (heads + 2 * key_heads) * size, dtype=dtype)
    query, key, value = joined.split([heads * size, key_heads * size, key_heads * size], dim=-1)
    norms = [RMSNorm(size, 1e-6) for _ in range(2)]
    for norm in norms:
        norm.weight = torch.nn.Parameter(numbers(size, dtype=dtype), requires_grad=False)
    angles = row_angles(torch.tensor([3, 90, 0, 41]), numbers(rotary // 2).abs(), 1.3)
    slots, keys, values = torch.tensor([7, 2, 9, 0]), *(torch.zeros(11, key_heads, size, dtype=dtype) for _ in range(2))
    given = HeadNorms(norms[0].weight, norms[1].weight, 1e-6) if has_norm else None
    ours = place_heads(query, key, value, given, angles, slots, keys, values)
    want = [x.reshape(rows, -1, size) for x in (query, key)]
    want = [norm(x) for norm, x in zip(norms, want, strict=True)] if has_norm else want
    close(ours, rotate(want[0], *angles))
    close(keys[slots], rotate(want[1], *angles))
    assert torch.equal(values[slots], value.reshape(rows, key_heads, size))
    assert not keys[[1, 3, 4, 5, 6, 8, 10]].any()


def _normed(x, weight):
    own = RMSNorm(len(weight), 1e-6)
    own.weight = torch.nn.Parameter(weight, requires_grad=False)
    return own(x)


def test_values_are_normed_too_and_nothing_is_written_without_keys(dtype):
    rows, heads, key_heads, size = 4, 6, 2, 24
    query, key = numbers(rows, (heads + key_heads) * size, dtype=dtype).split([heads * size, key_heads * size], dim=-1)
    weights = [numbers(size, dtype=dtype) for _ in range(2)]
    angles, slots = row_angles(torch.tensor([3, 90, 0, 41]), numbers(size // 2).abs()), torch.tensor([7, 2, 9, 0])
    stored = torch.zeros(2, 11, key_heads, size, dtype=dtype)
    keys, values = stored
    norms = HeadNorms(*weights, 1e-6, values=True)
    place_heads(query, key, key, norms, angles, slots, keys, values)
    raw = key.reshape(rows, key_heads, size)
    close(values[slots], torch.nn.functional.rms_norm(raw.float(), (size,), eps=1e-6).to(dtype))
    close(keys[slots], rotate(_normed(raw, weights[1]), *angles))
    assert not stored[:, [1, 3, 4, 5, 6, 8, 10]].any()
    before = stored.clone()
    alone = place_heads(query, None, None, norms, angles, slots, keys, values)
    close(alone, rotate(_normed(query.reshape(rows, heads, size), weights[0]), *angles))
    assert torch.equal(stored, before)


@pytest.mark.parametrize("is_silu", [True, False])
def test_gated_activations(dtype, is_silu):
    both = numbers(3, 2 * 1500, dtype=dtype)
    gate, up = both.split(1500, dim=-1)
    act = torch.nn.functional.silu if is_silu else _gelu_tanh
    close(gated(gate, up, is_silu), act(gate) * up)


def two_layers(**changes):
    return small_config(**({"num_hidden_layers": 2} | changes))


FAMILIES = {
    "qwen2": two_layers(attention_bias=True),
    "qwen3": two_layers(qk_norm=True),
    "partial": two_layers(layers_without_rope=(1,)),
    "gemma": two_layers(mlp="gated_gelu_tanh", post_norms=True, qk_norm=True, windows=(2, 0)),
    "olmo": two_layers(qk_norm=True, qk_norm_over="all", pre_norms=False, post_norms=True),
    "granite": two_layers(residual_scale=0.5),
    "layer norms": two_layers(norm="layer", mlp="gelu_tanh", mlp_bias=True),
    "experts": mixture_config(num_hidden_layers=2),
    "gpt-oss": mixture_config(
        num_hidden_layers=2,
        experts=Experts(8, 2, norm_topk_prob=True, bias=True),
        mlp="gated_clamped",
        attention_sinks=True,
        attention_bias=True,
        windows=(2, 0),
    ),
    "clamped": two_layers(mlp="gated_clamped"),
    "hunyuan": two_layers(qk_norm=True, qk_norm_after_rope=True, mlp="relu2"),
    "parallel": two_layers(parallel=True),
    "ministral": two_layers(query_growth=0.3, query_growth_every=2),
    "neox": two_layers(parallel=True, norm="layer", norm_bias=False, mlp="gelu", mlp_bias=True, rotary_dim=4),
}
ROWS = build_rows([Part((2, 0), 0, [5, 60, 7], logits="last"), Part((1,), 0, [9])])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_model_has_the_torch_executors_logits(family):
    agrees(RandomCheckpoint(FAMILIES[family]), deterministic=False)


def test_pages_are_weighed_with_hidden_states_that_are_divided():
    checkpoint = RandomCheckpoint(two_layers(residual_scale=0.22))
    ours, theirs = CudaModel(checkpoint, "cpu", "float32", attention="triton"), TorchModel(checkpoint)
    cache, other = ours.new_cache(3), theirs.new_cache(3)
    ours.forward(ROWS, cache)
    kept = cache.keys[1].clone()
    shares = ours.page_attention(ROWS, cache), theirs.page_attention(ROWS, other)
    np.testing.assert_allclose(*shares, atol=1e-5, rtol=0)
    np.testing.assert_allclose(cache.keys[1], kept, atol=1e-4, rtol=0)


def test_a_fused_model_whose_sums_have_one_order():
    agrees(RandomCheckpoint(FAMILIES["qwen2"]), deterministic=True)


def agrees(checkpoint, deterministic):
    ours = CudaModel(checkpoint, "cpu", "float32", attention="triton", deterministic=deterministic)
    theirs = TorchModel(checkpoint)
    found, want = (each.forward(ROWS, each.new_cache(3), (1, 2, NORMED)) for each in (ours, theirs))
    np.testing.assert_allclose(found.logits, want.logits, atol=2e-4, rtol=0)
    for tap, states in want.taps.items():
        np.testing.assert_allclose(found.taps[tap], states, atol=2e-4, rtol=0)
    assert ours.num_bytes == theirs.num_bytes


@pytest.mark.parametrize("family", ["qwen3", "granite"])
def test_plain_families_are_fused_throughout(family):
    stack = CudaModel(RandomCheckpoint(FAMILIES[family]), "cpu", "float32", attention="triton")._stage.stack
    assert isinstance(stack.norm, FusedNorm)
    for layer in stack.layers.values():
        assert isinstance(layer, FusedLayer)
        assert isinstance(layer.attention, FusedAttention)
        assert isinstance(layer.feed_forward, FusedFeedForward)
