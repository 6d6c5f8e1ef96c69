"""One advice: texts, times, candidates replayed and priced."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.evaluation.advise.candidates import Candidate, Wanted, profile_of, replayed
from paceline.evaluation.advise.predict import MeasuredPrices, Prediction, predict
from paceline.evaluation.advise.replay import Text
from paceline.evaluation.advise.texts import texts_of
from paceline.evaluation.prompts import Prompt
from paceline.scheduling.profile import Profile
from paceline.types import NamedProgress, SamplingParams


def predictions_of(
    candidates: Sequence[Candidate], texts: Sequence[Text], profile: Profile, batches: Sequence[int], dtype: str
) -> list[Prediction]:
    """Every candidate at every number of requests at once, best first."""
    found = [
        predict(one.draft, one.k, dtype, texts, one.rounds,
                MeasuredPrices(profile, batch, one.profile, one.proposal_seconds, one.has_model))
        for one in candidates
        for batch in batches
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.batch, -one.predicted))


@dataclass(frozen=True, slots=True)
class Advice:
    """What was found for some texts.

    Attributes:
        params: of the requests.
        texts: that were replayed.
        num_foreign: of a log, those that another model said, which were answered anew.
        candidates, predictions: best first.
    """

    params: SamplingParams
    texts: Sequence[Text]
    num_foreign: int
    candidates: Sequence[Candidate]
    predictions: Sequence[Prediction]

    def method_of(self, one: Prediction) -> str:
        """The drafter of a prediction as engines name it: ``draft_model:NAME`` where it has a model."""
        spec = next(each.spec for each in self.candidates if (each.draft, each.k) == (one.draft, one.k))
        return f"{spec['method']}:{spec['model']}" if spec.get("model") else str(spec["method"])

    def in_order(self) -> list[Candidate]:
        """Candidates, those that promise most first."""
        found = {(one.draft, one.k): one for one in self.candidates}
        return list({key: found[key] for one in self.predictions if (key := (one.draft, one.k)) in found}.values())


def take_advice(
    llm: LLM, prompts: Sequence[Prompt], wanted: Sequence[Wanted], params: SamplingParams, batches: Sequence[int],
    config: EngineConfig, profile: Profile | None = None, raw: bool = False,
    progress: NamedProgress = lambda what, done, total: None, traced: bool = False,
    known: Callable[[Sequence[Text]], list[Candidate]] = lambda texts: [],
) -> Advice:  # fmt: skip
    """Texts, times, replays and predictions.

    Args:
        llm: the target, decoding plainly.
        batches: requests that decode at once.
        profile: of the target; measured where there is none.
        raw: prompts are taken as they are.
        traced: see `replayed`.
        known: further candidates, of the texts.
    """
    measured = profile or profile_of(llm.loaded, config, progress)
    texts, num_foreign = texts_of(llm, prompts, params, raw, progress)
    found = replayed(llm, wanted, texts, params, config, measured, progress, traced) + known(texts)
    return Advice(params, texts, num_foreign, found, predictions_of(found, texts, measured, batches, llm.dtype))


def specs_to_validate(
    predictions: Sequence[Prediction], candidates: Sequence[Candidate], count: int = 4
) -> dict[str, Mapping[str, Any]]:
    """Label to configuration of the winner, the runner-up and two of the rest, spread evenly, at fixed lengths."""
    alone = [one for one in predictions if one.batch == min(p.batch for p in predictions)]
    rest = alone[2:]
    chosen = alone[:2] + rest[:: max(1, len(rest) // max(1, count - 2))][: count - 2]
    specs = {(one.draft, one.k): {**one.spec, "num_draft_tokens": one.k} for one in candidates}
    return {f"{one.draft} k={one.k}": specs[one.draft, one.k] for one in chosen}
