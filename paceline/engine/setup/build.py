"""Build an engine around a loaded model from a configuration. Not for loading the model (`load.py`)."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.auto import resolve_drafter
from paceline.drafters.base import Drafter
from paceline.drafters.registry import make_drafter
from paceline.drafters.services import DraftServices
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.guarded_policy import GuardedPolicy
from paceline.engine.loop.memory import allocating, cache_capacity
from paceline.engine.loop.speculation import Speculation
from paceline.engine.setup.load import load
from paceline.engine.setup.profiles import find_profile
from paceline.engine.setup.quick_profile import quick_profile
from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, LooksAhead, LooksUp, Saturates
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import resolve_model
from paceline.models.state_book import MOST_DRAFTED, HoldsStates, most_texts
from paceline.sampling import resolve, rule_called
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.pages import PagePool
from paceline.scheduling.profile import Profile
from paceline.scheduling.scheduler import Scheduler
from paceline.scheduling.stop import StopChecker
from paceline.speculation import DrafterTraits, LearnedPrices, make_policy
from paceline.speculation.policies import Goodput, WhereFaster
from paceline.speculation.prices import CPU_BALANCE, GPU_BALANCE, LearnedPass, PassSeconds, roofline
from paceline.types import NamedProgress, silent


def build_engine(
    loaded: LoadedModel,
    config: EngineConfig,
    speculative: SpeculativeConfig | None,
    progress: NamedProgress = silent,
    *,
    drafter: Drafter | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """An engine around a loaded model, with a new cache.

    Args:
        drafter: used instead of the one that `speculative` names.
        clock: seconds, monotonic.

    Raises:
        InvalidParameter: unknown drafter, rule, policy or option, or a `max_model_len` or KV cache that cannot
            be held.
        UnsupportedModel: the draft model has another vocabulary.
    """
    source = loaded.source
    spec = resolve_drafter(speculative, loaded) or SpeculativeConfig("plain", num_draft_tokens=0)
    num_pages, limit, num_states = cache_capacity(loaded.model, config)
    if num_states and (spec.num_draft_tokens or 0) > MOST_DRAFTED:
        problem = f"a model with recurrent layers can take back {MOST_DRAFTED} tokens, not {spec.num_draft_tokens}"
        raise InvalidParameter("num_draft_tokens", problem, f"give at most {MOST_DRAFTED}")
    with allocating(config, loaded.model):
        cache = loaded.model.new_cache(num_pages)
        config, can_resume = _with_states(cache, config, num_states)
    pool = PagePool(num_pages, PAGE_SIZE, can_resume)
    profile = find_profile(loaded, config)
    passes = LearnedPass(_prior(loaded.model, config, spec, profile, clock))
    looks_ahead = isinstance(loaded.model, LooksAhead) and loaded.model.num_lookahead_slots > 0
    services = DraftServices(
        loaded, cache, num_pages, pool, partial(_load_draft, config, progress), config.dtype,
        LearnedPrices(passes, hides_host=looks_ahead), clock,
    )  # fmt: skip
    with allocating(config, loaded.model):  # drafters with keys of their own hold as many pages
        drafter = drafter or _drafter(spec, services)
    prices = LearnedPrices(passes, drafter.traits, hides_host=looks_ahead)
    speculation = _speculation(spec, drafter, prices, looks_ahead)
    num_ahead = _look_ahead(loaded.model, cache, drafter.traits, speculation.num_draft_tokens)
    limits = _scheduler_config(loaded.model, config, limit, profile, num_ahead)
    stop, branches = StopChecker(source.eos_token_ids), drafter.traits.branches
    scheduler = Scheduler(limits, pool, speculation.policy, stop, branches)
    return Engine(loaded.model, cache, scheduler, source.tokenizer, source.eos_token_ids, speculation, prices, clock)


def _with_states(cache: KVCache, config: EngineConfig, count: int) -> tuple[EngineConfig, Callable[[int], bool] | None]:
    """Make room in a new cache for `count` states, where the model has any: (`config` with no more requests than these
    are enough for, `PagePool.can_resume`)."""
    if not isinstance(cache, HoldsStates):
        return config, None
    cache.hold(count)
    fewer = replace(config, max_num_seqs=min(config.max_num_seqs, most_texts(count)))
    return fewer, cache.can_resume


def _load_draft(
    config: EngineConfig, progress: NamedProgress, name: str, dtype: str | None = None,
    ranks: Callable[[ModelConfig], int] | None = None,
) -> LoadedModel:  # fmt: skip
    """Load a draft model with the target's settings, in one process or on `ranks` ranks; see `LoadsModels`."""
    its_config = config.in_one_process()
    if dtype:
        its_config = replace(its_config, dtype=dtype)
    if ranks is not None:
        source = resolve_model(name, progress=lambda done, total: progress(f"fetching {name}", done, total))
        its_config = replace(its_config, tensor_parallel_size=ranks(source.checkpoint.config))
    return load(name, its_config, progress)


