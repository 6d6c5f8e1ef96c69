"""Construct the parts of an engine from a configuration: load the model, then build the engine around it."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.auto import resolve_drafter
from paceline.drafters.base import Drafter
from paceline.drafters.registry import make_drafter
from paceline.drafters.services import DraftServices
from paceline.engine.engine import Engine
from paceline.engine.guarded_policy import GuardedPolicy
from paceline.engine.memory import allocating, cache_capacity
from paceline.engine.profiles import find_profile
from paceline.engine.quick_profile import quick_profile
from paceline.engine.speculation import Speculation
from paceline.errors import InvalidParameter, UnsupportedModel, warn_safely
from paceline.extras import check_executor
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, LooksAhead, LooksUp, Saturates
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.loaded import LoadedModel
from paceline.models.processors import check_threads
from paceline.models.resolve import resolve_model
from paceline.models.state_book import MOST_DRAFTED, HoldsStates, most_texts
from paceline.models.text.given_template import read_template, with_given_template
from paceline.sampling import resolve
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.pages import PagePool
from paceline.scheduling.profile import Profile
from paceline.scheduling.scheduler import Scheduler
from paceline.scheduling.stop import StopChecker
from paceline.speculation import DrafterTraits, LearnedPrices, make_policy
from paceline.speculation.policies import Goodput, WhereFaster
from paceline.speculation.prices import CPU_BALANCE, GPU_BALANCE, LearnedPass, PassSeconds, roofline
from paceline.types import NamedProgress


def silent(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


def load(name: str, config: EngineConfig, progress: NamedProgress = silent) -> LoadedModel:
    """Find, fetch, convert and warm up the model called `name`.

    Raises:
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel, InvalidParameter: see `resolve_model` and the
            executors.
    """
    check_threads(config.num_threads)
    check_executor(config.chosen_executor)
    template = None if config.chat_template is None else read_template(config.chat_template)  # before a download
    source = resolve_model(name, progress=lambda done, total: progress(f"fetching {name}", done, total))
    if template is not None:
        source = replace(source, tokenizer=with_given_template(source.tokenizer, template))
    return LoadedModel(source, load_executor(source.checkpoint, config, name, progress))


def load_executor(checkpoint: Checkpoint, config: EngineConfig, name: str, progress: NamedProgress) -> CausalLM:
    """The model on the executor that `config` names; ``auto`` takes cuda on a CUDA device, else numba, else torch.

    Raises:
        UnsupportedModel: the named executor does not support this model family, or no parallel run does.
        InvalidParameter: torch is not installed or does not support the dtype or device, or a parallel degree does not
            fit the model.
        WorkerDied: a process of a parallel run could not start.
    """
    executor = config.chosen_executor
    if executor in ("auto", "numba"):
        try:
            return _numba_model(checkpoint, config, name, progress)
        except UnsupportedModel:
            if executor == "numba":
                raise
        executor = "torch"
    if checkpoint.config.recurrence and config.is_parallel:
        problem = f"{name} has recurrent layers, which run in one process only"
        raise UnsupportedModel(f"executor: {problem}; leave out parallel sizes, or take another model")
    if config.dtype in ("int8", "w8a8") or (config.dtype == "gguf" and executor != "cuda"):
        problem = f"{config.dtype!r} is not known to the {executor} executor"
        blocks = ", or gguf for a file's own blocks" if executor == "cuda" else ""
        raise InvalidParameter("dtype", problem, f"use bfloat16, float16 or float32{blocks}")
    if config.kv_cache_dtype != "auto":
        problem = f"{config.kv_cache_dtype!r} cannot be chosen with the {executor} executor"
        raise InvalidParameter("kv_cache_dtype", problem, "leave it at auto: keys have the weights' type")
    if executor == "cuda" and config.device == "cpu":
        warn_safely("the cuda executor runs on the CPU, slowly, for tests; name a GPU by device (--device cuda:0)",
                    UserWarning)  # fmt: skip
    if executor != "cuda" and config.deterministic:
        problem = "the torch executor sums by the number of rows"
        raise InvalidParameter("deterministic", problem, "use executor='cuda', or 'numba', which always is")
    if config.is_parallel:
        return _parallel_model(checkpoint, config, name, progress)
    if executor == "cuda":
        from paceline.models.cuda_executor import CudaModel

        return CudaModel(checkpoint, config.device, config.dtype, deterministic=config.deterministic)
    from paceline.models.torch_executor import TorchModel

    return TorchModel(checkpoint, config.device, config.dtype)


def _parallel_model(checkpoint: Checkpoint, config: EngineConfig, name: str, progress: NamedProgress) -> CausalLM:
    what = f"starting {config.tensor_parallel_size} x {config.pipeline_parallel_size} processes for {name}"
    progress(what, 0, 1)
    degrees = config.tensor_parallel_size, config.pipeline_parallel_size
    how = {
        "layer_partition": config.pipeline_layer_partition, "head_share": config.pipeline_head_share,
        "device": config.device, "dtype": config.dtype, "num_threads": config.num_threads,
    }  # fmt: skip
    if config.chosen_executor == "cuda":
        from paceline.models.cuda_executor import parallel as on_gpus

        model = on_gpus.launch_model(checkpoint, *degrees, deterministic=config.deterministic, **how)
    else:
        from paceline.models.torch_executor import parallel

        model = parallel.launch_model(checkpoint, *degrees, **how)
    progress(what, 1, 1)
    return model


def _numba_model(checkpoint: Checkpoint, config: EngineConfig, name: str, progress: NamedProgress) -> CausalLM:
    from paceline.models.numba_executor.executor import NumbaModel

    form = "" if config.dtype == "auto" else f" to {config.dtype}"
    model = NumbaModel(
        checkpoint,
        config.dtype,
        config.num_threads,
        lambda done, total: progress(f"converting {name}{form} (once)", done, total),
        config.kv_cache_dtype,
    )
    progress("preparing kernels (compiled once, about 10 s)", 0, 1)
    model.warm_up()
    progress("preparing kernels (compiled once, about 10 s)", 1, 1)
    return model


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
    if spec.rule == "block" and traits.branches:
        raise InvalidParameter("rule", f"'block' takes chains, and {spec.method} drafts trees", "use 'auto'")
    most = traits.natural_budget if spec.num_draft_tokens is None else spec.num_draft_tokens
    policy = make_policy(spec.policy, spec.policy_options, most, traits, prices)
    if looks_ahead and isinstance(policy, Goodput):
        policy = WhereFaster(policy, prices)
    return Speculation(drafter, spec.rule, verifier, GuardedPolicy(policy), most)
