"""Loads the tensors of a checkpoint into the parameters of `DecoderStack`, and maps their names."""

import numpy as np
import torch
from torch import nn

from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.shard import Shard

_NAMES = {
    "embedding": "model.embed_tokens", "position_embedding": "model.position_embeddings", "norm": "model.norm",
    "head": "lm_head", "layers": "model.layers",
    "layer_inputs.embedding": "model.embed_tokens_per_layer", "layer_inputs.norm": "model.per_layer_projection_norm",
    "layer_inputs.projection": "model.per_layer_model_projection",
    "attention_norm": "input_layernorm", "attention_out_norm": "self_attn.out_norm",
    "feed_forward_norm": "post_attention_layernorm", "feed_forward_out_norm": "mlp.out_norm",
    "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj", "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm", "attention.sinks": "self_attn.sinks",
    "feed_forward.norm": "post_attention_layernorm",
    "input.gate": "per_layer_input_gate", "input.projection": "per_layer_projection",
    "input.norm": "post_per_layer_input_norm", "scalar": "layer_scalar",
    "attention.query_a": "self_attn.q_a_proj", "attention.query_a_norm": "self_attn.q_a_norm",
    "attention.query_b": "self_attn.q_b_proj", "attention.latent": "self_attn.kv_a_proj",
    "attention.latent_norm": "self_attn.kv_a_norm", "attention.key_b": "self_attn.k_b_proj",
    "attention.value_b": "self_attn.v_b_proj",
    "attention.gate": "self_attn.g_proj",
    "attention.conv_in": "conv.in_proj", "attention.conv_taps": "conv.conv", "attention.conv_out": "conv.out_proj",
    "attention.state_query": "linear_attn.in_proj_q", "attention.state_key": "linear_attn.in_proj_k",
    "attention.state_value": "linear_attn.in_proj_v", "attention.z": "linear_attn.in_proj_z",
    "attention.beta": "linear_attn.in_proj_b", "attention.step": "linear_attn.in_proj_a",
    "attention.taps": "linear_attn.conv1d", "attention.step_shift": "linear_attn.dt",
    "attention.decay": "linear_attn.A_log", "attention.norm": "linear_attn.norm",
    "attention.state_out": "linear_attn.out_proj", "attention.skip": "linear_attn.D",
}  # fmt: skip
_FEED_FORWARD = {
    "router": "gate", "selection": "gate.e_score_correction", "shared_gate": "shared_expert_gate",
    "shared": "shared_expert", "experts": "experts",
    "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
    "router_norm": "gate_norm", "scales": "gate_scales", "shared_out_norm": "shared_expert.out_norm",
}  # fmt: skip


_EXACT = ".selection.bias"
"""End of the names of parameters that stay in float32: rounded to 8 bits, a bias of 10 would hide scores below 1."""


def load_weights(
    module: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, shard: Shard
) -> None:
    """Load the shard of every parameter of `module`, which is on the meta device, one tensor at a time."""
    tensors = {}
    for name, _ in module.named_parameters():
        stored = checkpoint.tensor(checkpoint_name(name))
        values = torch.from_numpy(np.ascontiguousarray(shard.part(name, stored)))
        tensors[name] = values.to(device=device, dtype=torch.float32 if name.endswith(_EXACT) else dtype)
    module.load_state_dict(tensors, assign=True)


def checkpoint_name(name: str) -> str:
    """The checkpoint's name of the parameter `name`."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("layers."):
        return f"{_NAMES[stem]}.{kind}"
    _, number, part = stem.split(".", 2)
    return f"{_NAMES['layers']}.{number}.{_NAMES.get(part) or _of_feed_forward(part)}.{kind}"


def _of_feed_forward(part: str) -> str:
    """``feed_forward.experts.3.up`` is ``mlp.experts.3.up_proj``, and the like."""
    places = part.removeprefix("feed_forward.").split(".")
    return ".".join(["mlp", *(_FEED_FORWARD.get(place, place) for place in places)])
