"""How drafting options become a config."""

import pytest

from paceline.cli.options.model import speculative_config
from paceline.errors import InvalidParameter

HEAD = "smollm2-135m/eagle3"


@pytest.mark.parametrize("draft", ["auto", "draft_model", "hybrid", "cross_vocabulary", "spire"])
def test_a_heads_name_in_the_place_of_a_models_is_told(draft):
    with pytest.raises(InvalidParameter, match="is a draft head and no model; add --draft head"):
        speculative_config(draft, HEAD)


def test_a_hybrid_of_named_drafters_may_have_a_head():
    config = speculative_config("hybrid", HEAD, draft_option=['drafters=["suffix", "head"]'])
    assert config is not None and config.model == HEAD
    assert speculative_config("head", HEAD).model == HEAD  # type: ignore[union-attr]
