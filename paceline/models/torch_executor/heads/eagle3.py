"""EAGLE-3 and EAGLE-3.1 (Li et al. 2025; 2605.09992): one decoder layer over the target's taps and the next token.

    g = fc(taps)                                       (3.1: each tap normed first)
    x = [input_layernorm(embedding of the token at p + 1), hidden_norm(g at p)]
    y = r + attention(x);  y = y + mlp(post_attention_layernorm(y))      (r = g, or its norm)
    logits = head(norm(y)); a child is fed y, or norm(y) (3.1)

State-dict names are those of `HeadRecord.tensors`. The caller computes attention: `nets.py` when serving,
`training/heads/rollout.py` when training.
"""

import torch
from torch import Tensor, nn

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import (
    DecoderLayer,
    GatedFeedForward,
    Norm,
    SelfAttention,
    SharesTables,
    linear,
)


class Eagle3Layer(nn.Module):
    """The first layer, whose attention reads the concatenation of token embedding and hidden state."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        layer = config.layer
        assert layer is not None
        size, eps = layer.hidden_size, layer.norm_eps
        self.input_layernorm, self.hidden_norm = Norm(size, eps), Norm(size, eps)
        self.self_attn = SelfAttention(layer, 2 * size)
        self.post_attention_layernorm = Norm(size, eps)
        self.mlp = GatedFeedForward(layer)
        self.normed_residual = config.norm_before_residual

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Input of attention [n, 2 hidden], and the residual [n, hidden]."""
        normed = self.hidden_norm(hidden)
        return torch.cat([self.input_layernorm(embedded), normed], dim=-1), normed if self.normed_residual else hidden

    def leave(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Output of the layer [n, hidden], from the residual and the output of attention [n, heads * D]."""
        y = residual + self.self_attn.o_proj(mixed)
        return y + self.mlp(self.post_attention_layernorm(y))


class Eagle3(SharesTables):
    """The network; arguments as `SharesTables`. Its recipe trains one layer; `p_eagle.py` trains several."""

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, embedding, head)
        layer = config.layer
        assert layer is not None
        size, read, eps = layer.hidden_size, config.target.hidden_size, layer.norm_eps
        self.fc = linear(len(config.taps) * read, size, config.fc_bias)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(read, eps) for _ in config.taps)
        if config.norm_before_fc:
            self.input_norm = Norm(len(config.taps) * read, eps)
        further = [DecoderLayer(layer) for _ in range(config.num_layers - 1)]
        self.layers = nn.ModuleList([Eagle3Layer(config), *further])
        self.norm = Norm(size, eps)

    @property
    def layer(self) -> Eagle3Layer:
        """The first layer."""
        found = self.layers[0]
        assert isinstance(found, Eagle3Layer)
        return found

    def project(self, taps: Tensor) -> Tensor:
        """[n, hidden] from taps [n, number of taps, target's hidden]."""
        if self.config.fc_norm:
            taps = torch.stack([norm(taps[:, i]) for i, norm in enumerate(self.fc_norm)], dim=1)
        flat = taps.flatten(1).float()
        return self.fc(self.input_norm(flat) if self.config.norm_before_fc else flat).float()

    def enter(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`Eagle3Layer.enter` for rows of `tokens` [n] with input states `hidden` [n, hidden]."""
        return self.layer.enter(self.embed(tokens), hidden)

    def finish(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Input of the output head and input state of child rows, both [n, hidden]."""
        normed = self.norm(y)
        return normed, normed if self.config.norm_output else y
