"""Untrained heads as drafters, named in an engine's configuration like a user's own drafter."""

from functools import partial

from paceline.drafters.heads.head import HeadDrafter, head_of
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.options import tree_shape
from tests.models.heads import records

HEADS = {
    "eagle3": records.eagle3, "dspark": records.dspark, "mlp_speculator": records.mlp_speculator,
    "medusa": records.medusa, "falcon": records.falcon, "p_eagle": records.p_eagle, "dflash": records.dflash,
    "hydra": records.hydra, "blockwise": records.blockwise, "eagle": partial(records.reduced, "eagle"),
    "mtp": partial(records.reduced, "mtp"),
}  # fmt: skip
"""Every family that has a network on the CPU."""


def make_random_head(services: DraftServices, family: str = "eagle3", tree: str = "chain", **options) -> HeadDrafter:
    """A head of a family with random weights."""
    record = HEADS[family]()
    return head_of(record, services, tree_shape(tree, block_tokens=record.config.block_tokens, **options))  # type: ignore[arg-type]
