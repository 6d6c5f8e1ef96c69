"""Block and step heads on a GPU, and the base of all: passes in static shapes as CUDA graphs, a chain in one graph.

The networks are those of `torch_executor/heads/`; attention (over the pages of `paged_rows.py`) and synchronisation are
replaced, and what greedy chains are fed stays on the device. Not for heads that run once per level
(`autoregressive.py`), nor for Falcon, whose rows are sequential.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.attention import AttentionName, attention_over
from paceline.models.cuda_executor.fetch import Fetch, Send
from paceline.models.cuda_executor.foreseen import Told
from paceline.models.cuda_executor.graphs import Graph, GraphCapture, Outputs, on_device
from paceline.models.cuda_executor.laws.chains import Kernels, Picks, read_draft
from paceline.models.cuda_executor.paged_rows import PagedRows
from paceline.models.cuda_executor.passes import CudaKVCache, Passes, fill
from paceline.models.cuda_executor.staging import bucket_of
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadRecord
from paceline.models.states import States
from paceline.models.torch_executor.attention import AttentionForm
from paceline.models.torch_executor.device_states import DeviceStates
from paceline.models.torch_executor.heads.nets import (
    Mixes,
    OnDevice,
    PagedNet,
    TorchBlockNet,
    TorchStepNet,
    fetched,
    scored,
)

if TYPE_CHECKING:
    from paceline.models.cuda_executor.heads.fused import FusedHead


Verify = Callable[[Tensor, Draws | None], Told | None]
"""See `Foreseen.verify`."""


class ChainNet(OnDevice):
    """Base of nets whose chains can be drawn.

    Attributes:
        verify: is given every draft before the host waits for it.
        kernels: for the tokens of chains; see `Picks`.
    """

    draws_chains = True
    record: HeadRecord
    verify: Verify | None = None
    kernels: Kernels | None = None

    @property
    def verifies_early(self) -> bool:
        """Whether the target may verify a draft before the host knows it."""
        return self.verify is not None

    @cached_property
    def _ids(self) -> Tensor | None:
        ids = self.record.draft_ids
        return None if ids is None else self.index(ids)

    @cached_property
    def _send(self) -> Send:
        return Send(self.device)

    def _picks(self, draws: Draws | None) -> Picks:
        """How the tokens of chains are picked."""
        return Picks.of(draws, self._send, self._ids, self.kernels)

    @cached_property
    def _fetch(self) -> Fetch:
        return Fetch(self.device)

    def _read(self, table: Tensor, draws: Draws | None) -> ChainDraft:
        """The draft in a table [2, levels, requests] of tokens and probabilities, whose verification begins before it
        is fetched; waits for the device."""
        fetched = self._fetch(table)
        told = None if self.verify is None else self.verify(table[0], draws)
        draft = read_draft(fetched)
        if told is not None:
            told(draft.tokens)
        return draft


class PagedChainNet(ChainNet, PagedNet):
    """Base of nets with attention.

    Args:
        record, net: as of `PagedNet`.
        dtype: of keys and values.
        attention, capture: as of `Passes`.
        longest: positions of the target, which may be more than the head's config says.
    """

    def __init__(
        self, record: HeadRecord, net: Any, dtype: torch.dtype, attention: AttentionName, capture: GraphCapture,
        longest: int,
    ) -> None:  # fmt: skip
        super().__init__(record, net)
        self._dtype, self._fused = dtype, None
        if attention == "triton":
            from paceline.models.cuda_executor.heads.fused import fused

            self._fused = fused(net)
        config = replace(self.layer, max_position_embeddings=longest)  # pages are staged for as many
        self._passes = Passes(config, len(net.rows), self.device, attention, capture)

    def new_cache(self, num_pages: int) -> CudaKVCache:
        """See `AutoregressiveNet.new_cache`."""
        return CudaKVCache(self.layer, num_pages, self.device, self._dtype)

    def _kernels_for(self, rows: Tensor) -> "FusedHead | None":
        """The kernels for a pass over so many rows, or of logits; None if the modules are as fast."""
        return self._fused if self._fused is not None and self._fused.fits(len(rows)) else None

    def _scored(self, read: Tensor) -> Tensor:
        """Logits [n, draft vocabulary] float32 of what the output head reads."""
        kernels = self._kernels_for(read)
        return scored(read, self.net.rows) if kernels is None else kernels.scored(read.to(self._dtype))

    def _mixes(self, placed: PagedRows) -> Mixes:
        """Attention of the rows `placed`, in the dtype of keys and values."""
        attend = attention_over(self._passes.attention, placed)
        form = AttentionForm(self.layer.head_dim**-0.5)

        def mixes(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend(query.to(keys.dtype), keys, values, form).float().flatten(1)

        return mixes

    def _pass(self, x: Tensor, residual: Tensor, placed: PagedRows, cache: CudaKVCache) -> Tensor:
        """[M, hidden] after all layers."""
        return self.through(
            x, residual, placed.positions.long(), placed.slots.long(), self._mixes(placed), cache
        )  # fmt: skip


class CudaBlockNet(PagedChainNet, TorchBlockNet):
    """See `BlockNet`."""

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache) -> NetOutput:
        """See `BlockNet.forward`."""
        logits, states = self._places(rows, cast(CudaKVCache, cache))
        return NetOutput(fetched(logits[: len(rows.logit_rows)]), fetched(states[: len(rows.token_ids)]))

    @torch.inference_mode()
    def draft_chains(self, rows: Rows, cache: KVCache, draws: Draws | None = None) -> ChainDraft:
        """A chain per block: each position's token, given the one drafted at the previous position.

        Args:
            rows, cache: as for `forward`; `rows.logit_rows` are the positions that draft, the same number per block,
                and a block's first row is its anchor.
            draws: see `DraftsChains.draft_chains`.
        """
        blocks, count = len(rows.page_tables), len(rows.logit_rows)
        anchors = self.index(rows.token_ids[:: len(rows.token_ids) // blocks])  # sent before the pass: a copy waits
        with on_device(self.device):
            logits, _ = self._places(rows, cast(CudaKVCache, cache))
            by_place = logits[:count].unflatten(0, (blocks, count // blocks)).unbind(1)
            return self._read(self._picked(by_place, anchors, self._picks(draws)), draws)

    def _picked(self, by_place: Sequence[Tensor], before: Tensor, picks: Picks) -> Tensor:
        """[2, positions, blocks] float64: tokens drafted position by position, and the largest probabilities."""
        tokens, probs = [], []
        for level, logits in enumerate(by_place):
            added = self.net.bias(before)
            before, prob = picks.at(level, logits if added is None else logits + added.float())
            tokens.append(before)
            probs.append(prob)
        return torch.stack([torch.stack(tokens).double(), torch.stack(probs).double()])

    def _places(self, rows: Rows, cache: CudaKVCache) -> Outputs:
        def compute(placed: PagedRows, asked: int, _: Sequence[Tensor]) -> Outputs:
            read, states = self._run(placed, cache)
            return self._scored(read[placed.logit_rows[:asked].long()]), states

        return self._passes.run(rows, cache, ("block",), compute)

    def _run(self, placed: PagedRows, cache: CudaKVCache) -> tuple[Tensor, Tensor]:
        """Input of the output head, and states, [M, hidden] each."""
        kernels = self._kernels_for(placed.token_ids)
        if kernels is not None:
            return kernels.run(placed, placed.token_ids, (), cache)
        x, residual = self.net.layers[0].enter(self.net.embed(placed.token_ids.long()))
        states = self.net.norm(self._pass(x, residual, placed, cache))
        return states, states


class CudaStepNet(ChainNet, TorchStepNet):
    """See `StepNet`; a whole chain is one graph per bucket of requests and number of tokens."""

    def __init__(self, record: HeadRecord, net: Any, capture: GraphCapture) -> None:
        super().__init__(record, net)
        self._capture = capture
        self._graphs: dict[tuple[int, int, tuple[bool, bool]], tuple[Graph, Sequence[Tensor]]] = {}

    @torch.inference_mode()
    def begin(self, hidden: States) -> DeviceStates:
        """See `StepNet.begin`; the result stays on the device."""
        return DeviceStates(self.begun(hidden))

    @torch.inference_mode()
    def draft_chains(
        self, states: States, tokens: np.ndarray, num_tokens: int, draws: Draws | None = None
    ) -> ChainDraft:
        """A chain of the likeliest tokens for each request, or of `draws`; other arguments as of `step` at level 0."""
        count, picks = len(tokens), self._picks(draws)
        fed = [self.floats(states), self.index(tokens), *([] if picks.draws is None else [picks.draws])]
        key = bucket_of(count) or count, num_tokens, picks.form
        with on_device(self.device):
            if key not in self._graphs:
                static = [torch.zeros(key[0], *one.shape[1:], dtype=one.dtype, device=self.device) for one in fed]
                self._graphs[key] = self._capture(partial(self._chained, num_tokens, picks, *static)), static
            graph, static = self._graphs[key]
            fill(static, fed)
            return self._read(graph()[0][:, :, :count], draws)

    def _chained(
        self, num_tokens: int, how: Picks, states: Tensor, tokens: Tensor, draws: Tensor | None = None
    ) -> Outputs:
        found, probs, picks = [], [], replace(how, draws=draws)
        for level in range(num_tokens):
            logits, states = self.below(level, states, tokens)
            tokens, prob = picks.at(level, logits)
            found.append(tokens)
            probs.append(prob)
        return (torch.stack([torch.stack(found).double(), torch.stack(probs).double()]),)
