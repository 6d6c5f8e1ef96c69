"""Candidate drafters of an advice, by the user's names, and their replays.

Not for their cost (`predict.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.auto import AUTO
from paceline.drafters.registry import option_names
from paceline.drafters.self_drafts.self_draft import SelfDraft
from paceline.engine.llm import LLM
from paceline.engine.loop.engine import Engine
from paceline.engine.score import score
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.load import load
from paceline.engine.setup.profiles import cached_profile, dtype_of
from paceline.errors import InvalidParameter
from paceline.evaluation.advise.company import replay_in_company
from paceline.evaluation.advise.exchange import ELSEWHERE, as_profile, name_of, rounds_by_rate
from paceline.evaluation.advise.reading import Reader
from paceline.evaluation.advise.replay import Offer, Rounds, Text, replay_chain, standing
from paceline.evaluation.advise.walk import offers_along, replay_drafter, replay_lookup
from paceline.evaluation.bench.own_arms import specs_of
from paceline.evaluation.tune import TunePlan, profile_model
from paceline.models.base import RunsHeads
from paceline.models.heads.prediction import has_layer
from paceline.models.heads.registry import best_head
from paceline.models.loaded import LoadedModel
from paceline.scheduling.profile import Profile
from paceline.speculation.traits import DrafterTraits
from paceline.types import NamedProgress, SamplingParams, silent

PLAN = TunePlan(rows=(1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64), contexts=(32, 512), rounds=9)
"""The measurement plan where there is no profile of `paceline tune`."""
EXACT = "asked round after round: the passes of a real run"
UNBIASED = "each token stands with min(1, q/p) given the text: the mean of real runs without a seed"
SEEDED = "drawn with the noise that said the text: the passes of a real run with a seed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter at one length, replayed.

    Attributes:
        draft: the user's name for it, e.g. ``draft_model:small.gguf``.
        k: largest number of drafted tokens.
        spec: fields of `SpeculativeConfig`.
        rounds: of each text.
        how: how it was replayed, and how reliable that is.
        profile: of the draft model, if its cost comes from one; else proposals were timed.
        has_model: whether proposals run a model, whose passes are shared by concurrent requests.
        trace: the proposal at every position of each text, if requested.
        in_company: number of concurrent requests to the rounds of each text, where these differ from `rounds`.
    """

    draft: str
    k: int
    spec: Mapping[str, Any]
    rounds: Sequence[Rounds]
    how: str = EXACT
    profile: Profile | None = None
    has_model: bool = False
    trace: Sequence[Sequence[Offer]] | None = None
    in_company: Mapping[int, Sequence[Rounds]] = field(default_factory=dict)

    def rounds_at(self, batch: int) -> Sequence[Rounds]:
        """Rounds of each text, when `batch` requests are decoded at once."""
        return self.in_company.get(batch, self.rounds)

    @property
    def label(self) -> str:
        """Display name, unique among the candidates."""
        return f"{self.draft} k={self.k}"

    @property
    def proposal_seconds(self) -> float:
        """Seconds of one proposal for one request, where proposals were timed."""
        count = sum(one.count for one in self.rounds)
        return sum(one.draft_seconds for one in self.rounds) / count if count else 0.0

    def record(self) -> dict[str, Any]:
        """Acceptance data for `--export`."""
        return as_profile(self.draft, self.spec, self.k, self.rounds, self.how) | {"trace": self.trace}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A candidate before its replay; `k` is None for the drafter's default."""

    draft: str
    k: int | None
    spec: Mapping[str, Any]


def wanted_of(drafts: Sequence[str], lengths: Sequence[int], spec_texts: Sequence[str] = ()) -> list[Wanted]:
    """Candidates as a user names them: drafters, each at every length, and configurations ``LABEL={...}``.

    Raises:
        InvalidParameter: a configuration that cannot be read, or a name twice.
    """
    _check_once("candidates", drafts)
    _check_once("spec", [*drafts, *(text.partition("={")[0] for text in spec_texts)])
    found = [
        Wanted(draft, k, next(iter(specs_of([draft], [k], policy="fixed").values())))
        for draft in drafts
        for k in lengths
    ]
    for label, spec in specs_of([], [], spec_texts, policy="fixed").items():
        found.append(Wanted(label, spec.get("num_draft_tokens"), spec))
    return found


