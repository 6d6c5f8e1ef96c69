"""The tree search on random models: a perfect draft, a poor one, and where each token's rank comes from."""

import numpy as np
import pytest

from paceline.cli.tree import _print as show
from paceline.errors import InvalidParameter
from paceline.evaluation.accuracy import rank_counts
from paceline.evaluation.tree_search import TreeSearch, measure
from paceline.models.rows import Part, build_rows
from paceline.types import RequestOutput, SamplingParams
from tests.engine.conftest import PROMPTS, load_random, run_all

GREEDY = SamplingParams(temperature=0, max_tokens=90)


class Answers:
    """Enough of an `LLM`: answers with an engine of its own."""

    def __init__(self, engine):
        self._engine = engine

    def generate(self, prompts, params) -> list[RequestOutput]:
        return run_all(self._engine, prompts, params)


@pytest.fixture
def target(engine_for):
    return Answers(engine_for())


def ids(prompts):
    return [list(prompt.encode()) for prompt in prompts]


def test_the_target_as_its_own_draft_is_always_right_first(tiny, target):
    search = measure(target, tiny.model, ids(PROMPTS), GREEDY, num_ranks=3, depth=4)  # type: ignore[arg-type]
    assert search.accuracies == (1.0, 0.0, 0.0)
    assert search.paths(9) == search.chain(9) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    assert search.tokens_per_pass(search.paths(9)) == 5


def test_a_draft_that_is_never_right_gets_no_option_to_copy(capsys):
    search = TreeSearch((0.0, 0.0), 8, 2)
    show(search, search.paths(4), 4, "--draft-model small")
    told = capsys.readouterr()
    assert "No guess of the draft was right" in " ".join(told.err.split()) and "--draft-option" not in told.out


def test_the_options_to_copy_name_the_draft(capsys):
    search = TreeSearch((0.6, 0.2), 8, 2)
    show(search, search.paths(2), 2, "--draft draft_model --draft-model small.gguf")
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith(
        "--draft draft_model --draft-model small.gguf --draft-option tree=static --draft-option 'paths="
    )


def test_counts_are_the_ranks_one_token_at_a_time(engine_for):
    draft = load_random(1).model
    output = run_all(engine_for(), PROMPTS[:1], GREEDY)[0]
    tokens = [*output.prompt_token_ids, *output.token_ids]
    ranks = np.zeros(61, np.int64)
    for end in range(len(output.prompt_token_ids), len(tokens)):
        cache = draft.new_cache(16)
        logits = draft.forward(build_rows([Part(range(16), 0, tokens[:end], logits="last")]), cache).logits[0]
        ranks[min(60, np.argsort(-logits, kind="stable").tolist().index(tokens[end]))] += 1
    counts = rank_counts(draft, tokens, len(output.prompt_token_ids), 60)
    assert counts.tolist() == ranks.tolist()
    assert counts.sum() == len(output.token_ids)
    assert (counts[1:-1] > 0).any()


def test_a_tree_beats_a_chain_where_second_guesses_hit():
    search = TreeSearch((0.4, 0.3, 0.1), 100, 4)
    assert search.tokens_per_pass(search.paths(3)) > search.tokens_per_pass(search.chain(3))


@pytest.mark.parametrize("field", ["num_ranks", "depth"])
def test_nothing_to_measure_is_refused(tiny, target, field):
    with pytest.raises(InvalidParameter, match=f"^{field}"):
        measure(target, tiny.model, ids(PROMPTS[:1]), GREEDY, **{field: 0})
    with pytest.raises(InvalidParameter, match=r"^prompts"):
        measure(target, tiny.model, [], GREEDY)
