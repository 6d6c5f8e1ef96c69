"""One advice: texts, profiles, candidates replayed and priced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config import EngineConfig
from paceline.drafters.base import Drafter
from paceline.engine.build import load
from paceline.engine.llm import LLM
from paceline.engine.profiles import cached_profile
from paceline.engine.score import score
from paceline.errors import InvalidParameter
from paceline.evaluation.advise.predict import MeasuredPrices, Prediction, predict
from paceline.evaluation.advise.replay import (
    Rounds,
    Text,
    acceptance_by_place,
    replay_chain,
    replay_lookup,
    standing,
)
from paceline.evaluation.tune import TunePlan, profile_model
from paceline.models.loaded import LoadedModel
from paceline.scheduling.profile import Profile
from paceline.types import NamedProgress, SamplingParams

LOOKUPS = ("ngram", "suffix")
MODEL = "draft_model"
PLAN = TunePlan(rows=(1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64), contexts=(32, 512), rounds=9)
"""What is measured where nobody ran `paceline tune`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter at one length, replayed.

    Attributes:
        draft: as the user named it, e.g. ``draft_model:small.gguf``.
        k: most drafted tokens.
        rounds: of each text.
        profile: of the draft model; None for lookups.
    """

    draft: str
    k: int
    rounds: Sequence[Rounds]
    profile: Profile | None = None

    @property
    def proposal_seconds(self) -> float:
        """Of one proposal of a lookup."""
        count = sum(one.count for one in self.rounds)
        return sum(one.draft_seconds for one in self.rounds) / count if count else 0.0

    def record(self) -> dict[str, Any]:
        """Acceptance as `--export` keeps it."""
        tokens, count = sum(one.tokens for one in self.rounds), sum(one.count for one in self.rounds)
        return {
            "draft": self.draft, "k": self.k, "conditional_acceptance": acceptance_by_place(self.rounds),
            "tokens_per_pass": tokens / count if count else None, "passes": count, "tokens": tokens,
        }  # fmt: skip


def replayed(
    llm: LLM, drafts: Sequence[str], lengths: Sequence[int], texts: Sequence[Text], params: SamplingParams,
    config: EngineConfig, progress: NamedProgress = lambda what, done, total: None,
) -> list[Candidate]:  # fmt: skip
    """Every drafter at every length on every text.

    Args:
        drafts: ``ngram``, ``suffix``, or ``draft_model:NAME``.
        lengths: most drafted tokens.
        params: how the texts were said.
        config: how draft models are run.

    Raises:
        InvalidParameter: a drafter that cannot be replayed yet, or a draft model with another vocabulary.
    """
    found: list[Candidate] = []
    for number, draft in enumerate(drafts):
        progress("replaying", number, len(drafts))
        method, _, name = draft.partition(":")
        if method in LOOKUPS:
            found += [Candidate(draft, k, replay_lookup(_fresh(llm, method, k), texts, k)) for k in lengths]
        elif method == MODEL and name:
            found += _replayed_model(llm, draft, name, lengths, texts, params, config, progress)
        else:
            remedy = f"use {', '.join(LOOKUPS)} or {MODEL}:NAME, and measure others with paceline bench"
            raise InvalidParameter("candidates", f"{draft!r} cannot be replayed", remedy)
    progress("replaying", len(drafts), len(drafts))
    return found


def _fresh(llm: LLM, method: str, k: int) -> Drafter:
    """A drafter as an engine makes it: with the memory that comes with the model, and nothing else remembered."""
    return llm.drafting_with({"method": method, "num_draft_tokens": k, "policy": "fixed"}).engine.drafter


def _replayed_model(
    llm: LLM, draft: str, name: str, lengths: Sequence[int], texts: Sequence[Text], params: SamplingParams,
    config: EngineConfig, progress: NamedProgress,
) -> list[Candidate]:  # fmt: skip
    loaded = load(name, config, progress)
    if not llm.tokenizer.same_vocabulary(loaded.source.tokenizer):
        raise InvalidParameter("candidates", f"{name} has another vocabulary", "choose one of the family")
    stands = []
    for text in texts:
        whole, first = [*text.prompt, *text.output], len(text.prompt)
        ours, theirs = (score(model, whole, first, params) for model in (llm.loaded.model, loaded.model))
        stands.append(standing(ours, theirs, params.is_greedy)[1:])
    profile = profile_of(loaded, config, progress)
    return [
        Candidate(draft, k, [replay_chain(s, k, t.is_cut) for s, t in zip(stands, texts, strict=True)], profile)
        for k in lengths
    ]


def profile_of(loaded: LoadedModel, config: EngineConfig, progress: NamedProgress) -> Profile:
    """What `paceline tune` kept, when it measured further requests too; else a short measurement."""
    kept = cached_profile(loaded, config)
    if kept is not None and kept.segment_seconds and kept.step_overhead is not None:
        return kept
    return profile_model(loaded, config, PLAN, progress)


def predictions_of(
    candidates: Sequence[Candidate], texts: Sequence[Text], profile: Profile, batches: Sequence[int], dtype: str
) -> list[Prediction]:
    """Every candidate at every number of requests at once, best first."""
    found = [
        predict(one.draft, one.k, dtype, texts, one.rounds,
                MeasuredPrices(profile, batch, one.profile, one.proposal_seconds))
        for one in candidates
        for batch in batches
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.batch, -one.predicted))


def specs_to_validate(predictions: Sequence[Prediction], count: int = 4) -> dict[str, Mapping[str, Any]]:
    """Label to configuration of the winner, the runner-up and two of the rest, spread evenly, at fixed lengths."""
    alone = [one for one in predictions if one.batch == 1]
    rest = alone[2:]
    chosen = alone[:2] + rest[:: max(1, len(rest) // max(1, count - 2))][: count - 2]
    specs: dict[str, Mapping[str, Any]] = {}
    for one in chosen:
        method, _, model = one.draft.partition(":")
        spec: dict[str, Any] = {"method": method, "num_draft_tokens": one.k, "policy": "fixed"}
        specs[f"{one.draft} k={one.k}"] = spec | ({"model": model} if model else {})
    return specs
