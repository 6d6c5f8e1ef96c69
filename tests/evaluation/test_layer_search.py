"""The search for layers to leave out, on models where the answer is known."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.evaluation.layer_search import (
    ROWS_PER_PASS,
    Agreement,
    PassCosts,
    best_choice,
    measure_costs,
    search_skipped_layers,
)  # fmt: skip
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

TEXTS = [np.random.default_rng(i).integers(0, 131, size).tolist() for i, size in enumerate((90, 40, 2))]
COSTS = PassCosts([1 + rows / 100 for rows in range(1, 10)], {1: 0.4, 5: 1.01})


class IdleLayers(RandomCheckpoint):
    """Five layers of which the second and the fourth hand their input on unchanged."""

    def __init__(self):
        super().__init__(small_config(num_hidden_layers=5), seed=3)
        self.fingerprint = "idle-layers"
        for layer in (1, 3):
            for part in ("self_attn.o_proj", "mlp.down_proj"):
                self._tensors[f"model.layers.{layer}.{part}.weight"][:] = 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        yield NumbaModel(IdleLayers(), "float32", num_threads=2)


def test_idle_layers_go_first_and_the_search_ends_behind_its_peak(model):
    told = []
    choices = search_skipped_layers(model, TEXTS, COSTS, progress=lambda done, total: told.append((done, total)))
    assert [choice.skip_layers for choice in choices[:2]] == [(1,), (1, 3)]
    assert [choice.agreement for choice in choices[:2]] == [1, 1]
    assert best_choice(choices) is choices[1]
    assert choices[2].agreement < 0.9
    assert all(done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]


def test_agreement_is_that_of_a_draft_behind_the_whole_models_keys(model):
    """The slow way: position by position, the target's cache for what came before, one row of the kept layers."""
    kept, [text] = [0, 1, 3, 4], [TEXTS[1]]
    view, same = model.with_layers(kept), 0
    for position in range(1, len(text)):
        cache = model.new_cache(4)
        model.forward(build_rows([Part(range(4), 0, text[:position], logits="none")]), cache)
        says = view.forward(build_rows([Part(range(4), position, [text[position]])]), cache).logits[0].argmax()
        truth = model.forward(build_rows([Part(range(4), 0, text[: position + 1])]), model.new_cache(4)).logits[-1]
        same += says == truth.argmax()
    assert Agreement(model, [text]).of(kept) == same / (len(text) - 1)
    assert 0 < same < len(text) - 1


def test_more_texts_than_a_pass_holds_are_counted_once_each(model):
    agreement = Agreement(model, TEXTS)
    assert agreement.num_positions == sum(len(text) - 1 for text in TEXTS) > ROWS_PER_PASS
    assert agreement.of([0, 1, 2, 3, 4]) == 1
    apart = [Agreement(model, [text]) for text in TEXTS]
    mean = sum(one.of([0, 2]) * one.num_positions for one in apart) / agreement.num_positions
    assert agreement.of([0, 2]) == pytest.approx(mean)


def test_the_speed_up_is_that_of_the_times():
    length, speedup = PassCosts([1.0] * 9, {1: 0.0, 5: 1.0}).predict(1.0, 1)  # drafts that are free and always right
    assert (length, speedup) == (8, 9)
    assert PassCosts([1.0] * 9, {1: 0.2, 5: 1.0}).predict(0.5, 5) == (1, 0.75)  # as dear as the target: a loss
    assert PassCosts([1.0] * 9, {1: 0.2, 5: 1.0}).predict(0.5, 1) == (1, 1.25)


def test_costs_are_measured_for_every_length_that_is_considered(model):
    costs = measure_costs(model, context=20, repeats=1)
    assert len(costs.by_rows) == 9
    assert list(costs.by_layers) == [1, 5]
    assert min(*costs.by_rows, *costs.by_layers.values()) > 0


@pytest.mark.parametrize("texts", [[], [[1]], [list(range(100)) * 6]])
def test_texts_without_an_answer_are_refused(model, texts):
    with pytest.raises(InvalidParameter, match="texts"):
        search_skipped_layers(model, texts, COSTS)


def test_an_executor_that_runs_whole_models_only_is_refused(model):
    class Whole:
        config = model.config

    with pytest.raises(UnsupportedModel, match="numba or torch"):
        search_skipped_layers(Whole(), TEXTS, COSTS)  # type: ignore[arg-type]
