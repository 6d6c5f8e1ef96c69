"""Untrained heads as drafters, named in an engine's configuration like a user's own drafter."""

from paceline.drafters.heads.head import HeadDrafter, head_of
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.options import tree_shape
from tests.models.heads import records

HEADS = {
    "eagle3": records.eagle3, "dspark": records.dspark, "mlp_speculator": records.mlp_speculator,
    "medusa": records.medusa, "falcon": records.falcon, "p_eagle": records.p_eagle,
}  # fmt: skip


def make_random_head(services: DraftServices, family: str = "eagle3", tree: str = "chain", **options) -> HeadDrafter:
    """A head of a family with random weights."""
    record = HEADS[family]()
    return head_of(record, services, tree_shape(tree, block_tokens=record.config.block_tokens, **options))  # type: ignore[arg-type]
