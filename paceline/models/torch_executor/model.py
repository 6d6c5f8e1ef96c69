"""`TorchModel`: scores flat rows with torch, clearly rather than fast.

The reference the numba executor is compared with. Sums may be ordered differently for different batches, so its logits
are close, not bitwise equal, from batch to batch. Not for loading (`weights.py`) or training.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from paceline.errors import InvalidParameter
from paceline.models.base import ForwardOutput, KVCache, Rows
from paceline.models.checkpoint import Checkpoint
from paceline.models.config import ModelConfig
from paceline.models.rope import inverse_frequencies
from paceline.models.torch_executor.cache import TorchKVCache, segment_views
from paceline.models.torch_executor.layers import Layer, Pass, make_norm, rotary_tables
from paceline.models.torch_executor.weights import load_weights

DTypeName = Literal["float32", "bfloat16"]


class DecoderStack(nn.Module):
    """Embedding, layers, final norm and head of every family."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, size)
        has_table = config.position_embedding == "learned"
        self.position_embedding = nn.Embedding(config.max_position_embeddings, size) if has_table else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = make_norm(config)
        self.head = None if config.tie_word_embeddings else nn.Linear(size, config.vocab_size, bias=False)

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """[M, hidden] of M tokens at their positions."""
        x = self.embedding(token_ids)
        return x if self.position_embedding is None else x + self.position_embedding(positions)

    def logits(self, x: Tensor) -> Tensor:
        """[K, vocab] float32 of final hidden states x [K, hidden]."""
        weight = self.embedding.weight if self.head is None else self.head.weight
        return nn.functional.linear(x, weight).float()


class TorchModel:
    """A `CausalLM` (models/base.py) that runs in torch.

    Args:
        checkpoint: the weights.
        device: any torch device.
        dtype: number format of weights, cache and activations.

    Raises:
        InvalidParameter: torch knows no such device, or the number format is another.
    """

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu", dtype: DTypeName = "float32") -> None:
        if dtype not in ("float32", "bfloat16"):
            raise InvalidParameter(
                "dtype", f"{dtype!r} is not a number format of this executor", "use float32 or bfloat16"
            )
        self._config = checkpoint.config
        self._device, self._dtype = _usable_device(device), getattr(torch, dtype)
        with torch.device("meta"):
            self._stack = DecoderStack(self._config)
        load_weights(self._stack, checkpoint, self._device, self._dtype)
        frequencies = inverse_frequencies(
            self._config.rope_theta, self._config.head_dim, self._config.rope_inv_freq_scale
        )
        self._inverse_frequencies = torch.from_numpy(frequencies).float().to(self._device)

    @property
    def config(self) -> ModelConfig:
        return self._config

    def new_cache(self, num_pages: int) -> TorchKVCache:
        """An empty cache of `num_pages` pages."""
        return TorchKVCache(self._config, num_pages, self._device, self._dtype)

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass over `rows` (see `CausalLM.forward`).

        Raises:
            InvalidParameter: a cache of another executor, or a row or tap outside the model.
        """
        if not isinstance(cache, TorchKVCache):
            raise InvalidParameter("cache", f"is a {type(cache).__name__}", "make it with this model's new_cache")
        self._check(rows, taps)
        positions = self._tensor(rows.positions)
        step = self._pass(rows, positions, cache)
        x = self._stack.embed(self._tensor(rows.token_ids), positions)
        tapped = {}
        for i, layer in enumerate(self._stack.layers):
            if i in taps:
                tapped[i] = x.float().cpu().numpy()
            x = layer(x, i, step)
        x = self._stack.norm(x)
        if self._config.num_hidden_layers in taps:
            tapped[self._config.num_hidden_layers] = x.float().cpu().numpy()
        logits = self._stack.logits(x[self._tensor(rows.logit_rows)])
        return ForwardOutput(logits.cpu().numpy(), tapped)

    def _pass(self, rows: Rows, positions: Tensor, cache: TorchKVCache) -> Pass:
        rotates = self._config.position_embedding == "rotary"
        cosines, sines = rotary_tables(positions, self._inverse_frequencies) if rotates else (None, None)
        return Pass(cosines, sines, self._tensor(rows.slots), segment_views(rows, self._device), cache)

    def _tensor(self, values) -> Tensor:
        return torch.as_tensor(values, dtype=torch.long, device=self._device)

    def _check(self, rows: Rows, taps: tuple[int, ...]) -> None:
        config = self._config
        for field, values, limit in (
            ("token_ids", rows.token_ids, config.vocab_size),
            ("positions", rows.positions, config.max_position_embeddings),
            ("taps", taps, config.num_hidden_layers + 1),
        ):
            if len(values) and not 0 <= min(values) <= max(values) < limit:
                raise InvalidParameter(
                    field, f"{min(values)}..{max(values)} is outside the model", f"stay below {limit}"
                )


def _usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise InvalidParameter("device", f"{name!r} cannot be used ({reason})", "use cpu") from None
    return device
