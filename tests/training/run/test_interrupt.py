"""Ctrl-C ends a run after the update at hand, and what it leaves goes on to the same weights."""

import signal

import pytest
import torch

from paceline.training.run.interrupt import Interrupt
from paceline.training.run.loop import LoopSettings, Trainer
from tests.training.heads.test_loop import IDS, RECIPES, trainer
from tests.training.heads.tiny import tiny_store, tiny_target


def test_a_run_ended_by_a_signal_goes_on_bit_for_bit(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    whole = trainer(tmp_path / "a", "medusa", store, target, 6)
    whole.run()

    def third(now):
        if now.step == 3:
            signal.raise_signal(signal.SIGINT)

    torch.manual_seed(0)
    settings = LoopSettings(num_steps=6, rows=64, share=0.7)
    ended = Trainer(RECIPES["medusa"](target, IDS, 3), store, settings, tmp_path / "b" / "medusa", third)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="3 updates are kept; start the same command again"):
        ended.run()
    assert signal.getsignal(signal.SIGINT) is before
    again = trainer(tmp_path / "b", "medusa", store, target, 6)
    assert again.progress.step == 3 and again.progress.peak_bytes > 1e6
    again.run()
    for name, values in whole.trainee.net.state_dict().items():
        assert torch.equal(values, again.trainee.net.state_dict()[name]), name


@pytest.mark.parametrize(("signals", "evaluations"), [(1, 1), (2, 0)])
def test_a_run_ended_in_its_last_evaluation_keeps_its_updates(tmp_path, signals, evaluations):
    """The first signal waits for the evaluation, the second one does not."""
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    ended = trainer(tmp_path, "medusa", store, target, 3)
    evaluate = ended.trainee.evaluate

    def signalled(*given):
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        return evaluate(*given)

    ended.trainee.evaluate = signalled
    with pytest.raises(KeyboardInterrupt):
        ended.run()
    again = trainer(tmp_path, "medusa", store, target, 3)
    assert again.progress.step == 3 and len(again.progress.curve) == evaluations
    assert len(again.run().curve) == 1


def test_the_second_signal_ends_at_once():
    with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        signal.raise_signal(signal.SIGINT)
