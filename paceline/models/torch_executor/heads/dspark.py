"""DFlash (2602.06036) and DSpark (2607.05147): a block of masks drafted in one pass, with context keys from taps.

    context keys and values, per layer: k_proj, v_proj of hidden_norm(fc(taps))
    block rows: embeddings of the anchor and of masks, as the target scales them; each attends to the context and to
        the whole block
    logits = head(norm(x)), plus markov_w2 (markov_w1 of the token before) (DSpark)

The confidence that a drafted token is accepted reads the state of its position and the previous token, never the token
itself.
"""

import torch
from torch import Tensor, nn

from paceline.errors import UnsupportedModel
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import DecoderLayer, Norm, SharesTables, linear


class MarkovHead(nn.Module):
    """Low-rank logit bias that depends on the previous token; starts at zero."""

    def __init__(self, vocabulary: int, drafted: int, rank: int) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(vocabulary, rank), linear(rank, drafted)
        nn.init.normal_(self.markov_w1.weight, std=rank**-0.5)
        nn.init.zeros_(self.markov_w2.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logit bias [n, draft vocabulary] after `tokens` [n]."""
        return self.markov_w2(self.markov_w1(tokens))


class ConfidenceHead(nn.Module):
    """Predicts whether a drafted token is accepted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = linear(width, 1, bias=True)


class DSpark(SharesTables):
    """The network; arguments as `SharesTables`.

    Raises:
        UnsupportedModel: the Markov head has another form than ``vanilla``.
    """

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, embedding, head)
        layer = config.layer
        assert layer is not None
        if config.variant not in ("", "vanilla"):
            raise UnsupportedModel("variant: only the plain Markov head runs in torch; use the numba executor")
        size, eps, rank = layer.hidden_size, layer.norm_eps, config.markov_rank
        self.fc = linear(len(config.taps) * config.target.hidden_size, size, config.fc_bias)
        self.hidden_norm, self.norm = Norm(size, eps), Norm(size, eps)
        self.layers = nn.ModuleList(DecoderLayer(layer) for _ in range(config.num_layers))
        if rank:
            self.markov_head = MarkovHead(config.target.vocab_size, config.draft_vocab_size, rank)
        if config.confidence:
            self.confidence_head = ConfidenceHead(size + (rank if config.confidence_markov else 0))

    def embed(self, tokens: Tensor) -> Tensor:
        """See `SharesTables.embed`."""
        found = super().embed(tokens)
        return found if self.config.embedding_scale == 1.0 else found * self.config.embedding_scale

    def context(self, taps: Tensor) -> Tensor:
        """Input [n, hidden] of the layers' context keys and values, from taps [n, number of taps, target's hidden]."""
        return self.hidden_norm(self.fc(taps.flatten(1).float()).float())

    def bias(self, tokens: Tensor) -> Tensor | None:
        """Logit bias [n, draft vocabulary] after `tokens` [n]; None without a Markov head."""
        return self.markov_head(tokens) if self.config.markov_rank else None

    def confidence(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Acceptance logits [n] of drafted tokens, from their positions' states [n, hidden] and previous tokens [n]."""
        with_token = self.config.markov_rank and self.config.confidence_markov
        parts = [states, self.markov_head.markov_w1(tokens)] if with_token else [states]
        return self.confidence_head.proj(torch.cat(parts, dim=-1))[:, 0]
