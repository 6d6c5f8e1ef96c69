"""From a checkpoint's tensors to the parameters of `DecoderStack`: the name maps in which families differ."""

import numpy as np
import torch
from torch import nn

from paceline.models.checkpoint import Checkpoint
from paceline.models.experts import expert_names
from paceline.models.torch_executor.shard import Shard

_LLAMA = {
    "embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "layers": "model.layers",
    "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj", "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm", "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj", "feed_forward.down": "mlp.down_proj",
}  # fmt: skip
_GPT2 = {
    "embedding": "transformer.wte", "position_embedding": "transformer.wpe", "norm": "transformer.ln_f",
    "head": "lm_head", "layers": "transformer.h", "attention_norm": "ln_1", "feed_forward_norm": "ln_2",
    "attention.query": "attn.c_attn", "attention.key": "attn.c_attn", "attention.value": "attn.c_attn",
    "attention.out": "attn.c_proj", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
}  # fmt: skip
_PART_OF_FUSED = {"attention.query": 0, "attention.key": 1, "attention.value": 2}
"""GPT-2 keeps query, key and value side by side in one tensor."""


def load_weights(
    module: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, shard: Shard
) -> None:
    """Give every parameter of `module` (made on the meta device) its shard of its tensor, one tensor after another."""
    tensors = {}
    for name, _ in module.named_parameters():
        values = torch.from_numpy(np.ascontiguousarray(shard.part(name, _values(checkpoint, name))))
        tensors[name] = values.to(device=device, dtype=dtype)
    module.load_state_dict(tensors, assign=True)


def _values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """The tensor of parameter `name`, linear layers as [out, in]."""
    is_gpt2 = checkpoint.config.model_type == "gpt2"
    names = _GPT2 if is_gpt2 else _LLAMA
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("layers."):
        return checkpoint.tensor(f"{names[stem]}.{kind}")
    _, number, part = stem.split(".", 2)
    theirs = names.get(part) or _of_mixture(checkpoint.config.model_type, part)
    values = checkpoint.tensor(f"{names['layers']}.{number}.{theirs}.{kind}")
    if not is_gpt2:
        return values
    if part in _PART_OF_FUSED:
        values = np.split(values, 3, axis=-1)[_PART_OF_FUSED[part]]
    return values.T if kind == "weight" and values.ndim == 2 else values


def _of_mixture(model_type: str, part: str) -> str:
    """The checkpoint's name of ``feed_forward.experts.3.up`` and the like."""
    names = expert_names(model_type)
    places = part.removeprefix("feed_forward.").split(".")
    if places[0] in ("router", "shared_gate"):
        return getattr(names, places[0])
    stem = names.shared if places[0] == "shared" else names.expert.format(places[1])
    return f"{stem}.{getattr(names, places[-1])}"
