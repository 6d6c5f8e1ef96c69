"""Search for the layers that the layer-skip drafter should leave out, on texts of the user.

Greedy, one layer at a time: the next is the one whose removal keeps the agreement highest, until the predicted speed-up
has not risen for `PATIENCE` layers (Zhang et al. 2023 search the same space by Bayesian optimisation). Agreement is
measured as in drafting: at each position the kept layers attend to the whole model's keys and values of the tokens
before it, and agree when both have the same argmax. The speed-up is predicted from this rate and from passes timed
here, so the machine should be idle. Not for drafting (`layer_skip.py`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.drafters.self_drafts.layer_skip import kept_layers
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import PAGE_SIZE, CausalLM, SkipsLayers, pages_for
from paceline.models.overlay import Overlay, overlay_rows
from paceline.models.rows import Part, build_rows
from paceline.theory.acceptance import expected_tokens
from paceline.theory.speedup import measured_speedup
from paceline.types import Progress

ROWS_PER_PASS = 64
MOST_DRAFTED = 8
PATIENCE = 4
"""Number of layers removed without a higher speed-up after which the search ends."""


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """A set of layers to leave out, and what is expected of it.

    Attributes:
        skip_layers: value of the option of that name.
        agreement: fraction of positions at which the kept layers have the same argmax as all layers.
        num_draft_tokens: the best draft length at that rate, at least 1.
        speedup: predicted speed-up over plain decoding at that length; below 1 is slower.
    """

    skip_layers: tuple[int, ...]
    agreement: float
    num_draft_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of decoding passes.

    Attributes:
        by_rows: passes of the whole model over 1, 2, ... rows.
        by_layers: passes over one row by number of layers, for 1 and all of them; interpolated linearly in between.
    """

    by_rows: Sequence[float]
    by_layers: dict[int, float]

    def predict(self, agreement: float, num_kept: int) -> tuple[int, float]:
        """(best draft length, at least 1, its speed-up) of drafts with `num_kept` layers and this acceptance rate."""
        draft = float(np.interp(num_kept, list(self.by_layers), list(self.by_layers.values())))

        def speedup(length: int) -> float:
            tokens = expected_tokens(agreement, length)
            return float(measured_speedup(tokens, length, lambda rows: self.by_rows[rows - 1], draft))

        best = max(range(1, len(self.by_rows)), key=speedup)
        return best, speedup(best)


