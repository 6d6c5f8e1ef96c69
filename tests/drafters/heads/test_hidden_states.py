"""`HiddenStates`: what a head takes is what the target's pass over the text gives, wherever its parts are."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.drafters.base import DraftContext  # noqa: E402
from paceline.drafters.heads import hidden_states  # noqa: E402
from paceline.drafters.heads.hidden_states import HiddenStates  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.device_states import DeviceStates  # noqa: E402
from paceline.sampling.randomness import CounterRandomness  # noqa: E402
from paceline.speculation import RequestOutcome  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import RandomCheckpoint, small_config  # noqa: E402

TAPS = (0, 2)
TOKENS = np.random.default_rng(3).integers(0, 131, 90).tolist()
PAGES = tuple(range(6))


@pytest.fixture(scope="module")
def target():
    model = TorchModel(RandomCheckpoint(small_config()))  # type: ignore[arg-type]
    cache = model.new_cache(len(PAGES))
    taps = model.forward(build_rows([Part(PAGES, 0, TOKENS)]), cache, TAPS).taps
    return model, cache, taps


def context():
    return DraftContext("0", TOKENS, 9, 4, SamplingParams(), None, CounterRandomness(1), page_table=PAGES)


def given(target, steps, where):
    """The states of positions in `steps`, each a (first, end, whether they are on a device)."""
    model, cache, taps = target
    states = HiddenStates(TAPS, model, cache)
    for first, end, is_there in steps:
        own = {tap: found[first:end] for tap, found in taps.items()}
        if is_there:
            table = torch.from_numpy(np.concatenate([own[tap] for tap in TAPS], axis=1)).to(where)
            own = dict(zip(TAPS, DeviceStates(table).by_column(own[0].shape[1]), strict=True))
        states.observe(RequestOutcome("0", TOKENS[:end], end - first, taps=own, first_tapped=first))
    return states


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 60, False), (60, 63, False)],
        [(0, 60, True), (60, 63, True)],
        [(0, 60, False), (60, 61, True), (61, 63, True)],
        [(0, 9, True), (9, 60, False), (60, 63, True)],
        [(20, 40, True), (40, 63, True)],
        [(50, 63, False)],
        [],
    ],
)
@pytest.mark.parametrize(("first", "last"), [(0, 63), (10, 63), (58, 62), (62, 63)])
@pytest.mark.parametrize("most", [1, 30, 256])
def test_what_is_taken_is_what_a_pass_over_the_text_gives(target, steps, first, last, most, monkeypatch):
    monkeypatch.setattr(hidden_states, "_MOST_ROWS_ON_DEVICE", most)
    found = given(target, steps, "cpu").take(context(), first, last)
    wanted = np.concatenate([target[2][tap][first:last] for tap in TAPS], axis=1)
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-4, rtol=1e-4)


def test_tables_that_states_keep_in_memory_are_bounded(target, monkeypatch):
    """A token's states keep the whole pass, of which most rows were a prompt's."""
    monkeypatch.setattr(hidden_states, "_MOST_ROWS_ON_DEVICE", 500)
    model, cache, taps = target
    states, width = HiddenStates(TAPS, model, cache), taps[0].shape[1]
    for at in range(40):
        table = torch.zeros(100, 2 * width)
        table[7] = torch.from_numpy(np.concatenate([taps[tap][at] for tap in TAPS]))
        columns = DeviceStates(table).by_column(width)
        for name in ("0", "1"):
            own = {tap: column[7:8] for tap, column in zip(TAPS, columns, strict=True)}
            states.observe(RequestOutcome(name, TOKENS[: at + 1], 1, taps=own, first_tapped=at))
        del table, columns, own
        assert sum(len(each) for each in states._tables.values()) <= 600
    wanted = np.concatenate([taps[tap][:40] for tap in TAPS], axis=1)
    for name in ("0", "1"):
        np.testing.assert_array_equal(np.asarray(states.take(replace(context(), request_id=name), 0, 40)), wanted)


def test_few_states_stay_on_a_device_and_many_are_fetched(target, monkeypatch):
    monkeypatch.setattr(hidden_states, "_MOST_ROWS_ON_DEVICE", 16)
    steps = [(0, 10, True), *((at, at + 1, True) for at in range(10, 16))]
    assert isinstance(given(target, steps, "cpu").take(context(), 2, 16), DeviceStates)
    steps.append((16, 17, True))
    assert isinstance(given(target, steps, "cpu").take(context(), 2, 17), np.ndarray)
    steps.append((17, 19, True))
    assert isinstance(given(target, steps, "cpu").take(context(), 17, 19), DeviceStates)
    held = given(target, steps, "cpu")
    assert len(np.asarray(held.take(context(), 0, 19))) == 19
