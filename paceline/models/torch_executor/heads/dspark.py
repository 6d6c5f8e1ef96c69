"""DFlash (2602.06036) and DSpark (2607.05147): a block of masks drafted in one pass beside keys made of taps.

    context keys and values, per layer: k_proj, v_proj of hidden_norm(fc(taps))
    block rows: embeddings of the anchor and of masks; each attends to the context and to the whole block
    logits = head(norm(x)), plus markov_w2 (markov_w1 of the token before) (DSpark)

The confidence that a drafted token stands reads the place's state and the token before it, never the token drawn.
"""

import torch
from torch import Tensor, nn

from paceline.errors import UnsupportedModel
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import GatedFeedForward, Norm, SelfAttention, linear


class BlockLayer(nn.Module):
    """A decoder layer whose context enters by its keys and values alone."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        layer = config.layer
        assert layer is not None
        size, eps = layer.hidden_size, layer.norm_eps
        self.input_layernorm, self.post_attention_layernorm = Norm(size, eps), Norm(size, eps)
        self.self_attn, self.mlp = SelfAttention(layer, size), GatedFeedForward(layer)

    def leave(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[n, hidden] from x [n, hidden] and the values [n, heads * D] that attention mixed."""
        x = x + self.self_attn.o_proj(mixed)
        return x + self.mlp(self.post_attention_layernorm(x))


class MarkovHead(nn.Module):
    """Logits by the token before, of low rank; starts at zero."""

    def __init__(self, vocabulary: int, drafted: int, rank: int) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(vocabulary, rank), linear(rank, drafted)
        nn.init.normal_(self.markov_w1.weight, std=rank**-0.5)
        nn.init.zeros_(self.markov_w2.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, draft vocabulary] below `tokens` [n]."""
        return self.markov_w2(self.markov_w1(tokens))


class ConfidenceHead(nn.Module):
    """Whether a place's token stands."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = linear(width, 1, bias=True)


class DSpark(nn.Module):
    """The network; arguments as `Eagle3`.

    Raises:
        UnsupportedModel: a bias by the token before of another form than the plain one.
    """

    embedding: Tensor
    head: Tensor

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        layer = config.layer
        assert layer is not None
        if getattr(config, "variant", "") not in ("", "vanilla"):
            raise UnsupportedModel("variant: only the plain Markov head runs in torch; use the numba executor")
        self.config = config
        size, eps, rank = layer.hidden_size, layer.norm_eps, config.markov_rank
        self.fc = linear(len(config.taps) * config.target.hidden_size, size, config.fc_bias)
        self.hidden_norm, self.norm = Norm(size, eps), Norm(size, eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_layers))
        if rank:
            self.markov_head = MarkovHead(config.target.vocab_size, config.draft_vocab_size, rank)
        if config.confidence:
            self.confidence_head = ConfidenceHead(size + rank)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)

    def context(self, taps: Tensor) -> Tensor:
        """[n, hidden] what the layers' keys and values are made of, from taps [n, number of taps, target's hidden]."""
        return self.hidden_norm(self.fc(taps.flatten(1).float()).float())

    def embed(self, tokens: Tensor) -> Tensor:
        """[n, hidden] of target ids [n]."""
        return self.embedding[tokens].float()

    def bias(self, tokens: Tensor) -> Tensor | None:
        """[n, draft vocabulary] below `tokens` [n]; None where the head has no such part."""
        return self.markov_head(tokens) if self.config.markov_rank else None

    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """[n] logits that the place's token stands, from states [n, hidden] and the tokens [n] before."""
        parts = [states, self.markov_head.markov_w1(tokens)] if self.config.markov_rank else [states]
        return self.confidence_head.proj(torch.cat(parts, dim=-1))[:, 0]
