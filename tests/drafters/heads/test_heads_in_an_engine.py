"""Untrained heads in the engine: texts stay plain's, and what a head keeps of a text is what a fresh reading gives.

Prompts in chunks, beginnings from the prefix cache, preempted requests and trees are in the mix, because each of them
reaches a head's hidden states by another way.
"""

from typing import get_args

import numpy as np
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.heads.autoregressive import AutoregressiveRunner
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.engine.setup.build import build_engine
from paceline.errors import ModelNotFound
from paceline.models.base import slot_of
from paceline.models.heads.record import NOT_TRAINED, Family
from paceline.models.rows import Part, build_rows
from paceline.training.heads.recipes import RECIPES
from paceline.types import SamplingParams
from tests.models.heads.records import load_target

from .random_heads import HEADS

NAME = "tests.drafters.heads.random_heads:make_random_head"
RNG = np.random.default_rng(3)
COMMON = RNG.integers(3, 120, 40).tolist()
PROMPTS = [[*COMMON, *RNG.integers(3, 120, n).tolist()] for n in (1, 9, 30)] + [COMMON[:33], [5]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=1, seed=11, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def target():
    return load_target("float32")


def texts(target, speculative, params, watch=None, **config):
    """Outputs of all prompts together, a few steps apart."""
    spec = None if speculative is None else SpeculativeConfig(NAME, policy="fixed", options=speculative)
    settings = {"kv_cache_memory_bytes": 1 << 22, "executor": "numba"} | config
    engine = build_engine(target, EngineConfig(**settings), spec)
    found = {}
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, params)
        for _ in range(3):
            collect(engine, found)
            if watch:
                watch(engine)
    while engine.has_unfinished_requests:
        collect(engine, found)
        if watch:
            watch(engine)
    return [found[str(number)] for number in range(len(PROMPTS))], engine


def collect(engine, found):
    for output in engine.step():
        if output.finished:
            found[output.request_id] = output.finished.outputs[0].token_ids


@pytest.mark.parametrize("family", ["medusa", "mtp"])
def test_without_a_head_training_one_is_proposed_where_there_is_a_recipe(target, family):
    assert set(get_args(Family)) - set(RECIPES) == NOT_TRAINED
    with pytest.raises(ModelNotFound, match=r"name a folder with model=\.\.\. or --draft-model") as refused:
        build_engine(target, EngineConfig(executor="numba"), SpeculativeConfig(family))
    assert (f"paceline train head {family}" in str(refused.value)) == (family == "medusa")


OPTIONS = {
    "chain": {},
    "dynamic": {"tree": "dynamic", "topk": 2, "depth": 3},
    "static": {"tree": "static", "expansion": (2, 2, 1)},
    "sampled": {"tree": "sampled", "expansion": (2, 1)},
    "blocks": {"tree": "blocks", "topk": 2, "depth": 2},
}
LOADS = {
    "roomy": {},
    "chunks": {"max_num_batched_tokens": 16},
    "tight": {"kv_cache_memory_bytes": 110_000, "max_model_len": 110},
}


@pytest.fixture(scope="module")
def plain(target):
    return {name: texts(target, None, params)[0] for name, params in (("greedy", GREEDY), ("seeded", SEEDED))}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("family", HEADS)
def test_greedy_texts_are_plains(target, plain, family, load):
    found, engine = texts(target, {"family": family}, GREEDY, **LOADS[load])
    assert found == plain["greedy"]
    assert engine.metrics.spec_decode_num_draft_tokens > 0
    if load == "tight":
        assert engine.metrics.num_preemptions > 0


@pytest.mark.parametrize("tree", OPTIONS)
@pytest.mark.parametrize("family", HEADS)
def test_seeded_texts_and_trees_are_plains(target, plain, family, tree):
    assert texts(target, {"family": family} | OPTIONS[tree], SEEDED)[0] == plain["seeded"]
    if tree != "chain":  # a greedy chain is tried above
        assert texts(target, {"family": family} | OPTIONS[tree], GREEDY)[0] == plain["greedy"]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_kept_keys_and_values_are_those_of_a_fresh_reading(target, tree, load):
    """After every step, whatever was accepted or refused, bit for bit."""
    num_checked = 0

    def watch(engine):
        nonlocal num_checked
        runner = engine.drafter.runner
        assert isinstance(runner, AutoregressiveRunner)
        for request_id in list(runner.pages):
            kept = runner.pages.get(request_id)
            text = engine.state_of(request_id).token_ids
            if len(kept.tokens) > 1:
                np.testing.assert_array_equal(*both(target, runner, kept, text))
                num_checked += 1

    texts(target, OPTIONS[tree], GREEDY, watch, **LOADS[load])
    assert num_checked > 100


def both(target, runner, kept, text):
    """Keys of the rows that are kept, and those of a head that reads the text for the first time."""
    count, net = len(kept.tokens), runner._net
    pages = range(-(-len(text) // 16))
    part = Part(pages, 0, text[:count], logits="none")
    taps = target.model.forward(build_rows([part]), target.model.new_cache(len(pages)), runner.states.taps).taps
    fed = net.project(np.concatenate([taps[tap] for tap in runner.states.taps], axis=1)).copy()
    cache = net.new_cache(len(pages))
    net.forward(build_rows([Part(pages, 0, text[1 : count + 1], logits="last")]), fed, cache)
    places = np.arange(count)
    ours = runner.cache.read(slot_of(np.asarray(kept.pages), places))
    return np.concatenate(ours), np.concatenate(cache.read(slot_of(np.asarray(pages), places)))


@pytest.mark.parametrize("family", ["eagle", "eagle3", "falcon", "dflash"])
def test_states_of_a_long_prompt_are_used_as_they_come(target, family, monkeypatch):
    """More than are kept: the target would have to compute those again for the first draft."""
    again, compute = [], HiddenStates._computed

    def counted(self, context, first, last):
        again.append(max(0, last - first))
        return compute(self, context, first, last)

    monkeypatch.setattr("paceline.drafters.heads.hidden_states._MOST", 20)
    monkeypatch.setattr(HiddenStates, "_computed", counted)
    spec = SpeculativeConfig(NAME, policy="fixed", options={"family": family})
    config = EngineConfig(executor="numba", kv_cache_memory_bytes=1 << 22, max_num_batched_tokens=16)
    engine = build_engine(target, config, spec)
    engine.add_request("r", RNG.integers(3, 120, 90).tolist(), GREEDY)
    while engine.has_unfinished_requests:
        engine.step()
    assert engine.metrics.spec_decode_num_draft_tokens > 0
    assert again and sum(again) == 0