def _prior(
    model: CausalLM, config: EngineConfig, spec: SpeculativeConfig, profile: Profile | None, clock: Callable[[], float]
) -> PassSeconds:
    """Prior cost of target passes: the profile of `paceline tune`; else, where the length policy needs costs, a quick
    measurement; else a roofline estimate."""
    if profile is not None:
        return profile.cost
    guess = roofline(CPU_BALANCE if config.device == "cpu" else GPU_BALANCE)
    if spec.method == "plain" or spec.num_draft_tokens == 0 or spec.policy not in ("auto", "goodput"):
        return guess
    try:
        return quick_profile(model, clock)
    except Exception:  # a pass over unwritten keys may fail; a real fault of the model shows up in its first request
        return guess


def _look_ahead(model: CausalLM, cache: KVCache, traits: DrafterTraits, most: int) -> int:
    """The lookahead slots of each request, after telling the cache of a drafter whose steps can be started early.

    Args:
        most: longest draft.
    """
    num_ahead = model.num_lookahead_slots if isinstance(model, LooksAhead) else 0
    if num_ahead and traits.verified_early:
        return num_ahead + 2 * most  # the next pass begins up to `most` tokens later, and has as many drafts
    how = traits.prompt_lookup
    if how is None or not (num_ahead and most and isinstance(cache, LooksUp)):
        return num_ahead
    longest, shortest, earliest = how
    return num_ahead + cache.look_up(longest, shortest, earliest, most)


def _scheduler_config(
    model: CausalLM, config: EngineConfig, max_model_len: int, profile: Profile | None, num_lookahead_slots: int
) -> SchedulerConfig:
    """The scheduler's configuration. The token budget is the configured one, else the tuned one, else the default.

    The default has few rows where the model prefills as fast with few, so that decodes wait less for the prompts beside
    them; up to the usual number, twice as many as may decode.
    """
    defaults = SchedulerConfig()
    budget, balanced = defaults.max_num_batched_tokens, defaults.balanced_context
    if isinstance(model, Saturates):
        budget = min(budget, max(model.saturating_rows, 2 * config.max_num_seqs))
        balanced = model.balanced_context
    tuned = profile.token_budget if profile and profile.target_ms else None
    token_budget = config.max_num_batched_tokens or tuned or budget
    tile = profile.tile if profile and profile.tile else defaults.tile
    return SchedulerConfig(
        policy=config.scheduler,
        max_num_batched_tokens=token_budget,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        prefix_caching=config.prefix_caching,
        tile=min(tile, token_budget),
        num_lookahead_slots=num_lookahead_slots,
        balanced_context=balanced,
    )


def _drafter(spec: SpeculativeConfig, services: DraftServices) -> Drafter:
    """The drafter that the configuration names."""
    options = {**spec.options} if spec.model is None else {**spec.options, "model": spec.model}
    return make_drafter(spec.method, services, **options)


def _speculation(spec: SpeculativeConfig, drafter: Drafter, prices: LearnedPrices, looks_ahead: bool) -> Speculation:
    """The drafter with its rule and its length policy; `looks_ahead` as of the model (`LooksAhead`)."""
    verifier, traits = resolve(spec.rule, **spec.rule_options), drafter.traits
    if rule_called(spec.rule).judges_blocks and traits.branches:
        raise InvalidParameter("rule", f"'block' takes chains, and {spec.method} drafts trees", "use 'auto'")
    most = traits.natural_budget if spec.num_draft_tokens is None else spec.num_draft_tokens
    policy = make_policy(spec.policy, spec.policy_options, most, traits, prices)
    if looks_ahead and isinstance(policy, Goodput):
        policy = WhereFaster(policy, prices)
    return Speculation(drafter, spec.rule, verifier, GuardedPolicy(policy), most)
