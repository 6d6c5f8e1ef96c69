"""Training on another device: no operation mixes devices, and the result equals the CPU's."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.training.heads.recipes import RECIPES, Recipe  # noqa: E402
from paceline.training.run.loop import LoopSettings, Trainer  # noqa: E402
from tests.far_device import FarTensor, far_device  # noqa: E402

from .tiny import VOCAB, tiny_store, tiny_target  # noqa: E402

SETTINGS = LoopSettings(num_steps=6, rows=80, share=0.7)
IDS = np.arange(0, VOCAB, 2, dtype=np.int32)


def trained(family, target, folder, steps):
    """Some updates, their losses, and the figures after them."""
    torch.manual_seed(3)
    store = tiny_store(folder / "text", tiny_target(torch.float32))
    trainer = Trainer(RECIPES[family](target, IDS, 3), store, SETTINGS, folder / "run")
    losses = []
    for _ in range(steps):
        trainer.step()
        losses.append(trainer.progress.loss)
    figures = trainer.evaluate()
    return trainer, losses, figures


@pytest.mark.parametrize("family", RECIPES)
def test_a_run_elsewhere_learns_what_the_cpus_does(family, tmp_path, monkeypatch):
    monkeypatch.setattr(Recipe, "in_halves", lambda self, enabled=True: nullcontext())
    target = tiny_target(torch.float32)
    near, losses, figures = trained(family, target, tmp_path / "near", 4)
    with far_device() as far:
        tables = {name: getattr(target, name).to(far) for name in ("embedding", "head", "norm")}
        there = replace(target, **tables)
        ours, found, seen = trained(family, there, tmp_path / "far", 4)
        assert all(isinstance(one, FarTensor) for one in ours.trainee.net.parameters())
        np.testing.assert_allclose(found, losses, rtol=1e-4)
        record = ours.trainee.record(ours.mean.weights, {})
        ours.mean.restore(near.mean.weights)  # as they come from a checkpoint
        ours.step()
    expected = near.trainee.record(near.mean.weights, {})
    for name, values in record.tensors.items():
        np.testing.assert_allclose(values, expected.tensors[name], atol=1e-4)
    assert seen.score == pytest.approx(figures.score, abs=1e-3)
