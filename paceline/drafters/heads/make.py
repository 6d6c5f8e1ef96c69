"""Factories of head drafters by user-facing name: ``head`` for the best available one, or a family as in vLLM."""

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.drafters.heads.head import HeadDrafter, head_of
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.options import TreeName, tree_shape
from paceline.errors import InvalidParameter, ModelNotFound
from paceline.models.files.checkpoint import LiesInFiles
from paceline.models.heads.prediction import head_in
from paceline.models.heads.record import NOT_TRAINED, Family, HeadRecord
from paceline.models.heads.registry import load_best, load_head
from paceline.models.resolve import ModelSource

AUTO = "auto"


def _maker(family: Family | None) -> Callable[..., HeadDrafter]:
    def make(
        services: DraftServices,
        model: str = AUTO,
        tree: TreeName = "chain",
        expansion: Sequence[int] | None = None,
        paths: Sequence[Sequence[int]] | None = None,
        topk: int | None = None,
        depth: int | None = None,
        replacement: bool | None = None,
        dtype: str | None = None,
        draft_vocab_size: int | None = None,
    ) -> HeadDrafter:
        """A trained head that fits the target; the tree as in `tree_shape`.

        Args:
            model: a name (``smollm2-135m/eagle3``), a path, or ``auto``: the best head for the target. The target's own
                path means the prediction layer in its files.
            dtype: how its weights are stored, by default as its drafts are quickest; ``auto`` as the target's. The
                prediction layer in the target's files is stored as the target is.
            draft_vocab_size: of a prediction layer in the target's files: propose only the first that many tokens.

        Raises:
            ModelNotFound: there is no head for this target, or none of that name.
            InvalidParameter: the head is of another family or target, or the options describe no tree.
            CorruptWeights, UnsupportedModel: its files cannot be used.
        """
        source = services.target.source
        own = head_in(source) if model != AUTO and _is_itself(model, source) else None
        record = own or (_best(source, family) if model == AUTO else load_head(model, source))
        if family not in (None, record.config.family):
            problem = f"{model} is a head of the family {record.config.family}"
            raise InvalidParameter("method", f"{family!r}, but {problem}", f"use {record.config.family!r} or 'head'")
        shape = tree_shape(
            tree, expansion=expansion, paths=paths, topk=topk, depth=depth, replacement=replacement,
            block_tokens=record.config.block_tokens,
        )  # fmt: skip
        return head_of(record, services, shape, dtype, draft_vocab_size)

    make.__name__ = make.__qualname__ = family or "head"
    return make


def _is_itself(model: str, source: ModelSource) -> bool:
    """Whether `model` is the path of the target."""
    own = source.checkpoint
    return isinstance(own, LiesInFiles) and Path(model).expanduser().absolute() == own.path.absolute()


def _best(source: ModelSource, family: Family | None) -> HeadRecord:
    """The best head; the target's own layer for multi-token prediction where there is no other."""
    found = load_best(source, family)
    own = head_in(source) if found is None and family in (None, "mtp") else None
    if own is not None:
        return own
    if found is None:
        kind = f"{family} head" if family else "draft head"
        remedy = "name a folder with model=... or --draft-model"
        if family not in NOT_TRAINED:
            remedy = f"train one: paceline train head {family or 'eagle3'} -m {source.name}, or {remedy}"
        raise ModelNotFound(f"no {kind} is known for {source.name}; {remedy}")
    return found[1]


head = _maker(None)
eagle = _maker("eagle")
eagle3 = _maker("eagle3")
p_eagle = _maker("p_eagle")
mtp = _maker("mtp")
dflash = _maker("dflash")
dspark = _maker("dspark")
mlp_speculator = _maker("mlp_speculator")
medusa = _maker("medusa")
hydra = _maker("hydra")
blockwise = _maker("blockwise")
falcon = _maker("falcon")