def _check_once(field: str, names: Sequence[str]) -> None:
    """Raise InvalidParameter for a duplicate name."""
    again = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if again is not None:
        raise InvalidParameter(field, f"{again!r} names two candidates", "call each by a name of its own")


def check_names(wanted: Sequence[Wanted]) -> None:
    """Raise InvalidParameter for a configuration that no model could run, or that drafts nothing."""
    for one in wanted:
        if one.spec.get("method") == "draft_model" and not one.spec.get("model"):
            remedy = "write draft_model:MODEL, e.g. draft_model:small.gguf"
            raise InvalidParameter("candidates", f"{one.draft} names no draft model", remedy)
        config = SpeculativeConfig.of(one.spec)
        if config is None:
            raise InvalidParameter(
                "drafter", f"{one.draft!r} drafts nothing", "name drafters; plain is compared anyway"
            )
        if config.method != AUTO:
            option_names(config.method)


def check_replayable(llm: LLM, wanted: Sequence[Wanted]) -> None:
    """Raise InvalidParameter for a drafter that this model cannot run, or that cannot be replayed.

    Called first, because answering and timing take minutes.
    """
    remedy = "measure it with paceline bench"
    for one in wanted:
        drafter = llm.drafting_with(one.spec).engine.drafter
        if drafter.traits.watches:
            raise InvalidParameter("candidates", f"{one.draft!r} must see the target verify rows off the text", remedy)
        if llm.loaded.model.config.recurrence and isinstance(drafter, SelfDraft):
            problem = f"{one.draft!r} continues from states of recurrent layers, which a replay does not have"
            raise InvalidParameter("candidates", problem, remedy)


def replayed(
    llm: LLM, wanted: Sequence[Wanted], texts: Sequence[Text], params: SamplingParams, config: EngineConfig,
    profile: Profile, progress: NamedProgress = silent, traced: bool = False,
    batches: Sequence[int] = (),
) -> list[Candidate]:  # fmt: skip
    """Replay all candidates over all texts.

    Args:
        llm: the target, with plain decoding.
        profile: of the target; the basis of prices for drafters that choose.
        progress: called with ("replaying", candidates done, candidates).
        traced: whether candidates keep a trace, which takes another proposal at every position.
        batches: numbers of concurrent requests; lookups that remember other requests are replayed for each.

    Raises:
        InvalidParameter: a drafter that cannot be replayed, or a draft model with another vocabulary.
    """
    found: list[Candidate] = []
    models: dict[str, _DraftModel] = {}
    for number, one in enumerate(wanted):
        progress("replaying", number, len(wanted))
        if set(one.spec) <= _CHAIN_OF_A_MODEL and one.spec["method"] == "draft_model" and one.k is not None:
            name = str(one.spec.get("model"))
            if name not in models:
                models[name] = _DraftModel.read(llm, name, texts, params, config, progress)
            found.append(models[name].candidate(one, texts, params, traced))
        else:
            found.append(_walked(llm.loaded, one, texts, params, config, profile, progress, traced, batches))
    progress("replaying", len(wanted), len(wanted))
    return found


_CHAIN_OF_A_MODEL = {"method", "model", "num_draft_tokens", "policy"}


@dataclass(frozen=True, slots=True)
class _DraftModel:
    """Acceptance probabilities of all tokens of the texts under a draft model, for all lengths at once."""

    stands: Sequence[Any]
    profile: Profile

    @classmethod
    def read(
        cls, llm: LLM, name: str, texts: Sequence[Text], params: SamplingParams, config: EngineConfig,
        progress: NamedProgress,
    ) -> "_DraftModel":  # fmt: skip
        loaded = load(name, config, progress)
        if not llm.tokenizer.same_vocabulary(loaded.source.tokenizer):
            raise InvalidParameter("candidates", f"{name} has another vocabulary", "choose one of the family")
        stands = []
        for text in texts:
            whole, first = [*text.prompt, *text.output], len(text.prompt)
            ours, theirs = (score(model, whole, first, params) for model in (llm.loaded.model, loaded.model))
            stands.append(standing(ours, theirs, params.is_greedy)[1:])
        return cls(stands, profile_of(loaded, config, progress))

    def candidate(self, one: Wanted, texts: Sequence[Text], params: SamplingParams, traced: bool) -> Candidate:
        k = one.k or 1
        rounds = [replay_chain(s, k, t.is_cut) for s, t in zip(self.stands, texts, strict=True)]
        how = EXACT if params.is_greedy else UNBIASED
        trace = [[(k, s[i : i + k].tolist()) for i in range(len(s))] for s in self.stands] if traced else None
        return Candidate(one.draft, k, one.spec, rounds, how, self.profile, has_model=True, trace=trace)


