"""Trees in a draft model's own cache, on the real executor: rows are those of their paths, verdicts leave no trace."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.draft_models.specinfer import SpecInfer
from paceline.drafters.runners.draft_runner import DraftRunner
from paceline.drafters.trees.options import tree_shape
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.sampling import CounterRandomness, Warper
from paceline.speculation.records import BatchStats
from paceline.types import SamplingParams
from tests.fakes import RandomCheckpoint, small_config, tell

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]
SHAPES = {
    "static": {"tree": "static", "expansion": (3, 2, 1)},
    "dynamic": {"tree": "dynamic", "topk": 3, "depth": 4},
    "sampled": {"tree": "sampled", "expansion": (2, 2, 2), "replacement": True},
    "distinct": {"tree": "sampled", "expansion": (3, 1, 1)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: tmp_path_factory.getbasetemp())
        yield NumbaModel(RandomCheckpoint(small_config(), 5), "float32", num_threads=1)  # type: ignore[arg-type]


def context(tokens, budget=14, request_id="r", seed=0, temperature=1.0):
    warper = Warper(SamplingParams(temperature=temperature))
    return DraftContext(
        request_id, list(tokens), 1, budget, warper.params, warper.law, CounterRandomness(seed),
        rank=warper.confidence_law,
    )  # fmt: skip


def alone(model, tokens):
    """(logits below the last of `tokens`, keys and values of all of them) in a cache of their own."""
    cache = model.new_cache(8)
    logits = model.forward(build_rows([Part(range(8), 0, tokens, logits="last")]), cache).logits[0].copy()
    return logits, cache.read(range(len(tokens)))


def assert_cache_is_that_of_a_fresh_prefill(runner: DraftRunner, model, request_id, committed) -> int:
    tokens, slots = runner.slots(request_id)
    assert tokens == list(committed[: len(tokens)])
    if tokens:
        for ours, theirs in zip(runner.cache.read(slots), alone(model, tokens)[1], strict=True):
            assert np.array_equal(ours, theirs)
    return len(tokens)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_below_every_node_are_bitwise_those_of_the_path_alone(model, shape):
    seen = {}

    class Spy(DraftRunner):
        def score(self, work):
            scored = super().score(work)
            for (growth, nodes), logits in zip(work, scored, strict=True):
                for node, row in zip(nodes, logits, strict=True):
                    seen[(*growth.context.token_ids, *growth.tokens_to(node))] = row.copy()
            return scored

    drafter = DraftModel(model, 32, shape=tree_shape(**SHAPES[shape]))
    drafter.runner = Spy(model, 32)
    drafter.propose([context(PROMPT, request_id="a"), context(PROMPT[:7], request_id="b", seed=1)])
    assert len({path for path in seen if len(path) > len(PROMPT) + 1}) >= 2
    for path, logits in seen.items():
        assert np.array_equal(logits, alone(model, list(path))[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_verdict_leaves_the_cache_of_a_fresh_prefill(model, shape, temperature):
    """A committed path per node of the tree, bonus token after it, and the step after that."""
    tree = _tree(DraftModel(model, 32, shape=tree_shape(**SHAPES[shape])), temperature)
    kept = []
    for node in range(-1, len(tree)):
        drafter = DraftModel(model, 32, shape=tree_shape(**SHAPES[shape]))
        assert _tree(drafter, temperature).tokens == tree.tokens
        committed = [*PROMPT, *tree.tokens_to(node), 77]
        tell(drafter, "r", committed, finished=False)
        kept.append(assert_cache_is_that_of_a_fresh_prefill(drafter.runner, model, "r", committed))
        again = drafter.propose([context(committed, temperature=temperature)])[0]
        fresh = DraftModel(model, 32, shape=tree_shape(**SHAPES[shape]))
        assert again.tokens == fresh.propose([context(committed, temperature=temperature)])[0].tokens
        tell(drafter, "r", committed, finished=True)
    assert min(kept) == len(PROMPT)
    assert max(kept) > len(PROMPT) + 1  # accepted nodes were kept, not computed again


def _tree(drafter, temperature):
    return drafter.propose([context(PROMPT, temperature=temperature)])[0]


def test_every_model_of_a_pool_keeps_its_own_cache(model):
    models = [model, NumbaModel(RandomCheckpoint(small_config(), 6), "float32", num_threads=1)]  # type: ignore[arg-type]
    drafter = SpecInfer(models, [(2, 1), (1, 2)], 32)
    committed = list(PROMPT)
    for seed in range(6):
        tree = drafter.propose([context(committed, seed=seed)])[0]
        deepest = max(range(len(tree)), key=lambda node: tree.depths[node])
        committed += [*tree.tokens_to(deepest), 70 + seed]
        tell(drafter, "r", committed, finished=False)
        for runner, own in zip(drafter.runners, models, strict=True):
            assert_cache_is_that_of_a_fresh_prefill(runner, own, "r", committed)
    drafter.release("r")


def test_pages_come_back_whatever_was_grown(model):
    drafter = DraftModel(model, 4, shape=tree_shape("dynamic", topk=3, depth=4))
    for number in range(6):
        assert len(drafter.propose([context(PROMPT, request_id=str(number))])[0]) == 14
        tell(drafter, str(number), [*PROMPT, 1], finished=True)
    assert len(drafter.propose([context(PROMPT * 4)])[0]) == 0  # no room: no tree
    assert len(drafter.propose([context(PROMPT)])[0]) == 14


class Counting(DraftRunner):
    """Counts its passes."""

    passes = 0

    def _forward(self, parts):
        self.passes += 1
        return super()._forward(parts)


def second_step(model, temperature, guess=(), budget=6):
    """(tree, passes, drafter, committed) of a step whose text the model knows but for two tokens."""
    drafter = DraftModel(model, 32)
    drafter.runner = Counting(model, 32)
    drafter.propose([context(PROMPT, budget=1, temperature=temperature)])
    committed = [*PROMPT, 7, 8]
    tell(drafter, "r", committed, finished=False)
    drafter.runner.passes = 0
    [tree] = drafter.propose([replace(context(committed, budget, temperature=temperature), guess=guess)])
    return tree, drafter.runner.passes, drafter, committed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_right", range(6))
def test_a_guess_saves_passes_and_changes_nothing(model, temperature, num_right):
    plain, passes, *_ = second_step(model, temperature)
    assert (len(plain), passes) == (6, 6)
    wrong = [(token + 1) % 20 for token in plain.tokens]
    guess = [*plain.tokens[:num_right], *wrong[num_right:5]]
    tree, passes, drafter, committed = second_step(model, temperature, guess)
    assert (tree.tokens, tree.parents, passes) == (plain.tokens, plain.parents, 6 - num_right)
    for ours, theirs in zip(tree.draft_laws, plain.draft_laws, strict=True):
        assert np.array_equal(ours.tokens, theirs.tokens)
        assert np.array_equal(ours.probs, theirs.probs)
    for said in ([*tree.tokens[:4], 99], [*guess[:4], 99], [99]):
        drafter = second_step(model, temperature, guess)[2]
        tell(drafter, "r", [*committed, *said], finished=False)
        kept = assert_cache_is_that_of_a_fresh_prefill(drafter.runner, model, "r", [*committed, *said])
        assert kept == len(committed) + len(said) - 1  # what was read along and said is kept as well


def test_a_guess_waits_while_much_of_the_text_is_unread(model):
    """Its pass would compute logits for every row of the prompt."""
    drafter = DraftModel(model, 32)
    drafter.runner = Counting(model, 32)
    drafter.propose([replace(context(PROMPT, 3), guess=[1, 2])])
    assert (drafter.runner.passes, drafter.runner.pages["r"].ahead) == (3, [])


def test_trees_draw_the_same_beside_a_guess(model):
    for name in SHAPES:
        trees = []
        for guess in ([], [4, 5]):
            drafter = DraftModel(model, 32, shape=tree_shape(**SHAPES[name]))
            drafter.propose([context(PROMPT, budget=1)])
            text = [*PROMPT, 7]
            tell(drafter, "r", text, finished=False)
            trees += drafter.propose([replace(context(text), guess=guess)])
            tell(drafter, "r", [*text, *trees[-1].tokens_to(0), 9], finished=False)
            assert_cache_is_that_of_a_fresh_prefill(drafter.runner, model, "r", [*text, *trees[-1].tokens_to(0), 9])
        assert trees[0].tokens == trees[1].tokens


def test_a_guess_that_does_not_fit_is_left(model):
    drafter = DraftModel(model, 2)
    text = PROMPT[:10]
    drafter.propose([context(text, budget=1)])
    text += [7]
    tell(drafter, "r", text, finished=False)
    [tree] = drafter.propose([replace(context(text, budget=20), guess=[1, 2, 3])])
    assert len(tree) == 20


LONG = (PROMPT * 3)[:50]


def chunk(end, text=LONG, request_id="r"):
    """The context of a request whose prompt `text` was computed up to `end`."""
    return replace(context(text[:end], request_id=request_id), num_prompt_tokens=len(text))


def test_a_text_that_was_read_along_with_its_prompt_is_drafted_for_as_any(model):
    """The first draft computes two tokens instead of fifty."""
    [expected] = DraftModel(model, 32).propose([context(LONG)])
    drafter, rows = DraftModel(model, 32), []
    compute = drafter.runner._forward
    drafter.runner._forward = lambda parts: rows.append(sum(len(part.tokens) for part in parts)) or compute(parts)
    assert [drafter.read_along(chunk(end)) for end in (16, 32, 48)] == [16, 32, 48]
    tell(drafter, "r", LONG)
    [tree] = drafter.propose([context(LONG)])
    assert (tree.tokens, tree.parents) == (expected.tokens, expected.parents)
    assert rows[:4] == [16, 16, 16, 2]
    assert assert_cache_is_that_of_a_fresh_prefill(drafter.runner, model, "r", LONG) == 50


def test_as_much_is_read_as_a_step_may_have_computed(model):
    """In passes of 20 rows."""
    drafter = DraftModel(model, 32, max_prefill_rows=20)
    assert drafter.read_along(replace(chunk(48), batch=BatchStats(1, num_prefill_rows=45))) == 45


def test_a_pass_reads_so_many_tokens_and_a_pool_as_many_as_its_slowest_model(model):
    drafter = SpecInfer([model, model], [(2,), (1,)], 32, max_prefill_rows=20)
    assert [drafter.read_along(chunk(end)) for end in (45, 45, 45)] == [20, 40, 45]
    drafter.runners[1].read = lambda context: 7
    assert drafter.read_along(chunk(48)) == 7


def test_what_does_not_fit_is_not_read(model):
    runner = DraftRunner(model, 4)
    assert runner.read(chunk(16)) == 16
    assert runner.read(chunk(40, LONG[5:], "s")) == 40
    assert runner.read(chunk(32)) == 16, "s holds the other pages, and may be about to draft"
    assert runner.read(chunk(16, LONG * 2, "t")) == 0, (
        "nothing will be drafted for a text that is longer than the cache"
    )
    assert runner.read(chunk(70, LONG * 2, "r")) == 0, "it has said much since, and waits again"
    runner.release("s")
    assert runner.read(chunk(32)) == 32
    runner.pages.check_integrity()
