"""What draft heads compute, spelled out in numpy from the formulas of the papers and of the reference modules."""

import math
from collections.abc import Callable

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.rope import inverse_frequencies
from paceline.models.heads.record import HeadRecord


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


def eagle(record: HeadRecord, embedding, head, tokens, hidden):
    """EAGLE-1 and 2, as `eagle3`: what leaves the layer stands for the target's normed state."""
    x = np.concatenate([embedding[tokens], hidden], axis=1) @ record.tensors["fc.weight"].T
    x, positions = x + record.tensors.get("fc.bias", 0), np.arange(len(tokens))
    y = Decoder(record, 0).causal(x, x, positions)
    return y @ head.T, y


def mtp(record: HeadRecord, embedding, head, tokens, hidden):
    """As `eagle3`."""
    tensors, eps = record.tensors, record.config.layer.norm_eps
    parts = rms(embedding[tokens], tensors["embed_norm.weight"], eps), rms(hidden, tensors["hidden_norm.weight"], eps)
    x = np.concatenate(parts, axis=1) @ tensors["fc.weight"].T
    out = rms(Decoder(record, 0).plain(x, np.arange(len(tokens))), tensors["norm.weight"], eps)
    return out @ head.T, out


def falcon(record: HeadRecord, embedding, head, tokens, hidden):
    """Logits and outputs of the block that the last rows of a sequence are, arguments as for `eagle3`."""
    tensors, size = {name: np.float64(values) for name, values in record.tensors.items()}, record.config.block_tokens
    x, positions = np.concatenate([hidden, embedding[tokens]], axis=1), np.arange(len(tokens))
    for number in range(2):
        x = lstm(x, *(tensors[f"lstm.{name}_l{number}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))
    layer = Decoder(record, 0)
    keys, values = layer.keys_and_values(x, positions)
    x = x[-size:]
    y = x + layer.attend(x, positions[-size:], keys, values, np.ones((size, len(keys)), bool))
    y = y + layer.feed_forward(y)
    return y @ head.T, y


def lstm(x, inputs, recurrent, *biases):
    """[n, hidden] outputs of an LSTM layer over a sequence, gates in torch's order."""
    output = cell = np.zeros(recurrent.shape[1])
    found = []
    for row in x:
        gates = np.split(inputs @ row + recurrent @ output + sum(biases), 4)
        entering, kept, leaving = (1 / (1 + np.exp(-gates[i])) for i in (0, 1, 3))
        cell = kept * cell + entering * np.tanh(gates[2])
        output = leaving * np.tanh(cell)
        found.append(output)
    return np.array(found)


def block(record: HeadRecord, embedding, head, taps, tokens):
    """Logits without the bias and states of a block's `tokens`, after a context with `taps`."""
    tensors, eps = record.tensors, record.config.layer.norm_eps
    context = rms(projected(record, np.float64(taps)), tensors["hidden_norm.weight"], eps)
    x = embedding[tokens] * record.config.embedding_scale
    places = np.arange(len(context), len(context) + len(tokens))
    for number in range(record.config.num_layers):
        layer = Decoder(record, number)
        attended = rms(x, layer.tensors["input_layernorm.weight"], eps)
        before, own = layer.keys_and_values(context, np.arange(len(context))), layer.keys_and_values(attended, places)
        keys, values = (np.concatenate(pair) for pair in zip(before, own, strict=True))
        x = x + layer.attend(attended, places, keys, values, np.ones((len(x), len(keys)), bool))
        x = x + layer.feed_forward(x)
    out = rms(x, tensors["norm.weight"], eps)
    return out @ head.T, out


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


def mlp_speculator(record: HeadRecord, embedding, head, hidden, tokens):
    """Logits of each level below `hidden` [n, target hidden], given the token above each level [levels, n]."""
    config, tensors = record.config, {name: np.float64(values) for name, values in record.tensors.items()}
    keep = 0.5 ** (0.5 / config.num_steps)
    take = np.sqrt((1 - keep**2) * config.inner_size / 2)
    state = np.float64(hidden)
    if config.scale_input:
        state = rms(state, 1, 1e-6) / np.sqrt(2)
    for level, above in enumerate(tokens):
        own, projection = (0, min(level, 1)) if config.tied else (level, level)
        z = tensors[f"emb.{own}.weight"][above] if config.owns_embedding else embedding[above] * config.embedding_scale
        z = z @ tensors["embed_proj.weight"].T if "embed_proj.weight" in tensors else z
        state = state @ tensors[f"proj.{projection}.weight"].T * keep + z * take
        state = gelu(rms(state, tensors[f"ln.{own}.weight"], 1e-6) + tensors[f"ln.{own}.bias"])
        read = state @ tensors["head_proj.weight"].T if "head_proj.weight" in tensors else state
        yield read @ (tensors[f"head.{own}.weight"] if config.owns_head else head).T


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def medusa(record: HeadRecord, embedding, head, hidden, tokens):
    """As `mlp_speculator`; tokens only say how many levels there are."""
    for level in range(len(tokens)):
        x = np.float64(hidden)
        for block in range(record.config.block_depth):
            name = f"blocks.{level}.layers.{block}"
            x = x + silu(x @ record.tensors[f"{name}.weight"].T + record.tensors.get(f"{name}.bias", 0))
        yield x @ (record.tensors[f"lm_heads.{level}.weight"] if record.config.owns_head else head).T


def hydra(record: HeadRecord, embedding, head, hidden, tokens):
    """As `mlp_speculator`."""
    tensors, x = record.tensors, np.float64(hidden)
    for level, above in enumerate(tokens):
        x = np.concatenate([x, embedding[above]], axis=1)
        y = x
        for block in range(record.config.block_depth):
            name = f"blocks.{level}.{block}"
            kept = y if block else x @ tensors[f"{name}.residual.weight"].T + tensors[f"{name}.residual.bias"]
            y = kept + silu(y @ tensors[f"{name}.linear.weight"].T + tensors[f"{name}.linear.bias"])
        yield y @ tensors[f"lm_heads.{level}.weight"].T + tensors[f"lm_heads.{level}.bias"]


def blockwise(record: HeadRecord, embedding, head, hidden, tokens):
    """As `medusa`."""
    tensors, x = record.tensors, np.float64(hidden)
    for level in range(len(tokens)):
        name = f"blocks.{level}"
        inner = np.maximum(x @ tensors[f"{name}.up.weight"].T + tensors[f"{name}.up.bias"], 0)
        yield (x + inner @ tensors[f"{name}.down.weight"].T + tensors[f"{name}.down.bias"]) @ head.T
