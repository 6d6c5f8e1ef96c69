"""Random draft heads for a small target, as `HeadRecord`s, and the target itself."""

from dataclasses import replace

import numpy as np

from paceline.models.config import ModelConfig
from paceline.models.heads.record import HeadConfig, HeadRecord, TargetPrint
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

TARGET = small_config("llama", head_dim=32, num_attention_heads=3, num_key_value_heads=1)
PRINT = TargetPrint("random", TARGET.hidden_size, TARGET.num_hidden_layers, TARGET.vocab_size)


def load_target(dtype: str, num_threads: int = 1, config: ModelConfig = TARGET) -> LoadedModel:
    """The random target."""
    checkpoint = RandomCheckpoint(config)
    return LoadedModel(ModelSource("random", checkpoint, ByteTokenizer()), NumbaModel(checkpoint, dtype, num_threads))


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Norm weights around 1, the rest around 0."""
    rng = np.random.default_rng(seed)
    return {
        name: (1.0 * (name.endswith("weight") and len(shape) == 1) + 0.2 * rng.standard_normal(shape)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }


def draft_layer(**changes) -> ModelConfig:
    """Sizes of a draft layer, unlike the target's where they may be."""
    sizes = {"num_hidden_layers": 1, "intermediate_size": 128, "num_attention_heads": 2, "rope_theta": 500.0}
    return replace(TARGET, **(sizes | changes))


def layer_shapes(number: int, layer: ModelConfig, qkv_depth: int, input_norm: bool = True) -> dict:
    """Shapes of ``layers.{number}.``."""
    hidden, inner, dim = layer.hidden_size, layer.intermediate_size, layer.head_dim
    query, key = layer.num_attention_heads * dim, layer.num_key_value_heads * dim
    shapes = {
        "self_attn.q_proj.weight": (query, qkv_depth), "self_attn.k_proj.weight": (key, qkv_depth),
        "self_attn.v_proj.weight": (key, qkv_depth), "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,), "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden), "mlp.down_proj.weight": (hidden, inner),
    }  # fmt: skip
    if input_norm:
        shapes["input_layernorm.weight"] = (hidden,)
    if layer.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    if layer.attention_bias:
        shapes |= {"self_attn.q_proj.bias": (query,), "self_attn.k_proj.bias": (key,), "self_attn.v_proj.bias": (key,)}
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}


def eagle3(seed: int = 0, layer: ModelConfig | None = None, **changes) -> HeadRecord:
    """EAGLE-3 or 3.1 with 40 draft tokens, or all where `draft_vocab_size` is 0."""
    layer = layer or draft_layer()
    config = HeadConfig("eagle3", PRINT, taps=(1, 2, 3), layer=layer, num_layers=1, draft_vocab_size=40)
    config = replace(config, **changes)
    hidden, taps = layer.hidden_size, len(config.taps) * TARGET.hidden_size
    shapes = {"fc.weight": (hidden, taps), "layers.0.hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(config.num_layers):
        shapes |= layer_shapes(i, layer, hidden if i else 2 * hidden)
    if config.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (taps,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (TARGET.hidden_size,) for i in range(len(config.taps))}
    if config.owns_embedding:
        shapes["embed_tokens.weight"] = (TARGET.vocab_size, hidden)
    if config.owns_head:
        shapes["lm_head.weight"] = (config.draft_vocab_size or TARGET.vocab_size, hidden)
    return HeadRecord(config, random_tensors(shapes, seed), draft_ids(config.draft_vocab_size, seed))


def draft_ids(size: int, seed: int = 0) -> np.ndarray | None:
    """Some of the target's ids, ascending; None for all."""
    if not size:
        return None
    return np.sort(np.random.default_rng(seed).choice(TARGET.vocab_size, size, replace=False)).astype(np.int32)
