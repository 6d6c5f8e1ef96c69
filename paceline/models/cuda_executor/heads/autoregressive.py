"""`CudaAutoregressiveNet`: heads with keys of their own that run once per drafted level (EAGLE) on a GPU.

A draft is one graph, from the target's taps on. Not for when the next draft is launched (`ahead.py`).
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor

from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.fetch import Fetched
from paceline.models.cuda_executor.foreseen import Told
from paceline.models.cuda_executor.graphs import Outputs, on_device
from paceline.models.cuda_executor.heads.ahead import DraftsAhead
from paceline.models.cuda_executor.heads.nets import PagedChainNet
from paceline.models.cuda_executor.laws.chains import Picks
from paceline.models.cuda_executor.paged_rows import PagedRows
from paceline.models.cuda_executor.passes import AdvanceChain, CudaKVCache
from paceline.models.cuda_executor.verdicts import Draft, Pending
from paceline.models.heads.nets import NetOutput
from paceline.models.states import States
from paceline.models.torch_executor.device_states import DeviceStates, tensor_of
from paceline.models.torch_executor.heads.nets import TorchAutoregressiveNet, fetched

VerifyAfter = Callable[[Pending, Draft, Draws | None], Told | None]
"""See `Foreseen.verify_after`."""


class CudaAutoregressiveNet(PagedChainNet, TorchAutoregressiveNet):
    """See `AutoregressiveNet`.

    Attributes:
        verify_after: is given every draft that is launched before the host knows the verdict on the one before.
    """

    verify_after: VerifyAfter

    def project(self, taps: States) -> "Unprojected":
        """See `AutoregressiveNet.project`; the result stays on the device, and is computed where it is read."""
        return Unprojected(self, tensor_of(taps, self.device))

    @torch.inference_mode()
    def projected(self, taps: Tensor) -> Tensor:
        """[n, hidden] float32 of taps [n, taps * hidden]."""
        kernels = self._kernels_for(taps)
        if kernels is not None:
            return kernels.projected(taps)
        return self.net.project(taps.float().view(len(taps), len(self.record.config.taps), -1))

    @torch.inference_mode()
    def forward(self, rows: Rows, hidden: States, cache: KVCache) -> NetOutput:
        """See `AutoregressiveNet.forward`."""
        logits, fed = self._started(rows, hidden, cast(CudaKVCache, cache))
        return NetOutput(fetched(logits[: len(rows.logit_rows)]), fetched(fed[: len(rows.token_ids)]))

    @torch.inference_mode()
    def draft_chains(
        self, rows: Rows, hidden: States, cache: KVCache, num_tokens: int, draws: Draws | None = None
    ) -> ChainDraft:
        """See `DraftsChains.draft_chains`, and `forward` for `hidden`: one graph for the rows and the loop."""
        own = cast(CudaKVCache, cache)
        known = None if self.verify is None else self.ahead.take(rows, own, num_tokens, draws)
        return known or self._read(self.launch_chains(rows, hidden, own, num_tokens, self._picks(draws)), draws)

    @cached_property
    def ahead(self) -> DraftsAhead:
        """The drafts that are launched before the engine asks for them."""
        return DraftsAhead(self.record.config.taps, self.launch_after)

    @torch.inference_mode()
    def launch_after(
        self, pending: Pending, template: Rows, taps: States, cache: CudaKVCache, num_tokens: int, draws: Draws | None
    ) -> tuple[Fetched, Told | None]:
        """Launch the draft after a pass that the host does not know the picks of, and the pass that verifies it.

        Args:
            template: see `chain_template`, with the pass's `taps`.
            cache, num_tokens: as of `draft_chains`.
            draws: of the draft before.

        Raises:
            RuntimeError: the rows do not fit a graph.
        """
        num_levels, verdicts = num_tokens - 1, pending.verdicts
        if not self._passes.fit_chain(template, num_levels):
            raise RuntimeError(f"{len(template.slots)} rows do not fit a graph")
        picks = self._picks(draws)
        complete = verdicts.chain_after(template, pending.picks, num_levels, cache.spare_slot)

        def advance(packed: Tensor, num_rows: int, num_below: int) -> None:
            complete(packed, num_rows, num_below)
            if picks.keys is not None:
                picks.keys[:, : num_tokens + 1] = verdicts.keys_after(picks.keys, num_tokens + 1)

        table = self.launch_chains(template, self.project(taps), cache, num_tokens, picks, advance)
        fetched = self._fetch(table)
        return fetched, self.verify_after(pending, Draft(table[0], picks.keys), draws)

    def launch_chains(
        self, rows: Rows, hidden: States, cache: KVCache, num_tokens: int, picks: Picks,
        advance: AdvanceChain | None = None,
    ) -> Tensor:  # fmt: skip
        """As `draft_chains`, without waiting: [2, levels, requests], see `Passes.chain`."""
        own = cast(CudaKVCache, cache)
        name, given, read_by = self._given(hidden)

        def begin(placed: PagedRows, asked: Tensor, static: Sequence[Tensor]) -> Outputs:
            read, fed = self._run(placed, placed.token_ids, read_by(static[0]), own)
            last = asked.long()
            return self._scored(read[last]), fed[last]

        below = partial(self._below, cache=own)
        return self._passes.chain(rows, own, name, begin, num_tokens, below, picks, [given], advance)

    def _started(self, rows: Rows, hidden: States, cache: CudaKVCache) -> Outputs:
        name, given, read_by = self._given(hidden)

        def compute(placed: PagedRows, asked: int, static: Sequence[Tensor]) -> Outputs:
            read, fed = self._run(placed, placed.token_ids, read_by(static[0]), cache)
            return self._scored(read[placed.logit_rows[:asked].long()]), fed

        return self._passes.run(rows, cache, name, compute, [given])

    def _given(self, hidden: States) -> tuple[tuple, Tensor, Callable[[Tensor], Tensor]]:
        """(name of graphs, what the device is given, how input states [n, hidden] float32 are made of it)."""
        if isinstance(hidden, Unprojected):
            return ("head", "taps"), hidden.taps, self.projected
        return ("head",), self.floats(hidden), lambda states: states

    def _below(self, placed: PagedRows, tokens: Tensor, states: Sequence[Tensor], cache: CudaKVCache) -> Outputs:
        read, fed = self._run(placed, tokens, states[0], cache)
        return self._scored(read), fed

    def _run(self, placed: PagedRows, tokens: Tensor, hidden: Tensor, cache: CudaKVCache) -> tuple[Tensor, Tensor]:
        """Input of the output head and input states of child rows, [M, hidden] each."""
        kernels = self._kernels_for(tokens)
        if kernels is not None:
            return kernels.run(placed, tokens, [hidden], cache)
        x, residual = self.net.enter(tokens.long(), hidden)
        return self.net.finish(self._pass(x, residual, placed, cache))


class Unprojected(DeviceStates):
    """Input states of a net's rows as taps of the target: a draft makes one of the other in its graph.

    Args:
        net: of which these are inputs.
        table, rows, columns: taps side by side; see `DeviceStates`.
    """

    __slots__ = ("_net",)

    def __init__(self, net: CudaAutoregressiveNet, table: Tensor, rows: range | None = None) -> None:
        super().__init__(table, rows)
        self._net = net

    def __getitem__(self, rows: slice | list[int]) -> "DeviceStates":
        if isinstance(rows, slice):
            return Unprojected(self._net, self._table, self._rows[rows])
        return Unprojected(self._net, super().__getitem__(rows).tensor())

    @property
    def taps(self) -> Tensor:
        """[n, taps * hidden]."""
        return super().tensor()

    def tensor(self) -> Tensor:
        """[n, hidden] the input states."""
        with on_device(self._net.device):
            return self._net.projected(self.taps)
