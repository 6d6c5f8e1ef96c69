"""Walks against real runs: heads, trees, hybrids and self-drafting take the passes of an engine, to the last one."""

import numpy as np
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.evaluation.advise.company import replay_in_company
from paceline.evaluation.advise.noise import AlongText, NoiseOfText
from paceline.evaluation.advise.reading import Reader
from paceline.evaluation.advise.replay import Text
from paceline.evaluation.advise.walk import replay_drafter, replay_lookup
from paceline.sampling import Law
from paceline.types import SamplingParams
from tests.engine.conftest import run_all
from tests.models.heads.records import load_target

HEAD = "tests.drafters.heads.random_heads:make_random_head"
RNG = np.random.default_rng(4)
COMMON = RNG.integers(3, 60, 20).tolist()
PROMPTS = [[*COMMON, *COMMON[:n]] for n in (3, 12)]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SPECS = {
    "head": {"method": HEAD, "num_draft_tokens": 3},
    "wide head": {"method": HEAD, "options": {"tree": "dynamic", "topk": 3, "depth": 3}},
    "static head": {"method": HEAD, "options": {"tree": "static", "expansion": (3, 2)}},
    "medusa": {"method": HEAD, "options": {"family": "medusa", "tree": "static", "expansion": (3, 2)}},
    "sampled head": {"method": HEAD, "options": {"tree": "sampled", "expansion": (2, 2)}},
    "layer_skip": {"method": "layer_skip", "num_draft_tokens": 3, "options": {"skip_layers": [1]}},
    "lookups": {"method": "hybrid", "options": {"drafters": ["ngram", {"method": "suffix", "min_token_prob": 0.1}]}},
}


@pytest.fixture(scope="module")
def target():
    return load_target("float32")


def engine_of(target, spec):
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, executor="numba", profile="none")
    spec = SpeculativeConfig.of(spec | {"policy": "fixed"})
    return build_engine(
        target, config, spec, clock=lambda: 0.0
    )  # a hybrid goes by prices, and learns them by the clock


def both(target, name, params, coupled, known_seed=True):
    """(passes and drafted tokens of a real run, the same by replay)."""
    real = engine_of(target, SPECS[name])
    outputs = [run_all(real, [prompt], params)[0] for prompt in PROMPTS]
    texts = [Text(o.prompt_token_ids, o.token_ids, True, seed=params.seed if known_seed else None) for o in outputs]
    engine = engine_of(target, SPECS[name])
    most = SPECS[name].get("num_draft_tokens") or engine.drafter.traits.natural_budget
    rounds = replay_drafter(engine.drafter, Reader(target.model, engine, params, most), texts, most, params, coupled)
    assert sum(o.stats.num_draft_tokens for o in outputs) > 0
    found = [(one.count, sum(size * n for size, n in one.sizes.items())) for one in rounds]
    assert engine.scheduler.pool.num_held == 0
    return [(o.stats.num_target_passes, o.stats.num_draft_tokens) for o in outputs], found


@pytest.mark.parametrize("name", SPECS)
def test_greedy_walks_take_the_passes_of_a_real_run(target, name):
    real, found = both(target, name, GREEDY, coupled=False)
    assert found == real


@pytest.mark.parametrize("name", SPECS)
def test_so_do_sampled_ones_with_their_seed(target, name):
    real, found = both(target, name, SamplingParams(temperature=0.7, seed=5, max_tokens=30, ignore_eos=True), True)
    assert found == real


@pytest.mark.parametrize("replay", [replay_lookup, lambda *given: replay_in_company(*given[:3], 1, given[3])])
def test_a_lookup_guesses_with_the_noise_of_a_seeded_text(target, replay):
    spec = {"method": "suffix", "num_draft_tokens": 3, "options": {"memory": "none", "min_token_prob": 0.001}}
    few = list(range(3, 9))
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True, allowed_token_ids=few)
    real = engine_of(target, spec)
    outputs = [run_all(real, [prompt], params)[0] for prompt in PROMPTS]
    texts = [Text(o.prompt_token_ids, o.token_ids, True, seed=params.seed) for o in outputs]
    stats = [(o.stats.num_target_passes, o.stats.num_draft_tokens) for o in outputs]

    def rounds_of(params):
        rounds = replay(engine_of(target, spec).drafter, texts, 3, params)
        return [(one.count, sum(size * n for size, n in one.sizes.items())) for one in rounds]

    assert rounds_of(params) == stats != rounds_of(GREEDY)


def test_noise_that_said_a_text_says_it_again_and_is_noise():
    rng = np.random.default_rng(0)
    p = Law(np.arange(4), np.array([0.4, 0.3, 0.2, 0.1]))
    q = Law(np.arange(4), np.array([0.1, 0.2, 0.3, 0.4]))
    tokens = rng.choice(4, 4000, p=p.probs)
    noise = NoiseOfText(2)
    for token in tokens:
        noise.add(p, int(token), 4)
    assert [noise.draw(p, 2 + place, "target") for place in range(len(tokens))] == tokens.tolist()
    agree = np.mean([noise.draw(q, 2 + place, "target") == token for place, token in enumerate(tokens)])
    from paceline.sampling.coupled import match_probability

    assert agree == pytest.approx(float(match_probability(p, q)), abs=4 * 0.5 / 4000**0.5)
    assert noise.draw(q, 1, "target") == noise.draw(q, 1, "target"), "before the output it is a counter's"


def test_draws_along_a_text_say_it_where_they_can():
    along = AlongText([3, 1, 2])
    law = Law(np.array([1, 4]), np.array([0.3, 0.7]))
    assert (along.draw(law, 1, "draft"), along.draw(law, 2, "draft"), along.draw(law, 9, "draft")) == (1, 4, 4)


def test_drawn_chains_judged_by_ratio_take_the_mean_of_real_runs(target):
    """The expectation over texts and coins, against runs without a seed."""
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    real = engine_of(target, SPECS["head"])
    outputs = run_all(real, [PROMPTS[0]] * 120, params)
    passes = np.array([o.stats.num_target_passes for o in outputs])
    texts = [Text(o.prompt_token_ids, o.token_ids) for o in outputs[:40]]
    engine = engine_of(target, SPECS["head"])
    rounds = replay_drafter(engine.drafter, Reader(target.model, engine, params, 3), texts, 3, params, False)
    expected = np.array([one.count for one in rounds])
    noise = np.hypot(passes.std() / len(passes) ** 0.5, expected.std() / len(expected) ** 0.5)
    assert expected.mean() == pytest.approx(passes.mean(), abs=4 * noise)
    spread = (1 / (2 * len(passes)) + 1 / (2 * len(expected))) ** 0.5  # of the ratio of two standard deviations
    assert expected.std() < (1 + 4 * spread) * passes.std()
