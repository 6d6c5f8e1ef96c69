"""Loading draft models: of the target's vocabulary, on as many ranks as they should have, with or without a memory."""

from paceline.drafters.draft_models.draft_ranks import DraftRanks, ranks_of_draft
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.feedback import has_memory
from paceline.models.loaded import LoadedModel


def load_plain_draft(
    services: DraftServices, name: str, dtype: str | None = None, ranks: DraftRanks = 1
) -> LoadedModel:
    """`load_draft` for a model without feedback memory.

    Raises:
        InvalidParameter: as `load_draft`, or the draft has a feedback memory.
    """
    return without_memory(load_draft(services, name, dtype, ranks), name)


def without_memory(draft: LoadedModel, name: str) -> LoadedModel:
    """`draft`, the model called `name`. Raises InvalidParameter where it has a feedback memory."""
    if has_memory(draft.source.checkpoint):
        problem = f"{name} drafts with a feedback memory, which plain layers do not read"
        raise InvalidParameter("model", problem, "draft with method='spire'")
    return draft


def load_draft(services: DraftServices, name: str, dtype: str | None = None, ranks: DraftRanks = 1) -> LoadedModel:
    """Load the draft model called `name`, with weights in `dtype` (None: the target's).

    Args:
        ranks: tensor-parallel size; see `ranks_of_draft`.

    Raises:
        UnsupportedModel: it has another vocabulary than the target.
        InvalidParameter: an invalid number of ranks.
    """
    chosen = ranks_of_draft(services.target.model, dtype or services.dtype, ranks)
    draft = services.load(name, dtype, chosen) if ranks != 1 else services.load(name, dtype)
    target = services.target.source
    if not target.tokenizer.same_vocabulary(draft.source.tokenizer):
        raise UnsupportedModel(
            f"model: {name} has another vocabulary than {target.name}, so its tokens mean something else; "
            "draft with method='cross_vocabulary', choose a draft model of the same family, or use ngram or suffix"
        )
    return draft
