"""Blockwise parallel decoding (Stern et al. 2018, section 6) with a frozen target: all positions have the same weight.

To save memory the paper takes the loss of one random position; here it is proportional to its expectation, the mean
over all. Drafts are verified exactly, like any others; the paper's approximate criteria are the lossy rules `top_k` and
`distance` (`sampling/lossy.py`).
"""

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blockwise import Blockwise
from paceline.training.heads.recipes.medusa import MedusaRecipe
from paceline.training.heads.target import Target

_WIDER = 2
"""Inner size of a feed-forward, in hidden sizes."""


class BlockwiseRecipe(MedusaRecipe):
    """One feed-forward per position; the output head is the target's."""

    family, decay = "blockwise", 1.0

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        inner = _WIDER * target.config.hidden_size
        return HeadConfig(
            "blockwise", target.about, (NORMED,), None, 0, num_steps, draft_vocab_size, inner_size=inner
        )  # fmt: skip

    def build(self, target: Target) -> Blockwise:
        return Blockwise(self.config, target.embedding, self.rows)
