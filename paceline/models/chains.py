"""Draft chains of several tokens in one call, for models and heads that can compute them.

Tokens are the most probable ones or, with `Draws`, drawn with noise that is known beforehand, as under the coupled
rule. Not for drafts whose laws are needed afterwards (`drafters/`), nor for requests whose logits are edited.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.models.base import KVCache, Rows


class ChainDraft(NamedTuple):
    """Drafted target ids [requests, levels] int32, and the largest probability at each, [requests, levels] float32.

    Probabilities are at the request's temperature (1 where the most probable token is taken), before min-p, top-k and
    top-p; those of a head are over its own vocabulary.
    """

    tokens: np.ndarray
    top_probs: np.ndarray


class Draws(NamedTuple):
    """How the tokens of each request's chain are drawn.

    Attributes:
        temperature: [requests]; 0 takes the most probable token.
        min_p, top_k, top_p: [requests], as in `SamplingParams`.
        keys: [requests, levels or more] uint64, the noise of each draw; see `CounterRandomness.key`.
    """

    temperature: np.ndarray
    min_p: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    keys: np.ndarray


@runtime_checkable
class DraftsChains(Protocol):
    """A `CausalLM` that can draft several tokens without returning logits in between."""

    def draft_chains(self, rows: Rows, cache: KVCache, num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """A chain after each logit row: the most probable tokens, the lowest id on ties, or `draws`.

        Keys and values of the drafted tokens are written to the slots of positions p + 1, p + 2, .. after a logit row
        at position p; the pages of its segment must hold `num_tokens` - 1 more slots.

        Args:
            rows, cache: as for `forward`; logit rows must not be in a tree branch.
            num_tokens: tokens to draft, 1 or more.
        """
        ...
