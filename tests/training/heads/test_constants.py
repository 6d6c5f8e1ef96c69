"""The numbers of the training recipes, written down a second time: those of the papers, and our own.

Most are held by what they do. A number that is changed on purpose is changed here too, with its reason.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.training.heads.recipes import RECIPES
from paceline.training.run.optimiser import Mean, Optimiser
from paceline.training.run.trainee import Moment
from paceline.training_jobs import draft as draft_job
from paceline.training_jobs import head as head_job
from tests.training.drafts.tiny import tiny_store as draft_store
from tests.training.heads.tiny import VOCAB, tiny_store, tiny_target
from tests.training.joint.test_joint import made as joint

IDS = np.arange(VOCAB, dtype=np.int32)


def at(done=0.0):
    return Moment(done, 1.0, torch.Generator().manual_seed(0))


def head(name):
    torch.manual_seed(0)
    return RECIPES[name](tiny_target(torch.float32), IDS, 2)


def losses(recipe, store, shares):
    """Of the same documents at these shares of a run."""
    return [float(recipe.loss(store, store.documents[:2], at(done)).detach()) for done in shares]


def test_the_hybrid_begins_at_0_6(tmp_path):
    """Ours: the LK hybrid (2602.23881) after soft cross entropy."""
    store = tiny_store(tmp_path, tiny_target(), num=2)
    start, before, after, end = losses(head("eagle3"), store, (0.0, 0.599, 0.6, 0.99))
    assert start == before != after == end


@pytest.mark.parametrize("name", ["eagle", "falcon"])
def test_inputs_carry_noise_of_a_tenth(tmp_path, monkeypatch, name):
    """U(-0.1, 0.1): EAGLE-1 (Li et al. 2024, section 3.2), and Falcon (Gao et al. 2024) as it."""
    store, recipe, entered = tiny_store(tmp_path, tiny_target(), num=24), head(name), []
    enter: Any = recipe.net.enter

    def seen(tokens, states):
        entered.append(states)
        return enter(tokens, states)

    monkeypatch.setattr(recipe.net, "enter", seen)
    documents = store.documents[:24]
    recipe.loss(store, documents, at())
    states = torch.from_numpy(store.rows(documents, [2])[:, 0].view(np.int16)).view(torch.bfloat16).float()
    noise = entered[0] - states
    assert 0.098 < noise.max() < 0.1001 and -0.1001 < noise.min() < -0.098
    assert noise.std() == pytest.approx(0.1 / 3**0.5, rel=0.03)  # of a uniform law


def test_heads_of_joint_training_weigh_a_fifth_after_three_tenths(tmp_path, monkeypatch):
    """A weight lambda_0 that rises is Medusa-2's (Cai et al. 2024, section 2.2.2); 0.2 and 0.3 of a run are ours."""
    recipe, store = joint(), draft_store(tmp_path)
    monkeypatch.setattr(recipe, "_heads_loss", lambda *_: torch.tensor(1000.0))
    kept, *weighed = losses(recipe, store, (0.0, 0.03, 0.15, 0.27, 0.3, 0.31, 1.0))
    assert [each - kept for each in weighed] == pytest.approx([20, 100, 180, 200, 200, 200], abs=0.01)


def test_heads_of_joint_training_take_four_times_the_rate():
    """Medusa-2 (Cai et al. 2024, section 2.2.2)."""
    recipe = joint()
    optimiser = Optimiser(recipe.net, recipe.rate_factors())
    optimiser.step(1e-3)
    rates = {
        id(one): group["lr"] for part in optimiser._parts for group in part.param_groups for one in group["params"]
    }
    trained = {name: rates[id(one)] for name, one in recipe.net.named_parameters() if one.requires_grad}
    assert {rate for name, rate in trained.items() if name.startswith("heads.")} == {4e-3}
    assert {rate for name, rate in trained.items() if name.startswith("target.")} == {1e-3}


def test_the_running_mean_keeps_0_998():
    """Ours. Long after the start a weight that jumps is 1 - 0.998 of the way there one update later."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    mean = Mean(net)
    nn.init.ones_(net.weight)
    mean.update(net, 1_000_000)
    assert float(mean.weights["weight"]) == pytest.approx(0.002, rel=1e-4)


def test_the_first_of_two_stages_has_0_7_of_the_updates_and_the_second_a_tenth_of_the_rate():
    """Wertheimer et al. 2024: 15,000 updates and 6,000 more (0.71), from a tenth. A run: `test_two_stages.py`."""
    assert (head_job._FIRST_STAGE, head_job._SECOND_RATE) == (0.7, 0.1)


@pytest.mark.parametrize(
    ("arguments", "rate"),
    [
        ("head medusa", 2e-3),  # ours, Muon's
        ("head medusa --resume {folder}", 2e-4),  # ours: a tenth
        ("draft", 1e-3),  # ours, of layers of the target
        ("draft --begin-with {folder}", 2e-4),  # ours, of all weights of a smaller model
        ("draft --begin-with {folder} --served {folder}", 2e-5),  # ours: a tenth, as of heads
        ("draft --begin-with {folder} --lora-rank 4 --served {folder}", 1e-4),
    ],
)
def test_going_on_takes_a_tenth_of_the_rate(tmp_path, monkeypatch, arguments, rate):
    assert loop_of(arguments.format(folder=tmp_path), tmp_path, monkeypatch).rate == pytest.approx(rate)


@pytest.mark.parametrize(("arguments", "rows"), [("head medusa", 2048), ("draft --rows 4096", 4096)])
def test_an_update_has_2048_rows(tmp_path, monkeypatch, arguments, rows):
    """Ours: twice as many take 11 % less time a row, and what a row teaches then was not measured."""
    assert loop_of(arguments, tmp_path, monkeypatch).rows == rows


def loop_of(arguments, folder, monkeypatch):
    """Settings of the loop that `paceline train` with these arguments asks for."""
    jobs = []

    def ending(job, *_):
        jobs.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(head_job, "train_head", ending)
    monkeypatch.setattr(draft_job, "train_draft", ending)
    places = ["--steps", "1", "-o", str(folder / "made"), "--work", str(folder / "work")]
    CliRunner().invoke(app, ["train", *arguments.split(), *places])
    [job] = jobs
    return job.loop


def test_what_a_step_counts():
    """0.8: Medusa (Cai et al. 2024). 0.6 and as reached: ours, the half after D-PACE."""
    found = {name: (kind.decay, kind.as_reached) for name, kind in RECIPES.items()}
    assert {name: one for name, one in found.items() if one != (0.8, False)} == {
        "eagle3": (0.6, True), "eagle3_one_norm": (0.6, True), "dspark": (0.6, True), "mlp_speculator": (0.6, True),
        "blockwise": (1.0, False), "eagle": (1.0, False), "hass": (1.0, False), "falcon": (1.0, False),
    }  # fmt: skip
