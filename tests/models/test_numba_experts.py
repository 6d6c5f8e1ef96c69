"""Mixtures of experts in the fast executor: the reference's logits, rows independent of their company."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import UnsupportedModel
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.size import bytes_per_pass, num_parameters
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.theory.experts import expected_experts
from tests.fakes import RandomCheckpoint, mixture_config

TOKENS = np.random.default_rng(1).integers(0, 131, 60).tolist()
FAMILIES = ("qwen2_moe", "qwen3_moe", "mixtral", "glm4_moe")
pytestmark = pytest.mark.usefixtures("own_weight_cache")


@pytest.fixture(
    scope="module",
    params=[
        *((f, "float32") for f in FAMILIES),
        *((f, d) for f in ("qwen2_moe", "glm4_moe") for d in ("bfloat16", "w8a8")),
    ],
)
def model(request):
    family, dtype = request.param
    config = mixture_config(family, head_dim=32 if dtype == "w8a8" else 16)
    return NumbaModel(RandomCheckpoint(config), dtype, num_threads=2)


def logits(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_the_reference(family):
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    checkpoint = RandomCheckpoint(mixture_config(family))
    fast, reference = NumbaModel(checkpoint, "float32", num_threads=2), torch_executor.TorchModel(checkpoint)
    caches = fast.new_cache(8), reference.new_cache(8)
    prompt = build_rows([Part(range(8), 0, TOKENS)])
    tree = build_rows([Part(range(8), len(TOKENS), [5, 6, 7, 8, 9], parents=[-1, 0, 0, 1, 2])])
    for rows in (prompt, tree):
        ours, theirs = (m.forward(rows, c).logits for m, c in zip((fast, reference), caches, strict=True))
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(model):
    whole = logits(model, model.new_cache(4), Part(range(4), 0, TOKENS))
    cache = model.new_cache(4)
    alone = [logits(model, cache, Part(range(4), at, [token]))[0] for at, token in enumerate(TOKENS)]
    assert np.array_equal(whole, np.stack(alone))


@pytest.mark.parametrize("chunk", [7, 33])
def test_chunks_and_company_change_nothing(model, chunk):
    whole = logits(model, model.new_cache(4), Part(range(4), 0, TOKENS))
    cache, chunks = model.new_cache(16), []
    for at in range(0, len(TOKENS), chunk):
        company = Part([9, 12, 10, 14], at, TOKENS[::-1][at : at + chunk], logits="none")
        chunks.append(logits(model, cache, company, Part([3, 0, 5, 1], at, TOKENS[at : at + chunk])))
    assert np.array_equal(whole, np.concatenate(chunks))


def test_the_number_of_threads_changes_nothing():
    checkpoint = RandomCheckpoint(mixture_config())
    one, three = (NumbaModel(checkpoint, num_threads=n) for n in (1, 3))
    part = Part(range(4), 0, TOKENS)
    assert np.array_equal(logits(one, one.new_cache(4), part), logits(three, three.new_cache(4), part))


def test_more_rows_touch_more_experts(model):
    """Why a verify pass of a mixture costs more than its rows say."""
    cache, touched = model.new_cache(4), []
    for rows in (1, 2, 4, 8, 60):
        logits(model, cache, Part(range(4), 0, TOKENS[:rows]))
        touched.append(model.experts_touched.mean())
    assert touched[0] == 2
    assert touched == sorted(touched)
    assert touched[2] > 1.5 * touched[0]
    assert touched[-1] <= 8


def test_expected_experts_by_hand():
    assert expected_experts(8, 2, 1) == pytest.approx(2)
    assert expected_experts(8, 2, 2) == pytest.approx(8 * (1 - 0.75**2))
    assert expected_experts(8, 8, 5) == 8


def test_a_row_reads_the_experts_it_is_routed_to():
    """By this a draft model's cost is estimated until passes are timed; `mixture_config` takes two of eight experts."""
    config = mixture_config("qwen3_moe")
    others = 6 * config.num_hidden_layers * (3 * config.intermediate_size + 1) * config.hidden_size
    dense = num_parameters(config) - others - config.vocab_size * config.hidden_size * (not config.tie_word_embeddings)
    assert bytes_per_pass(config, "int8") == dense


def test_first_layers_without_experts_are_read_whole():
    config = mixture_config("glm4_moe")
    experts, per_unit = config.experts, 3 * config.hidden_size
    others = (experts.num_experts - experts.num_experts_per_tok) * (config.intermediate_size * per_unit
                                                                    + config.hidden_size + 1)  # fmt: skip
    sparse = config.num_hidden_layers - experts.first_k_dense_replace
    assert bytes_per_pass(config, "int8") == num_parameters(config) - others * sparse
    without = replace(config, experts=replace(experts, dense_intermediate_size=experts.dense_intermediate_size + 64))
    assert num_parameters(without) - num_parameters(config) == 64 * per_unit * experts.first_k_dense_replace


def test_layers_with_experts_are_counted_alone():
    model = NumbaModel(RandomCheckpoint(mixture_config("glm4_moe")), num_threads=1)
    assert model.experts_touched.shape == (2,)
    logits(model, model.new_cache(1), Part([0], 0, TOKENS[:1]))
    assert model.experts_touched.tolist() == [2, 2]


def test_groups_and_the_selection_bias_matter():
    """Without either, the mixture of these tests would be another one."""
    config = mixture_config("glm4_moe")
    part = Part(range(4), 0, TOKENS)
    first = NumbaModel(RandomCheckpoint(config), "float32", num_threads=1)
    want = logits(first, first.new_cache(4), part)
    for change in ({"n_group": 1, "topk_group": 1}, {"routed_scaling_factor": 1.0}, {"scoring_func": "softmax"}):
        other = RandomCheckpoint(config)
        other.config = replace(config, experts=replace(config.experts, **change))
        other.fingerprint += str(change)
        model = NumbaModel(other, "float32", num_threads=1)
        assert np.abs(logits(model, model.new_cache(4), part) - want).max() > 1e-2
    unbiased = RandomCheckpoint(config)
    unbiased.fingerprint += "unbiased"
    for name in unbiased.names():
        if "e_score" in name:
            unbiased.tensor(name)[:] = 0
    model = NumbaModel(unbiased, "float32", num_threads=1)
    assert np.abs(logits(model, model.new_cache(4), part) - want).max() > 1e-2


def test_widths_the_kernels_do_not_cover_are_refused():
    odd = Experts(num_experts=4, num_experts_per_tok=2, norm_topk_prob=False, shared_intermediate_size=40)
    with pytest.raises(UnsupportedModel, match=r"shared_expert_intermediate_size.*torch"):
        NumbaModel(RandomCheckpoint(mixture_config(experts=odd)))
    with pytest.raises(UnsupportedModel, match="num_experts_per_tok"):
        Experts(num_experts=2, num_experts_per_tok=3, norm_topk_prob=False)
