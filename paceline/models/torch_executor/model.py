"""`TorchModel`: scores flat rows with torch, written for clarity rather than speed.

It is the reference for the numba executor. The order of sums may depend on the batch, so its logits are close, but not
bitwise equal, from batch to batch. `Stage` is the part of a model that one process of a parallel run holds.
Not for loading (`weights.py`), training, or other processes (`parallel/`).
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import InvalidParameter, first_line
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.positions import frequencies, growths
from paceline.models.base import NORMED, PAGE_SIZE, ForwardOutput, KVCache, Rows, checked_layers
from paceline.models.dtypes import choose_dtype
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.attention import Attends, SegmentAttention, soft_cap
from paceline.models.torch_executor.cache import SegmentView, StatefulCache, TorchKVCache, segment_views
from paceline.models.torch_executor.layers import Pass, make_norm, row_angles
from paceline.models.torch_executor.shard import Shard
from paceline.models.torch_executor.split_layers import Sum, VocabularyParallelEmbedding, alone
from paceline.models.torch_executor.varied_layers import LayerInputs, make_layer
from paceline.models.torch_executor.weights import load_weights

DTypeName = Literal["float32", "bfloat16", "float16"]
Taps = dict[int, Tensor]
"""Hidden states [M, hidden] by tap, see `CausalLM.forward`."""


class DecoderStack(nn.Module):
    """Embedding, layers, final norm and head of any family, as far as `shard` has them; layers keep their numbers."""

    def __init__(self, shard: Shard, total: Sum = alone) -> None:
        super().__init__()
        config = shard.narrowed()
        size, tied = config.hidden_size, config.tie_word_embeddings
        if shard.is_first or (shard.is_last and tied):
            self.embedding = VocabularyParallelEmbedding(config.vocab_size, size, shard.vocabulary.start, total)
        has_table = shard.is_first and config.position_embedding == "learned"
        table = torch.empty(config.max_position_embeddings, size) if has_table else None
        self.position_embedding = None if table is None else nn.Embedding(len(table), size, _weight=table)
        self.layer_inputs = LayerInputs(config) if config.hidden_size_per_layer_input else None
        self.layers = nn.ModuleDict({str(i): make_layer(config, i - shard.layers.start, total) for i in shard.layers})
        self.norm = make_norm(config) if shard.is_last else None
        self.head = nn.Linear(size, config.vocab_size, bias=False) if shard.is_last and not tied else None
        self.config = config

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """[M, hidden] of M tokens at their positions."""
        x = self.embedding(token_ids)
        x = x if self.config.embedding_scale == 1.0 else x * self.config.embedding_scale
        return x if self.position_embedding is None else x + self.position_embedding(positions)

    def logits(self, x: Tensor) -> Tensor:
        """[K, vocab] float32 of final hidden states x [K, hidden]."""
        logits = self.embedding.project(x) if self.head is None else self.head(x)
        scale = self.config.logit_scale
        return soft_cap(logits.float() if scale == 1.0 else logits.float() * scale, self.config.logit_softcap)


class Stage:
    """A shard's weights on a device: rows or hidden states in, hidden states or logits out.

    Args:
        checkpoint: the weights of the whole model.
        device: any torch device.
        dtype: number format of weights, cache and activations.
        shard: what of the model to hold; all of it by default.
        total: sums over the ranks that hold the other shares of the same layers.
        prepare: replaces layers before weights are loaded, and returns the bytes of the replacements.

    Attributes:
        stack: the layers, which an executor may replace with its own.

    Raises:
        InvalidParameter: torch does not support the device or the number format.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: str, dtype: str, shard: Shard | None = None, total: Sum = alone,
        prepare: Callable[[DecoderStack], int] | None = None,
    ) -> None:  # fmt: skip
        if dtype not in DTypeName.__args__:
            known = ", ".join(DTypeName.__args__)
            raise InvalidParameter("dtype", f"{dtype!r} is not a number format of this executor", f"use one of {known}")
        config = checkpoint.config
        self.shard = shard or Shard.whole(config)
        self.running: Sequence[int] = self.shard.layers
        self.device, self.dtype = usable_device(device), getattr(torch, dtype)
        with torch.device("meta"):
            self.stack = DecoderStack(self.shard, total)
        self._prepared_bytes = prepare(self.stack) if prepare else 0
        load_weights(self.stack, checkpoint, self.device, self.dtype, self.shard)
        self._frequencies = [torch.from_numpy(table).float().to(self.device) for table in frequencies(config)]
        self._windows = frozenset(config.windows or (0,))
        self._places = self.shard.narrowed().layer_places

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self._prepared_bytes + sum(parameter.nbytes for parameter in self.stack.parameters())

    def new_cache(self, num_pages: int) -> TorchKVCache:
        """An empty cache for the shard's layers and key heads."""
        config = self.shard.narrowed()
        kind = StatefulCache if config.recurrence else TorchKVCache
        return kind(config, num_pages, self.device, self.dtype)

    def with_layers(self, layers: Sequence[int]) -> "Stage":
        """A stage with the same weights that runs only those of `layers` that the shard has."""
        view = copy.copy(self)
        view.running = [layer for layer in layers if layer in self.shard.layers]
        return view

    def embed(self, rows: Rows) -> Tensor:
        """Embeddings [M, hidden] of the rows, the input of the first layer."""
        return self.embed_tokens(self._tensor(rows.token_ids), self._tensor(rows.positions))

    def embed_tokens(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """`embed` of token ids [M] at positions [M] that are on the device already."""
        return self.stack.embed(token_ids, positions)

    def run(self, x: Tensor, rows: Rows, cache: TorchKVCache, taps: tuple[int, ...] = ()) -> tuple[Tensor, Taps]:
        """Hidden states [M, hidden] after the shard's layers, and the inputs of the layers in `taps`."""
        return self.run_layers(x, self._pass(x, rows, cache, SegmentAttention(self._views(rows))), taps)

    def weigh_pages(self, x: Tensor, rows: Rows, cache: TorchKVCache) -> tuple[Tensor, np.ndarray]:
        """(As `run`, [M, max_pages] float32 as of `WeighsPages`, but sums over the layers)."""
        views = self._views(rows)
        weights = [torch.zeros(len(view.rows), len(view.slots), device=self.device) for view in views]
        x, _ = self.run_layers(x, self._pass(x, rows, cache, SegmentAttention(views, weights)), ())
        shares = np.zeros((len(rows.token_ids), rows.page_tables.shape[1]), np.float32)
        for view, sums in zip(views, weights, strict=True):
            members, pages = view.rows.cpu().numpy(), view.slots.cpu().numpy() // PAGE_SIZE
            table = rows.page_tables[rows.segments[members[0]]]
            in_page = pages[:, None] == table[None]
            shares[members] = sums.cpu().numpy() @ in_page
        return x, shares

    def pass_over(
        self, positions: Tensor, slots: Tensor, attend: Attends, cache: TorchKVCache,
        angles_of: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] = row_angles,
    ) -> Pass:  # fmt: skip
        """The `Pass` over rows at `positions` [M] whose keys and values are stored in `slots` [M]."""
        tables = zip(self._frequencies, growths(self.shard.config), strict=True)
        angles = [angles_of(positions, table, factor) for table, factor in tables]
        return Pass(angles, slots, attend, cache, self._query_factors(positions))

    def with_inputs(self, step: Pass, token_ids: Tensor, x: Tensor) -> Pass:
        """`step` with the layers' own inputs, where they have some, for tokens [M] with embeddings x [M, hidden]."""
        inputs = self.stack.layer_inputs
        return step if inputs is None else replace(step, layer_inputs=inputs(token_ids, x))

    def _query_factors(self, positions: Tensor) -> Tensor | None:
        """See `Pass`."""
        config = self.shard.config
        if not config.query_growth:
            return None
        steps = torch.floor(positions / config.query_growth_every)
        return (1 + config.query_growth * torch.log1p(steps))[:, None, None]

    def run_layers(self, x: Tensor, step: Pass, taps: tuple[int, ...]) -> tuple[Tensor, Taps]:
        """As `run`, for a pass whose tensors are on the device already."""
        tapped = {}
        for i in self.running:
            if i in taps:
                tapped[i] = x
            x = self.stack.layers[str(i)](x, self._places[i - self.shard.layers.start], step)
        return x, tapped

    def finish(self, x: Tensor, logit_rows: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """[M, hidden] after the final norm of x [M, hidden], and the logits [K, vocabulary share] of `logit_rows`."""
        assert self.stack.norm is not None
        x = self.stack.norm(x)
        return x, self.stack.logits(x[self._tensor(logit_rows)])

    def finished(
        self, x: Tensor, tapped: Taps, taps: tuple[int, ...], logit_rows: np.ndarray | Tensor
    ) -> tuple[Tensor, Taps]:  # fmt: skip
        """(logits as of `finish`, `tapped` and the taps after the last layer) of the outputs of `run`.

        A stage without the last layer has no logits and returns these outputs.
        """
        if not self.shard.is_last:
            return x, tapped
        normed, logits = self.finish(x, logit_rows)
        return logits, tapped | last_taps(self.shard.config, taps, x, normed)

    def _views(self, rows: Rows) -> list[SegmentView]:
        return segment_views(rows, self.device, self._windows)

    def _pass(self, x: Tensor, rows: Rows, cache: TorchKVCache, attend: Attends) -> Pass:
        step = self.pass_over(self._tensor(rows.positions), self._tensor(rows.slots), attend, cache)
        step = self.with_inputs(step, self._tensor(rows.token_ids), x)
        if not isinstance(cache, StatefulCache):
            return step
        whole = len(self.running) == len(self.shard.layers)
        return replace(step, states=cache.store.plan(rows, whole))

    def _tensor(self, values: np.ndarray | Tensor) -> Tensor:
        return torch.as_tensor(values, dtype=torch.long, device=self.device)


class TorchModel:
    """A `CausalLM` (models/base.py) that runs in torch, in this process; arguments and errors as `Stage`."""

    head_builder = "paceline.models.torch_executor.heads.build"
    is_row_invariant = False

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> None:
        usable_device(device)
        self.dtype_choice = choose_dtype(dtype, checkpoint, "torch", device)
        self._stage = self._load(checkpoint, device)

    def _load(self, checkpoint: Checkpoint, device: str) -> Stage:
        """The weights in the chosen dtype."""
        return Stage(checkpoint, device, self.dtype_choice.name)

    @property
    def config(self) -> ModelConfig:
        """See `CausalLM.config`."""
        return self._stage.shard.config

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._stage.device

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self._stage.num_bytes

    @property
    def activations(self) -> torch.dtype:
        """The number format of hidden states, keys and values."""
        return self._stage.dtype

    @property
    def stack(self) -> DecoderStack:
        """The layers and tables."""
        return self._stage.stack

    @property
    def is_whole(self) -> bool:
        """Whether this process holds all of the model."""
        return self._stage.shard == Shard.whole(self.config)

    def new_cache(self, num_pages: int) -> TorchKVCache:
        """An empty cache of `num_pages` pages."""
        return self._stage.new_cache(num_pages)

    def with_layers(self, layers: Sequence[int]) -> "TorchModel":
        """See `SkipsLayers`."""
        view = copy.copy(self)
        view._stage = self._stage.with_layers(
            self.config.with_sources(checked_layers(layers, self.config.num_hidden_layers))
        )  # fmt: skip
        return view

    @torch.inference_mode()
    def page_attention(self, rows: Rows, cache: KVCache) -> np.ndarray:
        """See `WeighsPages`."""
        assert isinstance(cache, TorchKVCache)
        return self._stage.weigh_pages(self._begun(rows), rows, cache)[1] / len(self._stage.running)

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass over `rows` (see `CausalLM.forward`).

        Raises:
            InvalidParameter: a cache of another executor, or a row or tap outside the model.
        """
        if not isinstance(cache, TorchKVCache):
            raise InvalidParameter("cache", f"is a {type(cache).__name__}", "make it with this model's new_cache")
        check_rows(self.config, rows, taps)
        return fetched(*self._scored(rows, cache, taps))

    def _scored(self, rows: Rows, cache: TorchKVCache, taps: tuple[int, ...]) -> tuple[Tensor, Taps]:
        """Logits [K, vocab] and taps on the device; see `Stage.finished`."""
        return self._stage.finished(*self._stage.run(self._begun(rows), rows, cache, taps), taps, rows.logit_rows)

    def _begun(self, rows: Rows) -> Tensor:
        """[M, hidden]: what the first layer is given."""
        return self._stage.embed(rows)


def fetched(logits: Tensor, taps: Taps) -> ForwardOutput:
    """Copies of logits and taps on the host; waits for the device."""

    def copied(tensor: Tensor) -> np.ndarray:
        return tensor.to("cpu", torch.float32, copy=True).numpy()

    return ForwardOutput(copied(logits), {tap: copied(state) for tap, state in taps.items()})


def last_taps(config: ModelConfig, taps: tuple[int, ...], x: Tensor, normed: Tensor) -> Taps:
    """The taps before (`x`) and after (`normed`) the final norm, as far as `taps` names them."""
    last = {config.num_hidden_layers: x, NORMED: normed}
    return {tap: state for tap, state in last.items() if tap in taps}


def check_rows(config: ModelConfig, rows: Rows, taps: tuple[int, ...]) -> None:
    """Refuse rows and taps outside the model.

    Raises:
        InvalidParameter: naming the field and the limit.
    """
    _check_below("token_ids", rows.token_ids, config.vocab_size)
    _check_below("positions", rows.positions, config.max_position_embeddings)
    if taps:
        _check_below("taps", np.array([tap for tap in taps if tap != NORMED], np.int32), config.num_hidden_layers + 1)


def _check_below(field: str, values: np.ndarray, limit: int) -> None:
    """Refuse int32 `values` below 0 or from `limit` on; without their sign negative ones are the largest."""
    if len(values) and values.view(np.uint32).max() >= limit:
        raise InvalidParameter(field, f"{values.min()}..{values.max()} is outside the model", f"stay below {limit}")


def usable_device(name: str) -> torch.device:
    """The device called `name`, with its number: ``cuda`` alone is the current one, of which every thread has its own.

    Raises:
        InvalidParameter: torch cannot put anything there.
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        why = first_line(error).partition(". ")[0]  # one sentence: others go on for a page of backends
        raise InvalidParameter("device", f"{name!r} cannot be used ({why})", "use cpu") from None
