"""Triton's kernels are run by its interpreter here, which has to be said before a kernel is defined."""

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def eager(monkeypatch):
    """Passes are launched ahead whenever they can be."""
    from paceline.models.cuda_executor.foreseen import Foreseen

    def expect(self, rows, cache, is_right):
        self._share, self._host_seconds, self._pass_seconds = 1.0, 1.0, 1.0

    monkeypatch.setattr(Foreseen, "_expect", expect)
