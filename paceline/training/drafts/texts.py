"""Texts to train a draft model on, as tensors: the target's own, and continuations that the draft writes.

Row p of a document is the position after token p. A row is *labelled* when it takes a loss for its next token, for
which the target's law is softmax(head @ normed).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.base import NORMED, CausalLM, pages_for
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.heads.attention import Keys
from paceline.training.drafts.net import DraftNet
from paceline.training.heads.shards import Document, TapStore


@dataclass(frozen=True, eq=False, slots=True)
class Texts:
    """N rows of whole documents, concatenated.

    Attributes:
        tokens: [N] token of each row.
        following: [N] the token after each row's.
        lengths: rows of each document.
        labelled: [L] rows that take a loss, ascending.
        weights: [L] of labelled rows; those of a document add up to 1 over the number of documents.
        normed: [N, hidden] bfloat16, the target's state after its final norm.
    """

    tokens: Tensor
    following: Tensor
    lengths: list[int]
    labelled: Tensor
    weights: Tensor
    normed: Tensor


class Teacher(Protocol):
    """Computes the target's states after its final norm, [ids of all documents, hidden] bfloat16."""

    def __call__(self, documents: Sequence[np.ndarray]) -> Tensor: ...


def teacher_of(model: CausalLM) -> Teacher:
    """The teacher that runs `model` over whole documents."""

    def states(documents: Sequence[np.ndarray]) -> Tensor:
        parts, first = [], 0
        for ids in documents:
            pages = list(range(first, first := first + pages_for(len(ids))))
            parts.append(Part(pages, 0, ids.tolist(), logits="none"))
        found = model.forward(build_rows(parts), model.new_cache(first), (NORMED,)).taps[NORMED]
        return torch.from_numpy(to_bfloat16(found).view(np.int16)).view(torch.bfloat16)

    return states


def stored_states(store: TapStore, documents: Sequence[Document]) -> Tensor:
    """[rows of all documents, hidden] bfloat16 states after the final norm, stored when the target read the texts."""
    rows = store.rows(documents, [store.taps.index(NORMED)])[:, 0]
    return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)


def make_texts(ids: Sequence[np.ndarray], num_prompts: Sequence[int], normed: Tensor, share: float = 1.0,
               random: torch.Generator | None = None, left_out: Sequence[Tensor | None] = ()) -> Texts:  # fmt: skip
    """The rows and labels of documents.

    Args:
        ids: per document [n]; the last token has no row.
        num_prompts: tokens of each prompt; rows before later tokens are labelled.
        normed: [N, hidden] bfloat16 states of all rows.
        share: of those rows that are labelled, at random, but at least one of each document.
        left_out: per document, for its last tokens, whether they take no loss; None leaves out none.
    """
    labelled, weights, start = [], [], 0
    for own, num_prompt, known in zip(ids, num_prompts, left_out or [None] * len(ids), strict=True):
        rows = torch.arange(max(num_prompt - 1, 0), len(own) - 1)
        if known is not None:
            kept = torch.ones(len(rows), dtype=torch.bool)
            kept[len(rows) - len(known) :] = ~known
            rows = rows[kept]
        if share < 1 and len(rows):
            drawn = torch.rand(len(rows), generator=random)
            rows = rows[(drawn < share) | (drawn == drawn.min())]
        labelled.append(rows + start)
        weights.append(torch.full((len(rows),), 1 / (max(len(rows), 1) * len(ids))))
        start += len(own) - 1
    tokens, following = (torch.from_numpy(np.concatenate(part).astype(np.int64))
                         for part in ([one[:-1] for one in ids], [one[1:] for one in ids]))  # fmt: skip
    return Texts(tokens, following, [len(one) - 1 for one in ids], torch.cat(labelled), torch.cat(weights), normed)


@torch.no_grad()
def continued(net: DraftNet, prompts: Sequence[np.ndarray], num_tokens: Sequence[int], ends: Sequence[int],
              random: torch.Generator, vocab_size: int | None = None) -> list[np.ndarray]:  # fmt: skip
    """Each prompt followed by the draft's continuation, sampled at temperature 1.

    Args:
        num_tokens: largest number of tokens of each continuation.
        ends: token ids that end a text.
        vocab_size: number of ids that may be sampled, where the draft's table has more rows than the target's.
    """
    rows = net.head[:vocab_size]
    most, lengths = max(num_tokens), [len(one) for one in prompts]
    cache, x = _prefilled(net, prompts, most)
    place, said = torch.tensor(lengths), torch.zeros(len(prompts), most, dtype=torch.int64)
    for i in range(most):
        law = (x.to(rows.dtype) @ rows.T).float().softmax(-1)
        said[:, i] = torch.multinomial(law, 1, generator=random)[:, 0]
        if i + 1 < most:
            x, place = net.step(said[:, i], place, cache), place + 1
    return [np.concatenate([prompt, _ended(row[:size], ends)]).astype(np.int32)
            for prompt, row, size in zip(prompts, said.numpy(), num_tokens, strict=True)]  # fmt: skip


def _prefilled(net: DraftNet, prompts: Sequence[np.ndarray], most: int) -> tuple[list[Keys], Tensor]:
    """Keys and values of the prompts with room for `most` more tokens, and the final state [hidden] of each prompt."""
    lengths, kept = [len(one) for one in prompts], []
    tokens = torch.from_numpy(np.concatenate(list(prompts)).astype(np.int64))
    found = net(tokens, lengths, kept)
    room = max(lengths) + most
    cache = [Keys(*(_padded(one, lengths, room) for one in keys)) for keys in kept]
    return cache, found[torch.tensor(lengths).cumsum(0) - 1]


def _padded(rows: Tensor, lengths: Sequence[int], room: int) -> Tensor:
    """[documents, room, ...] float32 from the concatenated rows of documents, padded with zeros."""
    parts = rows.float().split(list(lengths))
    return torch.stack([functional.pad(part, (0, 0, 0, 0, 0, room - len(part))) for part in parts])


def _ended(said: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    places = np.flatnonzero(np.isin(said, list(ends)))
    return said[: places[0] + 1] if len(places) else said
