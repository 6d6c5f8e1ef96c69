"""`DraftNet`: a trainable Llama-like model with all layers of an existing model or some of them.

The embedding and the output head are frozen and are no parameters; layers have transformers' names. Rows are those of
whole documents, concatenated. Not for serving the model (the executors) or writing it (`models/files/save_folder.py`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import checked_layers
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.feedback import take_layers
from paceline.models.torch_executor.heads.attention import Keys, Part, attend
from paceline.models.torch_executor.heads.blocks import DecoderLayer, Norm


class DraftNet(nn.Module):
    """The network of a checkpoint.

    Args:
        layers: numbers of the layers to take; None takes all.

    Raises:
        UnsupportedModel: the family is not Llama-like, or has biases or experts in its feed-forward.
        InvalidParameter: a layer that the checkpoint does not have.
    """

    embedding: Tensor
    head: Tensor

    def __init__(self, checkpoint: Checkpoint, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        config = checkpoint.config
        check_trainable(config)
        chosen = checked_layers(range(config.num_hidden_layers) if layers is None else layers, config.num_hidden_layers)
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in chosen)
        self.norm = Norm(config.hidden_size, config.norm_eps)
        take_layers(self, checkpoint, chosen)

    def forward(self, tokens: Tensor, lengths: Sequence[int], kept: list[Keys] | None = None) -> Tensor:
        """[N, hidden] float32 states after the final norm, one for each of N tokens; input of the output head.

        Args:
            tokens: [N] of all documents.
            lengths: number of tokens of each document.
            kept: receives the keys and values of each layer.
        """
        positions = torch.cat([torch.arange(n, device=tokens.device) for n in lengths])
        parts, x = documents_of(lengths), self.embedding[tokens].float()
        for layer in self.layers:
            normed, residual = layer.enter(x)  # type: ignore[operator]
            keys = Keys(*layer.self_attn.keys_values(normed, positions))  # type: ignore[union-attr, operator]
            if kept is not None:
                kept.append(keys)
            mixed = attend(layer.self_attn.queries(normed, positions), keys, None, parts)  # type: ignore[union-attr, operator]
            x = layer.leave(residual, mixed).float()  # type: ignore[operator]
        return self.norm(x)

    def step(self, tokens: Tensor, positions: Tensor, cache: list[Keys]) -> Tensor:
        """[D, hidden] float32 states after the final norm, after one more token of each of D documents.

        Args:
            tokens, positions: [D] the next token of each document and its position.
            cache: keys and values [D, longest, key heads, head dim] of each layer; receives those of the new tokens.
        """
        x, rows = self.embedding[tokens].float(), torch.arange(len(tokens))
        seen = (torch.arange(cache[0].keys.shape[1]) <= positions[:, None])[:, None, None]
        for layer, kept in zip(self.layers, cache, strict=True):
            normed, residual = layer.enter(x)  # type: ignore[operator]
            kept.keys[rows, positions], kept.values[rows, positions] = layer.self_attn.keys_values(normed, positions)  # type: ignore[union-attr, operator]
            query = layer.self_attn.queries(normed, positions)[:, :, None]  # type: ignore[union-attr, operator]
            keys, values = kept.keys.transpose(1, 2), kept.values.transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=True)
            x = layer.leave(residual, mixed.flatten(1)).float()  # type: ignore[operator]
        return self.norm(x)

    def tensors(self, weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """All tensors of the model by transformers' names, float32, with the layers' weights from `weights`."""
        found = {f"model.{name}": one for name, one in weights.items()}
        found["model.embed_tokens.weight"] = self.embedding
        if not self.config.tie_word_embeddings:
            found["lm_head.weight"] = self.head
        return {name: one.detach().float().numpy() for name, one in found.items()}


def documents_of(lengths: Sequence[int]) -> list[Part]:
    """A part per document of `lengths` rows, with causal attention."""
    parts, start = [], 0
    for length in lengths:
        rows = slice(start, start + length)
        parts.append(Part(rows, rows))
        start += length
    return parts


def spread_layers(num_layers: int, kept: int) -> list[int]:
    """Numbers of `kept` of `num_layers` layers: first, last and evenly spaced ones between; the first alone for 1."""
    if kept == 1:
        return [0]
    return [round(i * (num_layers - 1) / (kept - 1)) for i in range(kept)]


def check_rank(rank: int, config: ModelConfig) -> None:
    """Raises InvalidParameter where `rank` of low-rank updates is below 1 or above a matrix's smaller side."""
    sides = (config.hidden_size, config.intermediate_size, config.head_dim * config.num_attention_heads,
             config.head_dim * config.num_key_value_heads)  # fmt: skip
    if not 0 < rank <= min(sides):
        problem = f"{rank} is no rank of matrices whose smallest side is {min(sides)}"
        raise InvalidParameter("lora_rank", problem, f"give 1 to {min(sides)}")


def check_trainable(config: ModelConfig) -> None:
    """Raises UnsupportedModel for a model that `DraftNet` cannot represent."""
    plain = (config.has_plain_layers and config.embedding_scale == config.logit_scale == 1.0
             and not config.logit_softcap)  # fmt: skip
    if not plain or config.mlp_bias or config.experts is not None:
        problem = f"draft: {config.model_type} models with this feed-forward, norm or position are not trained"
        raise UnsupportedModel(f"{problem}; take a Llama, Mistral, Qwen2 or Qwen3 model without experts")
