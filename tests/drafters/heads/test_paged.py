"""Which growths a head with a cache of its own can hold: by the target's context and by the cache."""

from types import SimpleNamespace

import pytest

from paceline.drafters.heads.paged import PagedRunner
from paceline.drafters.trees.drawn import Drawn
from paceline.models.base import PAGE_SIZE
from tests.drafters.contexts import context


@pytest.mark.parametrize(
    ("num_tokens", "budget", "depth", "holds"),
    [(1, 2, 2, False), (2, 2, 2, True), (97, 3, 9, True), (97, 4, 9, False), (97, 12, 3, True), (90, 20, 3, True),
     (97, 40, 3, False)],
)  # fmt: skip
def test_paths_must_fit_the_targets_context_and_all_rows_the_cache(num_tokens, budget, depth, holds):
    runner = PagedRunner(SimpleNamespace(max_positions=100), SimpleNamespace(num_pages=8), 50)  # type: ignore[arg-type]
    assert 8 * PAGE_SIZE == 128
    own = context(range(num_tokens), budget, "a")
    own.max_depth = depth
    assert runner.can_hold(Drawn(own)) == holds
