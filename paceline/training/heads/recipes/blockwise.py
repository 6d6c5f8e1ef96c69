"""Blockwise parallel decoding (Stern et al. 2018, section 6), the target frozen: all places' losses weigh the same.

The paper takes the loss of one place at random to save memory; the mean over all is what that has on average. Drafts
are verified exactly as any others; the paper's looser criteria are the lossy rules `top_k` and `distance`
(`sampling/lossy.py`).
"""

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blockwise import Blockwise
from paceline.training.heads.recipes.base import Target
from paceline.training.heads.recipes.medusa import MedusaRecipe

_WIDER = 2
"""Width of a feed-forward over the hidden state's."""


class BlockwiseRecipe(MedusaRecipe):
    """A feed-forward per place, the target's own head rows."""

    family, decay = "blockwise", 1.0

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        inner = _WIDER * target.config.hidden_size
        return HeadConfig(
            "blockwise", target.about, (NORMED,), None, 0, num_steps, draft_vocab_size, inner_size=inner
        )  # fmt: skip

    def build(self, target: Target) -> Blockwise:
        return Blockwise(self.config, target.embedding, self.rows)
