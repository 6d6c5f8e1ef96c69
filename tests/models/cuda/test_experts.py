"""Mixtures of experts by kernels, in Triton's interpreter: routing and groups against PyTorch, rows against company."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from paceline.models.architecture.experts import Experts  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor import experts as fused  # noqa: E402
from paceline.models.cuda_executor.block_layers import BlockLinear  # noqa: E402
from paceline.models.cuda_executor.block_matrix import BlockMatrix  # noqa: E402
from paceline.models.cuda_executor.experts import FusedExperts, can_stack  # noqa: E402
from paceline.models.cuda_executor.kernels import experts as kernels  # noqa: E402
from paceline.models.cuda_executor.kernels.tiles import NARROW  # noqa: E402
from paceline.models.files.checkpoint import StoredBlocks  # noqa: E402
from paceline.models.files.gguf_header import BLOCKS  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.layers import MixtureOfExperts  # noqa: E402
from paceline.models.torch_executor.shard import Shard  # noqa: E402
from tests.fakes import RandomCheckpoint, mixture_config  # noqa: E402

from ..test_blocks import random_blocks  # noqa: E402
from .batches import tokens_of  # noqa: E402

KINDS = {
    "qwen2_moe": mixture_config(num_hidden_layers=2),
    "qwen3_moe": mixture_config("qwen3_moe", num_hidden_layers=2, qk_norm=True),
    "gpt_oss": mixture_config(
        num_hidden_layers=2, experts=Experts(8, 3, norm_topk_prob=True, bias=True), mlp="gated_clamped",
        attention_sinks=True, attention_bias=True,
    ),
    "glm4_moe": mixture_config("glm4_moe", num_hidden_layers=2),
    "ernie4_5_moe": mixture_config("ernie4_5_moe", num_hidden_layers=2, experts=Experts(
        8, 3, True, 64, e_score_correction_bias=True, shared_expert_gate=False, first_k_dense_replace=1,
        dense_intermediate_size=160)),
    "nemotron_h": mixture_config("nemotron_h", num_hidden_layers=2, mlp="relu2", layers_without_mlp=(1,),
                                 experts=Experts(8, 3, True, 64, scoring_func="sigmoid", shared_expert_gate=False)),
}  # fmt: skip


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mixture(config, seed=0):
    """A mixture with weights large enough for gates to reach their limits."""
    torch.manual_seed(seed)
    own = MixtureOfExperts(config, config.experts)
    for parameter in own.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return own.requires_grad_(False)


def fused_twin(config, deterministic=False):
    own = mixture(config)
    assert can_stack(own)
    return FusedExperts(own, own.shared, deterministic)


@pytest.mark.parametrize("rescales", [True, False])
def test_rows_are_routed_as_pytorch_routes_them(rescales):
    logits = numbers(7, 11) * 3
    experts, shares = kernels.route(logits, Experts(11, 4, rescales))
    want, numbers_of = logits.softmax(dim=-1).topk(4, dim=-1)
    assert torch.equal(experts.long(), numbers_of)
    torch.testing.assert_close(shares, want / want.sum(-1, keepdim=True) if rescales else want)


@pytest.mark.parametrize("scores", ["sigmoid", "softmax"])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (3, 2)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rescales", [True, False])
def test_scores_biases_and_groups_are_those_of_the_reference(scores, groups, biased, rescales):
    settings = Experts(12, 3, rescales, scoring_func=scores, e_score_correction_bias=biased, n_group=groups[0],
                       topk_group=groups[1], routed_scaling_factor=2.5)  # fmt: skip
    config = mixture_config("glm4_moe", experts=settings)
    own, logits = mixture(config), numbers(40, 12) * 2
    bias = own.selection.bias if biased else None
    (shares, want), (experts, found) = own.routed(logits), kernels.route(logits, settings, bias)
    assert torch.equal(experts.long(), want)
    torch.testing.assert_close(found, shares)
    plain = kernels.route(logits, Experts(12, 3, rescales))[0]
    assert torch.equal(plain, experts) == (not biased and groups[0] == 1)


def test_equal_experts_go_by_number_and_padding_rows_have_none():
    slots = torch.tensor([5, 9, 5])
    experts, _ = kernels.route(torch.zeros(3, 6), Experts(6, 2, True), None, slots, 9)
    assert experts.tolist() == [[0, 1], [-1, -1], [0, 1]]


def test_logits_that_are_no_numbers_lead_to_no_expert_past_the_last():
    grouped = Experts(6, 3, True, scoring_func="sigmoid", e_score_correction_bias=True, n_group=3, topk_group=2)
    for settings, bias in ((Experts(6, 3, True), None), (grouped, torch.zeros(6))):
        experts, _ = kernels.route(torch.full((2, 6), float("nan")), settings, bias)
        assert int(experts.min()) >= 0 and int(experts.max()) < 6


@pytest.mark.parametrize(("rows", "count"), [(1, 8), (5, 3), (40, 4), (23, 1)])
def test_every_pair_is_in_one_tile_of_its_expert(rows, count):
    experts = torch.randint(-1, count, (rows, 3), generator=torch.Generator().manual_seed(rows), dtype=torch.int32)
    tiles, seen = kernels.grouped(experts), []
    for first, size in enumerate(tiles.counts.tolist()):
        members = tiles.members[first, :size].tolist()
        assert size <= NARROW and members == sorted(members) and members[:1] in ([], [first])
        assert len({int(tiles.experts[pair]) for pair in members}) <= 1
        seen += members
    assert sorted(seen) == [pair for pair, expert in enumerate(experts.view(-1).tolist()) if expert >= 0]
    full = -(-torch.bincount(experts[experts >= 0], minlength=count) // NARROW)
    assert int((tiles.counts > 0).sum()) == int(full.sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 6, 37])
def test_a_mixture_is_what_the_torch_executor_makes_of_it(kind, rows):
    config = KINDS[kind]
    x, own = numbers(rows, config.hidden_size, seed=3), fused_twin(config)
    want = mixture(config)(x)
    torch.testing.assert_close(own(x), want, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(own._one_by_one(x, x), want, atol=1e-3, rtol=1e-4)


def test_the_clamped_gate_reaches_its_limits():
    """Without the limits the mixture of this test would be another one."""
    config = KINDS["gpt_oss"]
    x = numbers(6, config.hidden_size, seed=3)
    loose = mixture(replace(config, mlp="gated_silu"))(x)
    assert (loose - mixture(config)(x)).abs().max() > 1


def test_a_row_is_bitwise_the_same_alone_and_in_company():
    own = fused_twin(KINDS["qwen3_moe"])
    x = numbers(40, KINDS["qwen3_moe"].hidden_size)
    whole = own.parts(x)
    for rows in ([0], [39], [3, 17], list(range(20))):
        # In a tile a row keeps its lane: the interpreter multiplies by numpy, whose sums depend on it on some machines.
        alone = own.parts(x[rows])
        torch.testing.assert_close(alone, whole[:, rows], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("deterministic", "recorded"), [(True, 20), (False, 20), (False, 30)])
def test_many_rows_need_several_launches_or_the_host(deterministic, recorded, monkeypatch):
    """The host is asked only where the pass is not recorded, however many experts a row has."""
    own, asked = fused_twin(KINDS["qwen3_moe"], deterministic), []
    x = numbers(30, KINDS["qwen3_moe"].hidden_size)
    want = own(x)
    monkeypatch.setattr(fused, "MOST_PAIRS", 16)
    monkeypatch.setattr(fused, "LARGEST", recorded)
    parts = own.parts
    monkeypatch.setattr(own, "parts", lambda some, *more: asked.append(len(some)) or parts(some, *more))
    torch.testing.assert_close(own(x), want, atol=1e-4, rtol=1e-4)
    assert asked == ([8, 8, 8, 6] if deterministic or recorded == 30 else [])


def test_a_deterministic_prompt_is_several_launches_too(monkeypatch):
    """Its layers add up the parts themselves."""
    checkpoint, sizes = RandomCheckpoint(replace(KINDS["qwen3_moe"], num_hidden_layers=1)), []
    model = CudaModel(checkpoint, "cpu", "float32", attention="triton", deterministic=True)
    rows, grouped = build_rows([Part((2, 0), 0, tokens_of(9), logits="last")]), fused.grouped
    want = model.forward(rows, model.new_cache(4)).logits.copy()
    monkeypatch.setattr(fused, "MOST_PAIRS", 8)
    monkeypatch.setattr(fused, "grouped", lambda chosen: sizes.append(chosen.numel()) or grouped(chosen))
    np.testing.assert_allclose(model.forward(rows, model.new_cache(4)).logits, want, atol=1e-4)
    assert sizes and max(sizes) <= 8


@pytest.mark.parametrize("kind", KINDS)
def test_passes_over_mixtures_are_recorded_and_replayed(kind):
    checkpoint = RandomCheckpoint(replace(KINDS[kind], num_hidden_layers=1))
    model, theirs = (make(checkpoint) for make in (triton_model, TorchModel))
    assert model.passes.records
    cache, other = model.new_cache(4), theirs.new_cache(4)
    for first, tokens in ((0, tokens_of(5)), (5, [7]), (6, [9]), (7, tokens_of(3, 1))):
        rows = build_rows([Part((2, 0), first, tokens)])  # the second of one row is a replay; three are padded to four
        found, want = model.forward(rows, cache).logits, theirs.forward(rows, other).logits
        np.testing.assert_allclose(found, want, atol=5e-4, rtol=0)
    assert len(cache.graphs) == 3


def triton_model(checkpoint):
    return CudaModel(checkpoint, "cpu", "float32", attention="triton")


def test_without_the_kernels_a_mixture_asks_the_host():
    model = CudaModel(RandomCheckpoint(KINDS["qwen3_moe"]), "cpu", "float32", attention="by_position")
    assert not model.passes.records


def test_experts_of_several_forms_stay_apart():
    own = mixture(KINDS["qwen3_moe"])
    own.experts[3].down = torch.nn.Linear(8, 8)
    assert not can_stack(own)


@pytest.mark.parametrize("kind", ["qwen2_moe", "gpt_oss", "glm4_moe"])
def test_ranks_with_shares_of_all_experts_add_up(kind):
    config, own = KINDS[kind], mixture(KINDS[kind])
    x, prefix = numbers(5, KINDS[kind].hidden_size, seed=3), "layers.1.feed_forward."
    want, total = own(x), torch.zeros(5, config.hidden_size)
    for rank in range(2):
        shard = Shard(config, range(2), rank, 2)
        narrow = shard.narrowed()
        part = MixtureOfExperts(narrow, narrow.experts, total=lambda found: found)
        cut = {name: shard.part(prefix + name, values.numpy()) for name, values in own.state_dict().items()}
        part.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in cut.items()})
        total += part(x)
        fused_part = FusedExperts(part.requires_grad_(False), part.shared, deterministic=False)
        assert fused_part.parts(x).shape == (1, *x.shape)  # what ranks exchange
        torch.testing.assert_close(fused_part(x), fused_part.parts(x)[0])
        want = want - fused_part(x)
    torch.testing.assert_close(total, own(x), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(want, torch.zeros_like(want), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["MXFP4", "Q4_K", "Q8_0"])
def test_experts_in_the_blocks_of_a_file(name):
    config = replace(KINDS["gpt_oss"], hidden_size=256, intermediate_size=256)
    own = mixture(config)
    for number, expert in enumerate(own.experts):
        for part, layer in expert.named_children():
            raw = random_blocks(name, 256, 256, seed=10 * number + len(part))
            matrix = BlockMatrix.of(StoredBlocks(name, raw, BLOCKS[name][2]), torch.device("cpu"))
            setattr(expert, part, BlockLinear(matrix, layer.bias, in_one_order=False))
    x = numbers(5, 256)
    want = own(x)
    found = FusedExperts(own, None, deterministic=False)
    assert isinstance(found.lower, BlockMatrix)
    torch.testing.assert_close(found(x), want, atol=1e-3 * float(want.abs().max()), rtol=1e-3)
    torch.testing.assert_close(found._one_by_one(x, x), want, atol=1e-3 * float(want.abs().max()), rtol=1e-3)
