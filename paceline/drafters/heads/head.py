"""`HeadDrafter`: drafts chains and trees with a trained head of any family; `head_of` constructs one for a target.

EAGLE, EAGLE-2, EAGLE-3 and 3.1, HASS, P-EAGLE, MTP; Falcon; DFlash and DSpark; Medusa, Hydra, MLP speculators,
blockwise heads. Drawn tokens carry the head's law, warped like the target's, so every exact rule stays exact. A token
outside the head's vocabulary has draft probability 0; the target can still emit it. Costs a pass of the head per level
(Falcon: one per k levels; block heads, and greedy chains of P-EAGLE: one in all). The head must be trained for this
target.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.heads.autoregressive import AutoregressiveRunner
from paceline.drafters.heads.block import BlockRunner
from paceline.drafters.heads.half_autoregressive import HalfAutoregressiveRunner
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.heads.paged import PagedRunner
from paceline.drafters.heads.stepwise import StepRunner
from paceline.drafters.runners.chains_at_once import ChainRunner
from paceline.drafters.runners.common_tokens import CommonTokens, common_tokens
from paceline.drafters.runners.growing import drafted
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import TreeShape
from paceline.drafters.trees.options import CHAIN
from paceline.errors import HeadWarning, InvalidParameter
from paceline.models.architecture.size import weights_per_row
from paceline.models.heads.build import make_net
from paceline.models.heads.nets import AutoregressiveNet, BlockNet, HalfAutoregressiveNet, HeadNet
from paceline.models.heads.record import HeadRecord, weights_read
from paceline.models.heads.self_check import run_self_check
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

HeadRunner = AutoregressiveRunner | HalfAutoregressiveRunner | BlockRunner | StepRunner
_READERS = (AutoregressiveRunner, HalfAutoregressiveRunner)
"""Runners that must compute every token of a text, and can draft to any depth."""

_FURTHER = 2
"""Levels beyond its trained depth that an autoregressive head may draft; the policy drops those that do not pay."""


class HeadDrafter:
    """Drafts with a runner.

    Args:
        name: for display: the family, or the head's own name.
        runner: computes logits.
        record: of the head.
        shape: of the trees.
        cost_ratio: cost of one level over that of a target pass.
        common: reduced vocabulary, used where it covers all texts that are drafted together.
    """

    def __init__(
        self, name: str, runner: HeadRunner, record: HeadRecord, shape: TreeShape = CHAIN, cost_ratio: float = 0.1,
        common: CommonTokens[Any] | None = None,
    ) -> None:  # fmt: skip
        self._common = common
        self.name, self.runner, self._begin, config = name, runner, shape.begin, record.config
        self._ids = None if record.draft_ids is None else record.draft_ids.astype(np.int64)
        at_once = None if shape.branches else runner.at_once
        self._chains = None if at_once is None else cast(ChainRunner, runner)
        self._deepest = config.num_steps if not isinstance(runner, _READERS) else None
        natural = config.num_steps + (_FURTHER if self._deepest is None else 0)
        self.traits = DrafterTraits(
            branches=shape.branches,
            whole=shape.branches,
            cost_ratio=cost_ratio,
            natural_budget=shape.natural_budget if shape.branches else natural,
            at_once=at_once is not None,
            prefers_coupled=at_once is not None and at_once.draws_chains,
            reads=isinstance(runner, _READERS),
            taps=config.taps,
            verified_early=at_once is not None and at_once.verifies_early,
        )

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        if self._common is not None and isinstance(self.runner, AutoregressiveRunner):
            contexts, net = self._common.narrowed(contexts)
            self.runner.score_with(net)
        return drafted(self.runner, [self._begin(self._own(context)) for context in contexts], self._chains)

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`; heads without a cache of their own read nothing."""
        return self.runner.read(self._own(context)) if isinstance(self.runner, PagedRunner) else 0

    def observe(self, outcome: RequestOutcome) -> None:
        """See `Drafter`."""
        self.runner.states.observe(outcome)
        self.runner.observe(outcome)

    def release(self, request_id: str) -> None:
        """See `Drafter`."""
        self.runner.states.release(request_id)
        self.runner.release(request_id)

    def _own(self, context: DraftContext) -> DraftContext:
        """The context for this head: laws over its own vocabulary, and at most as many levels as it supports."""
        if self._deepest is not None and context.max_depth > self._deepest:
            context = replace(context, max_depth=self._deepest)
        return context if self._ids is None else context.over(self._ids)


def head_of(
    record: HeadRecord, services: DraftServices, shape: TreeShape = CHAIN, dtype: str | None = None,
    draft_vocab_size: int | None = None,
) -> HeadDrafter:  # fmt: skip
    """A drafter with a head that fits the target, and a cache as large as the target's.

    Args:
        dtype: of the head's weights; None is the fastest, ``auto`` the target's.
        draft_vocab_size: of a prediction layer in the target's files; for the default see `common_tokens`.

    Raises:
        UnsupportedModel: the target's executor cannot run the head, or cannot return its taps.
        InvalidParameter: a `draft_vocab_size` below 1, or for another head.

    Warns:
        HeadWarning: on the self-check text of its card the head does far worse than recorded there.
    """
    target = services.target
    net = make_net(record, target, dtype)
    common = common_tokens(net, draft_vocab_size) if record.layer is not None else None
    if record.layer is None and draft_vocab_size is not None:
        problem = f"{record.config.family} heads have a vocabulary of their own"
        raise InvalidParameter("draft_vocab_size", problem, "leave it out")
    check = run_self_check(target.model, net, record.card)
    if check is not None and not check.passed:
        warnings.warn(str(check), HeadWarning, stacklevel=2)
    states = HiddenStates(record.config.taps, target.model, services.cache)
    runner = make_runner(net, states, services.num_pages, target.model.config.vocab_size)
    read = weights_read(record, None if common is None else len(common.ids))
    return HeadDrafter(
        record.config.family, runner, record, shape, read / weights_per_row(target.model.config), common
    )  # fmt: skip


def make_runner(net: HeadNet, states: HiddenStates, num_pages: int, vocab_size: int) -> HeadRunner:
    """The runner for the shape of `net`.

    Args:
        num_pages: of the head's own cache, where it has one.
        vocab_size: the target's.
    """
    if isinstance(net, HalfAutoregressiveNet):
        return HalfAutoregressiveRunner(net, states, num_pages, vocab_size)
    if isinstance(net, AutoregressiveNet):
        return AutoregressiveRunner(net, states, num_pages, vocab_size)
    if isinstance(net, BlockNet):
        return BlockRunner(net, states, num_pages, vocab_size)
    return StepRunner(net, states)
