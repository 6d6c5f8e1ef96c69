"""The tokens of draft chains, picked on the device from the logits of each level: the most probable, or drawn ones.

Draws are those of `sampling/randomness.py` over the warped law. Where top-k or top-p may cut it, it is restricted to
the `CANDIDATES` largest logits, so that the vocabulary need not be sorted at each level. That costs acceptance only
where the target picks a token that the draft holds for improbable; a draft never decides the text. Not for
verification, whose laws are exact (`answers.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.fetch import Fetched, Send
from paceline.models.cuda_executor.laws.noise import exponentials, words
from paceline.models.cuda_executor.laws.warp import law_weights

CANDIDATES = 256
"""Most tokens that one is drawn from."""
_NUM_OPTIONS = 4
_COLDEST = 1e-3
"""Least temperature at which a probability is computed: below it quotients might overflow, and it is about 1."""


def packed(draws: Draws) -> np.ndarray:
    """[requests, 4 + levels] int64: the bits of temperature, min_p, top_k and top_p as float64, then the keys."""
    options = np.stack([draws.temperature, draws.min_p, draws.top_k, draws.top_p], axis=1).astype(np.float64)
    return np.concatenate([options.view(np.int64), words(draws.keys)], axis=1)


def unpacked(bits: np.ndarray) -> Draws:
    """The draws of `packed`."""
    temperature, min_p, top_k, top_p = bits[:, :_NUM_OPTIONS].T.copy().view(np.float64)
    return Draws(temperature, min_p, top_k, top_p, bits[:, _NUM_OPTIONS:].copy().view(np.uint64))


class Kernels(NamedTuple):
    """See `kernels.ends.likeliest` and `kernels.races.draw`."""

    likeliest: Callable[[Tensor], tuple[Tensor, Tensor]]
    draw: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class Picks:
    """How the token of a row is picked.

    Attributes:
        ids: [columns] token id of each column of logits; None where columns are ids.
        draws: [rows, 4 + levels], `packed`, on the device; None takes the most probable token.
        truncates: whether top-k or top-p cuts a law that is drawn from.
        kernels: in place of `likeliest` and, for laws that are not cut, of draws from the largest logits.
    """

    ids: Tensor | None = None
    draws: Tensor | None = None
    truncates: bool = True
    kernels: "Kernels | None" = None

    @classmethod
    def of(
        cls, draws: Draws | None, send: Send, ids: Tensor | None = None, kernels: "Kernels | None" = None
    ) -> "Picks":
        """Picks by `draws`, which are sent to the device."""
        if draws is None:
            return cls(ids, None, False, kernels)
        send.begin()
        truncates = bool((draws.top_k > 0).any() or (draws.top_p < 1).any())
        return cls(ids, send(packed(draws)), truncates, kernels)

    @property
    def keys(self) -> Tensor | None:
        """[rows, levels or more] the noise of draws, a view."""
        return None if self.draws is None else self.draws[:, _NUM_OPTIONS:]

    @property
    def form(self) -> tuple[bool, bool]:
        """Equal for picks that the same kernels make."""
        return self.draws is not None, self.truncates

    def at(self, level: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens [rows], `ChainDraft.top_probs` [rows]) of logits [rows, columns] at a level, 0 being the first."""
        rank = likeliest if self.kernels is None else self.kernels.likeliest
        if self.draws is None:
            column, prob = rank(logits)
            return self._named(column), prob
        options, keys = self.draws[:, :_NUM_OPTIONS].view(torch.float64), self.draws[:, _NUM_OPTIONS + level]
        temperature, min_p, top_k, top_p = options.split(1, dim=1)
        is_drawn = temperature > 0
        temperature = torch.where(is_drawn, temperature, 1.0)
        column, prob = rank(logits / temperature.clamp_min(_COLDEST).float())
        if self.kernels is not None and not self.truncates:
            drawn = self.kernels.draw(logits, column, temperature, min_p, keys, self.ids)
            return self._named(torch.where(is_drawn.squeeze(1), drawn, column)), prob
        scores, columns = logits.topk(min(CANDIDATES, logits.shape[1]), dim=1)
        tokens = self._named(columns)
        weights = law_weights(scores.double(), temperature, min_p, top_k.long(), top_p, self.truncates)
        drawn = tokens.gather(1, (exponentials(keys, tokens) / weights).argmin(dim=1, keepdim=True))
        return torch.where(is_drawn, drawn, self._named(column)[:, None]).squeeze(1), prob

    def _named(self, columns: Tensor) -> Tensor:
        return columns if self.ids is None else self.ids[columns]


def read_draft(table: Fetched) -> ChainDraft:
    """The draft in a table [2, levels, requests] of tokens and largest probabilities; waits for it."""
    [(tokens, probs)] = table.wait()
    return ChainDraft(tokens.T.astype(np.int32), probs.T.astype(np.float32))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(argmax [n] of logits [n, m], the first on ties; its probability [n])."""
    peak, column = logits.max(dim=-1)
    return column, (peak - logits.logsumexp(dim=-1)).exp()
