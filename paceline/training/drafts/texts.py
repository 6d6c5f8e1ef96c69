"""Texts for a draft to learn from, as tensors: those of the target, and those that the draft goes on to itself.

Row p of a document stands after token p; it is *labelled* when the next token is the answer's, and the target's law of
that token is its head times `normed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.base import NORMED, CausalLM, pages_for
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.heads.attention import Keys
from paceline.training.drafts.net import DraftNet
from paceline.training.heads.shards import Document, TapStore, to_bfloat16


@dataclass(frozen=True, eq=False, slots=True)
class Texts:
    """N rows of whole documents, one after the other.

    Attributes:
        tokens: [N] of each row.
        following: [N] the token after each.
        lengths: rows of each document.
        labelled: [L] rows before tokens of answers, ascending.
        weights: [L] of each: a document's add up to 1 over the number of documents.
        normed: [N, hidden] bfloat16, the target's state after its final norm.
    """

    tokens: Tensor
    following: Tensor
    lengths: list[int]
    labelled: Tensor
    weights: Tensor
    normed: Tensor


class Teacher(Protocol):
    """The target's states after its final norm, in bfloat16 [ids of all, hidden], for documents of token ids."""

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
    """[rows of all, hidden] bfloat16 as the target had them when it wrote the documents."""
    rows = store.rows(documents, [store.taps.index(NORMED)])[:, 0]
    return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)


def make_texts(ids: Sequence[np.ndarray], num_prompts: Sequence[int], normed: Tensor, share: float = 1.0,
               random: torch.Generator | None = None, left_out: Sequence[Tensor | None] = ()) -> Texts:  # fmt: skip
    """The texts of documents with their states.

    Args:
        ids: [n] each; the last token has no row.
        share: of the rows before answer tokens that are labelled, at random, at least one of a document.
        left_out: of each document, [its last tokens] which have no label; None for none.
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
    """Each prompt with what the draft says after it at temperature 1.

    Args:
        num_tokens: most, of each.
        ends: token ids that end a text.
        vocab_size: tokens that may be said, where the draft's table is padded further than the target's.
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
    """Keys and values of the prompts with room for `most` more tokens, and what the head reads after each prompt."""
    lengths, kept = [len(one) for one in prompts], []
    tokens = torch.from_numpy(np.concatenate(list(prompts)).astype(np.int64))
    found = net(tokens, lengths, kept)
    room = max(lengths) + most
    cache = [Keys(*(_padded(one, lengths, room) for one in keys)) for keys in kept]
    return cache, found[torch.tensor(lengths).cumsum(0) - 1]


def _padded(rows: Tensor, lengths: Sequence[int], room: int) -> Tensor:
    """[documents, room, ...] of rows of documents one after the other."""
    parts = rows.float().split(list(lengths))
    return torch.stack([functional.pad(part, (0, 0, 0, 0, 0, room - len(part))) for part in parts])


def _ended(said: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    places = np.flatnonzero(np.isin(said, list(ends)))
    return said[: places[0] + 1] if len(places) else said