class Agreement:
    """How often some layers of `model` have the argmax of all layers, on `texts` of at least two tokens each."""

    def __init__(self, model: CausalLM, texts: Sequence[Sequence[int]]) -> None:
        self._model = model
        sizes = [pages_for(len(text)) for text in texts]
        first_slot = sum(sizes) * PAGE_SIZE
        self._cache = model.new_cache(sum(sizes) + ROWS_PER_PASS // PAGE_SIZE)
        self._rows: list[Overlay] = []
        self._answers: list[int] = []
        for text, end in zip(texts, np.cumsum(sizes), strict=True):
            pages = np.arange(end - pages_for(len(text)), end, dtype=np.int32)
            self._read(text, pages)
            for position in range(1, len(text)):
                slot = first_slot + len(self._rows) % ROWS_PER_PASS
                needed = pages[: pages_for(position)]
                self._rows.append(Overlay(text[position], needed, position, position, [slot]))

    @property
    def num_positions(self) -> int:
        """Positions at which each set of layers is compared with the whole model."""
        return len(self._rows)

    def of(self, layers: Sequence[int]) -> float:
        """The share of positions at which `layers` agree with the whole model."""
        assert isinstance(self._model, SkipsLayers)
        view = self._model.with_layers(layers)
        picks: list[int] = []
        for first in range(0, len(self._rows), ROWS_PER_PASS):
            rows = overlay_rows(self._rows[first : first + ROWS_PER_PASS])
            picks += view.forward(rows, self._cache).logits.argmax(axis=1).tolist()
        return float(np.mean(np.array(picks) == np.array(self._answers)))

    def _read(self, text: Sequence[int], pages: np.ndarray) -> None:
        """Prefill the text and append the whole model's argmax after each token but the first to `_answers`."""
        for start in range(0, len(text), ROWS_PER_PASS):
            part = Part(pages.tolist(), start, text[start : start + ROWS_PER_PASS])
            picks = self._model.forward(build_rows([part]), self._cache).logits.argmax(axis=1).tolist()
            self._answers += picks[1:] if start == 0 else picks


def measure_costs(model: CausalLM, context: int = 128, repeats: int = 5) -> PassCosts:
    """Seconds of passes of `model` after `context` tokens, each the minimum of `repeats`."""
    assert isinstance(model, SkipsLayers)
    pages = list(range(pages_for(context + MOST_DRAFTED + 1)))
    cache, one = model.new_cache(len(pages)), model.with_layers([0])

    def seconds(runner: CausalLM, num_rows: int) -> float:
        rows = build_rows([Part(pages, context, [0] * num_rows)])
        runner.forward(rows, cache)
        return min(_timed(lambda: runner.forward(rows, cache)) for _ in range(repeats))

    by_rows = [seconds(model, num_rows) for num_rows in range(1, MOST_DRAFTED + 2)]
    return PassCosts(by_rows, {1: seconds(one, 1), model.config.num_hidden_layers: by_rows[0]})


def search_skipped_layers(
    model: CausalLM,
    texts: Sequence[Sequence[int]],
    costs: PassCosts | None = None,
    breadth: int = 12,
    progress: Progress = lambda done, total: None,
) -> list[LayerChoice]:
    """The sets of the search, each one layer larger than the one before; `best_choice` picks one.

    Args:
        model: the target, on an executor that can leave layers out.
        texts: token ids, ideally of the kind that will be generated; a few hundred tokens in total suffice.
        costs: of passes; measured when None.
        breadth: number of layers considered after the first round: those whose removal alone hurts least.
        progress: called with (sets tried, largest number of sets).

    Raises:
        UnsupportedModel: the executor cannot leave layers out, or the model has recurrent layers.
        InvalidParameter: no text has two tokens, or one is longer than the model's context.
    """
    num_layers, usable = model.config.num_hidden_layers, _usable(model, texts)
    costs, agreement = costs or measure_costs(model), Agreement(model, usable)
    skipped: list[int] = []
    choices: list[LayerChoice] = []
    candidates = list(range(num_layers))
    most = min(breadth, num_layers - 1)
    total, done = num_layers + sum(min(breadth, num_layers) - gone for gone in range(1, most)), 0
    while len(skipped) < most and not _has_peaked(choices):
        rates = {}
        for layer in candidates:
            rates[layer] = agreement.of(kept_layers([*skipped, layer], num_layers))
            done += 1
            progress(done, total)
        ranked = sorted(candidates, key=lambda layer: -rates[layer])
        skipped.append(ranked[0])
        length, speedup = costs.predict(rates[ranked[0]], num_layers - len(skipped))
        choices.append(LayerChoice(tuple(sorted(skipped)), rates[ranked[0]], length, speedup))
        candidates = ranked[1:breadth]
    progress(total, total)
    return choices


def best_choice(choices: Sequence[LayerChoice]) -> LayerChoice:
    """The set with the largest predicted speed-up, the smaller one on ties."""
    return max(choices, key=lambda choice: choice.speedup)


def _usable(model: CausalLM, texts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The texts of two or more tokens. Raises as `search_skipped_layers`."""
    if not isinstance(model, SkipsLayers):
        raise UnsupportedModel("layers: this executor runs whole models only; use the numba or torch executor")
    if model.config.recurrence:
        problem = "sets of layers are compared at every token, and states of recurrent layers are kept of few"
        raise UnsupportedModel(f"layers: {problem}; compare some with paceline bench")
    usable, limit = [text for text in texts if len(text) > 1], model.config.max_position_embeddings
    if not usable or max(map(len, usable)) > limit:
        raise InvalidParameter("texts", f"need 2 to {limit} tokens each", "give longer texts, or cut them")
    return usable


def _has_peaked(choices: Sequence[LayerChoice]) -> bool:
    if not choices:
        return False
    return len(choices) - 1 - choices.index(best_choice(choices)) >= PATIENCE


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
