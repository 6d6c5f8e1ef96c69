"""EAGLE-3.1 heads with one norm over all taps in place of one each."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.models.heads import one_norm
from paceline.models.heads.one_norm import with_one_norm
from tests.models.heads.tiny_heads import OURS, WIDTH, random_head

CARD = {
    "check": {"tokens": [1] * 12, "acceptance": 0.5},
    "licence": "x",
    "accepted": {"chat": 1.9},
    "held_out": {"eal": 2.7},
}
TAPS = len(OURS["eagle3.1"].taps)


def states(sizes: np.ndarray) -> np.ndarray:
    """[n, taps * width] random states whose taps have these sizes [n, taps]."""
    taps = np.random.default_rng(0).normal(size=(*sizes.shape, WIDTH))
    taps /= np.sqrt(np.square(taps).mean(axis=2, keepdims=True))
    return (taps * sizes[:, :, None]).reshape(len(sizes), -1)


def normed(values: np.ndarray) -> np.ndarray:
    return values / np.sqrt(np.square(values).mean(axis=-1, keepdims=True))


def test_taps_that_keep_their_share_are_normed_as_before(monkeypatch) -> None:
    """The sizes of all taps change together from place to place: then one norm and one each are the same."""
    read = states(np.linspace(1, 9, 12)[:, None] * np.array([1.0, 3.0, 20.0]))
    monkeypatch.setattr(one_norm, "target_states", lambda *_: (None, read))
    record = random_head(OURS["eagle3.1"])
    made = with_one_norm(replace(record, card=CARD), object(), [])  # type: ignore[arg-type]
    assert made.config == replace(record.config, fc_norm=False, norm_before_fc=True, norm_output=False)
    assert dict(made.card) == {"licence": "x"}
    before = np.stack([record.tensors[f"fc_norm.{i}.weight"] for i in range(TAPS)])
    expected = (normed(read.reshape(12, TAPS, WIDTH)) * before).reshape(12, -1)
    np.testing.assert_allclose(normed(read) * made.tensors["input_norm.weight"], expected, rtol=1e-5)
    assert set(record.tensors) - set(made.tensors) == {f"fc_norm.{i}.weight" for i in range(TAPS)}


def test_the_beginning_of_a_text_does_not_count(monkeypatch) -> None:
    """States there are many times those that follow."""
    sizes = np.tile([1.0, 3.0, 20.0], (12, 1))
    record, found = random_head(OURS["eagle3.1"]), []
    for first in (1.0, 500.0):
        sizes[:4, 2] = 20.0 * first
        read = states(sizes)
        monkeypatch.setattr(one_norm, "target_states", lambda *_, read=read: (None, read))
        monkeypatch.setattr(one_norm, "own_text", lambda *_: [1] * 12)
        found.append(with_one_norm(record, object(), [1]).tensors["input_norm.weight"])  # type: ignore[arg-type]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_heads_without_norms_per_tap_are_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"EAGLE-3\.1"):
        with_one_norm(random_head(OURS["medusa"]), object(), [])  # type: ignore[arg-type]
