"""`Peers`: what a network needs of the ranks that share its layers: sums over them, and the logits of all shares.

Every rank runs the same passes over the same rows and has the same hidden states; a rank's shard has some of the heads,
of the feed-forward units and of the vocabulary (`torch_executor/shard.py`). Not for commands to the ranks
(`parallel/`).
"""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.torch_executor.shard import Shard
from paceline.models.torch_executor.split_layers import Sum, alone


class Gathers(Protocol):
    """Communication with the ranks that share a stage, see `Links`."""

    def total(self, part: Tensor) -> Tensor:
        """The sum of `part`, which may be overwritten, over the ranks."""
        ...

    def gathered(self, part: Tensor) -> Tensor:
        """[ranks, *shape]: `part` of every rank, in order of rank."""
        ...


class Peers:
    """The only rank of a model: it has whole layers.

    Attributes:
        shard: the part of the model that this rank has; None for all of it.
        total: sums outputs of layers over the ranks.
    """

    shard: Shard | None = None
    total: Sum = staticmethod(alone)

    def parts(self, own: Tensor) -> Tensor:
        """[parts, M, n] float32, whose sum over parts, in order, is that over all ranks; `own` is this rank's."""
        return own

    def whole(self, share: Tensor, out: Tensor | None) -> Tensor:
        """[K, vocab] logits, in `out` if given, of this rank's share [K, n] of them."""
        return share


class LinkedPeers(Peers):
    """One of several ranks.

    Args:
        shard: of this rank.
        links: to the others.
        in_one_order: add up the ranks' outputs in order of rank. Otherwise many rows are added by an all-reduce,
            whose order may depend on their number.
    """

    def __init__(self, shard: Shard, links: Gathers, in_one_order: bool) -> None:
        self.shard, self._links = shard, links
        self.total = self._total_in_order if in_one_order else links.total
        shares = [replace(shard, tensor_rank=rank).vocabulary for rank in range(shard.tensor_size)]
        self._widths = [share.stop - share.start for share in shares]

    def parts(self, own: Tensor) -> Tensor:
        """See `Peers.parts`: the parts of all ranks, for a kernel that adds them up in order."""
        return self._links.gathered(own).flatten(0, 1)

    def whole(self, share: Tensor, out: Tensor | None) -> Tensor:
        """See `Peers.whole`; all ranks get the same."""
        if not len(share):
            return share.new_empty(0, sum(self._widths))
        widest = max(self._widths)
        even = share if share.shape[1] == widest else functional.pad(share, (0, widest - share.shape[1]))
        found = zip(self._links.gathered(even.float()).unbind(), self._widths, strict=True)
        return torch.cat([part[:, :width] for part, width in found], dim=1, out=out)

    def _total_in_order(self, part: Tensor) -> Tensor:
        summed, *others = self._links.gathered(part).float().unbind()
        for other in others:
            summed = summed + other
        return summed.to(part.dtype)
