"""Advice from start to end: texts, timings, replays and predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.evaluation.advise.candidates import Candidate, Wanted, check_replayable, profile_of, replayed
from paceline.evaluation.advise.predict import Prediction, predict
from paceline.evaluation.advise.prices import CandidatePrices, MeasuredPrices, RehearsedPrices, Stand, stands_of
from paceline.evaluation.advise.rehearsal import Rehearsal, rehearse
from paceline.evaluation.advise.replay import Text
from paceline.evaluation.advise.texts import check_texts, texts_of
from paceline.evaluation.prompts import Prompt
from paceline.scheduling.profile import Profile
from paceline.types import NamedProgress, SamplingParams, silent


def predictions_of(
    candidates: Sequence[Candidate], texts: Sequence[Text], profile: Profile, batches: Sequence[int], dtype: str,
    rehearsal: Rehearsal | None = None,
) -> list[Prediction]:  # fmt: skip
    """Predictions for every candidate at every number of concurrent requests, sorted by that number, then best first.

    Args:
        rehearsal: timings of the candidates; costs of others come from profiles.
    """
    stands = stands_of(rehearsal, profile) if rehearsal else {}
    found = [
        predict(one.draft, one.k, dtype, texts, one.rounds_at(batch), _prices(one, profile, stands), batch)
        for one in candidates
        for batch in batches
    ]
    return sorted(found, key=lambda one: (one.batch, -one.predicted))


def rehearsed(
    llm: LLM, wanted: Sequence[Wanted], candidates: Sequence[Candidate], texts: Sequence[Text], params: SamplingParams,
    batches: Sequence[int], progress: NamedProgress = silent, **how: Any,
) -> Rehearsal:  # fmt: skip
    """Time rounds of all candidates on real engines; arguments as in `take_advice`, `how` as in `rehearse`."""
    specs = {one.label: each.spec for one, each in zip(candidates, wanted, strict=True)}
    return rehearse(llm, specs, texts, params, batches, max(one.k for one in candidates), progress, **how)


def _prices(one: Candidate, profile: Profile, stands: Mapping[int, Stand]) -> CandidatePrices:
    if any(one.label in stand.arms for stand in stands.values()):
        return RehearsedPrices(stands, one.label, one.has_model)
    return MeasuredPrices(profile, 1, one.profile, one.proposal_seconds, one.has_model)


@dataclass(frozen=True, slots=True)
class Advice:
    """Predictions for some texts.

    Attributes:
        params: of the requests.
        texts: the replayed texts.
        num_foreign: number of logged answers that were not the target's and were generated anew.
        candidates: all of them.
        predictions: by number of concurrent requests, then best first.
    """

    params: SamplingParams
    texts: Sequence[Text]
    num_foreign: int
    candidates: Sequence[Candidate]
    predictions: Sequence[Prediction]

    def spec_of(self, one: Prediction) -> Mapping[str, Any]:
        """The fields of the `SpeculativeConfig` of a prediction."""
        return next(each.spec for each in self.candidates if (each.draft, each.k) == (one.draft, one.k))

    def in_order(self) -> list[Candidate]:
        """Candidates in the order of their first predictions."""
        found = {(one.draft, one.k): one for one in self.candidates}
        return list({key: found[key] for one in self.predictions if (key := (one.draft, one.k)) in found}.values())


def take_advice(
    llm: LLM, prompts: Sequence[Prompt], wanted: Sequence[Wanted], params: SamplingParams, batches: Sequence[int],
    config: EngineConfig, profile: Profile | None = None, raw: bool = False,
    progress: NamedProgress = silent, traced: bool = False,
    known: Callable[[Sequence[Text]], list[Candidate]] = lambda texts: [],
) -> Advice:  # fmt: skip
    """Get texts and timings, replay the candidates, and predict their speed-ups.

    Args:
        llm: the target with plain decoding.
        batches: numbers of concurrent requests.
        profile: of the target, perhaps on another machine; None measures it here and times the candidates.
        raw: do not put prompts into the chat template.
        traced: see `replayed`.
        known: returns further candidates, given the texts.
    """
    check_replayable(llm, wanted)
    texts, num_foreign = texts_of(llm, prompts, params, raw, progress)
    check_texts(texts)
    measured = profile or profile_of(llm.loaded, config, progress)
    found = replayed(llm, wanted, texts, params, config, measured, progress, traced, batches)
    timed = rehearsed(llm, wanted, found, texts, params, batches, progress) if profile is None and found else None
    found += known(texts)
    predictions = predictions_of(found, texts, measured, batches, llm.dtype, timed)
    return Advice(params, texts, num_foreign, found, predictions)


def specs_to_validate(
    predictions: Sequence[Prediction], candidates: Sequence[Candidate], count: int = 4
) -> dict[str, Mapping[str, Any]]:
    """Label to configuration of the two best candidates and `count` - 2 others, evenly spaced, at fixed lengths.

    Args:
        predictions: for one number of concurrent requests, best first.
    """
    rest = predictions[2:]
    chosen = [*predictions[:2], *rest[:: max(1, len(rest) // max(1, count - 2))][: count - 2]]
    specs = {(one.draft, one.k): {**one.spec, "num_draft_tokens": one.k} for one in candidates}
    return {f"{one.draft} k={one.k}": specs[one.draft, one.k] for one in chosen}
