"""Random models of transformers with a layer for multi-token prediction in their files, and what that layer computes.

The layer is a model of transformers' own with one layer, whose tensors are renamed as published files have them.
"""

import copy
import json

import torch
from safetensors.torch import load_file, save_file

QWEN = ("qwen3_5_text", "qwen3_5_text-even", "qwen3_5_moe_text", "qwen3_next")
DEEPSEEK = ("glm4_moe", "glm4_moe-large", "deepseek_v3", "glm4_moe_lite")
"""Families by whose names their files have."""
MIMO = ("qwen2",)
"""MiMo is Qwen2, with names of its own for the layer, whose projection reads the hidden state first."""


def with_prediction_layer(name, folder, theirs):
    """Add a random layer to the model `theirs`, which was saved in `folder`; returns the `Reference`."""
    layer = _layer_model(theirs)
    found = _entries(layer, folder.parent / f"{folder.name}-layer")
    size, number = found["norm.weight"].shape[0], _text(theirs.config).num_hidden_layers
    shift = 1.0 if name in QWEN else 0.0
    fc, norms = torch.randn(size, 2 * size) * 0.1, [1 - shift + 0.2 * torch.randn(size) for _ in range(2)]
    stems = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.layers.0.", "mtp.norm.")
    if name in DEEPSEEK:
        after = f"model.layers.{number}."
        stems = (f"{after}eh_proj", f"{after}enorm", f"{after}hnorm", after, f"{after}shared_head.norm.")
    if name in MIMO:
        parts = ("input_proj", "token_layernorm", "hidden_layernorm", "", "final_layernorm.")
        stems = tuple(f"model.mtp_layers.0.{part}" for part in parts)
    added = {f"{stem}.weight": values for stem, values in zip(stems, (fc, *norms), strict=False)}
    if name in MIMO:
        added[f"{stems[0]}.weight"] = torch.cat(fc.chunk(2, dim=1)[::-1], dim=1)
    for key, values in found.items():
        for of, ours in (("layers.0.", stems[3]), ("norm.", stems[4])):
            if key.startswith(of):
                added[ours + key.removeprefix(of)] = values
    [path] = folder.glob("*.safetensors")
    save_file(load_file(path) | {key: values.contiguous() for key, values in added.items()}, path)
    config = folder / "config.json"
    values = json.loads(config.read_text())
    own = values.get("text_config", values)
    own["mtp_num_hidden_layers" if name in QWEN else "num_nextn_predict_layers"] = 1
    own["model_type"] = "mimo" if name in MIMO else own["model_type"]
    config.write_text(json.dumps(values))
    return Reference(theirs, layer, fc, [norm + shift for norm in norms])


class Reference:
    """What a layer for multi-token prediction computes, by transformers' own layer."""

    def __init__(self, target, layer, fc, norms):
        self._target, self._layer, self._fc, self._norms = target, layer, fc, norms
        self._eps = _text(target.config).rms_norm_eps

    @torch.no_grad()
    def __call__(self, tokens, hidden):
        """Logits and fed-on states [n, ..] of one text whose rows read `tokens` [n] and `hidden` [n, size]."""
        embedded = self._target.get_input_embeddings()(torch.tensor(tokens))
        normed = [self._norm(x) * norm for x, norm in zip((embedded, hidden), self._norms, strict=True)]
        inputs = (torch.cat(normed, -1) @ self._fc.T)[None]
        output = self._layer(inputs_embeds=inputs, output_hidden_states=True)
        states = output.hidden_states[-1][0]  # after the final norm
        return self._target.get_output_embeddings()(states).numpy(), states.numpy()

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps)


def _text(config):
    return getattr(config, "text_config", config)


def _layer_model(theirs):
    """A random model of one layer with full attention, and experts where the target has them."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(_text(theirs.config))
    config.num_hidden_layers = 1
    for field, value in (
        ("layer_types", ["full_attention"]),
        ("first_k_dense_replace", 0),
        ("mlp_layer_types", ["sparse"]),
    ):
        if getattr(config, field, None) is not None:
            setattr(config, field, value)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for key, parameter in model.named_parameters():
        is_scale = parameter.ndim == 1 and key.endswith("weight") and "qwen3_" not in config.model_type
        torch.nn.init.normal_(parameter, mean=1.0 if is_scale else 0.0, std=0.2)
    for key, buffer in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    return model


def _entries(model, folder):
    """The tensors of a saved model by name, without the prefix of the base model."""
    model.save_pretrained(folder)
    [path] = folder.glob("*.safetensors")
    return {key.removeprefix("model."): values for key, values in load_file(path).items()}
