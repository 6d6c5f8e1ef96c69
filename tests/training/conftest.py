"""What the tests of training share."""

import pytest


@pytest.fixture
def quick_rise(monkeypatch):
    """Learning rates that rise in 5 updates, not 60: a text of a few tokens is learnt by heart in a few dozen."""
    monkeypatch.setattr("paceline.training.run.optimiser.WARM_UP_STEPS", 5)
