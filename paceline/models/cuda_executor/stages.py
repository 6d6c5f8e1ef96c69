"""`StagedPeers`: one rank of a model in several pipeline stages, each a group of ranks that share some of the layers.

Every rank runs the same passes over the same rows. In a pass each stage waits for the hidden states of the one before,
and sends on its own; then the last stage gives all ranks the logits, so that all compute the same picks and a draft
chain can go on at the first; then rank 0 gets the states of taps. All ranks keep this order: a send may wait until it
is received. Not for several batches in flight.
"""

import torch
from torch import Tensor

from paceline.models.cuda_executor.peers import LinkedPeers, Peers
from paceline.models.torch_executor.model import Taps
from paceline.models.torch_executor.parallel.links import Links


class StagedPeers(Peers):
    """See `Peers`.

    Args:
        links: to all ranks.
        in_one_order: as of `LinkedPeers`.
    """

    def __init__(self, links: Links, in_one_order: bool) -> None:
        self.shard = shard = links.shard
        self._links, self._layout = links, links.layout
        self._within = LinkedPeers(shard, links, in_one_order) if shard.tensor_size > 1 else Peers()
        self.total = self._within.total

    def parts(self, own: Tensor) -> Tensor:
        """See `Peers.parts`; of the ranks of this stage."""
        return self._within.parts(own)

    def before(self, num_rows: int) -> Tensor | None:
        """See `Peers.before`: they come from the rank with the same heads in the stage before."""
        if self._links.shard.is_first:
            return None
        shape = num_rows, self._layout.config.hidden_size
        return self._links.receive(shape, torch.float32, self._links.rank - self._layout.tensor_size)

    def after(self, x: Tensor) -> None:
        """See `Peers.after`."""
        if not self._links.shard.is_last:
            self._links.hand(x.float(), self._links.rank + self._layout.tensor_size)

    def whole(self, found: Tensor, num_asked: int, out: Tensor | None) -> Tensor:
        """See `Peers.whole`."""
        if self._links.shard.is_last:
            logits = self._within.whole(found, num_asked, out).float()
        else:
            self.after(found)
            shape = num_asked, self._layout.config.vocab_size
            logits = torch.empty(shape, device=found.device) if out is None else out
        self._links.spread(logits, self._layout.ranks_of(-1)[0])
        return logits

    def states(self, tapped: Taps, taps: tuple[int, ...], num_rows: int) -> Tensor | None:
        """See `Peers.states`; the first rank of each later stage sends those of its layers. None on other ranks."""
        rank, size, of_all = self._links.rank, self._layout.config.hidden_size, dict(tapped)
        for stage in range(1, len(self._layout.stages)):
            own, first = [tap for tap in taps if self._stage_of(tap) == stage], self._layout.ranks_of(stage)[0]
            if own and rank == first:
                self._links.hand(torch.cat([tapped[tap].float() for tap in own], dim=1), 0)
            elif own and rank == 0:
                sent = self._links.receive((num_rows, len(own) * size), torch.float32, first)
                of_all |= zip(own, sent.split(size, dim=1), strict=True)
        return super().states(of_all, taps, num_rows) if rank == 0 else None

    def _stage_of(self, tap: int) -> int:
        """The stage whose layers begin with the state `tap`; the last one for those after all layers."""
        stages = self._layout.stages
        return next((stage for stage, layers in enumerate(stages) if tap in layers), len(stages) - 1)
