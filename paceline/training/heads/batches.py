"""Batches of documents as tensors.

Row p of a document holds the target's hidden states after token p. An *anchor* is a row p from which a draft begins:
its step j = 0, 1, ... reads token p + 1 + j and predicts token p + 2 + j, whose target law is at row p + 1 + j.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import NORMED
from paceline.training.heads.shards import Document, TapStore

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """N rows of whole documents, concatenated, and S anchors among them.

    Attributes:
        taps: [N, taps, hidden] bfloat16 hidden states that the head reads.
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
        """[S] the token `offset` + 1 positions after each anchor's own; at most the document's last token."""
        return self.next_tokens[torch.minimum(self.anchors + offset, self.ends - 1)]

    def labelled(self, step: int) -> Tensor:
        """[S] bool, whether the document has a token for this step of the anchor to predict."""
        return self.anchors + 1 + step < self.ends

    def teacher(self, step: int) -> Tensor:
        """[labelled anchors, hidden] final states whose product with the target's head is the law to predict."""
        return self.normed[(self.anchors + 1 + step)[self.labelled(step)]]


def make_batch(store: TapStore, documents: Sequence[Document], taps: Sequence[int], share: float,
               generator: torch.Generator | None = None, device: torch.device = CPU) -> Batch:  # fmt: skip
    """The batch of these documents, on `device`; the drawn anchors are the same on every device.

    Args:
        taps: hidden states that the head reads.
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
    rows, next_tokens = rows.to(device), torch.from_numpy(following).to(device)
    places = (torch.cat(one).to(device) for one in (anchors, ends))
    return Batch(rows[:, :-1], rows[:, -1], next_tokens, lengths, *places)
