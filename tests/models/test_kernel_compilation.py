"""Inner kernels are compiled inside their caller only, and say so when Python calls them."""

import numpy as np
import pytest

from paceline.models.numba_executor import weights
from paceline.models.numba_executor.ahead import compile_ahead
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.kernel import entry, kernel
from paceline.models.numba_executor.kernel_cache import compiled_forward
from tests.fakes import RandomCheckpoint, small_config


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


@pytest.mark.parametrize(("dtype", "kv_cache_dtype"), [("float32", "auto")])
def test_what_is_compiled_ahead_is_what_a_dense_model_needs(dtype, kv_cache_dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    compile_ahead(dtype, kv_cache_dtype).join()
    known = len(compiled_forward().signatures)
    NumbaModel(RandomCheckpoint(small_config()), dtype, 2, kv_cache_dtype=kv_cache_dtype).warm_up()
    assert len(compiled_forward().signatures) == known
    assert not list(tmp_path.glob("converted/blank*"))
