"""Boost-tuning of a pool of drafts (SpecInfer, Miao et al. 2024, section 3.2): each learns what those before it miss.

The first draft learns from all texts; those whose answers it matches are dropped, and the next learns from the rest.
A text counts as matched when the draft's most probable token is the text's at `match` of its places: at 1, as in the
paper, hardly a long answer ever would be. Drafts of a pool are merged into one tree when they draft (`specinfer`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.training.drafts.distill import DistillRecipe, runs_of
from paceline.training.heads.figures import replayed
from paceline.training.heads.shards import Document, TapStore


def missed(recipe: DistillRecipe, store: TapStore, documents: Sequence[Document], match: float) -> list[Document]:
    """Those of `documents` that the draft does not match. Raises InvalidParameter for a share out of (0, 1]."""
    check_match(match)
    return [one for one in documents if float(recipe.hits(store, one).float().mean()) < match]


def check_match(match: float) -> None:
    """Raises InvalidParameter for a share out of (0, 1]."""
    if not 0 < match <= 1:
        raise InvalidParameter("match", f"{match} is no share", "give a number above 0, up to 1")


def pool_tokens_per_pass(hits: Sequence[Sequence[Tensor]], num_steps: int) -> tuple[list[float], float]:
    """Tokens per pass on greedy texts of each draft by itself, and of all of them merged into one tree of chains.

    Args:
        hits: per draft and text [places] whether its token stands there.
        num_steps: length of a chain.
    """
    lengths = [[accepted(one, num_steps) for one in own] for own in hits]
    merged = [torch.stack(list(of_text)).amax(0) for of_text in zip(*lengths, strict=True)]
    alone = [replayed([one.tolist() for one in own]) for own in lengths]
    return alone, replayed([one.tolist() for one in merged])


def accepted(hits: Tensor, num_steps: int) -> Tensor:
    """[places] how many tokens of a chain drafted at each place stand."""
    return runs_of(hits, num_steps).clamp(min=0).cumprod(1).sum(1)
