"""Random models whose layers have the parts of one family or another, and whether the executor runs them rightly."""

from dataclasses import replace
from typing import Any

import numpy as np

from gpu_parts.bench import Bench, compared
from gpu_parts.stand_ins import RandomWeights, plain_config


def families(bench: Bench) -> dict[str, Any]:
    """For each kind of layers: logits against the torch executor's on the host in float32, whether passes are
    recorded, and whether a deterministic row is bitwise the same alone, in a chunk and in a tree."""
    return {name: _checked(bench, config) for name, config in configs(bench.quick).items()}


def _checked(bench: Bench, config: Any) -> dict[str, Any]:
    from paceline.models.cuda_executor import CudaModel
    from paceline.models.torch_executor import TorchModel

    if config.recurrence and bench.attention != "triton":
        return {"skipped": "needs a GPU and Triton"}
    weights = RandomWeights(config)
    text = np.random.default_rng(1).integers(0, config.vocab_size, 14 if bench.quick else 100).tolist()
    try:
        fast, exact = (
            CudaModel(weights, bench.device, bench.dtype, attention=bench.attention, deterministic=one)  # type: ignore
            for one in (False, True)
        )
        want = bench.logits_of(TorchModel(weights, "cpu", "float32"), text)
        found = compared(bench.logits_of(fast, text), want) | {"recorded": fast.passes.records}
        return found | _row_by_row(exact, text)
    except Exception as error:  # the others are checked all the same
        return {"failed": f"{type(error).__name__}: {error}"}


def _row_by_row(model: Any, text: list[int]) -> dict[str, bool]:
    """Whether the last rows of `text` are the same in one chunk, one by one, and in a tree beside another request."""
    from paceline.models.rows import Part, build_rows

    pages, aside, first = list(range(len(text) // 16 + 1)), len(text) // 16 + 1, len(text) - 4
    cache = model.new_cache(2 * len(pages) + 2)

    def run(*parts: Any) -> Any:
        return model.forward(build_rows(list(parts)), cache).logits.copy()

    whole = run(Part(pages, 0, text))[first:]
    run(Part(pages, 0, text[: first - 5]))
    for at in range(first - 5, first):  # a tree's root then has a state of its own, which its branches load
        run(Part(pages, at, [text[at]]))
    tree = [text[first], text[first + 1], 1, text[first + 2], 2]
    in_tree = run(Part([aside], 0, text[:5]), Part(pages, first, tree, (-1, 0, 0, 1, 2)))[5:]
    run(Part(pages, 0, text[:first]))
    alone = np.concatenate([run(Part(pages, at, [text[at]])) for at in range(first, len(text))])
    return {
        "chunk_is_bitwise": bool(np.array_equal(whole, alone)),
        "tree_is_bitwise": bool(np.array_equal(in_tree[[0, 1, 3]], alone[:3])),
    }


def configs(is_quick: bool) -> dict[str, Any]:
    """Four layers of each kind, with heads of the size that models of it have."""
    from paceline.models.architecture.experts import Experts
    from paceline.models.architecture.latent import LatentAttention
    from paceline.models.architecture.layer_sizes import LayerSizes
    from paceline.models.architecture.recurrence import Recurrence

    plain, size = plain_config(is_quick), 16 if is_quick else 128
    few, inner = (8, 64) if is_quick else (32, 256)
    softmax = Experts(few, 4, norm_topk_prob=True)
    sigmoid = Experts(
        few, 4, True, inner, scoring_func="sigmoid", e_score_correction_bias=True, n_group=4, topk_group=2,
        routed_scaling_factor=1.75, shared_expert_gate=False, first_k_dense_replace=1,
        dense_intermediate_size=2 * inner,
    )  # fmt: skip
    mixture = replace(plain, intermediate_size=inner)
    latent = LatentAttention(4 * size, 2 * size, qk_rope_head_dim=size // 2, qk_nope_head_dim=size, v_head_dim=size)
    local, full = LayerSizes(2 * size, 2, 2 * inner, 0), LayerSizes(4 * size, 1, 2 * inner, 1, has_values=False)
    varied = replace(
        plain, model_type="gemma4_text", head_dim=4 * size, intermediate_size=2 * inner,
        layer_sizes=(local, full, LayerSizes(2 * size, 2, 2 * inner, 0, False, False),
                     LayerSizes(4 * size, 1, 2 * inner, 1, False, False)),
        windows=(20, 0, 20, 0), rope_local_theta=1e4, layer_scalars=True, value_norm=True, qk_norm=True,
        post_norms=True, attention_scale=1.0, mlp="gated_gelu_tanh", hidden_size_per_layer_input=inner,
    )  # fmt: skip
    beside = replace(
        varied, hidden_size_per_layer_input=0, layer_sizes=(local, full, replace(local, cache_layer=2),
                                                            replace(full, cache_layer=3)),
        experts=Experts(few, 4, True, 2 * inner, shared_expert_gate=False, beside_dense=True),
    )  # fmt: skip
    channels = 2 * 2 * size + 4 * size
    form = {"key_heads": 2, "value_heads": 4, "key_dim": size, "value_dim": size}
    deltas = Recurrence("gated_delta_net", (0, 1, 2), 4, channels, **form)
    convolutions = Recurrence("short_convolution", (0, 1, 3), 3, plain.hidden_size)
    spaces = Recurrence("state_space", (0, 1, 3), 4, channels, **form, conv_bias=True)
    return {
        "qwen3": replace(plain, qk_norm=True),
        "gemma3": replace(plain, mlp="gated_gelu_tanh", post_norms=True, qk_norm=True, windows=(20, 0, 20, 0)),
        "olmo2": replace(plain, qk_norm=True, qk_norm_over="all", pre_norms=False, post_norms=True),
        "gpt_neox": replace(plain, parallel=True, norm="layer", mlp="gelu", mlp_bias=True, rotary_dim=size // 4),
        "qwen3_moe": replace(mixture, experts=softmax, qk_norm=True),
        "gpt_oss": replace(mixture, experts=replace(softmax, bias=True), mlp="gated_clamped", attention_sinks=True,
                           attention_bias=True, windows=(20, 0, 20, 0)),
        "glm4_moe": replace(mixture, experts=sigmoid),
        "deepseek_v3": replace(mixture, experts=sigmoid, latent=latent, head_dim=latent.head_dim, rotary_dim=size // 2,
                               num_key_value_heads=plain.num_attention_heads, attention_scale=0.1),
        "gemma4": varied,
        "gemma4 with experts": beside,
        "lfm2": replace(plain, recurrence=convolutions, qk_norm=True),
        "qwen3_5": replace(plain, recurrence=deltas, attention_gate=True, qk_norm=True, rotary_dim=size // 4),
        "qwen3_next": replace(mixture, recurrence=deltas, attention_gate=True, experts=softmax),
        "granite 4": replace(plain, recurrence=spaces, residual_scale=0.3, layers_without_rope=(0, 1, 2, 3)),
        "granite 4 with experts": replace(mixture, recurrence=spaces, residual_scale=0.3, experts=replace(
            softmax, shared_intermediate_size=inner, shared_expert_gate=False)),
        "nemotron 3": replace(mixture, recurrence=spaces, mlp="relu2", layers_without_rope=(0, 1, 2, 3),
                              layers_without_mlp=(1,), experts=replace(
                                  sigmoid, first_k_dense_replace=0, dense_intermediate_size=0)),
    }  # fmt: skip
