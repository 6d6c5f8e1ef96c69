"""`DraftModel`: a second, smaller model with the target's vocabulary drafts a chain or a tree.

Leviathan et al. 2023; Chen et al. 2023; trees: Miao et al. 2024 (SpecInfer), Li et al. 2024 (EAGLE-2), Cai et al. 2024
(Medusa). Exact with every exact rule: drawn tokens carry the law that they were drawn from, warped like the target's;
deterministic ones are marked as one-hot. Costs one draft pass per level, shared by all drafting requests. Use it when
the draft is several times cheaper than the target and agrees with it. Its passes and cache: `runners/draft_runner.py`.
"""

from collections.abc import Sequence

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_models.draft_ranks import DraftRanks
from paceline.drafters.draft_models.load import load_plain_draft
from paceline.drafters.runners.common_tokens import CommonTokens, common_tokens
from paceline.drafters.runners.draft_runner import DraftRunner
from paceline.drafters.runners.growing import drafted
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import TreeShape
from paceline.drafters.trees.options import CHAIN, TreeName, tree_shape
from paceline.models.base import CausalLM
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits


class DraftModel:
    """Drafts trees of a given shape with a draft model.

    Args:
        model, num_pages, max_prefill_rows, vocab_size: see `DraftRunner`.
        shape: of the trees.
        cost_ratio: cost of one level over that of a target pass.
        common: reduced vocabulary, used where it covers all texts that are drafted together.
    """

    name = "draft_model"

    def __init__(
        self,
        model: CausalLM,
        num_pages: int,
        max_prefill_rows: int = 512,
        shape: TreeShape = CHAIN,
        cost_ratio: float = 1.0,
        common: CommonTokens | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.runner = DraftRunner(model, num_pages, max_prefill_rows, vocab_size)
        self._chains = self.runner if self.runner.can_chain and not shape.branches else None
        self.traits = DrafterTraits(
            branches=shape.branches, whole=shape.branches, cost_ratio=cost_ratio, natural_budget=shape.natural_budget,
            at_once=self._chains is not None, prefers_coupled=self._chains is not None, reads=True,
        )  # fmt: skip
        self._begin = shape.begin
        self._common = common

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        if self._common is not None:
            contexts, model = self._common.narrowed(contexts)
            self.runner.score_with(model)
        return drafted(self.runner, [self._begin(context) for context in contexts], self._chains)

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`."""
        return self.runner.read(context)

    def observe(self, outcome: RequestOutcome) -> None:
        """See `Drafter`."""
        self.runner.observe(outcome)

    def release(self, request_id: str) -> None:
        """See `Drafter`."""
        self.runner.release(request_id)


def make_draft_model(
    services: DraftServices,
    model: str,
    max_prefill_rows: int = 512,
    tree: TreeName = "chain",
    expansion: Sequence[int] | None = None,
    paths: Sequence[Sequence[int]] | None = None,
    topk: int | None = None,
    depth: int | None = None,
    replacement: bool | None = None,
    dtype: str | None = None,
    draft_vocab_size: int | None = None,
    draft_tensor_parallel_size: DraftRanks = 1,
) -> DraftModel:
    """A drafter with the model called `model` and a cache as large as the target's.

    Args:
        tree, expansion, paths, topk, depth, replacement: see `tree_shape`.
        dtype: of the draft's weights, by default the target's; ``int8`` affects the draft only, never the output.
        draft_vocab_size: propose only the first that many tokens; for the default see `common_tokens`.
        draft_tensor_parallel_size: ranks that share its layers; ``auto`` is the faster of 1 and the target's.

    Raises:
        UnsupportedModel: the model has another vocabulary than the target, or cannot score a part of it.
        InvalidParameter: the options describe no tree, or a vocabulary below 1.
    """
    shape = tree_shape(tree, expansion=expansion, paths=paths, topk=topk, depth=depth, replacement=replacement)
    draft = load_plain_draft(services, model, dtype, draft_tensor_parallel_size)
    common = common_tokens(draft.model, draft_vocab_size)
    cost_ratio = services.cost_ratio([(draft, dtype)], None if common is None else len(common.ids))
    vocab_size = services.target.model.config.vocab_size
    return DraftModel(draft.model, services.num_pages, max_prefill_rows, shape, cost_ratio, common, vocab_size)
