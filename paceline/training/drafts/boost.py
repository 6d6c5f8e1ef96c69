"""Boost-tuning of a pool of drafts (SpecInfer, Miao et al. 2024, section 3.2): each learns what the earlier ones miss.

The paper trains the next draft without the texts whose answers a draft matches. A small draft hardly ever matches
a whole long answer, so here single positions are left out: those where the most probable token of an earlier draft is
the text's token. With `match`, whole texts are dropped instead: those where a draft is right at this share of
positions. When they draft, the drafts of a pool are merged into one tree (`specinfer`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.training.drafts.distill import DistillRecipe, runs_of
from paceline.training.heads.figures import replayed
from paceline.training.heads.shards import Document, TapStore
from paceline.types import Progress


@dataclass(slots=True)
class Lessons:
    """What the next draft of a pool learns from.

    Attributes:
        documents: texts to train on.
        match: documents where a draft is right at this share of positions are dropped; None drops single positions.
        whole_texts: positions of prompts are trained on too; they are never left out.
        known: by `Document.key`, [answer tokens] positions to leave out because an earlier draft predicts the token.
    """

    documents: Sequence[Document]
    match: float | None = None
    whole_texts: bool = False
    known: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.match is not None and not 0 < self.match <= 1:
            raise InvalidParameter("match", f"{self.match} is no share", "give a number above 0, up to 1")

    @property
    def num_places(self) -> int:
        """Number of positions that the next draft is trained on."""
        told = [one.conversation for one in self.documents]
        sizes = sum(len(one.ids) - 1 if self.whole_texts else len(one.answer) for one in told)
        return sizes - sum(int(self.known[one.key].sum()) for one in self.documents if one.key in self.known)

    def after(self, hits: Sequence[Tensor]) -> "Lessons":
        """What is left for the next draft after a draft with these hits.

        Args:
            hits: of each document, [answer tokens] whether the draft's most probable token is the text's.

        Raises:
            InvalidParameter: nothing is left.
        """
        pairs = zip(self.documents, hits, strict=True)
        if self.match is None:
            known = {one.key: self.known.get(one.key, torch.zeros_like(own)) | own for one, own in pairs}
            left = [one for one in self.documents if self.whole_texts or not known[one.key].all()]
        else:
            known, left = {}, [one for one, own in pairs if float(own.float().mean()) < self.match]
        if not left:
            nothing = "so there is nothing left to learn"
            if self.match is None:
                raise InvalidParameter("pool", f"every place is named, {nothing}", "make it smaller")
            raise InvalidParameter(
                "match", f"every text is matched, {nothing}", "give a larger share, or a smaller pool"
            )
        return Lessons(left, self.match, self.whole_texts, known)


def hits_on(recipe: DistillRecipe, store: TapStore, documents: Sequence[Document],
            progress: Progress = lambda done, total: None) -> list[Tensor]:  # fmt: skip
    """For each document, [answer tokens] whether the draft's most probable token is the text's."""
    found = []
    for one in documents:
        found.append(recipe.hits(store, one))
        progress(len(found), len(documents))
    return found


def pool_tokens_per_pass(hits: Sequence[Sequence[Tensor]], num_steps: int) -> tuple[list[float], float]:
    """Tokens per pass on greedy texts: of each draft alone, and of all drafts merged into one tree of chains.

    Args:
        hits: per draft and text, [positions] whether the drafted token is the text's.
        num_steps: length of a chain.
    """
    lengths = [[accepted(one, num_steps) for one in own] for own in hits]
    merged = [torch.stack(list(of_text)).amax(0) for of_text in zip(*lengths, strict=True)]
    alone = [replayed([one.tolist() for one in own]) for own in lengths]
    return alone, replayed([one.tolist() for one in merged])


def accepted(hits: Tensor, num_steps: int) -> Tensor:
    """[positions] number of accepted tokens of a chain that is drafted at each position."""
    return runs_of(hits, num_steps).clamp(min=0).cumprod(1).sum(1)
