"""Documents in a fixed random order, and batches of them as tensors.

Row p of a document holds the target's hidden states after token p. An *anchor* is a row whose next token begins a
draft: step j of it reads token p + 1 + j and is to name token p + 2 + j, whose law the target gives at row p + 1 + j.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import NORMED
from paceline.training.heads.shards import Document, TapStore


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """N rows of whole documents, one after the other, and S anchors among them.

    Attributes:
        taps: [N, taps, hidden] bfloat16, those that the head reads.
        normed: [N, hidden] bfloat16, the target's hidden state after its final norm.
        next_tokens: [N] the token after each row's own.
        lengths: rows of each document.
        anchors: [S] rows, ascending.
        ends: [S] the first row after each anchor's document.
    """

    taps: Tensor
    normed: Tensor
    next_tokens: Tensor
    lengths: list[int]
    anchors: Tensor
    ends: Tensor

    def tokens(self, offset: int) -> Tensor:
        """[S] the token `offset` + 1 places after each anchor's row; the document's last where it ends before."""
        return self.next_tokens[torch.minimum(self.anchors + offset, self.ends - 1)]

    def labelled(self, step: int) -> Tensor:
        """[S] anchors whose step has a token to name."""
        return self.anchors + 1 + step < self.ends

    def teacher(self, step: int) -> Tensor:
        """[labelled anchors, hidden] from which the target's head makes the law of the token to name."""
        return self.normed[(self.anchors + 1 + step)[self.labelled(step)]]


def make_batch(store: TapStore, documents: Sequence[Document], taps: Sequence[int], share: float,
               generator: torch.Generator | None = None) -> Batch:  # fmt: skip
    """The batch of these documents.

    Args:
        taps: what the head reads.
        share: of the rows of answers that become anchors, at random; 1 takes all.
    """
    columns = [store.taps.index(tap) for tap in (*taps, NORMED)]
    rows = torch.from_numpy(store.rows(documents, columns).view(np.int16)).view(torch.bfloat16)
    lengths = [one.num_rows for one in documents]
    anchors, ends, start = [], [], 0
    for one in documents:
        found = torch.arange(max(one.conversation.num_prompt - 1, 0), one.num_rows - 1) + start
        if share < 1:
            found = found[torch.rand(len(found), generator=generator) < share]
        start += one.num_rows
        anchors.append(found)
        ends.append(torch.full_like(found, start))
    following = np.concatenate([one.conversation.ids[1:] for one in documents]).astype(np.int64)
    return Batch(rows[:, :-1], rows[:, -1], torch.from_numpy(following), lengths, torch.cat(anchors), torch.cat(ends))


class Order:
    """Which documents come next: every one once, shuffled anew each time.

    Args:
        documents: to train on.
        seed: of the order.
    """

    def __init__(self, documents: Sequence[Document], seed: int) -> None:
        self._documents, self._rng = list(documents), np.random.default_rng(seed)
        self._left: list[int] = []
        self.epochs = -1

    def take(self, num_rows: int) -> list[Document]:
        """The next documents, at least `num_rows` rows together."""
        taken: list[Document] = []
        while sum(one.num_rows for one in taken) < num_rows:
            if not self._left:
                self._left, self.epochs = self._rng.permutation(len(self._documents)).tolist(), self.epochs + 1
            taken.append(self._documents[self._left.pop()])
        return taken

    def state(self) -> dict[str, Any]:
        """What `restore` goes on from."""
        return {"left": list(self._left), "epochs": self.epochs, "rng": self._rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on as at `state`; documents that came since are taken in at the next shuffle."""
        self._left, self.epochs = list(state["left"]), state["epochs"]
        self._rng.bit_generator.state = state["rng"]