def _walked(
    loaded: LoadedModel, one: Wanted, texts: Sequence[Text], params: SamplingParams, config: EngineConfig,
    profile: Profile, progress: NamedProgress, traced: bool, batches: Sequence[int],
) -> Candidate:  # fmt: skip
    """A candidate replayed with the real drafter, constructed as an engine does."""
    engine = engine_that_drafts(loaded, one.spec, config, profile, progress)
    traits = engine.drafter.traits
    k, how = one.k or traits.natural_budget, how_replayed(traits, params)
    is_lookup = traits.deterministic and not traits.taps
    reader = None if is_lookup else Reader(loaded.model, engine, params, k)
    if reader is None:
        rounds = replay_lookup(engine.drafter, texts, k, params)
    else:
        rounds = replay_drafter(engine.drafter, reader, texts, k, params, how == SEEDED)
    trace = None
    if traced:
        fresh = engine_that_drafts(loaded, one.spec, config, profile, progress)
        reader = None if is_lookup else Reader(loaded.model, fresh, params, k)
        trace = offers_along(fresh.drafter, reader, texts, k, params, how == SEEDED)
    company: dict[int, Sequence[Rounds]] = {}
    if is_lookup and traits.remembers:
        for batch in sorted({each for each in batches if each > 1}):
            fresh = engine_that_drafts(loaded, one.spec, config, profile, progress)
            company[batch] = replay_in_company(fresh.drafter, texts, k, batch, params)
    return Candidate(
        one.draft, k, one.spec, rounds, how, has_model=not is_lookup, trace=trace, in_company=company
    )  # fmt: skip


def how_replayed(traits: DrafterTraits, params: SamplingParams) -> str:
    """Description of how reliable a replay with the real drafter is."""
    if params.is_greedy or (traits.deterministic and not traits.taps):
        return EXACT
    return SEEDED if traits.branches or traits.chooses or traits.prefers_coupled else UNBIASED


def engine_that_drafts(
    loaded: LoadedModel, spec: Mapping[str, Any], config: EngineConfig, profile: Profile, progress: NamedProgress
) -> Engine:
    """A new engine for a drafter, with the prices of `profile`."""
    own = replace(profile, fingerprint=loaded.source.checkpoint.fingerprint, dtype=dtype_of(loaded, config.dtype))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(own.as_dict()))
        priced = replace(config, profile=str(path))
        return build_engine(loaded, priced, SpeculativeConfig.of(spec), progress)


def profile_of(loaded: LoadedModel, config: EngineConfig, progress: NamedProgress) -> Profile:
    """The profile of `paceline tune`, if it includes `segment_seconds`; else a short measurement."""
    kept = cached_profile(loaded, config)
    if kept is not None and kept.segment_seconds and kept.step_overhead is not None:
        return kept
    return profile_model(loaded, config, PLAN, progress)


def from_profiles(profiles: Sequence[Mapping[str, Any]], texts: Sequence[Text], step_seconds: float) -> list[Candidate]:
    """Candidates from imported acceptance profiles, applied to these texts.

    Args:
        profiles: from `exchange.read_profiles`.
        step_seconds: seconds of drafting one token.
    """
    found = []
    for one in profiles:
        k, name = one["num_speculative_tokens"], name_of(one)
        spec = {"method": one.get("method") or name, "num_draft_tokens": k, "policy": "fixed"}
        spec |= {"model": one["model"]} if one.get("model") else {}
        rounds = rounds_by_rate(texts, one["stands"], k, step_seconds)
        found.append(Candidate(f"{name} (file)", k, spec, rounds, ELSEWHERE, has_model=step_seconds > 0))
    return found


def default_candidates(target: LoadedModel) -> list[str]:
    """Lookups, and the best head for these weights if there is one, or else the prediction layer in their files."""
    has_head = isinstance(target.model, RunsHeads) and (best_head(target.source) or has_layer(target.source))
    return ["ngram", "suffix", *(["head"] if has_head else [])]
