"""`SpecInfer`: several draft models propose into one tree; the target checks it in one pass (Miao et al. 2024).

Each model expands the tree below its own proposals by its own expansion <k1..km>, with its own cache. Equal paths of
several models are merged: the target computes them once, and every model's children there are separate trials. Draws
keep their multiplicity (a token drawn twice is tested twice, each time against its own law), so the output has the
target's law. Greedy and coupled requests get each model's most likely tokens instead, with equal ones merged.

Trials are tested in the order of the models. The paper uses a random order; both are exact, since a round is exact for
any sibling that is selected without looking at its token. With the best model first, fewer tests are wasted. Costs one
pass per level and model. Use it when differently trained small models agree with the target on different texts. Not the
place for training such a pool (boost-tuning).
"""

from collections.abc import Sequence

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_models.load import load_plain_draft
from paceline.drafters.runners.draft_runner import DraftRunner
from paceline.drafters.runners.growing import grow_all
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.drawn import Drawn, Expansion
from paceline.drafters.trees.options import checked_expansion, num_nodes
from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

DEFAULT_EXPANSION = (1, 1, 1, 1)
"""A chain of four tokens from each model; the union of differing chains is a tree."""


class SpecInfer:
    """Drafts with `models` together.

    Args:
        models: draft models with the target's vocabulary.
        expansions: one per model: children per node, level by level.
        num_pages: pages of each model's cache. Requests that do not fit together are processed in turns.
        max_prefill_rows: most rows of one prefill pass.
        cost_ratio: cost of a level of the tree, by all models, over that of a one-row target pass.
        vocab_size: see `DraftRunner`.
    """

    name = "specinfer"

    def __init__(
        self,
        models: Sequence[CausalLM],
        expansions: Sequence[Expansion],
        num_pages: int,
        max_prefill_rows: int = 512,
        cost_ratio: float = 1.0,
        vocab_size: int | None = None,
    ) -> None:
        self.runners = [DraftRunner(model, num_pages, max_prefill_rows, vocab_size) for model in models]
        self._expansions = expansions
        nodes = sum(map(num_nodes, expansions))
        self.traits = DrafterTraits(branches=True, whole=True, cost_ratio=cost_ratio, natural_budget=nodes, reads=True)

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        growths = [Drawn(context, self._expansions) for context in contexts]
        grow_all(self.runners, growths)
        return [growth.tree() for growth in growths]

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`."""
        return min([runner.read(context) for runner in self.runners])

    def observe(self, outcome: RequestOutcome) -> None:
        """See `Drafter`."""
        for runner in self.runners:
            runner.observe(outcome)

    def release(self, request_id: str) -> None:
        """See `Drafter`."""
        for runner in self.runners:
            runner.release(request_id)


def make_specinfer(
    services: DraftServices,
    models: Sequence[str],
    expansion: Expansion | Sequence[Expansion] = DEFAULT_EXPANSION,
    max_prefill_rows: int = 512,
    dtypes: Sequence[str] | None = None,
) -> SpecInfer:
    """A drafter with the models called `models`; put the one with the highest acceptance rate first.

    Args:
        services: of the engine.
        models: names as for the target; a model that comes twice is loaded once and drafts twice.
        expansion: children per node, level by level: one list for all models, or one list for each.
        max_prefill_rows: see `SpecInfer`.
        dtypes: of each model's weights, by default the target's.

    Raises:
        UnsupportedModel: a model has another vocabulary than the target.
        InvalidParameter: no models, or expansions that do not fit them.
    """
    if isinstance(models, str) or not models or not all(isinstance(name, str) for name in models):
        raise InvalidParameter("models", f"{models!r} is no list of model names", "name at least one draft model")
    if dtypes is not None and (isinstance(dtypes, str) or len(dtypes) != len(models)):
        raise InvalidParameter("dtypes", f"{dtypes!r} is no list of {len(models)} dtypes", "give one for each model")
    expansions = _expansions(expansion, len(models))
    wanted = list(zip(models, dtypes or [None] * len(models), strict=True))
    loaded = {each: load_plain_draft(services, *each) for each in dict.fromkeys(wanted)}
    models_loaded = [loaded[each] for each in wanted]
    cost_ratio = services.cost_ratio([(model, dtype) for model, (_, dtype) in zip(models_loaded, wanted, strict=True)])
    passes = [each.model for each in models_loaded]
    vocab_size = services.target.model.config.vocab_size
    return SpecInfer(passes, expansions, services.num_pages, max_prefill_rows, cost_ratio, vocab_size)


def _expansions(expansion: Expansion | Sequence[Expansion], num_models: int) -> list[Expansion]:
    """One checked expansion per model."""
    nested = isinstance(expansion, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in expansion)
    each = list(expansion) if nested else [expansion] * num_models
    if len(each) != num_models:
        problem = f"{len(each)} lists for {num_models} models"
        raise InvalidParameter("expansion", problem, "give one list for all models or one for each")
    return [checked_expansion(one) for one in each]  # type: ignore[arg-type]
