"""`Peers`: what a network needs of the ranks that share its layers: sums over them, and the logits of all shares.

Every rank runs the same passes over the same rows and has the same hidden states; a rank's shard has some of the heads,
of the feed-forward units and of the vocabulary (`torch_executor/shard.py`). Not for ranks with other layers
(`stages.py`), nor for commands to the ranks (`parallel/`).
"""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.torch_executor.model import Taps
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
    """The only rank of a model: it has all layers, and whole ones.

    Attributes:
        shard: the part of the model that this rank has; None for all of it.
        total: sums outputs of layers over the ranks.
    """

    shard: Shard | None = None
    total: Sum = staticmethod(alone)

    def parts(self, own: Tensor) -> Tensor:
        """[parts, M, n] float32, whose sum over parts, in order, is that over all ranks; `own` is this rank's."""
        return own

    def before(self, num_rows: int) -> Tensor | None:
        """[num_rows, hidden] float32: the hidden states that this rank's layers begin with; None for embeddings."""
        return None

    def after(self, x: Tensor) -> None:
        """Give the ranks with the next layers the hidden states x [M, hidden] after this rank's, if there are any."""

    def whole(self, found: Tensor, num_asked: int, out: Tensor | None) -> Tensor:
        """[num_asked, vocab] logits, on every rank, in `out` where possible.

        Args:
            found: this rank's share [num_asked, n] of the logits; on a rank without the last layer the hidden states
                [M, hidden] after its own, which `after` is given.
        """
        return found

    def states(self, tapped: Taps, taps: tuple[int, ...], num_rows: int) -> Tensor | None:
        """[num_rows, taps * hidden] the states of `taps` side by side, on rank 0; None where there are no taps.

        Args:
            tapped: those of this rank's layers.
        """
        return torch.cat([tapped[tap] for tap in taps], dim=1) if taps else None


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

    def whole(self, found: Tensor, num_asked: int, out: Tensor | None) -> Tensor:
        """See `Peers.whole`; all ranks get the same."""
        if not num_asked:
            return found.new_empty(0, sum(self._widths))
        widest = max(self._widths)
        even = found if found.shape[1] == widest else functional.pad(found, (0, widest - found.shape[1]))
        shares = zip(self._links.gathered(even.float()).unbind(), self._widths, strict=True)
        return torch.cat([share[:, :width] for share, width in shares], dim=1, out=out)

    def _total_in_order(self, part: Tensor) -> Tensor:
        summed, *others = self._links.gathered(part).float().unbind()
        for other in others:
            summed = summed + other
        return summed.to(part.dtype)
