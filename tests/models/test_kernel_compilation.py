"""Inner kernels are compiled inside their caller only, and say so when Python calls them."""

import numpy as np
import pytest

from paceline.models.numba_executor.kernel import entry, kernel


@kernel
def _double(values, i):
    values[i] *= 2


@kernel
def _double_all(values):
    for i in range(len(values)):
        _double(values, i)


def test_an_entry_runs_what_its_kernels_say():
    values = np.arange(5.0)
    entry(_double_all.py_func)(values)
    assert values.tolist() == [0, 2, 4, 6, 8]


def test_a_kernel_refuses_a_call_from_python():
    with pytest.raises(TypeError, match="not callable"):
        _double(np.ones(3), 1)
