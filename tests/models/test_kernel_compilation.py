"""Inner kernels are compiled inside their caller only, kept for other callers, and say so when Python calls them."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from paceline.models.compiled import disk
from paceline.models.compiled.disk import keep_on_disk
from paceline.models.compiled.kernel import entry, kernel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.ahead import compile_ahead
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.kernel_cache import compiled_forward
from paceline.models.numba_executor.sources import kernel_sources
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


SOURCE = """
from paceline.models.compiled.kernel import entry, kernel

@kernel
def double(values, i):
    values[i] *= 2

@kernel
def double_all(values):
    for i in range(len(values)):
        double(values, i)

@entry
def outer(values, others):
    double_all(values)
    double_all(others)
"""


def kernels(source):
    """An inner, a middle and an outer function, as another process would make them."""
    path = source.with_name("kernels_of_a_test.py")
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module.double, module.double_all, module.outer


def lowered(function):
    return sum(function.stats.cache_misses.values())


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    (source := tmp_path / "source.py").write_text("one")
    return source


def doubled(outer, source, kinds):
    values = [np.arange(5, dtype=kind) for kind in kinds]
    keep_on_disk(outer, [source])(*values)
    return [each.tolist() == [0, 2, 4, 6, 8] for each in values]


def test_a_kernel_is_lowered_once_for_all_its_callers(cache_folder):
    (first, _, outer), (second, middle, other) = (kernels(cache_folder) for _ in range(2))
    assert all(doubled(outer, cache_folder, ("float32", "int64")))
    assert all(doubled(other, cache_folder, ("int64", "int32")))
    assert lowered(first) == 2
    assert (lowered(middle), lowered(second)) == (1, 1), "int32 alone was new; what int64 calls is in what was found"


def test_a_kernel_whose_closure_is_another_one_in_every_process_is_not_kept(cache_folder):
    other = kernels(cache_folder)[0]

    @kernel
    def closes_over(values):
        other(values, 0)

    keep_on_disk(entry(lambda values: closes_over(values)), [cache_folder])(np.arange(3))
    assert len(list((cache_folder.parent / "cache" / "kernels").glob("inner-*"))) == 1
    assert lowered(other) == lowered(closes_over) == 1


def test_kernels_are_lowered_anew_for_other_sources_and_without_a_caller_that_is_kept(cache_folder):
    first, second, third = (kernels(cache_folder) for _ in range(3))
    assert all(doubled(first[2], cache_folder, ("float32", "int64")))
    cache_folder.write_text("two")
    assert all(doubled(second[2], cache_folder, ("float32", "int64")))
    values = np.arange(3.0, dtype=np.float32)
    third[2](values, np.arange(2))
    assert [lowered(one) for one, _, _ in (first, second, third)] == [2, 2, 2]


def test_damaged_files_and_large_kernels_are_lowered_again(cache_folder, monkeypatch):
    first, second, third = (kernels(cache_folder) for _ in range(3))
    monkeypatch.setattr(disk, "_LARGEST_INNER", 0)
    assert all(doubled(first[2], cache_folder, ("float32", "int64")))
    folder = cache_folder.parent / "cache" / "kernels"
    assert not list(folder.glob("inner-*"))
    monkeypatch.undo()
    monkeypatch.setenv("PACELINE_CACHE", str(cache_folder.parent / "cache"))
    assert all(doubled(second[2], cache_folder, ("int32", "int64")))
    for path in folder.glob("inner-*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert all(doubled(third[2], cache_folder, ("int64", "int32")))
    assert [lowered(one) for one, _, _ in (first, second, third)] == [2, 2, 2]


def test_an_error_while_a_kept_function_is_compiled_ends_the_keeping(cache_folder):
    broken = keep_on_disk(entry(lambda values: values.no_such_thing), [cache_folder])
    with pytest.raises(Exception, match="no_such_thing"):
        broken(np.arange(3))
    assert disk._Compiler.stamp is None


def test_files_with_constants_of_kernels_are_among_their_sources():
    """Compiled code holds them as numbers."""
    sources = {path.resolve() for path in kernel_sources()}
    assert all(path.is_file() for path in sources)
    trees = {path: ast.parse(path.read_text()) for path in sources if "numba_executor" in path.parts}
    named = {
        node.module
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline.")
        and any(name.name.isupper() for name in node.names)
    }  # fmt: skip
    assert "paceline.models.base" in named
    found = {Path(str(importlib.util.find_spec(str(name)).origin)).resolve() for name in named}  # type: ignore[union-attr]
    assert found <= sources


@pytest.mark.parametrize(("dtype", "kv_cache_dtype"), [("float32", "auto")])
def test_what_is_compiled_ahead_is_what_a_dense_model_needs(dtype, kv_cache_dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    compile_ahead(dtype, kv_cache_dtype).join()
    known = len(compiled_forward().signatures)
    NumbaModel(RandomCheckpoint(small_config()), dtype, 2, kv_cache_dtype=kv_cache_dtype).warm_up()
    assert len(compiled_forward().signatures) == known
    assert not list(tmp_path.glob("converted/blank*"))
