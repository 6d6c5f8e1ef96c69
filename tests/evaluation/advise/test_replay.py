"""Replay against real runs: the same passes for lookups and greedy draft models, the right mean for sampled ones."""

import numpy as np
import pytest

from paceline.drafters.registry import make_drafter
from paceline.engine.score import score
from paceline.errors import InvalidParameter
from paceline.evaluation.advise.company import in_company, replay_in_company
from paceline.evaluation.advise.replay import Text, replay_chain, standing
from paceline.evaluation.advise.walk import replay_lookup
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, load_random, run_all

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def text_of(output) -> Text:
    return Text(output.prompt_token_ids, output.token_ids, output.finish_reason == "length")


@pytest.mark.parametrize("method", ["ngram", "suffix"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_lookups_take_the_passes_of_a_real_run(engine_for, method, k):
    options = {"min_token_prob": 0.1} if method == "suffix" else {}  # by the engine's prices where it is left out
    engine = engine_for({"method": method, "num_draft_tokens": k, "policy": "fixed", "options": options})
    outputs = [run_all(engine, [prompt], GREEDY)[0] for prompt in PROMPTS]
    texts = [text_of(output) for output in outputs]
    rounds = replay_lookup(make_drafter(method, **options), texts, k)
    assert [one.count for one in rounds] == [output.stats.num_target_passes for output in outputs]
    drafted = [sum(size * count for size, count in one.sizes.items()) for one in rounds]
    assert drafted == [output.stats.num_draft_tokens for output in outputs]
    assert sum(drafted) > 0
    tested = sum(sum(output.stats.tested_per_level) for output in outputs)
    assert sum(sum(one.tested) for one in rounds) == tested


def test_lookups_in_company_take_the_passes_of_a_real_run(engine_for):
    prompts = [PROMPTS[number] for number in (0, 2, 0, 1, 0, 1, 3)]  # the first group says one text twice
    spec = {"method": "suffix", "num_draft_tokens": 4, "policy": "fixed", "options": {"min_token_prob": 0.1}}
    engine = engine_for(spec)
    groups = [prompts[:3], prompts[3:6], prompts[6:]]
    outputs = [output for group in groups for output in run_all(engine, group, GREEDY)]
    texts = [text_of(output) for output in outputs]
    assert in_company(texts, 3) == [[0, 1, 2], [3, 4, 5], [6]]
    found = replay_in_company(make_drafter("suffix", min_token_prob=0.1), texts, 4, 3)
    passes = [one.count for one in found]
    assert passes == [output.stats.num_target_passes for output in outputs]
    alone = replay_lookup(make_drafter("suffix", min_token_prob=0.1), texts, 4)
    assert [one.count for one in alone] != passes, "the third text was there already"


@pytest.mark.parametrize("k", [1, 4])
def test_a_greedy_draft_model_takes_the_passes_of_a_real_run(tiny, engine_for, k):
    spec = {"method": "draft_model", "model": "random-0", "num_draft_tokens": k, "policy": "fixed"}
    other = load_random(1).model
    for draft, name in ((tiny.model, "random-0"), (other, "random-1")):
        outputs = run_all(engine_for(spec | {"model": name}), PROMPTS[:2], GREEDY)
        for output in outputs:
            whole, first = [*output.prompt_token_ids, *output.token_ids], len(output.prompt_token_ids)
            ours, theirs = (score(model, whole, first, GREEDY) for model in (tiny.model, draft))
            rounds = replay_chain(standing(ours, theirs, True)[1:], k)
            assert rounds.count == output.stats.num_target_passes


def test_a_sampled_draft_stands_with_the_ratio_given_the_text():
    target, draft = np.log([0.5, 0.1, 0.2]), np.log([0.25, 0.4, 0.2])

    class Of:
        def __init__(self, logprobs):
            self.logprobs = logprobs

    assert standing(Of(target), Of(draft), False).tolist() == pytest.approx([0.5, 1.0, 1.0])  # type: ignore[arg-type]


def test_expected_rounds_are_the_mean_of_simulated_ones():
    rng = np.random.default_rng(3)
    stands = rng.random(40)
    expected = replay_chain(stands, 4)
    counts = []
    for _ in range(3000):
        place = count = 0
        while place < 40:
            size = min(4, 40 - place - 1)
            fell = np.flatnonzero(rng.random(size) >= stands[place : place + size])
            place += (int(fell[0]) if len(fell) else size) + 1
            count += 1
        counts.append(count)
    assert expected.count == pytest.approx(np.mean(counts), abs=4 * np.std(counts) / 3000**0.5)
    assert sum(expected.accepted) + expected.count == pytest.approx(40), "every round adds what it accepts and one more"


def test_a_draft_that_always_stands_and_one_that_never_does():
    always, never = replay_chain(np.ones(12), 3), replay_chain(np.zeros(12), 3)
    assert (always.count, never.count) == (3, 12)


def test_drafters_that_need_laws_are_refused():
    with pytest.raises(InvalidParameter, match="num_draft_tokens"):
        replay_chain(np.ones(3), 0)
