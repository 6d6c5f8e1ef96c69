"""What draft heads compute, spelled out in numpy from the formulas of the papers and of the reference modules."""

from collections.abc import Callable

import numpy as np

from paceline.models.config import ModelConfig
from paceline.models.heads.record import HeadRecord
from paceline.models.rope import inverse_frequencies


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(x, positions, layer: ModelConfig):
    """[n, heads, dim] turned by position, halves paired."""
    angles = np.outer(positions, inverse_frequencies(layer.rope_theta, layer.head_dim, layer.rope_inv_freq_scale))
    cos, sin = (np.concatenate([f(angles)] * 2, axis=1)[:, None] for f in (np.cos, np.sin))
    half = layer.head_dim // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin


class Decoder:
    """One decoder layer over whole sequences in float64."""

    def __init__(self, record: HeadRecord, number: int) -> None:
        assert record.config.layer is not None
        self.layer = record.config.layer
        prefix = f"layers.{number}."
        self.tensors = {
            k.removeprefix(prefix): np.float64(v) for k, v in record.tensors.items() if k.startswith(prefix)
        }

    def project(self, kind: str, x, heads: int):
        out = x @ self.tensors[f"self_attn.{kind}_proj.weight"].T + self.tensors.get(f"self_attn.{kind}_proj.bias", 0)
        out = out.reshape(len(x), heads, self.layer.head_dim)
        norm = self.tensors.get(f"self_attn.{kind}_norm.weight")
        return out if norm is None else rms(out, norm, self.layer.norm_eps)

    def keys_and_values(self, x, positions):
        kv_heads = self.layer.num_key_value_heads
        return rotated(self.project("k", x, kv_heads), positions, self.layer), self.project("v", x, kv_heads)

    def attend(self, x, positions, keys, values, sees: np.ndarray):
        """[n, hidden] of queries from `x`; sees [n, keys] says which keys a row attends to."""
        layer = self.layer
        queries = rotated(self.project("q", x, layer.num_attention_heads), positions, layer)
        group = layer.num_attention_heads // layer.num_key_value_heads
        mixed = []
        for head in range(layer.num_attention_heads):
            scores = queries[:, head] @ keys[:, head // group].T / np.sqrt(layer.head_dim)
            scores = np.where(sees, scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ values[:, head // group])
        return np.concatenate(mixed, axis=1) @ self.tensors["self_attn.o_proj.weight"].T

    def feed_forward(self, x):
        x = rms(x, self.tensors["post_attention_layernorm.weight"], self.layer.norm_eps)
        gate, up = (x @ self.tensors[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return (silu(gate) * up) @ self.tensors["mlp.down_proj.weight"].T

    def causal(self, attended, residual, positions):
        """A causal layer over a whole sequence."""
        keys, values = self.keys_and_values(attended, positions)
        sees = np.arange(len(attended))[:, None] >= np.arange(len(attended))
        y = residual + self.attend(attended, positions, keys, values, sees)
        return y + self.feed_forward(y)

    def plain(self, x, positions):
        """`causal` of a layer with a norm before attention."""
        return self.causal(rms(x, self.tensors["input_layernorm.weight"], self.layer.norm_eps), x, positions)


def projected(record: HeadRecord, taps):
    """[n, hidden] of taps [n, taps * target hidden]."""
    config, tensors, eps = record.config, record.tensors, record.config.layer.norm_eps
    if config.norm_before_fc:
        taps = rms(taps, tensors["input_norm.weight"], eps)
    if config.fc_norm:
        parts = np.split(taps, len(config.taps), axis=1)
        taps = np.concatenate([rms(p, tensors[f"fc_norm.{i}.weight"], eps) for i, p in enumerate(parts)], axis=1)
    return taps @ tensors["fc.weight"].T + tensors.get("fc.bias", 0)


def eagle3(record: HeadRecord, embedding, head, tokens, hidden):
    """Logits and next hidden states of every position of a sequence, from its tokens and [n, hidden] of its places."""
    config, eps, positions = record.config, record.config.layer.norm_eps, np.arange(len(tokens))
    normed = rms(hidden, record.tensors["layers.0.hidden_norm.weight"], eps)
    embedded = rms(embedding[tokens], record.tensors["layers.0.input_layernorm.weight"], eps)
    residual = normed if config.norm_before_residual else hidden
    y = Decoder(record, 0).causal(np.concatenate([embedded, normed], axis=1), residual, positions)
    for i in range(1, config.num_layers):
        y = Decoder(record, i).plain(y, positions)
    out = rms(y, record.tensors["norm.weight"], eps)
    return out @ head.T, out if config.norm_output else y


def rollout(step: Callable, tokens, hidden, levels: int, ids):
    """Greedy tokens below the last of `tokens`: each level a whole sequence anew, with true hidden states above."""
    tokens, hidden, drafted, probs = list(tokens), np.float64(hidden), [], []
    for _ in range(levels):
        logits, states = step(np.array(tokens), hidden)
        law = np.exp(logits[-1] - logits[-1].max())
        best = int(logits[-1].argmax())
        drafted.append(best if ids is None else int(ids[best]))
        probs.append(law[best] / law.sum())
        tokens, hidden = [*tokens, drafted[-1]], np.concatenate([hidden, states[-1:]])
    return drafted, probs
