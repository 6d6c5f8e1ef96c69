"""Factory of the drafter ``suffix``: blended scoring, or that of the SuffixDecoding paper."""

from typing import Literal

from paceline.drafters.lookup.blended import LEAST_CHANCE, Blended, Mode
from paceline.drafters.lookup.find import find_memory
from paceline.drafters.lookup.suffix import Suffix
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter

_LEAST = 0.1
Scoring = Literal["blended", "published"]


def make_suffix(
    services: DraftServices | None = None,
    scoring: Scoring = "blended",
    memory: str | None = None,
    mode: Mode | None = None,
    min_token_prob: float | None = None,
    max_cached_tokens: int = 32_768,
    max_depth: int | None = None,
    max_spec_factor: float | None = None,
    max_spec_offset: float | None = None,
) -> Blended | Suffix:
    """What followed the end of the text before: in the request, in past outputs, in a memory of the model's answers.

    Args:
        scoring: ``blended`` weighs all evidence together (`lookup/grow.py`); ``published`` takes the best single match,
            after SuffixDecoding (`suffix.py`), and reads no memory.
        memory: a file that `paceline train memory` wrote, the name of a built-in model, ``none``, or ``auto``, the
            default: the model's own memory, from the cache, beside its weights, or shipped; none where there is none.
        mode: ``path`` proposes one continuation, ``tree`` several; blended trees and published paths by default.
        min_token_prob: nodes with a smaller estimated chance are not proposed; 0.02 by default when blended, and 0.1
            otherwise. Which of the others are worth their rows, the length policy says.
        max_cached_tokens: past output tokens kept; the oldest outputs leave first, 0 keeps none.
        max_depth, max_spec_factor, max_spec_offset: of the published scoring only, see `Suffix`.

    Raises:
        InvalidParameter: an unknown scoring, an option of the other scoring, a value out of range, a memory that is not
            there or of another vocabulary.
        CorruptWeights: a damaged memory.
    """
    own = {"max_depth": max_depth, "max_spec_factor": max_spec_factor, "max_spec_offset": max_spec_offset}
    given = {name: value for name, value in own.items() if value is not None}
    if scoring == "published":
        if memory not in (None, "none"):
            raise InvalidParameter("memory", "the published scoring reads none", "use scoring=blended")
        return Suffix(
            mode=mode or "path",
            min_token_prob=_LEAST if min_token_prob is None else min_token_prob,
            max_cached_tokens=max_cached_tokens,
            **given,  # type: ignore[arg-type]
        )
    if scoring != "blended":
        raise InvalidParameter("scoring", f"{scoring!r} is unknown", "use 'blended' or 'published'")
    if given:
        raise InvalidParameter(next(iter(given)), "is an option of the published scoring", "add scoring=published")
    if services is None and memory not in (None, "auto", "none"):
        raise InvalidParameter("memory", "belongs to a model, and there is none here", "make it through LLM(...)")
    found = find_memory(memory or "auto", services.target.source) if services else None
    least = LEAST_CHANCE if min_token_prob is None else min_token_prob
    return Blended(found, mode or "tree", least, max_cached_tokens)
