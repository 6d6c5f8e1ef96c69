"""Training runs: they learn, end and go on as if they had not ended, and measure in the one definition."""

import signal

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter
from paceline.training.heads.evaluate import evaluate
from paceline.training.heads.figures import expected_length, replayed
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.shards import TapStore
from paceline.training.run import loop
from paceline.training.run.loop import LoopSettings, Trainer
from paceline.training.run.optimiser import rate_at
from paceline.training.run.order import Order
from tests.training.heads.tiny import TAPS, tiny_store, tiny_target

IDS = np.arange(29, dtype=np.int32)


def trainer(folder, family, store, target, num_steps, **more):
    torch.manual_seed(0)
    settings = LoopSettings(num_steps=num_steps, **{"rows": 64, "share": 0.7, **more})
    return Trainer(RECIPES[family](target, IDS, 3), store, settings, folder / family)


@pytest.mark.parametrize(
    ("family", "steps", "rate", "texts"),
    [
        ("eagle3", 45, 3e-2, 4), ("mlp_speculator", 30, 5e-2, 4), ("hass", 30, 3e-2, 4), ("falcon", 80, 3e-2, 4),
        ("eagle", 60, 3e-2, 2), ("dspark", 50, 3e-2, 2), ("blockwise", 100, 3e-2, 2), ("medusa", 200, 5e-2, 2),
        ("p_eagle", 60, 3e-2, 2),
    ],
)  # fmt: skip
def test_a_small_head_learns_a_rule_by_heart(tmp_path, quick_rise, family, steps, rate, texts):
    target = tiny_target(torch.float32)
    store = tiny_store(tmp_path / "taps", target, num=texts)
    run = trainer(tmp_path, family, store, target, steps, rate=rate, rows=40, share=1.0)
    done = run.run()
    assert done.step == steps and done.curve[-1]["num_places"] > 0
    run.trainee.net.load_state_dict(run.mean.weights)
    trained = [one for one in store.documents if not one.conversation.is_held_out]
    assert min(evaluate(run.trainee, store, trained).greedy) > 0.95


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A folder of eight texts, of which an update reads five: the order is shuffled anew in the second one."""
    folder = tmp_path_factory.mktemp("taps")
    tiny_store(folder, tiny_target(), num=8)
    return folder


@pytest.mark.parametrize("family", list(RECIPES))
def test_an_ended_run_goes_on_bit_for_bit(tmp_path, few, family):
    target, store = tiny_target(), TapStore(few)
    whole = trainer(tmp_path / "a", family, store, target, 4)
    whole.run()
    first = trainer(tmp_path / "b", family, store, target, 4)
    for _ in range(2):
        first.step()
    first.save()
    torch.manual_seed(99)
    second = trainer(tmp_path / "b", family, TapStore(few), target, 4)
    second.run()
    assert second.progress.step == 4 and second.progress.tokens == whole.progress.tokens
    assert second.progress.epochs == whole.progress.epochs > 0
    for name, values in whole.trainee.net.state_dict().items():
        assert torch.equal(values, second.trainee.net.state_dict()[name]), name
        assert torch.equal(whole.mean.weights[name], second.mean.weights[name]), name


def test_a_killed_run_by_updates_goes_on_from_a_checkpoint_between_evaluations(tmp_path, few, monkeypatch):
    """Nothing is done at its end, and no evaluation was due yet; what is saved is that of a run that was not killed."""
    target, store = tiny_target(), TapStore(few)
    whole = trainer(tmp_path / "a", "medusa", store, target, 6)
    whole.run()
    killed, step = trainer(tmp_path / "b", "medusa", store, target, 6, evaluate_every=0.0), Trainer.step

    def step_or_die(self):
        if self.progress.step == 4:
            raise SystemExit
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", step_or_die)
        with pytest.raises(SystemExit):
            killed.run()
    second = trainer(tmp_path / "b", "medusa", store, target, 6)
    assert second.progress.step == 4
    second.run()
    for name, weights in whole.mean.weights.items():
        assert torch.equal(weights, second.mean.weights[name]), name


def test_a_time_budget_becomes_a_number_of_updates(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    torch.manual_seed(0)
    recipe = RECIPES["medusa"](target, IDS, 3)
    run = Trainer(recipe, store, LoopSettings(seconds=1e-6, rows=64), tmp_path / "run")
    assert run.run().num_steps == 8
    again = Trainer(recipe, store, LoopSettings(seconds=1e6, rows=64), tmp_path / "run")
    assert again.run().step == 8


@pytest.mark.parametrize(("later", "planned"), [(1.0, 400), (4.0, 175), (0.5, 700)])
def test_a_run_by_time_ends_in_time_whatever_becomes_of_the_machine(tmp_path, monkeypatch, later, planned):
    """An update takes a second at first, and from the hundredth on `later` seconds."""
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    now, rates = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "rate_at", lambda *of: rates.append(rate_at(*of)) or rates[-1])

    def tick(progress):
        now[0] += 1.0 if progress.step <= 100 else later

    settings = LoopSettings(seconds=400.0, rows=16, evaluate_every=20.0, patience=1000)
    done = Trainer(RECIPES["medusa"](target, IDS, 1), store, settings, tmp_path / "run", tick).run()
    assert now[0] == pytest.approx(400, abs=8) and done.step == done.num_steps == pytest.approx(planned, rel=0.03)
    assert max(rates) > 0.8 * settings.rate and rates[-1] < 0.05 * settings.rate


def test_a_finished_run_can_be_made_longer(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    assert trainer(tmp_path, "medusa", store, target, 3).run().step == 3
    longer = trainer(tmp_path, "medusa", store, target, 5)
    assert longer.progress.step == 3 and longer.run().step == 5
    assert [one["step"] for one in longer.progress.curve] == [3, 5]


def test_training_ends_when_nothing_gets_better(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    wishes = {"rate": 1e-30, "updates_between": 1, "patience": 2}
    assert trainer(tmp_path, "medusa", store, target, 50, **wishes).run().step == 3
    again = trainer(tmp_path, "medusa", store, target, 50, **wishes).run()
    assert again.step == 3 and [one["step"] for one in again.curve] == [1, 2, 3]  # and it stays ended


def test_a_run_by_time_ends_when_nothing_gets_better_and_stays_ended(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    settings = LoopSettings(seconds=1e6, rows=64, rate=1e-30, evaluate_every=0.0, patience=2)
    for _ in range(2):
        torch.manual_seed(0)
        done = Trainer(RECIPES["medusa"](target, IDS, 3), store, settings, tmp_path / "run").run()
        assert [one["step"] for one in done.curve] == [1, 2, 3]


@pytest.mark.parametrize("ended_after", [1, 2, 3, 5])
def test_what_is_saved_of_a_run_by_updates_does_not_follow_the_clock(tmp_path, few, ended_after):
    """Evaluations are those of the whole run wherever another was ended, and so is the best of them."""
    target, wishes = tiny_target(), {"rate": 0.3, "updates_between": 2, "evaluate_every": 0.0}
    whole = trainer(tmp_path / "a", "medusa", TapStore(few), target, 7, **wishes)
    whole.run()
    first = trainer(tmp_path / "b", "medusa", TapStore(few), target, 7, **wishes)
    first._watch = lambda now: signal.raise_signal(signal.SIGINT) if now.step == ended_after else None
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(tmp_path / "b", "medusa", TapStore(few), target, 7, **wishes)
    second.run()
    measured = [[{**one, "seconds": 0} for one in run.progress.curve] for run in (whole, second)]
    assert measured[0] == measured[1] and [one["step"] for one in measured[0]] == [2, 4, 6, 7]
    assert whole.best_weights is not None and second.best_weights is not None
    for name, values in whole.best_weights.items():
        assert torch.equal(values, second.best_weights[name]), name


def test_too_little_text_is_refused(tmp_path):
    target = tiny_target()
    store = TapStore(tmp_path / "taps", TAPS)
    with pytest.raises(InvalidParameter, match="have more text written"):
        trainer(tmp_path, "medusa", store, target, 5)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"num_steps": 0}, "steps"), ({"num_steps": -3}, "steps"), ({"num_steps": None}, "num_steps"),
     ({"rate": float("nan")}, "rate"), ({"rate": -1.0}, "rate"), ({"rate": float("inf")}, "rate")],
)  # fmt: skip
def test_runs_that_cannot_be_are_refused(wrong, field):
    with pytest.raises(InvalidParameter, match=f"^{field}: "):
        LoopSettings(**{"num_steps": 5, **wrong})


def test_a_run_of_another_network_is_not_gone_on_with_and_stays(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    trainer(tmp_path, "medusa", store, target, 2).run()
    kept = (tmp_path / "medusa" / "checkpoint.pt").read_bytes()
    for family, num_steps, named in (("mlp_speculator", 3, "network"), ("medusa", 4, "num_draft_tokens")):
        recipe = RECIPES[family](target, IDS, num_steps)
        with pytest.raises(InvalidParameter, match=rf"^work: .*another {named}.*repeat the options"):
            Trainer(recipe, store, LoopSettings(num_steps=2), tmp_path / "medusa")
    assert (tmp_path / "medusa" / "checkpoint.pt").read_bytes() == kept


def test_a_loss_that_is_no_number_ends_the_run_before_it_spoils_the_checkpoint(tmp_path):
    target = tiny_target()
    store = tiny_store(tmp_path / "taps", target)
    run = trainer(tmp_path, "medusa", store, target, 9)
    run.step()
    run.save()
    kept = (tmp_path / "medusa" / "checkpoint.pt").read_bytes()
    with torch.no_grad():
        next(iter(run.trainee.net.parameters())).fill_(float("nan"))
    with pytest.raises(InvalidParameter, match=r"^rate: .*after 1 updates"):
        run.run()
    assert (tmp_path / "medusa" / "checkpoint.pt").read_bytes() == kept


def test_texts_that_a_ring_forgot_are_passed_over(few):
    """Their numbers may be in the order of a checkpoint."""
    documents = [one for one in TapStore(few).documents if not one.conversation.is_held_out]
    order = Order(documents, 0)
    order.take(1)
    fewer = Order(documents[:3], 0)
    fewer.restore(order.state())
    assert {id(one) for one in fewer.take(200)} <= set(map(id, documents[:3]))


def test_replay_walks_as_a_decoder():
    assert replayed([[2, 9, 9, 0, 1, 9], []]) == pytest.approx(6 / 3)
    assert replayed([[0, 0, 0]]) == 1.0
    assert expected_length([0.5, 0.5]) == pytest.approx(1.75)


def test_the_rate_rises_and_falls():
    rates = [rate_at(step, 1000, 1.0) for step in range(1001)]
    assert rates[0] == pytest.approx(1 / 60)
    assert rates.index(max(rates)) < 70
    assert rates[-1] == pytest.approx(0.03)
